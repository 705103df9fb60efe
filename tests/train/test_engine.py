"""The engine against torch's own schedules and hand-written loops; what it refuses, and what it does when asked."""

import json
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, ReduceLROnPlateau

import hypersphere as hs
from hypersphere import data
from hypersphere.models._registry import PRESETS
from hypersphere.train import Optimizer, TrainingError, automatic, derive, fit, load_run, networks, splits, tasks
from hypersphere.train import Schedule as Settings
from hypersphere.train.schedule import LearningRate
from hypersphere.train.storage import checkpoint
from tests import runs
from tests.runs import quiet, same_tensors, tiny

pytestmark = pytest.mark.slow

CNN = {"model.name": "cnn3", "model.widths": (4, 4, 6), "model.fc": 8}
CLASSES = {"model.widths": (12,)}


@pytest.fixture(autouse=True)
def _small_gan(monkeypatch):
    for name in ("generator.mhe", "discriminator.mhe"):
        monkeypatch.setitem(PRESETS, name, PRESETS[name])
    runs.small_gan()


# ------------------------------------------------------------------------------------------------------- schedules


def torchs(kind, **options):
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.3)
    return optimizer, kind(optimizer, **options)


@pytest.mark.parametrize(
    ("settings", "kind", "options"),
    [
        (
            Settings("step", milestones=(3, 7, 8), gamma=0.2, warmup=0),
            MultiStepLR,
            {"milestones": [3, 7, 8], "gamma": 0.2},
        ),
        (Settings("cosine", warmup=0), CosineAnnealingLR, {"T_max": 20}),
    ],
)
def test_schedules_are_torchs(settings, kind, options):
    ours = LearningRate(settings, 0.3, 20)
    optimizer, theirs = torchs(kind, **options)
    for step in range(21):
        assert ours.rate(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12, abs=1e-15)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("patience", [0, 3])
