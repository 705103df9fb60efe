"""Find the modules of a package by listing it."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType


def import_all(package: str, path: Iterable[str]) -> list[ModuleType]:
    """Import the public modules of a package, by name."""
    names = sorted(each.name for each in pkgutil.iter_modules(path) if not each.name.startswith("_"))
    return [import_module(f"{package}.{name}") for name in names]
