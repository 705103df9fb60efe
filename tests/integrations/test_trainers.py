"""The callbacks in the real trainers: the energy as a term, steps counted, resume to the bit, merge at the end.

A training of ten optimizer steps of two accumulated batches each, five steps an epoch, is saved after its seventh step:
in the middle of an epoch, of stochastic OPT's inner loop (three steps), and of the draws of the energy's minibatches.
"""

import copy
import re
from pathlib import Path

import accelerate
import lightning.pytorch as lightning
import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F

import hypersphere as hs

STEPS, STOP, INNER, ACCUMULATE, CLIP, LR = 10, 7, 3, 2, 0.5, 0.05
PAGE = (Path(__file__).parents[2] / "docs" / "packages.md").read_text(encoding="utf-8")


class Net(nn.Module):
    """Returns loss and logits, as the Trainer of transformers wants them."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8))
        self.fc = nn.Linear(8, 4)

    def forward(self, x, labels):
        logits = self.fc(self.body(x))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Rows(torch.utils.data.Dataset):
    def __init__(self, count=40):
        generator = torch.Generator().manual_seed(3)
        self.x, self.labels = torch.randn(count, 10, generator=generator), torch.arange(count) % 4

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.labels[i]}


def parts(seed=0, sample=True):
    """A network with stochastic OPT in one layer, and the energy of the others, of minibatches of neurons."""
    torch.manual_seed(seed)
    net = Net()
    if sample:
        hs.rotate(net, sample=5, layers="body.2")
    return net, hs.EnergyRegularizer(net, layers=["body.0", "body.4"], minibatch=5, hidden_weight=0.5)


def sgd(net):
    return torch.optim.SGD(hs.param_groups(net), lr=LR, momentum=0.9)


def literal(steps=STEPS, energy_weight=1.0):
    """The parameters after a plain loop over the same batches, the energy a term of the loss, and its values."""
    net, energy = parts(sample=False)
    optimizer, rows, values = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9), Rows(), []
    batches = [range(i, i + 4) for i in range(0, 40, 4)]
    groups = [batches[i : i + ACCUMULATE] for i in range(0, len(batches), ACCUMULATE)]
    for step in range(steps):
        group = groups[step % len(groups)]
        values.append(energy())
        loss = sum(net(rows.x[list(b)], rows.labels[list(b)])["loss"] for b in group) / len(group)
        optimizer.zero_grad()
        (loss + energy_weight * values[-1]).backward()
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
    return net, [value.item() for value in values]


def assert_same(a, b):
    for (key, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(x, y), key


def assert_close(a, b):
    for (key, x), y in zip(a.named_parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6, msg=key)


def assert_counted(net, steps):
    task = net.body[2].parametrizations.weight[0].default
    assert (task.draw.item(), task.inner.item()) == divmod(steps, INNER)


def assert_merged(net, reference):
    """Plain again, and the same function as the network that was not merged."""
    assert list(net.state_dict()) == list(Net().state_dict())
    with torch.no_grad():
        torch.testing.assert_close(net(Rows().x, Rows().labels)["logits"], reference(Rows().x, Rows().labels)["logits"])


# transformers


class TestTransformers:
    def train(self, folder, net, callback, *, steps=STEPS, resume=None, optimizer=None, shuffle=True, **options):
        options = {
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": ACCUMULATE,
            "max_grad_norm": CLIP,
            "lr_scheduler_type": "constant",
            "train_sampling_strategy": "random" if shuffle else "sequential",
            "logging_steps": 1,
            "save_steps": STOP,
            **options,
        }
        arguments = transformers.TrainingArguments(
            str(folder), max_steps=steps, report_to=[], use_cpu=True, disable_tqdm=True, **options
        )
        optimizers = (sgd(net) if optimizer is None else optimizer, None)
        trainer = transformers.Trainer(
            net, arguments, train_dataset=Rows(), callbacks=[callback], optimizers=optimizers
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    def test_energy_is_a_term_of_the_loss_and_in_the_logs(self, tmp_path):
        net, energy = parts(sample=False)
        optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
        callback = hs.integrations.TransformersCallback(energy)
        trainer = self.train(tmp_path, net, callback, optimizer=optimizer, shuffle=False)
        expected, values = literal()
        assert_close(net, expected)
        logged = [line["energy"] for line in trainer.state.log_history if "loss" in line]
        assert logged == pytest.approx(values, rel=1e-4)

    def test_resume_is_bit_identical(self, tmp_path):
        net, energy = parts()
        self.train(tmp_path, net, hs.integrations.TransformersCallback(energy, every=INNER, merge=False))
        assert_counted(net, STEPS)
        assert energy.draws == STEPS
        again, its_energy = parts(seed=9)
        callback = hs.integrations.TransformersCallback(its_energy, every=INNER, merge=False)
        self.train(tmp_path, again, callback, resume=f"{tmp_path}/checkpoint-{STOP}")
        assert its_energy.draws == STEPS
        assert_same(net, again)

        third, energy = parts()
        self.train(tmp_path / "third", third, hs.integrations.TransformersCallback(energy, every=INNER))
        assert_merged(third, net)

    def test_a_callback_that_comes_first_tells_the_reporters(self, tmp_path):
        seen = []

        class Reporter(transformers.TrainerCallback):
            def on_log(self, args, state, control, logs=None, **_):
                seen.append("energy" in logs)

        net, energy = parts()
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=2, logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True
        )
        trainer = transformers.Trainer(
            net, arguments, train_dataset=Rows(), callbacks=[Reporter()], optimizers=(sgd(net), None)
        )
        trainer.callback_handler.callbacks.insert(0, hs.integrations.TransformersCallback(energy))
        trainer.train()
        assert seen == [True, True, False]  # the last is the summary

    def test_gradient_has_the_scale_of_a_scaler(self):
        gradients = []
        for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
            net, energy = parts()
            optimizer = sgd(net)
            optimizer.scaler = scaler  # as accelerate's wrapper has it
            if scaler is not None:
                scaler.scale(torch.ones(()))
            hs.integrations.TransformersCallback(energy).on_step_begin(None, None, None, optimizer=optimizer)
            gradients.append(net.body[0].weight.grad)
        torch.testing.assert_close(gradients[0] * 1024, gradients[1])

    def test_a_real_model(self, tmp_path):
        """BERT, rotated and sampled: the Trainer's own checkpoint of a PreTrainedModel resumes it."""
        config = transformers.BertConfig(
            vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
        )
        data = [{"input_ids": torch.tensor([i % 20, 3, i % 7]), "labels": i % 2} for i in range(24)]

        def run(seed, folder, resume=None, merge=False):
            torch.manual_seed(seed)
            bert = transformers.BertForSequenceClassification(config)
            hs.rotate(bert, sample=0.5, layers="*.intermediate.dense")
            energy = hs.EnergyRegularizer(bert, layers="*.query")
            arguments = transformers.TrainingArguments(
                str(folder), max_steps=6, save_steps=4, per_device_train_batch_size=4, report_to=[], use_cpu=True,
                disable_tqdm=True,
            )  # fmt: skip
            callback = hs.integrations.TransformersCallback(energy, every=3, merge=merge)
            transformers.Trainer(bert, arguments, train_dataset=data, callbacks=[callback]).train(
                resume_from_checkpoint=resume
            )
            return bert

        first = run(0, tmp_path)
        assert_same(first, run(1, tmp_path, f"{tmp_path}/checkpoint-4"))
        merged = run(0, tmp_path / "merged", merge=True)
        merged.save_pretrained(tmp_path / "plain")
        plain = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "plain")
        tokens = torch.tensor([[1, 2, 3]])
        with torch.no_grad():
            for one in (first.eval(), merged.eval()):
                torch.testing.assert_close(one(tokens).logits, plain.eval()(tokens).logits, rtol=1e-4, atol=1e-5)