def test_plateau_is_torchs(patience):
    ours = LearningRate(Settings("plateau", patience=patience, gamma=0.5, warmup=0), 0.3, 100)
    optimizer, theirs = torchs(ReduceLROnPlateau, factor=0.5, patience=patience, threshold=0.0, min_lr=0, eps=0)
    draw = torch.Generator().manual_seed(0)
    rates = set()
    for step in range(100):
        assert ours.rate(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        loss = round(float(torch.rand((), generator=draw)), 1) + 1 / (step + 1)
        ours.observe(loss)
        theirs.step(loss)
        rates.add(ours.rate(step))
    assert len(rates) > 3


@pytest.mark.parametrize("name", ["cosine", "plateau"])
def test_warmup_rises_in_a_line_and_then_is_done(name):
    schedule = LearningRate(Settings(name, warmup=4), 1.0, 12)
    rates = [schedule.rate(step) for step in range(13)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[-1] == pytest.approx(0.0 if name == "cosine" else 1.0)


def test_the_rate_of_a_line_is_the_rate_of_its_step():
    config = tiny(log_every=1, **{"schedule.name": "step", "schedule.milestones": (3, 6), "optimizer.lr": 0.1})
    rates = [line["lr"] for line in runs.metrics_of(quiet(config)) if "lr" in line]
    assert rates == pytest.approx([0.1] * 3 + [0.01] * 3 + [0.001] * 6)


def test_plateau_counts_evaluations_and_in_s_opt_draws():
    config = tiny(log_every=1, eval_every=3, **{"schedule.name": "plateau", "schedule.patience": 0})
    config = derive(config, {"optimizer.lr": 8.0, "optimizer.momentum": 0.0})
    for changes, every in (({}, 3), ({"rotation.sample": 4, "rotation.every": 2}, 2)):
        result = quiet(derive(config, changes))
        train = [line for line in runs.metrics_of(result) if "lr" in line]
        means = [sum(line["loss"] for line in train[i : i + every]) / every for i in range(0, 12, every)]
        rate, best, expected = 8.0, math.inf, []
        for mean in means:
            expected += [rate] * every
            rate, best = (rate, mean) if mean < best else (rate * 0.1, best)
        assert [line["lr"] for line in train] == pytest.approx(expected)
        assert len(set(expected)) > 1


# ------------------------------------------------------------------------------------------------------- by hand


def by_hand(config, *, energy=False):
    """The same training as a loop of ten lines; the weights it ends with, and its losses."""
    torch.manual_seed(config.seed)
    model = hs.models.create("mlp", num_classes=10, widths=(8, 8), in_channels=1, input_size=(8, 8))
    groups = hs.param_groups(model, config.optimizer.weight_decay)
    optimizer = torch.optim.SGD(groups, lr=config.optimizer.lr, momentum=0.9)
    regularizer = hs.EnergyRegularizer(model) if energy else None
    train, losses, epoch = data.load("few_digits"), [], 0
    while len(losses) < config.steps:
        for inputs, labels in data.batches(train, config.data.batch_size, seed=config.seed, epoch=epoch):
            if len(losses) == config.steps:
                break
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            (loss + regularizer() if energy else loss).backward()
            if energy:  # what clip="auto" does beside an energy term
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        epoch += 1
    return model.state_dict(), losses


@pytest.mark.parametrize("energy", [False, True])
def test_the_engine_is_a_loop_by_hand(energy):
    config = tiny(log_every=1, seed=3, **({"energy.s": 2.0} if energy else {}))
    result = quiet(config)
    weights, losses = by_hand(config, energy=energy)
    same_tensors(result.model.state_dict(), weights)
    assert [line["loss"] for line in runs.metrics_of(result) if line["split"] == "train" and line["step"]] == losses


@pytest.mark.parametrize("changes", [{"energy.s": 1.0}, {"rotation.method": "cayley", "clip": 0.3}])
def test_accumulated_batches_are_a_large_one(changes):
    """The order of samples is the same, so 16 batches of 2 are one of 32; an epoch ends with a step of 2 and 1."""
    large = quiet(tiny(log_every=1, **changes))
    small = quiet(tiny(log_every=1, accumulate=16, **changes, **{"data.batch_size": 2}))
    assert [line["step"] for line in runs.metrics_of(large)] == [line["step"] for line in runs.metrics_of(small)]
    for one, two in zip(runs.metrics_of(large), runs.metrics_of(small), strict=True):
        assert one.get("loss") is None or abs(one["loss"] - two["loss"]) < 1e-6
    for one, two in zip(large.model.parameters(), small.model.parameters(), strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


def test_accumulated_batches_of_a_gan_have_noise_of_their_own():
    from hypersphere.train import splits, tasks
    from hypersphere.train.distributed import World

    config = tiny(accumulate=2, **{"model.name": "generator.mhe", "model.widths": (4, 4, 4, 4)})
    made = splits.load(config.data, 0)
    task = tasks.make(config, made, World(torch.device("cpu")))
    seen = []
    task.generator.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    for batch in next(splits.steps(made, config, 0, World(torch.device("cpu")))):
        task.generator_loss(batch)
    assert not torch.equal(*seen)


@pytest.mark.parametrize("amp", [False, "float16"])
def test_clipping_is_torchs(amp):
    """Whatever the loss and the scale of float16, a step is as long as lr·clip."""
    before = {}

    def first(model, step, line):
        if step == 0:
            before.update({name: p.detach().clone() for name, p in model.named_parameters()})

    plain = {"optimizer.lr": 2.0, "optimizer.momentum": 0.0, "optimizer.weight_decay": 0.0}
    config = tiny(steps=1, clip=0.01, amp=amp, **plain)
    after = dict(quiet(config, first).model.named_parameters())
    moved = torch.cat([(after[name.removeprefix("network.")] - p).flatten() for name, p in before.items()]).norm()
    assert float(moved.detach()) == pytest.approx(0.02, rel=1e-4)


# ------------------------------------------------------------------------------------------------------- not finite


@pytest.mark.parametrize("amp", [False, "bfloat16"])
def test_what_is_not_finite_is_caught_before_the_step(amp, tmp_path):
    config = tiny(out=str(tmp_path), checkpoint_every=1, amp=amp, **{"optimizer.lr": 1e20})
    with pytest.raises(TrainingError, match=r"loss is (nan|inf)|a gradient is not finite") as caught:
        quiet(config)
    message = str(caught.value)
    assert "\n" not in message
    kept = checkpoint.latest(tmp_path / "checkpoints")
    assert message.startswith(f"step {int(kept.name) + 1}: ")
    assert f"the last checkpoint is {kept};" in message
    assert "optimizer.lr" in message
    tensors, _ = checkpoint.load(kept)
    assert all(bool(torch.isfinite(value).all()) for value in tensors.values() if value.is_floating_point())
    assert not (tmp_path / "result.json").exists()


def test_the_phase_of_a_gan_is_named():
    changes = {"model.name": "generator.mhe", "model.widths": (4, 4, 4, 4), "optimizer.lr": 1e25}
    with pytest.raises(TrainingError, match=r"step 1: generator_loss is (nan|inf)"):
        quiet(tiny(**changes))


def test_a_gradient_that_is_not_finite_is_named():
    """The loss is finite; the square root of 0 has no gradient."""

    class Root(nn.Module):
        def __init__(self, num_classes=10):
            super().__init__()
            self.first, self.second = nn.Linear(64, 4), nn.Linear(4, num_classes)
            with torch.no_grad():
                self.first.weight.zero_()
                self.first.bias.zero_()

        def forward(self, x):
            return self.second(self.first(x.flatten(1)).abs().sqrt())

    hs.models.register("root_of_test", Root)
    with pytest.raises(TrainingError, match=r"step 1: a gradient is not finite, first in the gradient of \S*first\."):
        quiet(tiny(**{"model.name": "root_of_test", "model.widths": None}))


# ------------------------------------------------------------------------------------------------------- validation


def test_the_final_weights_are_the_best(tmp_path):
    config = tiny(out=str(tmp_path), eval_every=2, keep=9, **{"data.validation": 30, "optimizer.lr": 0.5})
    result = quiet(config)
    judged = {line["step"]: line for line in runs.metrics_of(result) if line["split"] == "validation"}
    best = max(judged.values(), key=lambda line: (line["accuracy"], -line["loss"]))["step"]
    assert result.summary.best_step == best < 12
    assert result.summary.validation["accuracy"] == judged[best]["accuracy"]
    tensors, state = checkpoint.load(tmp_path / "checkpoints" / str(best))
    weights = checkpoint.unflatten(tensors, state["tree"])["classifier"]
    same_tensors({f"network.{name}": value for name, value in result.model.state_dict().items()}, dict(weights))
    inputs, labels = next(data.batches(data.load("few_digits", None, "test"), 70, shuffle=False))
    accuracy = float((result.model(inputs).argmax(1) == labels).float().mean())
    assert result.summary.accuracy == pytest.approx(accuracy)
    assert [line["split"] for line in runs.metrics_of(result)].count("test") == 1
    assert json.loads((tmp_path / "final" / "model.json").read_text())["step"] == best


def test_patience_stops_early():
    config = tiny(steps=100, eval_every=1, patience=3, **{"data.validation": 30, "optimizer.lr": 0.5})
    result = quiet(config)
    judged = [(line["accuracy"], -line["loss"]) for line in runs.metrics_of(result) if line["split"] == "validation"]
    best = max(judged)
    waits = [i - max(range(i + 1), key=lambda j: judged[j]) for i in range(len(judged))]
    assert waits[-1] == 3
    assert max(waits[:-1]) < 3
    assert result.summary.step == len(judged) < 100
    assert result.summary.validation["accuracy"] == best[0]


# ------------------------------------------------------------------------------------------------------- init_from


def start_of(config):
    """The weights as the step 0 line sees them."""
    found = {}

    def first(model, step, line):
        if step == 0:
            found.update({name: value.detach().clone() for name, value in model.state_dict().items()})

    quiet(derive(config, steps=1), first)
    return found


@pytest.fixture(scope="module")
def softmax(tmp_path_factory):
    path = tmp_path_factory.mktemp("softmax") / "run"
    return quiet(tiny(out=str(path), **CLASSES))


def test_the_class_matrix_goes_from_softmax_to_an_angular_loss_and_back(softmax, tmp_path):
    theirs = softmax.model.state_dict()
    config = tiny(init_from=str(softmax.path), **CLASSES, **{"loss.name": "s_softmax"})
    begun = start_of(config)
    assert torch.equal(begun["head.weight"], theirs["classifier.weight"])
    assert torch.equal(begun["network.layers.0.weight"], theirs["layers.0.weight"])
    angular = quiet(derive(config, out=str(tmp_path / "angular")))
    back = start_of(tiny(init_from=str(angular.path), **CLASSES))
    assert torch.equal(back["network.classifier.weight"], angular.model.head.weight)


def test_progressive_rotations(tmp_path):
    """Trained rotations are merged and are the neurons that the next run rotates; the function is the same at first."""
    first = tiny(out=str(tmp_path / "a"), **{"rotation.method": "cayley", "optimizer.lr": 0.1})
    merged = quiet(first).model
    assert not any("parametrizations" in name for name in merged.state_dict())
    second = derive(first, out=str(tmp_path / "b"), init_from=str(tmp_path / "a"))
    inputs = torch.randn(5, 1, 8, 8)
    seen = []

    def look(model, step, line):
        if step == 0:
            seen.append(model(inputs).detach())

    again = quiet(second, look).model
    torch.testing.assert_close(seen[0], merged(inputs), atol=1e-5, rtol=1e-5)
    same = [hs.hyperspherical_energy(model.layers[0].weight) for model in (merged, again)]
    torch.testing.assert_close(*same, atol=1e-4, rtol=1e-4)
    assert not torch.equal(merged.layers[0].weight, again.layers[0].weight)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model.widths": (13,)}, r"layers\.0\.weight is \(12, 64\) there and \(13, 64\) here"),
        ({"model.widths": (12, 12)}, r"it has no layers\.2\."),
        ({"model.widths": ()}, r"unexpected tensor layers\.0\.|classifier"),
        ({**CNN}, "does not fit: "),
    ],
)
def test_a_start_that_does_not_fit(softmax, changes, what):
    with pytest.raises(ValueError, match=what) as caught:
        quiet(tiny(init_from=str(softmax.path), **changes))
    assert "\n" not in str(caught.value)
    assert str(softmax.path) in str(caught.value)


def test_other_classes_begin_anew(softmax):
    begun = start_of(tiny(init_from=str(softmax.path), **CLASSES, **{"data.name": "three_digits"}))
    assert begun["network.classifier.weight"].shape == (3, 12)
    assert torch.equal(begun["network.layers.0.weight"], softmax.model.layers[0].weight)


def three_digits(root, split):
    whole = runs.few_digits(root, split)
    rows = (whole.labels < 3).nonzero().flatten()
    return data.ArrayDataset(whole.inputs[rows], whole.labels[rows], list("012"))


data.register("three_digits", three_digits)


@pytest.mark.parametrize("path", ["nothing/here", "."])
def test_a_start_that_is_no_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="init_from"):
        quiet(tiny(init_from=path))


