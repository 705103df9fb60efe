"""Import the modules of a package, and those of optional ones."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

DISTRIBUTION = "torch-hypersphere"  # the name on PyPI, where `hypersphere` is somebody else's package


def import_all(package: str, path: Iterable[str]) -> list[ModuleType]:
    """Import the public modules of a package, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(path) if not module.name.startswith("_"))
    return [import_module(f"{package}.{name}") for name in names]


def install_command(extra: str) -> str:
    """Return the command that installs an extra, from the folder that the package came from if it came from one."""
    import json
    from importlib.metadata import distributions
    from urllib.parse import unquote, urlparse

    source, option = DISTRIBUTION, ""
    for distribution in distributions(name=DISTRIBUTION):  # a build leaves a second one in src/, without an origin
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if "dir_info" in origin:
            source = unquote(urlparse(origin["url"]).path)
            option = "-e " if origin["dir_info"].get("editable") else ""
    return f"pip install {option}'{source}[{extra}]'"


def import_extra(module: str, package: str, what: str, extra: str, otherwise: str = "") -> Any:
    """Import a module of an optional package that `what` needs. ImportError with the pip extra that has it.

    Args:
        otherwise: how to do without, such as ", or ...".
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs {package}: {install_command(extra)}{otherwise} ({error})") from None
