"""A few of the papers' full-size rows run a step at their true size; `python -m tools.full_size` runs them all."""

import math

import pytest
from tools import full_size

from hypersphere.papers import tables
from hypersphere.train.config import Config, Data, Model, Optimizer, derive

ROWS = {  # one of each kind of network, loss, regularizer and rotation
    "spherenet.1": "ga-softmax/sigmoid-0.7",
    "spherenet.fig5": "batch-8/sphere-norm-rescaled",
    "mhe.7": "single/half-space-angular",
    "mhe.8": "m4/sphereface+",
    "mhe.14": "mhe+spectral-norm",
    "opt.1": "cnn6/gs-fixed",
    "opt.8": "baseline++opt",
    "opt.9": "pubmed/cp",
    "opt.10": "cnn6/s-opt",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:layer .* of the cost of all rotations", "ignore:the Cayley transform of N")
@pytest.mark.parametrize("table", ROWS)
def test_a_full_row_runs_a_step(table):
    assert math.isfinite(full_size.step(tables.load(table).row(ROWS[table]).full, 2).loss)


def test_memory_of_a_graph_is_that_of_the_whole_graph():
    found = full_size.memory(tables.load("opt.9").row("cora/baseline").full)
    assert found["weights"] == 4 * (1433 * 16 + 16 * 7)  # no biases
    assert found["kept"] > 4 * 2708 * 1433  # the features


def test_memory_by_hand():
    """An MLP 784-256-256-10 with SGD and momentum: 4 bytes a number, and for each layer its input is kept."""
    config = Config(
        model=Model("mlp.opt"), data=Data("mnist", batch_size=100), optimizer=Optimizer("sgd", lr=0.02, momentum=0.9)
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
    for name, row in full_size.rows([*tables.TABLES]):
        shape, classes = full_size.shape_of(row.full)
        assert classes > 1, (name, row.name)
        assert shape