# ------------------------------------------------------------------------------------------------------- folders


def test_the_folder_of_another_run_is_refused(softmax, tmp_path):
    before = sorted((file, file.read_bytes()) for file in softmax.path.rglob("*") if file.is_file())
    with pytest.raises(ValueError, match="already holds a run"):
        quiet(tiny(out=str(softmax.path)))
    with pytest.raises(ValueError, match=r"another run: there optimizer\.lr is 0\.02, here it is 0\.5"):
        quiet(tiny(out=str(softmax.path), resume=True, **CLASSES, **{"optimizer.lr": 0.5}))
    with pytest.raises(ValueError, match=r"energy\.\w+ is null, here it is"):
        quiet(tiny(out=str(softmax.path), resume=True, **CLASSES, **{"energy.s": 1.0}))
    assert before == sorted((file, file.read_bytes()) for file in softmax.path.rglob("*") if file.is_file())
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not a run folder"):
        quiet(tiny(out=str(tmp_path)))
    with pytest.raises(ValueError, match="must be a folder"):
        quiet(tiny(out=str(tmp_path / "mine.txt")))
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_a_finished_run_is_returned_at_once(softmax):
    before = {file: file.stat().st_mtime_ns for file in softmax.path.rglob("*") if file.name != "config.json"}
    called = []
    again = fit(derive(softmax.config, resume=True), callbacks=[lambda *_: called.append(1)], progress=False)
    assert not called
    assert again.summary == softmax.summary
    assert runs.metrics_of(again) == runs.metrics_of(softmax)
    same_tensors(again.model.state_dict(), softmax.model.state_dict())
    after = {file: file.stat().st_mtime_ns for file in softmax.path.rglob("*") if file.name != "config.json"}
    assert before == after


