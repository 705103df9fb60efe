"""Recipes: functions without arguments that return a config, each derived from another by changing a few fields.

Those of the package are known by name; one of your own is a Python file, ``my.py`` or ``my.py:function``.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable

from ..._internal.modules import import_all
from ..._internal.nearest import nearest_few, unknown_name
from ..config import Config
from ..storage.layout import CONFIG
from ._file import load_file, split

__all__ = ["RECIPES", "describe", "load", "names"]

#: name → function: every public one of this package's other modules
RECIPES: dict[str, Callable[[], Config]] = {
    name: value
    for module in import_all(__name__, __path__)
    for name, value in vars(module).items()
    if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
}


def names() -> list[str]:
    """Return the names of the package's recipes."""
    return list(RECIPES)


def describe(name: str) -> str:
    """Return the description of a recipe, one line."""
    return (RECIPES[name].__doc__ or "").strip().partition("\n")[0]


def load(text: str) -> Config:
    """Return the config of a recipe. Raise ValueError in one line if there is none.

    Args:
        text: a name of :data:`RECIPES`, or a file ``my.py`` or ``my.py:function``, which is executed: your own code.
            Without a function it is the only public one that needs no arguments, or the one called ``recipe``.

    Example:
        >>> load("opt").rotation.method
        'cayley'
        >>> load("optt")
        Traceback (most recent call last):
        ValueError: unknown recipe 'optt', did you mean 'opt'? (`hypersphere list recipes`)
    """
    if text in RECIPES:
        return RECIPES[text]()
    if (file_and_function := split(text)) is not None:
        return load_file(*file_and_function)
    if text.lower().endswith((".yaml", ".yml", ".json")):
        raise ValueError(f"a recipe is a name or a Python file, got {text!r}; pass a config file with --config")
    if os.path.isfile(os.path.join(text, CONFIG)):
        raise ValueError(f"{text} is a run folder: use --out {text} --resume")
    near, own = nearest_few(text, names(), 1), "your own is a file, my.py or my.py:function"
    raise ValueError(f"{unknown_name('recipe', text[:100], near, own)} (`hypersphere list recipes`)")
