"""Import public names when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` of a package.

    Args:
        homes: name → the module below the package that has it; "" for a module of the package.
    """

    def get(name: str) -> Any:
        if name not in homes:
            from .nearest import public_name_hint

            hint = public_name_hint(name, homes)
            # With a name but no `obj`, Python adds no guess of its own.
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}", name=name)
        home = homes[name]
        value = getattr(import_module(f"{package}.{home}"), name) if home else import_module(f"{package}.{name}")
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