def test_the_length_of_a_cosine_cannot_change(tmp_path):
    config = tiny(out=str(tmp_path), **{"schedule.name": "cosine"})
    quiet(config)
    with pytest.raises(ValueError, match="there steps is 12, here it is 20"):
        quiet(derive(config, resume=True, steps=20))


def test_nothing_is_written_without_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert quiet(tiny()).path is None
    assert list(tmp_path.iterdir()) == []


def test_callbacks_see_the_lines_and_the_random_state_is_left_alone(tmp_path):
    torch.manual_seed(5)
    before, seen = torch.random.get_rng_state(), []

    def callback(model, step, line):
        assert isinstance(model, nn.Module)
        torch.rand(7)  # what a callback draws changes nothing
        seen.append((step, dict(line)))
        line.clear()

    result = quiet(tiny(out=str(tmp_path)), callback)
    assert torch.equal(before, torch.random.get_rng_state())
    assert [line for _, line in seen] == runs.metrics_of(result)
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == runs.metrics_of(
        result
    )
    assert [step for step, _ in seen] == [0, 3, 5, 6, 9, 10, 12, 12]
    same_tensors(result.model.state_dict(), quiet(tiny()).model.state_dict())
    with pytest.raises(ZeroDivisionError):
        quiet(tiny(), lambda *_: 1 / 0)
    assert torch.equal(before, torch.random.get_rng_state())


