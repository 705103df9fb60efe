"""Keep old import paths working: ``import hypersphere.measures`` gives ``hypersphere.energy.measures``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
else:  # importlib.abc imports zipfile and tempfile: a quarter of the time of --help
    Loader = object

#: old path → new path, both below hypersphere
MOVED = {
    "margins": "losses.margins",
    "measures": "energy.measures",
    "ogd": "optim.ogd",
    "regularizers": "energy",
    "softmax": "losses.softmax",
    "train.checkpoint": "train.storage.checkpoint",
    "train.exporting": "train.inference.exporting",
    "train.folder": "train.storage.folder",
    "train.inputs": "train.inference.inputs",
    "train.metrics": "train.storage.metrics",
    "train.run": "train.inference.run",
    "train.scores": "train.inference.scores",
}


class _Moved(Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, old = name.partition(".")
        return ModuleSpec(name, self) if package == "hypersphere" and old in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"hypersphere.{MOVED[spec.name.partition('.')[2]]}")
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # importlib has set that of the old path


def install() -> None:
    """Let ``import`` find the old paths."""
    if not any(isinstance(each, _Moved) for each in sys.meta_path):
        sys.meta_path.append(_Moved())
