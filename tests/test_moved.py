"""Import paths from before the packages energy, losses, train.storage and train.inference still work."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import hypersphere as hs
from hypersphere._internal.moved import MOVED


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_path_is_the_new_module(old, new):
    module = import_module(f"hypersphere.{new}")
    assert import_module(f"hypersphere.{old}") is module
    assert module.__spec__.name == module.__name__ == f"hypersphere.{new}"


def test_as_attributes():
    assert hs.measures.REGULARIZERS is hs.regularizers.REGULARIZERS
    assert hs.margins.MARGINS is hs.losses.MARGINS
    assert hs.regularizers.spread is hs.spread


def test_in_a_new_process():
    code = "from hypersphere.train.run import load_run; from hypersphere.regularizers import spread"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_names_are_missing():
    with pytest.raises(ModuleNotFoundError, match=r"hypersphere\.marginals"):
        import_module("hypersphere.marginals")
