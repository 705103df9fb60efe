"""Find the tables of the papers by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module

from .._internal.nearest import unknown
from ..train.config import Config
from .table import PaperTable

MODULES = ("spherenet", "mhe", "opt", "opt_computed", "plan")  # beside this one, named by the paper up to the first "_"


def _tables() -> dict[str, Callable[[], PaperTable]]:
    by_name: dict[str, Callable[[], PaperTable]] = {}
    for module in MODULES:
        for name, value in vars(import_module(f".{module}", __package__)).items():
            if inspect.isfunction(value) and (match := re.fullmatch(r"(table|figure|section)_(\w+)", name)):
                kind = {"table": "", "figure": "fig", "section": "sec"}[match[1]]
                by_name[f"{module.partition('_')[0]}.{kind}{match[2]}"] = value
    return dict(sorted(by_name.items(), key=lambda item: _place(item[0])))


def _place(name: str) -> tuple[int, bool, int, str]:
    """Sort by paper, tables before figures and sections, then by number."""
    paper, _, number = name.partition(".")
    digits = re.search(r"\d+", number)
    return MODULES.index(paper), not number[0].isdigit(), int(digits[0]) if digits else 0, number


#: name, such as "opt.6" or "spherenet.fig5" → the function that makes the table
TABLES: dict[str, Callable[[], PaperTable]] = _tables()


def describe(name: str) -> str:
    """Return the description of a table, one line."""
    return (TABLES[name].__doc__ or "").strip().partition("\n")[0]


def load(name: str) -> PaperTable:
    """Return a table by name. ValueError with the nearest names if there is none."""
    if name not in TABLES:
        raise ValueError(unknown("table", name[:100], TABLES))
    return _build(TABLES[name])


@cache  # tables are frozen, and some have dozens of configs
def _build(function: Callable[[], PaperTable]) -> PaperTable:
    return function()


def load_row(text: str) -> Config | None:
    """Return the full-size config of a row, such as ``opt.1/cnn6/gs-fixed``; None if no table has this name.

    Raise ValueError if the table has no such row, or if the row trains nothing.
    """
    table, _, name = text.partition("/")
    if table not in TABLES:
        return None
    try:
        row = load(table).row(name)
    except ValueError as error:
        raise ValueError(f"{table}: {error}") from None
    if row.full is None:
        raise ValueError(f"{text} trains nothing: use `hypersphere reproduce {table} --rows {name}`")
    if row.start is not None:
        from .._internal.checks import warn  # which imports torch

        warn(f"{text} starts from the weights of {table}/{row.start}: give its run with --init_from")
    return row.full
