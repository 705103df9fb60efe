"""What a reviewer of the engine found, kept from coming back."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere import data, models
from hypersphere.data._registry import LOADERS
from hypersphere.models._registry import PRESETS
from hypersphere.train import TrainingError, derive, fit
from hypersphere.train.distributed import World
from hypersphere.train.storage import folder
from tests import runs
from tests.runs import tiny


@pytest.fixture(autouse=True)
def _tables(monkeypatch):
    monkeypatch.setattr("hypersphere.data._registry.LOADERS", dict(LOADERS))
    monkeypatch.setattr("hypersphere.models._registry.PRESETS", dict(PRESETS))


def quiet(config, *callbacks):
    return fit(config, callbacks=callbacks, progress=False)


def refused(config):
    """The one line of a ValueError."""
    with pytest.raises(ValueError) as caught:
        quiet(config)
    text = str(caught.value)
    assert "\n" not in text
    return text


# ------------------------------------------------------------------------------------------------------- folders


def test_what_is_somebody_else_s_is_left_alone(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert "model_type is unknown" in refused(tiny(out=str(tmp_path)))
    (tmp_path / "model.safetensors").write_text("w")
    assert "other files and no run, model.safetensors say" in refused(tiny(out=str(tmp_path)))
    assert (tmp_path / "config.json").read_text() == '{"model_type": "bert"}'


def test_notes_in_the_folder_of_a_run_do_not_keep_it_from_going_on(tmp_path):
    quiet(tiny(out=str(tmp_path), steps=6))
    (tmp_path / "notes.txt").write_text("mine")
    assert quiet(tiny(out=str(tmp_path), steps=12, resume=True)).summary["step"] == 12
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_is_one_process_s_at_a_time(tmp_path):
    config = tiny(out=str(tmp_path))
    with folder.settled(config, World(torch.device("cpu"))):
        assert refused(config) == f"out={tmp_path}: another process is training there"
    assert quiet(config).summary["step"] == 12
    assert not (tmp_path / ".lock").exists()


def test_a_run_cannot_be_made_shorter(tmp_path):
    quiet(tiny(out=str(tmp_path), steps=9))
    assert "is at step 9 already, beyond the 5 asked for" in refused(tiny(out=str(tmp_path), steps=5, resume=True))
    assert json.loads((tmp_path / "config.json").read_text())["steps"] == 9


# ------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("loss", ["a_softmax", "sphereface_plus"])
def test_annealing_goes_by_steps_however_many_batches_they_have(loss):
    changes = {"loss.name": loss, "steps": 5, "eval_every": 5}
    one = quiet(tiny(**changes, **{"data.batch_size": 32})).model
    two = quiet(tiny(**changes, **{"data.batch_size": 16, "accumulate": 2})).model
    assert int(one.head.step) == int(two.head.step) == 5
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-5)


def test_a_head_is_taken_over_whole_but_for_its_annealing(tmp_path):
    changes = {"loss.name": "ga_softmax", "loss.similarity": "learnable"}
    first = quiet(tiny(out=str(tmp_path / "first"), **changes, **{"optimizer.lr": 0.5}))
    seen = {}

    def look(model, step, line):
        if step == 0:
            seen.update({key: value.clone() for key, value in model.state_dict().items()})

    quiet(tiny(init_from=str(tmp_path / "first"), steps=1, seed=7, **changes), look)
    for key, value in first.model.state_dict().items():
        if key != "head.step":
            assert torch.equal(seen[key], value), key
    assert seen["head.step"] == 0
    assert first.model.state_dict()["head.step"] == 12


def test_a_gan_takes_over_both_networks(tmp_path):
    runs.small_gan()
    first = {}
    second = {}

    def look(into, at):
        def callback(model, step, line):
            if step == at:
                into.update({key: value.clone() for key, value in model.state_dict().items()})

        return callback

    config = tiny(steps=2, **{"model.name": "generator.mhe", "model.widths": (4, 4, 4, 4)})
    quiet(derive(config, out=str(tmp_path / "first")), look(first, 2))
    tasks = []
    from hypersphere.train import tasks as module

    make = module.make

    def kept(*given):
        tasks.append(make(*given))
        second["discriminator"] = {k: v.clone() for k, v in tasks[0].discriminator.state_dict().items()}
        return tasks[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "make", kept)
        quiet(derive(config, init_from=str(tmp_path / "first"), seed=5, steps=1), look(second, 0))
    from safetensors.torch import load_file

    theirs = load_file(tmp_path / "first" / "final" / "discriminator.safetensors")
    assert all(torch.equal(value, theirs[key]) for key, value in second["discriminator"].items())
    assert all(torch.equal(second[key], value) for key, value in first.items())


def test_a_callback_may_look_in_eval_mode():
    config = tiny(**{"model.name": "own_of_test", "model.widths": None})
    losses = [
        [line["loss"] for line in quiet(config, *callbacks).metrics if "loss" in line]
        for callbacks in ((), (lambda model, step, line: model.eval(),))
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_fit_learns_where_gradients_are_off(around):
    plain = quiet(tiny())
    with around():
        inside = quiet(tiny())
    assert inside.summary["loss"] == plain.summary["loss"]


def test_fit_in_double_precision():
    torch.set_default_dtype(torch.float64)
    try:
        model = quiet(tiny()).model
    finally:
        torch.set_default_dtype(torch.float32)
    assert {p.dtype for p in model.parameters()} == {torch.float64}


def test_without_a_test_split_the_figures_are_those_of_the_weights(tmp_path):
    from PIL import Image

    g = torch.Generator().manual_seed(0)
    for name in ("heads", "tails"):  # nothing to be learned: which step is the best is chance
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(20):
            pixels = torch.randint(256, (6, 6, 3), dtype=torch.uint8, generator=g).numpy()
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{i}.png")
    changes = {"data.name": "image_folder", "data.root": str(tmp_path / "pets"), "data.validation": 0.4}
    result = quiet(tiny(out=str(tmp_path / "run"), eval_every=1, **changes, **{"optimizer.lr": 0.5}))
    summary = result.summary
    assert summary["best_step"] < 12  # or this shows nothing
    assert (summary["split"], summary["accuracy"]) == ("validation", summary["validation"]["accuracy"])
    from hypersphere.train.inference.scores import scores

    again = scores(hs.load_run(tmp_path / "run"))
    assert again["accuracy"] == summary["accuracy"]
    assert again["energy"] == pytest.approx(summary["energy"], rel=1e-6)


# ----------------------------------------------------------------------------------------------- what does not fit


def own(inputs, labels, classes=("a", "b", "c"), **more):
    whole = torch.utils.data.TensorDataset(inputs, labels)
    whole.inputs, whole.labels = inputs, labels
    if classes is not None:
        whole.classes = list(classes)
    data.register("own", lambda root, split: whole)
    return tiny(**{"steps": 2, "data.name": "own", "data.batch_size": 4, **more})


X, Y = torch.randn(12, 5), torch.arange(12) % 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_numbers_of_other_types_are_taken(dtype):
    assert quiet(own(X.to(dtype), Y.int())).summary["step"] == 2


@pytest.mark.parametrize(
    ("inputs", "labels", "said"),
    [
        (X, Y.float(), "split train must have one integer a sample as labels, got (12,) torch.float32"),
        (X, Y[:, None], "split train must have one integer a sample as labels, got (12, 1) torch.int64"),
        (X[:0], Y[:0], "split train has no samples"),
        (X, Y + 1, "split train has label 3, but there are 3 classes"),
        (X > 0, Y, "does not fit data.name=own"),
    ],
)
def test_data_that_cannot_be_learned_from(inputs, labels, said):
    assert said in refused(own(inputs, labels))


def test_a_network_that_does_not_fit_leaves_nothing_behind(tmp_path):
    models.register("two_of_three", lambda num_classes=3: nn.Linear(5, 2))
    models.register("pair", lambda num_classes=3: Pair())
    models.register("narrow", lambda num_classes=3: nn.Linear(4, num_classes))
    for name, said in (
        ("two_of_three", "it must give a logit for each of 3 classes, (B, 3), got (2, 2)"),
        ("pair", "it must give a logit for each of 3 classes, (B, 3), got tuple"),
        ("narrow", "model.name=narrow does not fit data.name=own: mat1 and mat2"),
    ):
        config = own(X, Y, **{"model.name": name, "model.widths": None, "out": str(tmp_path / name)})
        assert said in refused(config)
        assert not (tmp_path / name).exists()


class Pair(nn.Linear):
    def __init__(self):
        super().__init__(5, 3)

    def forward(self, x):
        return x, x


def test_inputs_that_are_not_finite_are_named():
    inputs = X.clone()
    inputs[7, 2] = torch.nan
    with pytest.raises(TrainingError, match="its inputs are not finite: look at the data"):
        quiet(own(inputs, Y, steps=6))


def test_gradients_too_large_for_their_type_are_named():
    config = tiny(**{"energy.weight_decay": 3e38})
    with pytest.raises(TrainingError, match=r"step 1: (the gradients are too large|a gradient is not finite)"):
        quiet(config)


def graph_with(**changes):
    made = replace(runs.graph(None, "train"), **changes)
    data.register("odd_graph", lambda root, split: made)
    return tiny(**{"model.name": "gcn", "model.widths": (4,), "data.name": "odd_graph"})


def test_graphs_that_cannot_be_learned_from():
    whole = runs.graph(None, "train")
    none = torch.zeros_like(whole.val)
    assert refused(graph_with(val=none)) == "the graph has no labelled nodes in its split validation"
    assert refused(graph_with(labels=whole.labels + 5)) == "the graph has label 7, but there are 3 classes"


def test_nodes_without_label_count_nowhere():
    whole = runs.graph(None, "train")
    labels = whole.labels.clone()
    labels[whole.test.nonzero()[0]] = -1
    config = graph_with(labels=labels)
    seen = quiet(config).summary["accuracy"] * (int(whole.test.sum()) - 1)
    assert seen == pytest.approx(round(seen))


# ------------------------------------------------------------------------------------------------------- a newcomer


def test_the_sizes_of_a_recipe_stay_with_its_network():
    from hypersphere import recipes
    from hypersphere.train.config import apply

    plain = recipes.load("plain")
    assert apply(plain, {"model.name": "cnn6"}).model.widths == plain.model.widths
    other = apply(plain, {"model.name": "resnet20"}).model
    assert (other.widths, other.fc) == (None, None)
    assert apply(plain, {"model.name": "resnet20", "model.widths": "4,8,8"}).model.widths == (4, 8, 8)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    config = tiny(**{"data.name": "image_folder", "data.root": str(tmp_path / "pest")})
    assert refused(config).startswith(f"image_folder: {tmp_path / 'pest'} is no folder")


def test_too_few_samples_to_hold_some_out():
    assert refused(own(X[:1], Y[:1], **{"data.validation": 0.2})).startswith("data.validation=0.2 of 1 samples: ")


def test_few_steps_are_pointed_out(capsys):
    fit(derive(tiny(), epochs=2))
    assert "only 12 steps in all" in capsys.readouterr().err
    fit(derive(tiny(), steps=2))
    assert "only" not in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------- a hostile one


def test_a_folder_that_became_another_run_s_meanwhile_is_left_alone(tmp_path, monkeypatch):
    from hypersphere.train import splits

    load = splits.load

    def slow(*given):
        monkeypatch.setattr(splits, "load", load)
        quiet(tiny(out=str(tmp_path), seed=1))
        return load(*given)

    monkeypatch.setattr(splits, "load", slow)
    assert "holds a run already" in refused(tiny(out=str(tmp_path), seed=2))
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 1
    assert json.loads((tmp_path / "result.json").read_text())["seed"] == 1


def test_nothing_is_said_on_stdout_where_there_is_no_stderr(monkeypatch, capsys):
    from hypersphere.cli import main

    monkeypatch.setattr("sys.stderr", None)
    assert main(["evaluate", "nothing"]) == 2
    monkeypatch.undo()
    assert capsys.readouterr().out == ""


def test_no_control_character_reaches_the_terminal(capsys):
    from hypersphere.cli import main

    for words in (["evaluate", "\x1b[31mred"], ["train", "--\x1b[31mred"], ["verify", "a\rb"]):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert "\x1b" not in err
        assert "\r" not in err
        assert err.count("\n") == 1


def test_a_recipe_may_raise_anything(tmp_path):
    from hypersphere import recipes

    for text in (
        "class E(Exception):\n def __str__(self): raise ValueError\ndef recipe(): raise E",
        "class E(BaseException): pass\ndef recipe(): raise E('odd')",
    ):
        (tmp_path / "mine.py").write_text(text)
        with pytest.raises(ValueError, match=r"mine\.py, line \d+: E"):
            recipes.load(str(tmp_path / "mine.py"))


def test_every_step_draws_anew_and_by_the_seed():
    drawn = []

    class Noisy(nn.Linear):
        def __init__(self, num_classes=3):
            super().__init__(5, num_classes)

        def forward(self, x):
            if self.training:
                drawn.append(float(torch.rand(())))
            return super().forward(x)

    models.register("noisy", Noisy)
    for seed in (0, 0, 1):
        quiet(own(X, Y, **{"model.name": "noisy", "model.widths": None, "steps": 6, "seed": seed}))
    assert drawn[:6] == drawn[6:12]
    assert len(set(drawn)) == 12
