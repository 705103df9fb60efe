"""Training on data and networks of the user's own: what is accepted, and how what does not fit is refused."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import hypersphere as hs
from hypersphere import data, models
from hypersphere.data._dataset import ArrayDataset
from hypersphere.data._registry import DATASETS
from hypersphere.models._registry import PRESETS
from hypersphere.train import Config, Data, TrainingError, derive, fit, splits
from tests import runs
from tests.runs import one_line, quiet, tiny


@pytest.fixture(autouse=True)
def _tables(monkeypatch):
    monkeypatch.setattr("hypersphere.data._registry.DATASETS", dict(DATASETS))
    monkeypatch.setattr("hypersphere.models._registry.PRESETS", dict(PRESETS))


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
    assert summary.best_step < 12  # or this shows nothing
    assert (summary.split, summary.accuracy) == ("validation", summary.validation["accuracy"])
    from hypersphere.train.inference.scores import scores

    again = scores(hs.train.load_run(tmp_path / "run"))
    assert again.accuracy == summary.accuracy
    assert again.energy == pytest.approx(summary.energy, rel=1e-6)


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
    assert quiet(own(X.to(dtype), Y.int())).summary.step == 2


@pytest.mark.parametrize(
    ("inputs", "labels", "said"),
    [
        (X, Y.float(), "split train must have one integer label per sample, got (12,) torch.float32"),
        (X, Y[:, None], "split train must have one integer label per sample, got (12, 1) torch.int64"),
        (X[:0], Y[:0], "split train has no samples"),
        (X, Y + 1, "split train has label 3, but there are 3 classes"),
        (X > 0, Y, "does not fit data.name=own"),
    ],
)
def test_data_that_cannot_be_learned_from(inputs, labels, said):
    assert said in one_line(own(inputs, labels))


def test_a_network_that_does_not_fit_leaves_nothing_behind(tmp_path):
    models.register("two_of_three", lambda num_classes=3: nn.Linear(5, 2))
    models.register("pair", lambda num_classes=3: Pair())
    models.register("narrow", lambda num_classes=3: nn.Linear(4, num_classes))
    for name, said in (
        ("two_of_three", "it must return a logit for each of 3 classes, (B, 3), got (2, 2)"),
        ("pair", "it must return a logit for each of 3 classes, (B, 3), got tuple"),
        ("narrow", "model.name=narrow does not fit data.name=own: mat1 and mat2"),
    ):
        config = own(X, Y, **{"model.name": name, "model.widths": None, "out": str(tmp_path / name)})
        assert said in one_line(config)
        assert not (tmp_path / name).exists()


class Pair(nn.Linear):
    def __init__(self):
        super().__init__(5, 3)

    def forward(self, x):
        return x, x


def test_inputs_that_are_not_finite_are_named():
    inputs = X.clone()
    inputs[7, 2] = torch.nan
    with pytest.raises(TrainingError, match="the inputs are not finite: check the data"):
        quiet(own(inputs, Y, steps=6))


def graph_with(**changes):
    made = replace(runs.graph(None, "train"), **changes)
    data.register("odd_graph", lambda root, split: made)
    return tiny(**{"model.name": "gcn", "model.widths": (4,), "data.name": "odd_graph"})


def test_graphs_that_cannot_be_learned_from():
    whole = runs.graph(None, "train")
    none = torch.zeros_like(whole.val)
    assert one_line(graph_with(val=none)) == "the graph has no labelled nodes in its split validation"
    assert one_line(graph_with(labels=whole.labels + 5)) == "the graph has label 7, but there are 3 classes"


def test_nodes_without_label_count_nowhere():
    whole = runs.graph(None, "train")
    labels = whole.labels.clone()
    labels[whole.test.nonzero()[0]] = -1
    config = graph_with(labels=labels)
    seen = quiet(config).summary.accuracy * (int(whole.test.sum()) - 1)
    assert seen == pytest.approx(round(seen))


def test_a_folder_that_is_not_there_is_named(tmp_path):
    config = tiny(**{"data.name": "image_folder", "data.root": str(tmp_path / "pest")})
    assert one_line(config).startswith(f"image_folder: {tmp_path / 'pest'} is not a folder")


def test_too_few_samples_to_hold_some_out():
    def told(n, share):
        return one_line(own(X[:n], Y[:n], **{"data.validation": share}))

    few = "samples: too few to divide; give more samples"
    assert told(1, 0.2) == f"data.validation=0.2 of 1 {few}"
    assert told(2, 0.2) == f"data.validation=0.2 of 2 {few}, or set data.validation to 1"
    assert told(3, 0.9) == f"data.validation=0.9 of 3 {few}, or set data.validation to a number from 1 to 2"


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


@pytest.mark.slow
def test_one_class_is_nothing_to_tell_apart(tmp_path):
    message = "a classifier needs at least two classes, got 1, 'cat'"
    one = ArrayDataset(torch.randn(8, 3), torch.zeros(8, dtype=torch.long), ["cat"])
    data.register("one", lambda root, split: one)
    assert message in one_line(derive(Config(steps=1), {"data.name": "one", "model.name": "mlp"}))
    (tmp_path / "cat").mkdir()
    for i in range(4):
        Image.new("RGB", (8, 8), (i, i, i)).save(tmp_path / "cat" / f"{i}.png")
    changes = {"data.name": "image_folder", "data.root": str(tmp_path), "data.validation": 1}
    assert message in one_line(tiny(**changes))
    generator = {"model.name": "generator.mhe", "data.size": 32, "data.validation": None}
    for split in ("train", "test"):  # a GAN has no use for a second one
        (tmp_path / split).mkdir()
    (tmp_path / "cat").rename(tmp_path / "train" / "cat")
    shutil.copytree(tmp_path / "train" / "cat", tmp_path / "test" / "cat")
    assert fit(derive(Config(), changes | generator | {"steps": 1}), progress=False).summary.step == 1


def test_class_balanced_batches_in_a_training(tmp_path, monkeypatch):
    """In every batch the classes have equally many images; a resumed run is the same run."""
    changes = {"data.images_per_class": 4, "data.batch_size": 16, "steps": 6}
    seen, batches = [], data.batches

    def watch(*arguments, **options):
        for inputs, labels in batches(*arguments, **options):
            seen.append((options.get("images_per_class"), labels.bincount()))
            yield inputs, labels

    with monkeypatch.context() as patch:
        patch.setattr(data, "batches", watch)
        quiet(tiny(**changes, out=str(tmp_path / "whole")))
    counts = [count for images, count in seen if images == 4]
    assert len(counts) >= 6
    assert all(sorted(count[count > 0].tolist()) == [4] * 4 for count in counts)
    part = tiny(**changes, out=str(tmp_path / "part"))
    assert runs.stopped(part, runs.at_forward(4)) < 6
    quiet(derive(part, resume=True))
    runs.same_run(tmp_path / "whole", tmp_path / "part")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.batch_size": 18}, "data.batch_size must be a multiple of data.images_per_class = 4, got 18"),
        (
            {"data.batch_size": 44},
            "data.batch_size / data.images_per_class must be <= 10, the number of classes, got 44",
        ),
    ],
)
def test_class_balanced_batches_that_cannot_be(changes, message):
    assert message in one_line(tiny(**{"data.images_per_class": 4, **changes}))


@pytest.mark.parametrize(("stored", "channels"), [(3, 1), (1, 3), (3, 3)])
def test_channels_of_stored_images_are_those_of_pillow(stored, channels):
    pixels = torch.randint(256, (6, stored, 5, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data.register("own", lambda root, split: ArrayDataset(pixels, torch.arange(6) % 2, ["a", "b"]))
    loaded = splits.load(Data("own", channels=channels), 0)
    image = Image.fromarray(pixels[0].permute(1, 2, 0).squeeze(2).numpy()).convert("L" if channels == 1 else "RGB")
    expected = torch.from_numpy(np.array(image)).reshape(5, 4, channels).permute(2, 0, 1)
    assert loaded.spec.shape == (channels, 5, 4)
    assert torch.equal(loaded.train[0][0], expected)
    assert loaded.test.labels.tolist() == [0, 1] * 3


def test_only_pixels_have_channels_to_convert():
    data.register("own", lambda root, split: ArrayDataset(torch.rand(6, 3, 5, 4), torch.arange(6) % 2, ["a", "b"]))
    assert splits.load(Data("own", channels=3), 0).spec.shape == (3, 5, 4)
    with pytest.raises(ValueError, match=r"data\.channels=1 needs uint8 images .* got torch\.float32 \(3, 5, 4\)"):
        splits.load(Data("own", channels=1), 0)
