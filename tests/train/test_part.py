"""fit_part: a training in parts is the training in one go, and it never sees the test split."""

import pytest
import torch

from hypersphere import data
from hypersphere.data._registry import DATASETS
from hypersphere.train import derive, fit
from hypersphere.train.engine import fit_part
from hypersphere.train.splits import load
from hypersphere.train.storage import checkpoint
from tests import runs
from tests.runs import one_line, quiet, tiny


@pytest.fixture(autouse=True)
def _tables(monkeypatch):
    monkeypatch.setattr("hypersphere.data._registry.DATASETS", dict(DATASETS))


def parts(path, **changes):
    return tiny(out=str(path), resume=True, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule", [{"schedule.name": "cosine"}, {"schedule.name": "plateau", "schedule.patience": 0}]
)
def test_parts_are_the_whole(schedule, tmp_path):
    whole = parts(tmp_path / "whole", **{"data.fold": "1/3"}, **schedule)
    result = fit(whole, progress=False)
    cut = derive(whole, out=str(tmp_path / "cut"))
    figures = [fit_part(cut, part) for part in (5, 2, 2, 1)]
    total = result.summary.step
    assert [part.step for part in figures] == [-(-total // part) for part in (5, 2, 2, 1)]
    assert {part.total for part in figures} == {total}
    assert figures[1].accuracy == figures[2].accuracy  # nothing is trained twice
    last = [line for line in runs.metrics_of(result) if line["split"] == "validation"][-1]
    assert (figures[-1].accuracy, figures[-1].loss) == (last["accuracy"], last["loss"])
    tensors = [checkpoint.load(tmp_path / name / "checkpoints" / str(total))[0] for name in ("whole", "cut")]
    assert tensors[0].keys() == tensors[1].keys()
    assert all(torch.equal(tensors[0][key], tensors[1][key]) for key in tensors[0] if key.startswith("model"))
    with pytest.raises(ValueError, match=f"is already at step {total}, beyond step {-(-total // 5)}"):
        fit_part(cut, 5)


@pytest.mark.parametrize("held_out", [{"data.fold": "2/3"}, {"data.validation": 0.3}])
def test_the_test_split_is_not_even_loaded(held_out, tmp_path):
    asked = []

    def digits(root, split):
        asked.append(split)
        return data.load("digits", split=split)

    data.register("watched", digits)
    figures = fit_part(parts(tmp_path, **{"data.name": "watched", **held_out}))
    assert 0 <= figures.accuracy <= 1
    assert asked == ["train"]


def test_the_labels_of_a_graph_s_test_nodes_are_removed(tmp_path):
    data.register("watched_graph", runs.graph)
    config = parts(tmp_path, **{"model.name": "gcn", "model.widths": (4,), "data.name": "watched_graph"})
    splits = load(config.data, 0, with_test=False)
    assert splits.test is None
    seen = splits.train
    assert (seen.labels[~(seen.train | seen.val)] == -1).all()
    assert torch.equal(seen.labels[seen.val], load(config.data, 0).train.labels[seen.val])
    assert 0 <= fit_part(config).accuracy <= 1


def test_a_fold_is_the_validation_split(tmp_path):
    config = tiny(out=str(tmp_path), **{"data.name": "digits", "data.fold": "3/4"})
    result = quiet(config)
    train, validation = data.fold(data.load("digits"), 3, 4, config.seed)
    assert result.summary.data["train"] == len(train)
    assert result.summary.data["validation"] == len(validation)
    assert result.summary.split == "test"
    assert torch.equal(load(config.data, config.seed).validation.inputs, validation.inputs)


def test_what_cannot_be_validated(tmp_path):
    with pytest.raises(ValueError, match=r"no validation split: set data\.validation or data\.fold"):
        fit_part(tiny(out=str(tmp_path), resume=True))
    many = "data.fold=1/9000: folds must be 2 to 1280, the number of samples, got 9000"
    assert one_line(tiny(**{"data.name": "digits", "data.fold": "1/9000"})) == many