# ------------------------------------------------------------------------------------------------------- other tasks


@pytest.mark.parametrize(
    ("model", "dataset", "widths", "least"),
    [
        ("transformer_of_test", "letters_of_test", None, 0.9),
        ("gcn", "graph_of_test", (8,), 1.0),
        ("pointnet_of_test", "points_of_test", None, 0.8),
    ],
)
def test_text_graphs_and_points_are_learned(model, dataset, widths, least):
    changes = {"model.name": model, "model.widths": widths, "data.name": dataset}
    result = quiet(tiny(steps=60, eval_every=20, **changes, **{"optimizer.name": "adam", "optimizer.lr": 0.03}))
    assert result.summary.split == "test"
    assert result.summary.accuracy >= least


def test_a_gan_learns_to_make_images():
    """Its images come nearer to the mean of the data than noise through a network that has learned nothing."""
    changes = {"model.name": "generator.mhe", "model.widths": (8, 8, 8, 8), "optimizer.name": "adam"}
    rates = {"optimizer.lr": 0.005, "optimizer.betas": (0.5, 0.9)}
    config = tiny(steps=150, eval_every=150, log_every=10, **changes, **rates)
    result = quiet(config)
    train = (data.load("few_digits").inputs.float() - 127.5) / 128
    noise = torch.randn(200, 4)
    made = result.model(noise).detach()
    untrained = quiet(derive(config, {"steps": 1, "eval_every": 1})).model(noise).detach()
    distance = [float((images.mean(0) - train.mean(0)).norm()) for images in (made, untrained)]
    assert made.shape == (200, 1, 8, 8)
    assert distance[0] < 0.6 * distance[1]
    assert {"discriminator_loss", "generator_loss"} <= set(runs.metrics_of(result)[-2])
    assert all("accuracy" not in line for line in runs.metrics_of(result))


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    config = tiny(steps=4, eval_every=4, log_every=1)
    plain, compiled = quiet(config), quiet(derive(config, compile=True))
    for one, two in zip(runs.metrics_of(plain), runs.metrics_of(compiled), strict=True):
        assert one.get("loss") is None or abs(one["loss"] - two["loss"]) < 1e-5


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({"model.name": "cnn3"}, 2.0),  # √144/6: 16 channels of 3 × 3
        ({"model.name": "cnn3.spherenet"}, None),  # the paper's network has none
        ({"model.name": "cnn3.spherenet", "model.scale": 2.0}, 2.0),
        ({"model.name": "cnn3", "model.scale": None}, None),  # as in the config of an older run
    ],
)
def test_the_scale_of_a_similarity_is_automatic_but_for_the_papers_networks(changes, scale):
    config = derive(tiny(), {"model.similarity": "cosine", "model.widths": (16, 4, 4)} | changes)
    spec = splits.load(config.data, config.seed).spec
    network = networks.build_network(config.model, spec, num_classes=10)
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert convolutions[1].scale == scale


