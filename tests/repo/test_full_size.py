"""A few of the papers' full-size rows run a step at their true size; `python -m tools.full_size` runs them all."""

import math
import re

import pytest
from tools import full_size as tool

from hypersphere.cli import main
from hypersphere.papers import full_size, tables
from hypersphere.train.config import Config, Data, Model, Optimizer, Rotation, derive

ROWS = {  # one of each kind of network, loss, regularizer and rotation
    "spherenet.1": "ga-softmax/sigmoid-0.7",
    "spherenet.fig5": "batch-8/sphere-norm-rescaled",
    "mhe.7": "single/half-space-angular",
    "mhe.8": "m4/sphereface+",
    "mhe.14": "gradient-penalty",
    "opt.1": "cnn6/gs-fixed",
    "opt.8": "baseline++opt",
    "opt.9": "pubmed/cp",
    "opt.10": "cnn6/s-opt",
    "opt.3": "plain/hr",
    "mhe.10": "l-softmax",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:layer .* of the cost of all rotations", "ignore:the Cayley transform of N")
@pytest.mark.parametrize("table", ROWS)
def test_a_full_row_runs_a_step(table):
    assert math.isfinite(full_size.step(tables.load(table).row(ROWS[table]).full, 2).loss)


def test_memory_of_a_graph_is_that_of_the_whole_graph():
    found = vars(full_size.at_own_batch(tables.load("opt.9").row("cora/baseline").full))
    assert found["weights"] == 4 * (1433 * 16 + 16 * 7)  # no biases
    assert found["kept"] > 4 * 2708 * 1433  # the features


def test_memory_by_hand():
    """An MLP 784-256-256-10 with SGD and momentum: 4 bytes a number, and for each layer its input is kept."""
    config = Config(
        model=Model("mlp.opt"), data=Data("mnist", batch_size=100), optimizer=Optimizer("sgd", lr=0.02, momentum=0.9)
    )
    numbers = 784 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10
    found = vars(full_size.at_own_batch(config))
    assert found["weights"] == found["gradients"] == found["state"] == 4 * numbers
    per_sample = 4 * (784 + 256 + 256)
    # and the logits, their logarithms, the labels
    assert 0 <= found["kept"] / 100 - per_sample < 4 * (10 + 10 + 2) + 100
    more = vars(full_size.at_own_batch(derive(config, {"data.batch_size": 200})))
    assert more["kept"] - found["kept"] == pytest.approx(found["kept"], rel=0.05)


def test_every_full_row_names_data_of_known_shape():
    for name, row in tool.rows([*tables.TABLES]):
        shape, classes = full_size.shape_of(row.full)
        assert classes > 1, (name, row.name)
        assert shape


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:layer .* of the cost of all rotations", "ignore:the Cayley transform of N")
@pytest.mark.parametrize("table", [table for table in ROWS if table != "mhe.10"])  # the largest
def test_counting_without_computing_is_counting_a_step(table):
    """The meta device counts what the CPU does; rows that need values fall back to it."""
    config = tables.load(table).row(ROWS[table]).full
    real, counted = full_size.step(config, 4), full_size.needs(derive(config, {"data.batch_size": 4}))
    assert counted.memory == pytest.approx(real.memory, rel=1e-3)  # a few scalars are kept on one of them only
    assert counted.multiplications == real.multiplications


def test_multiplications_by_hand():
    """An MLP 784-256-256-10: forward, gradients of the weights, and of all inputs but the first."""
    config = Config(model=Model("mlp.opt"), data=Data("mnist", batch_size=100), epochs=2)
    first, others = 784 * 256, 256 * 256 + 256 * 10
    needs = full_size.needs(config)
    assert needs.multiplications == 100 * (2 * first + 3 * others)
    assert needs.steps == 2 * 550
    assert needs.hours == pytest.approx(needs.multiplications * 1100 / (0.4 * 9.75e12) / 3600)


def test_a_factorization_counts_the_cube_of_its_size():
    plain = Config(steps=1, model=Model("mlp.opt"), data=Data("mnist", batch_size=100))
    more = derive(plain, rotation=Rotation("gram_schmidt", init="identity"))
    extra = full_size.needs(more).multiplications - full_size.needs(plain).multiplications
    assert extra > 4 / 3 * (784**3 + 256**3)


def test_the_command_prints_what_a_table_needs(capsys):
    assert main(["reproduce", "opt.6", "--full", "--dry-run", "--rows", "mlp-x/baseline,mlp-x/cp"]) == 0
    out, told = capsys.readouterr()
    assert re.search(r"mlp-x/cp +100 +0.01 +55,000 +0.0", out)
    assert "hours on one A100" in out
    assert told.count(": counted") == 2
    for wrong, message in {
        ("opt.6",): "--dry-run needs --full",
        ("opt.6", "--full", "--rows", "x"): "row must be one of mlp-n/baseline",
    }.items():
        assert main(["reproduce", *wrong, "--dry-run"]) == 2
        assert message in capsys.readouterr().err
