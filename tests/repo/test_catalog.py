"""The generated tables: what they say is what the code has."""

import subprocess
import sys
from pathlib import Path

import pytest
from tools import make_tables

import hypersphere as hs
from hypersphere._internal import catalog

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_generated_files_are_not_stale():
    """In a process of its own: tests and doctests register names here."""
    command = [sys.executable, "-m", "tools.make_tables", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run `make tables`"


def test_a_stale_file_is_found_and_written(tmp_path, monkeypatch, capsys):
    file = tmp_path / "catalog.py"
    file.write_text("old")
    monkeypatch.setattr(make_tables, "ROOT", tmp_path)
    monkeypatch.setattr(make_tables, "generated", lambda: {file: "new"})
    monkeypatch.setattr(sys, "argv", ["make_tables", "--check"])
    assert make_tables.main() == 1
    assert (file.read_text(), capsys.readouterr().out) == ("old", "stale: catalog.py\n")
    monkeypatch.setattr(sys, "argv", ["make_tables"])
    assert make_tables.main() == 0
    assert (file.read_text(), capsys.readouterr().out) == ("new", "wrote: catalog.py\n")


def test_a_table_between_markers_leaves_the_rest_of_the_page():
    page = "<!-- a -->\n<!-- end -->\ntext\n<!-- b -->\nold\n<!-- end -->\n"
    filled = make_tables.between_markers(page, "a", "new\n")
    assert filled == page.replace("<!-- a -->\n", "<!-- a -->\nnew\n")
    assert make_tables.between_markers(filled, "a", "") == page


def test_what_optimizers_and_losses_take():
    """By hand, from the papers and from torch.optim."""
    with_momentum = [name for name, taken in catalog.OPTIMIZERS.items() if "momentum" in taken]
    assert with_momentum == ["rmsprop", "sgd", "ogd", "muon", "muonh", "row_sgd"]
    assert catalog.OPTIMIZERS["rprop"] == ()
    assert {"lbfgs", "sparseadam", "optimizer"}.isdisjoint(catalog.OPTIMIZERS)
    assert catalog.LOSSES["softmax"] == ()
    assert catalog.LOSSES["am_softmax"] == ("margin", "scale")
    assert set(catalog.MARGINS) < set(catalog.LOSSES)
    assert catalog.SIMILARITIES == {"cosine": 0, "linear": 2, "sigmoid": 1, "learnable": 1}


@pytest.mark.parametrize("method", catalog.METHODS)
def test_methods_that_cannot_start_at_the_identity(method):
    assert ("identity" in catalog.METHODS[method]) == (method not in ("canonical", "skew"))


@pytest.mark.parametrize(
    ("name", "takes"),
    [("mlp", "images"), ("gcn.opt", "graph"), ("pointnet", "points"), ("transformer", "text"), ("resnet18", "images")],
)
def test_the_data_a_network_takes(name, takes):
    assert catalog.MODELS[name] == hs.models.preset(name).data_kind == takes
