"""result.json, the summary of a finished run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..._internal.checksummed_json import Tree
from ..._internal.tables import percent
from .layout import FORMAT, RESULT
from .metrics import MetricsLine
from .records import Count, Finite, Positive, Share, Values, finite, read_tree, to_record


@dataclass(frozen=True)
class Summary:
    """What a training ended with.

    Attributes:
        step: of the training's end.
        split: that the final weights were evaluated on.
        accuracy, loss: of that evaluation; None if the task has none, or it is not finite.
        metrics: what else the task measures, such as top5 or auc.
        energies: by layer; pair_energies are those of OPT's figures.
        best_step, validation: the best evaluation on the validation split, if there is one.
        length: `steps` and `epochs` of the config.
        parameters: trained, and in total after merging.
        data: name and hash of the dataset, and the samples of each split.
        checksums: of config.json, metrics.jsonl, final/model.json and final/rotations.safetensors.
    """

    step: Count
    split: str
    energies: Values
    seconds: Positive
    samples_per_second: Positive
    seed: int
    model: str
    length: tuple[Count | None, ...]
    parameters: dict[str, Count]
    data: dict[str, str | Count]
    versions: dict[str, str]
    accuracy: Share | None = None
    loss: Finite | None = None
    metrics: Values = field(default_factory=dict)
    energy: Finite | None = None
    pair_energies: Values = field(default_factory=dict)
    best_step: Count | None = None
    validation: Values | None = None
    diverged: bool = False
    run_id: str | None = None
    checksums: dict[str, str] = field(default_factory=dict, compare=False)

    def to_dict(self) -> Tree:
        """Return what result.json holds, but for format and checksums: the metrics among the other fields."""
        tree = {key: value for key, value in asdict(self).items() if key not in ("metrics", "checksums")}
        return {**finite(tree), **finite(self.metrics)}


def selection(summary: Summary | None, lines: Sequence[MetricsLine]) -> str:
    """Return how the accuracy was chosen if it is the best evaluation on the split that it is of; else ""."""
    if summary is None or summary.split != "validation" or summary.best_step is None:
        return ""
    evaluated = [line for line in lines if line.split == summary.split]
    last = percent(evaluated[-1].accuracy)
    return f"best of {len(evaluated)} evaluations, step {summary.best_step}; last {last}"


def read_summary(run: Path) -> Summary:
    """Read result.json of a run folder; ValueError in one line if it is missing, damaged or malformed."""
    file = run / RESULT
    tree = read_tree(run, file, FORMAT)
    try:
        return to_record(Summary, tree, rest="metrics")
    except ValueError as error:
        raise ValueError(f"{file} is malformed: {error}") from None
