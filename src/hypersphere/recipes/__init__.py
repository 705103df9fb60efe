"""Recipes: functions without arguments that return a config, each derived from another by changing a few fields.

Those of the package are known by name; one of your own is a Python file, ``my.py`` or ``my.py:function``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from .._internal.modules import import_all
from .._internal.nearest import nearest
from ..train.config import Config
from ._file import load_file, split

__all__ = ["RECIPES", "describe", "load", "names"]

#: name → function: every public one of this package's modules
RECIPES: dict[str, Callable[[], Config]] = {
    name: value
    for module in import_all(__name__, __path__)
    for name, value in vars(module).items()
    if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
}


def names() -> list[str]:
    """The recipes of the package.

    Example:
        >>> names()[:3]
        ['plain', 'spherenet', 'mhe']
    """
    return list(RECIPES)


def describe(name: str) -> str:
    """What a recipe is, in a line.

    Example:
        >>> describe("plain")
        'a small plain CNN on the embedded digits'
    """
    return (RECIPES[name].__doc__ or "").strip().partition("\n")[0]


def load(text: str) -> Config:
    """The config of a recipe. ValueError in one line if there is none.

    Args:
        text: a name of the table, or a file ``my.py`` or ``my.py:function``, which is executed: your own code. Without
            a function it is the only public one that needs no arguments, or the one called ``recipe``.

    Example:
        >>> load("opt").rotation.method
        'cayley'
        >>> load("optt")
        Traceback (most recent call last):
        ValueError: there is no recipe 'optt'; did you mean opt? `hypersphere list recipes` lists them
    """
    if text in RECIPES:
        return RECIPES[text]()
    if (found := split(text)) is not None:
        return load_file(*found)
    if text.lower().endswith((".yaml", ".yml", ".json")):
        raise ValueError(f"a recipe is a name or a Python file, got {text!r}; a config's file goes with --config")
    near = nearest(text, names())
    hint = f"did you mean {near}?" if near else "your own is a file, my.py or my.py:function;"
    raise ValueError(f"there is no recipe {text[:100]!r}; {hint} `hypersphere list recipes` lists them")
