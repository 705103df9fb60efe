"""Importing the package: lazily, without torch, with the names that type checkers see."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import hypersphere as hs
from hypersphere._internal.catalog import PUBLIC
from hypersphere._internal.modules import DISTRIBUTION, install_command

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_importing_the_package_does_not_import_torch():
    code = "import sys, hypersphere as hs; assert 'torch' not in sys.modules; hs.select; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_resolved_lazily_are_the_names_that_type_checkers_see():
    import ast

    branch = next(node for node in ast.parse(Path(hs.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {alias.asname for node in branch.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    seen |= {target.id for node in branch.body if isinstance(node, ast.Assign) for target in node.targets}
    assert seen == set(PUBLIC)
    assert all(getattr(hs, name) is not None for name in seen)
    assert seen <= set(dir(hs))
    with pytest.raises(AttributeError, match="no attribute 'SphereConv4d', did you mean 'SphereConv1d'"):
        hs.SphereConv4d  # noqa: B018
    assert not hasattr(hs, "__wrapped__")


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("CosFaceLoss", "CosFace is AMSoftmaxLoss"),
        ("SphereFaceLoss", "SphereFace is ASoftmaxLoss"),
        ("NormFaceLoss", "NormFace is SSoftmaxLoss"),
        ("MuonAdamW", "MuonAdamW is optim.MuonAdamW"),
    ],
)
def test_other_names_of_classes_are_told(name, ours):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; {ours} here"):
        getattr(hs, name)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'torch-hypersphere[data]'"),
        ('{"url": "file:///a%20b/c", "dir_info": {}}', "pip install '/a b/c[data]'"),
        ('{"url": "file:///c", "dir_info": {"editable": true}}', "pip install -e '/c[data]'"),
        ('{"url": "https://x/hypersphere.whl", "archive_info": {}}', "pip install 'torch-hypersphere[data]'"),
    ],
)
def test_the_command_that_installs_an_extra_names_where_the_package_came_from(origin, command, monkeypatch):
    found = [SimpleNamespace(read_text=lambda file, text=text: text) for text in (None, origin)]
    monkeypatch.setattr("importlib.metadata.distributions", lambda name: found)
    assert install_command("data") == command


def test_nothing_installs_the_package_of_somebody_else():
    """On PyPI `hypersphere` is another package: only the import and the command are called so here."""
    of_pypi = re.compile(
        r"(?<![\w./-])hypersphere(?:\[|[=~<>!]=)"
        r"|pipx? +(?:un)?install\b[^\n`]*(?<![\w./-])hypersphere(?![\w./-])"
        r"|(?:version|distributions?|requires|files)\((?:name=)?[\"']hypersphere[\"']"
    )
    for wrong in (
        *("pip install hypersphere", "pip install 'hypersphere[cli]' timm", "pip uninstall -y hypersphere"),
        *("uv pip install --upgrade hypersphere", "hypersphere>=0.1", 'version("hypersphere")'),
    ):
        assert of_pypi.search(wrong), wrong
    for right in ("pip install 'torch-hypersphere[cli]'", "pip install -e /hypersphere", "`pip install x` hypersphere"):
        assert not of_pypi.search(right), right
    folders = [ROOT / name for name in ("src", "docs", "examples", "tools", "benchmarks", ".github", ".ci")]
    paths = [*ROOT.glob("*"), *(path for folder in folders for path in folder.rglob("*"))]
    ends = (".md", ".py", ".ipynb", ".toml", ".txt", ".yml", "Makefile", ".ci/run")
    texts = {str(path): path.read_text("utf-8") for path in paths if str(path).endswith(ends)}
    assert {str(ROOT / name) for name in ("README.md", "examples/quickstart.ipynb", "docs/losses.md")} < set(texts)
    assert not {path: match[0] for path, text in texts.items() if (match := of_pypi.search(text))}
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"] == DISTRIBUTION