def test_annealing_goes_by_steps_however_many_batches_they_have():
    changes = {"loss.name": "a_softmax", "steps": 5, "eval_every": 5}
    one = quiet(tiny(**changes, **{"data.batch_size": 32})).model
    two = quiet(tiny(**changes, **{"data.batch_size": 16, "accumulate": 2})).model
    assert int(one.head.step) == int(two.head.step) == 5
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-5)


def test_a_gan_takes_over_both_networks(tmp_path, monkeypatch):
    runs.small_gan()
    config = tiny(steps=2, **{"model.name": "generator.mhe", "model.widths": (4, 4, 4, 4)})
    quiet(derive(config, out=str(tmp_path)))
    started = {}
    make = tasks.make

    def recorded(*arguments):
        task = make(*arguments)
        for name, module in task.modules.items():
            started[name] = {key: value.clone() for key, value in module.state_dict().items()}
        return task

    monkeypatch.setattr(tasks, "make", recorded)
    quiet(derive(config, init_from=str(tmp_path), seed=5, steps=1))
    same_tensors(started["generator"], load_run(tmp_path).model.state_dict())
    final = load_file(tmp_path / "final" / "discriminator.safetensors")
    assert all(torch.equal(value, final[key]) for key, value in started["discriminator"].items())


def test_a_callback_may_look_in_eval_mode():
    config = tiny(**{"model.name": "own_of_test", "model.widths": None})
    losses = [
        [line["loss"] for line in runs.metrics_of(quiet(config, *callbacks)) if "loss" in line]
        for callbacks in ((), (lambda model, step, line: model.eval(),))
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_fit_learns_where_gradients_are_off(around):
    plain = quiet(tiny())
    with around():
        inside = quiet(tiny())
    assert inside.summary.loss == plain.summary.loss


def test_fit_in_double_precision():
    torch.set_default_dtype(torch.float64)
    try:
        model = quiet(tiny()).model
    finally:
        torch.set_default_dtype(torch.float32)
    assert {p.dtype for p in model.parameters()} == {torch.float64}


def test_gradients_too_large_for_their_type_are_named():
    config = tiny(**{"energy.norm_weight": 3e38})
    with pytest.raises(TrainingError, match=r"step 1: (the gradients are too large|a gradient is not finite)"):
        quiet(config)


# ----------------------------------------------------------------------------------------------------------- display


def test_the_first_lines_say_what_is_trained_and_how(capsys):
    fit(tiny(steps=1, optimizer={"lr": "auto"}), progress=True)
    spherical = {"energy": {}, "rotation": {}, "loss": {"name": "arcface"}, "model.similarity": "cosine"}
    fit(tiny(steps=1, **spherical, optimizer={"name": "adamw", "lr": 0.02}))
    first, sgd, plain, *_, second, adamw, with_all, _ = capsys.readouterr().err.splitlines()
    assert first == second == "mlp on few_digits: 1 steps"
    assert sgd == "optimizer sgd, learning rate 0.05"  # chosen: half a batch of 64
    assert adamw == "optimizer adamw, learning rate 0.02"
    assert automatic.describe_rate(Optimizer("muon", 0.1)).endswith("rate 0.1, 0.003 for the rest")
    assert plain == "mlp, plain: no sphere layers, energy or rotations"
    assert with_all == "mlp with sphere layers, loss arcface, energy, rotations"
