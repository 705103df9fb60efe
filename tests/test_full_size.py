"""A few of the papers' full-size rows run a step at their true size; `python -m tools.full_size` runs them all."""

import math

import pytest
from tools import full_size

from hypersphere.recipes import papers
from hypersphere.train.config import Config, Data, Model, Optimizer, derive


@pytest.mark.parametrize("name", ["spherenet.1", "mhe.1", "opt.1"])
def test_the_first_full_rows_run_a_step(name):
    row = next(row for row in papers.load(name).rows if row.full is not None)
    assert math.isfinite(full_size.step(row.full, 2).loss)


def test_memory_by_hand():
    """An MLP 784-256-256-10 with SGD and momentum: 4 bytes a number, and for each layer its input is kept."""
    config = Config(
        model=Model("mlp.opt"), data=Data("mnist", batch_size=100), optimizer=Optimizer("sgd", momentum=0.9)
    )
    numbers = 784 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10
    found = full_size.memory(config)
    assert found["weights"] == found["gradients"] == found["state"] == 4 * numbers
    per_sample = 4 * (784 + 256 + 256)
    # and the logits, their logarithms, the labels
    assert 0 <= found["kept"] / 100 - per_sample < 4 * (10 + 10 + 2) + 100
    more = full_size.memory(derive(config, {"data.batch_size": 200}))
    assert more["kept"] - found["kept"] == pytest.approx(found["kept"], rel=0.05)


def test_every_full_row_names_data_of_known_shape():
    for name, row in full_size.rows([*papers.TABLES]):
        shape, classes = full_size.shape_of(row.full)
        assert classes > 1, (name, row.name)
        assert shape
