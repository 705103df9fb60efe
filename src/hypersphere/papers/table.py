"""The tables of the papers: rows with the value that the paper reports, the full-size config and a reduced one.

One module a paper (spherenet.py, mhe.py, opt.py; opt_computed.py has OPT's without training) with one function a table,
named ``table_N`` or ``figure_N``. A row's config derives from another row's by changing a few fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .._internal.nearest import unknown
from ..train.config import Config, derive, to_tree
from ..train.config.convert import flatten
from ..train.config.values import AUTO


class Metric(NamedTuple):
    """The unit of a value, and whether more is better; None: neither (a count)."""

    unit: str
    more_is_better: bool | None


METRICS: dict[str, Metric] = {
    "accuracy": Metric("%", True),
    "error": Metric("%", False),
    "top5_error": Metric("%", False),
    "class0_accuracy": Metric("%", True),
    "class0_error": Metric("%", False),
    "steps": Metric("steps", False),
    "verification": Metric("%", True),
    "few_shot": Metric("%", True),
    "score": Metric("", True),
    "energy": Metric("", False),
    "parameters": Metric("", None),
}

Compute = Callable[[int], Mapping[str, float]]

#: fields of a row's config where its paper says nothing, unlike the defaults, which suit other data
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
class TableRow:
    """One row of a table.

    Attributes:
        name: unique in its table; lower case, words joined by "-". ``column/method`` in tables with several columns:
            rows are compared within their column.
        reported: the value that the paper prints, in the table's unit; None if it prints none.
        full: the config as the paper has it.
        small: a config of reduced size for two cores; None: there is none.
        seeds: runs of the row, by default.
        start: a row whose trained weights this one starts from (second stages).
        compute: instead of configs: a function of the seed that computes the metrics; the same for both sizes.
        note: a remark on this row, one sentence.
        also: further values that the paper prints for the same run, by metric.
    """

    name: str
    reported: float | None = None
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


def scaled_milestones(config: Config, steps: int) -> tuple[int, ...]:
    """Return the milestones of a config in proportion to another number of steps."""
    assert config.steps is not None
    return tuple(steps * milestone // config.steps for milestone in config.schedule.milestones)


@dataclass(frozen=True)
class Scoring:
    """How generated images are scored: by the network of the row `classifier`, on `images` images."""

    classifier: str
    images: int


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of a paper.

    Attributes:
        metric: what is compared, a key of :data:`METRICS`.
        rows: the first of a column is the baseline that its others are compared with.
        reduced: how the configs of reduced size differ from the paper, one sentence.
        differs: how the full-size configs differ from it, beside clipped gradients, one sentence.
        minutes: core-minutes of one run of reduced size, roughly; for estimates before anything has run.
        target: a validation accuracy (%): the step at which a run reaches it is a metric too.
        scoring: of generated images.
        shown: further metrics that the results show beside the table's own, and beside those that the paper prints.
    """

    title: str
    metric: str
    rows: Sequence[TableRow]
    reduced: str = ""
    differs: str = ""
    minutes: float = 1.0
    target: float | None = None
    scoring: Scoring | None = None
    shown: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        names = [row.name for row in self.rows]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"rows must have different names, got {', '.join(sorted(twice))} twice")
        if self.metric not in METRICS:
            raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {self.metric!r}")

    def baseline(self, row: TableRow) -> TableRow:
        """Return the first row of the same column."""
        return next(other for other in self.rows if other.column == row.column)

    def row(self, name: str) -> TableRow:
        """Return a row by name. ValueError with the nearest if there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        raise ValueError(unknown("row", name[:100], [row.name for row in self.rows]))
