"""The tables of the papers: rows with the paper's figure, the full-size config and a stated smaller form.

One module a paper (spherenet.py, mhe.py, opt.py; opt_computed.py has OPT's without training) with one function a table,
named ``table_N`` or ``figure_N``. A row's config derives from another row's by changing a few fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._internal.nearest import unknown
from ..train.config import Config, derive, to_tree
from ..train.config.convert import flatten
from ..train.config.values import AUTO

#: figure of a row → its unit, and whether more is better; None: neither (a count)
FIGURES: dict[str, tuple[str, bool | None]] = {
    "accuracy": ("%", True),
    "error": ("%", False),
    "top5_error": ("%", False),
    "class0_accuracy": ("%", True),
    "class0_error": ("%", False),
    "steps": ("steps", False),
    "verification": ("%", True),
    "few_shot": ("%", True),
    "score": ("", True),
    "energy": ("", False),
    "parameters": ("", None),
}

Compute = Callable[[int], Mapping[str, float]]

#: what a row has where its paper says nothing, unlike the defaults, which suit other data
NEUTRAL: dict[str, Any] = {
    "model.name": "cnn3",
    "data.batch_size": 64,
    "data.size": None,
    "data.augment": None,
    "data.validation": None,
    "optimizer.name": "sgd",
    "optimizer.lr": 0.02,
    "schedule.name": "constant",
    "schedule.warmup": 0,
}


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        name: unique in its table; lower case, words joined by "-". ``column/method`` in tables with several columns:
            rows are compared within their column.
        paper: the paper's figure, in the table's unit; None if it gives none.
        full: the config as the paper has it.
        small: a smaller config for two cores; None: there is none.
        seeds: runs of the row, by default.
        start: a row whose trained weights this one starts from (second stages).
        compute: instead of configs: a function of the seed that computes the figures; full and small alike.
        note: what a reader must know of this row, one sentence.
        also: further figures that the paper prints for the same run, by name.
    """

    name: str
    paper: float | None = None
    full: Config | None = None
    small: Config | None = None
    seeds: int = 1
    start: str | None = None
    compute: Compute | None = None
    note: str = ""
    also: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9.+_-]*(/[a-z0-9][a-z0-9.+_-]*)?", self.name):
            raise ValueError(f"the name of a row is lower case without spaces, got {self.name!r}")
        for size in ("full", "small"):
            if (config := getattr(self, size)) is not None:
                object.__setattr__(self, size, _without_auto(config))

    @property
    def column(self) -> str:
        """The column of the table; "" if it has one only."""
        return self.name.partition("/")[0] if "/" in self.name else ""


def _without_auto(config: Config) -> Config:
    """Replace "auto" by the neutral value."""
    flat = flatten(to_tree(config))
    return derive(config, {key: value for key, value in NEUTRAL.items() if flat[key] == AUTO})


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper.

    Attributes:
        figure: what is compared, a key of :data:`FIGURES`.
        rows: the first of a column is the baseline that its others are compared with.
        reduced: how the small forms differ from the paper, one sentence.
        differs: how the full-size configs differ from it, beside clipped gradients, one sentence.
        minutes: core-minutes of one run of the small form, roughly; for estimates before anything has run.
        target: a validation accuracy (%): the step at which a run reaches it is a figure too.
        options: how generated images are scored: `classifier`, the row whose network does, and `images`, how many.
        shown: further figures that the results show beside the table's own, and beside those that the paper prints.
    """

    title: str
    figure: str
    rows: tuple[Row, ...]
    reduced: str = ""
    differs: str = ""
    minutes: float = 1.0
    target: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    shown: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"rows must have different names, got {', '.join(sorted(twice))} twice")
        if self.figure not in FIGURES:
            raise ValueError(f"figure must be one of {', '.join(FIGURES)}, got {self.figure!r}")

    def baseline(self, row: Row) -> Row:
        """Return the first row of the same column."""
        return next(each for each in self.rows if each.column == row.column)

    def row(self, name: str) -> Row:
        """Return a row by name. ValueError with the nearest if there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        raise ValueError(unknown("row", name[:100], [row.name for row in self.rows]))
