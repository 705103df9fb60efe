"""Importing the package: lazily, without torch, with the names that type checkers see."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import hypersphere as hs
from hypersphere._internal.modules import install_command
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


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'hypersphere[data]'"),
        ('{"url": "file:///a%20b/c", "dir_info": {}}', "pip install '/a b/c[data]'"),
        ('{"url": "file:///c", "dir_info": {"editable": true}}', "pip install -e '/c[data]'"),
        ('{"url": "https://x/hypersphere.whl", "archive_info": {}}', "pip install 'hypersphere[data]'"),
    ],
)
def test_the_command_that_installs_an_extra_names_where_the_package_came_from(origin, command, monkeypatch):
    found = [SimpleNamespace(read_text=lambda file, text=text: text) for text in (None, origin)]
    monkeypatch.setattr("importlib.metadata.distributions", lambda name: found)
    assert install_command("data") == command