# Lightning


class TestLightning:
    def train(self, folder, net, callback, *, optimizer=sgd, resume=None, shuffle=False, **options):
        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = net

            def training_step(self, batch, _):
                return net(**batch)["loss"]

            def configure_optimizers(self):
                return optimizer(self)

        class Loader:
            """Batches in an order that depends on the epoch only, with a state: Lightning skips none by itself."""

            epoch = position = 0

            def __len__(self):
                return 10

            def __iter__(self):
                order = torch.randperm(40, generator=torch.Generator().manual_seed(self.epoch))
                while self.position < 10:
                    rows = (order if shuffle else torch.arange(40))[4 * self.position : 4 * self.position + 4]
                    self.position += 1
                    yield {"x": Rows().x[rows], "labels": Rows().labels[rows]}
                self.epoch, self.position = self.epoch + 1, 0

            def state_dict(self):
                return {"epoch": self.epoch, "position": self.position}

            def load_state_dict(self, state):
                self.epoch, self.position = state["epoch"], state["position"]

        save = lightning.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=STOP, save_top_k=-1)
        options = {"gradient_clip_val": CLIP, "accumulate_grad_batches": ACCUMULATE, "max_steps": STEPS, **options}
        trainer = lightning.Trainer(
            accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[callback, save], default_root_dir=folder, **options,
        )  # fmt: skip
        trainer.fit(Module(), Loader(), ckpt_path=resume, **({"weights_only": True} if resume else {}))
        return trainer

    def test_energy_is_a_term_of_the_loss_and_in_the_logs(self, tmp_path):
        net, energy = parts(sample=False)
        callback = hs.integrations.LightningCallback(energy)
        trainer = self.train(
            tmp_path, net, callback, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=LR, momentum=0.9),
        )  # fmt: skip
        expected, values = literal()
        assert_close(net, expected)
        assert trainer.callback_metrics["energy"].item() == pytest.approx(values[-1], rel=1e-4)

    def test_resume_is_bit_identical(self, tmp_path):
        net, energy = parts()
        self.train(tmp_path, net, hs.integrations.LightningCallback(energy, every=INNER, merge=False), shuffle=True)
        assert_counted(net, STEPS)
        assert energy.draws == STEPS
        again, its_energy = parts(seed=9)
        callback = hs.integrations.LightningCallback(its_energy, every=INNER, merge=False)
        self.train(tmp_path, again, callback, resume=f"{tmp_path}/step={STOP}.ckpt", shuffle=True)
        assert its_energy.draws == STEPS
        assert_same(net, again)

        third, energy = parts()
        self.train(tmp_path / "third", third, hs.integrations.LightningCallback(energy, every=INNER), shuffle=True)
        assert_merged(third, net)
        saved = torch.load(tmp_path / "third" / f"step={STOP}.ckpt", weights_only=True)["state_dict"]
        assert any("parametrizations" in key for key in saved)  # written before the merge

    def test_each_optimizer_gets_its_own_layers(self, tmp_path):
        """An optimizer that holds none of the layers draws nothing."""
        net, energy = parts(sample=False)
        callback = hs.integrations.LightningCallback(energy)

        class Module(lightning.LightningModule):
            automatic_optimization = False

            def __init__(self):
                super().__init__()
                self.net = net

            def training_step(self, batch, _):
                loss = net(**batch)["loss"]
                body, head = self.optimizers()
                self.manual_backward(loss)
                body.step()
                head.step()

            def configure_optimizers(self):
                return [torch.optim.SGD(part.parameters(), lr=0.0) for part in (net.body, net.fc)]

        trainer = lightning.Trainer(
            accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, max_steps=6,
            callbacks=[callback], enable_checkpointing=False,
        )  # fmt: skip
        trainer.fit(Module(), torch.utils.data.DataLoader(Rows(), 4))
        assert energy.draws == 3


