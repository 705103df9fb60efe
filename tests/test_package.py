"""Importing the package: lazily, without torch, with the names that type checkers see."""

import subprocess
import sys

import pytest

import hypersphere as hs
from hypersphere.catalog import PUBLIC


def test_importing_the_package_does_not_import_torch():
    code = "import sys, hypersphere as hs; assert 'torch' not in sys.modules; hs.select; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_resolved_lazily_are_the_names_that_type_checkers_see():
    import ast
    from pathlib import Path

    branch = next(node for node in ast.parse(Path(hs.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {alias.asname for node in branch.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    seen |= {target.id for node in branch.body if isinstance(node, ast.Assign) for target in node.targets}
    assert seen == set(PUBLIC)
    assert all(getattr(hs, name) is not None for name in seen)
    assert seen <= set(dir(hs))
    with pytest.raises(AttributeError, match="no attribute 'SphereConv4d'"):
        hs.SphereConv4d  # noqa: B018
