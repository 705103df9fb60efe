"""Check how the modules of the package depend on each other, by reading their imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import hypersphere

ROOT = Path(hypersphere.__file__).parent
FACADES = ("hypersphere", "hypersphere.train")  # their __init__ names everything below them
LOWER = ("layers", "energy", "losses", "orthogonal", "rotation", "data", "models")
UPPER = ("train", "report", "inspection", "papers", "cli")
ROOMS = (
    *("_internal", "cli", "data", "energy", "geometry", "inspection", "integrations", "layers", "losses", "models"),
    *("neurons", "openset", "optim", "orthogonal", "papers", "report", "rotation", "train"),
)


class Import(NamedTuple):
    """An import of ours, wherever in `importer` it stands: in a function or behind TYPE_CHECKING too."""

    importer: str
    module: str
    name: str | None


def module_of(file: Path) -> str:
    parts = ["hypersphere", *file.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(file): file for file in ROOT.rglob("*.py")}


def imports_of(importer: str) -> list[Import]:
    package = importer if FILES[importer].name == "__init__.py" else importer.rpartition(".")[0]
    found = []
    for node in ast.walk(ast.parse(FILES[importer].read_text())):
        if isinstance(node, ast.Import):
            found += [Import(importer, each.name, None) for each in node.names if each.name in FILES]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for each in node.names:
                inner = f"{source}.{each.name}"
                if inner in FILES:
                    found.append(Import(importer, inner, None))
                elif source in FILES:
                    found.append(Import(importer, source, each.name))
    return found


IMPORTS = [each for importer in FILES for each in imports_of(importer)]


def test_imports_are_found():
    """At the top of a file, in a function and behind TYPE_CHECKING."""
    assert Import("hypersphere.train.training", "hypersphere.train.tasks", None) in IMPORTS
    assert Import("hypersphere.cli._loading", "hypersphere.train.inference.run", "load_run") in IMPORTS
    assert Import("hypersphere", "hypersphere.neurons", "select") in IMPORTS


def test_the_rooms():
    entries = {path.name for path in ROOT.iterdir() if path.name != "__pycache__"}
    assert entries == {*ROOMS, "__init__.py", "__main__.py", "py.typed"}


def test_only_the_command_line_imports_the_papers():
    importers = {found.importer for found in IMPORTS if found.module.startswith("hypersphere.papers")}
    assert importers
    assert not [name for name in importers if not name.startswith(("hypersphere.papers", "hypersphere.cli"))]


def test_no_class_name_stands_for_two_things():
    homes: dict[str, list[str]] = {}
    for module, file in FILES.items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
    assert not {name: modules for name, modules in homes.items() if len(modules) > 1}


def test_no_import_cycle():
    edges: dict[str, set[str]] = {}
    for importer, module, _ in IMPORTS:
        if importer not in FACADES and module not in FACADES:
            edges.setdefault(importer, set()).add(module)

    def reached(start: str) -> set[str]:
        found, todo = set[str](), [start]
        while todo:
            new = edges.get(todo.pop(), set()) - found
            found |= new
            todo += new
        return found

    assert not {module: sorted(edges[module]) for module in edges if module in reached(module)}


def test_no_private_name_of_another_package():
    """What begins with an underscore is for the package that holds it, and for those inside that."""
    wrong = []
    for importer, module, name in IMPORTS:
        parts = [*module.split("."), *([name] if name is not None else [])]
        for i, part in enumerate(parts):
            owner = ".".join(parts[:i])
            private = part.startswith("_") and not part.startswith("__")
            if private and importer != owner and not importer.startswith(f"{owner}."):
                wrong.append(f"{importer} imports {'.'.join(parts)}")
    assert not wrong


@pytest.mark.parametrize("room", LOWER)
def test_lower_rooms_do_not_import_upper_ones(room):
    def of(module: str, rooms: tuple[str, ...]) -> bool:
        return module.split(".")[1:2] in [[each] for each in rooms]

    assert any(of(each.importer, (room,)) for each in IMPORTS)
    wrong = {(each.importer, each.module) for each in IMPORTS if of(each.importer, (room,)) and of(each.module, UPPER)}
    assert not wrong


def test_the_config_knows_nothing_of_training():
    """A config is read without torch: of train it may import only itself."""
    room = "hypersphere.train.config"
    wrong = {
        (each.importer, each.module)
        for each in IMPORTS
        if each.importer.startswith(room)
        and each.module.startswith("hypersphere.train.")
        and not each.module.startswith(room)
    }
    assert not wrong


@pytest.mark.slow
def test_a_layer_loads_no_optimizer_and_nothing_loads_the_compiler():
    """torch._dynamo takes longer to import than all of hypersphere."""
    code = """
import sys, hypersphere.layers.sphere
print([name for name in sys.modules if name.startswith('hypersphere.optim')])
import hypersphere.train, hypersphere.data, hypersphere.inspection, hypersphere.layers.recurrent
print('torch._dynamo' in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nFalse\n"


# pretrained.py and adapter_files.py know folders of Hugging Face, not runs
_MAY_NAME_FILES = (
    *("hypersphere.train.storage.layout", "hypersphere.integrations.huggingface"),
    "hypersphere.rotation.adapter_files",
)


def test_a_run_s_file_names_stand_in_one_module():
    names = r"config\.json|metrics\.jsonl|result\.json|state\.json|model\.json|tensors\.safetensors|tfevents"
    spelled = re.compile(rf".*({names}).*|final|checkpoints|\.lock|\.old", re.DOTALL)
    wrong = []
    for module, file in FILES.items():
        tree = ast.parse(file.read_text())
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        texts = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
        }  # docstrings may name them
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts
            if is_text and spelled.fullmatch(node.value) and module not in _MAY_NAME_FILES:
                wrong.append(f"{module}, line {node.lineno}: {node.value!r}")
    assert not wrong