# accelerate


class TestAccelerate:
    def train(self, folder, net, energy, *, optimizer=sgd, resume=False, shuffle=True, steps=STEPS):
        accelerator = accelerate.Accelerator(
            cpu=True, gradient_accumulation_steps=ACCUMULATE,
            dataloader_config=accelerate.utils.DataLoaderConfiguration(use_seedable_sampler=True),
        )  # fmt: skip
        term, values = hs.integrations.AccelerateEnergy(accelerator, energy), []
        accelerate.utils.set_seed(5)
        loader = torch.utils.data.DataLoader(Rows(), 4, shuffle=shuffle)
        model, optimizer, loader = accelerator.prepare(net, optimizer(net), loader)
        if any(True for key in net.state_dict() if key.endswith("dims")):
            hs.Resampler(model, optimizer, INNER)
        done = 0
        if resume:
            accelerator.load_state(folder, load_kwargs={"weights_only": True})
            done = STOP
        for epoch in range(done // 5, 3):
            loader.set_epoch(epoch)
            skipped = ACCUMULATE * (done % 5)
            for batch in accelerator.skip_first_batches(loader, skipped) if skipped else loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(**batch)["loss"])
                    value = term(optimizer)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), CLIP)
                        values.append(value.item())
                    optimizer.step()
                    optimizer.zero_grad()
                if accelerator.sync_gradients:
                    done += 1
                    if done == STOP and not resume:
                        accelerator.save_state(folder)
                if done == steps:
                    return values
        raise AssertionError

    def test_energy_is_a_term_of_the_loss(self, tmp_path):
        net, energy = parts(sample=False)
        plain = lambda m: torch.optim.SGD(m.parameters(), lr=LR, momentum=0.9)  # noqa: E731
        values = self.train(tmp_path, net, energy, optimizer=plain, shuffle=False, steps=5)
        expected, wanted = literal(5)
        assert_close(net, expected)
        assert values == pytest.approx(wanted, rel=1e-4)

    def test_resume_is_bit_identical(self, tmp_path):
        net, energy = parts()
        self.train(tmp_path, net, energy)
        assert_counted(net, STEPS)
        again, its_energy = parts(seed=9)
        self.train(tmp_path, again, its_energy, resume=True)
        assert (energy.draws, its_energy.draws) == (STEPS, STEPS)
        assert_same(net, again)
        assert_merged(hs.merge(copy.deepcopy(net)), net)


# the page, and bad input


@pytest.mark.parametrize("package", ["transformers", "lightning", "accelerate"])
def test_the_page_runs(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```py\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    namespace = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[:1]:
        exec(block, namespace)
    (own,) = (block for block in blocks if f"import {package}" in block)
    exec(own, namespace)


@pytest.mark.parametrize("name", ["TransformersCallback", "LightningCallback"])
def test_wrong_arguments_and_missing_packages(name, monkeypatch):
    callback = getattr(hs.integrations, name)
    with pytest.raises(TypeError, match="energy"):
        callback(lambda: 0.0)
    with pytest.raises(ValueError, match="every"):
        callback(every=0)
    monkeypatch.setattr(callback, "base", None)
    with pytest.raises(ImportError, match=rf"{name} needs {callback.package}: pip install .*\[{callback.package}\]"):
        callback()
