"""Verification and identification of runs on classes they were not trained on (MHE, Fig. 9 and 10)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import data
from ...report import line_chart
from ...train.inference.run import Run, load_run
from ...train.inference.scores import load_split
from ...train.openset import Embedder, identify, verify
from ...train.splits import Splits
from .drawing import Drawing
from .runs import run_names

_RANKS = ("1", "10")
_POINTS = 400  # of a curve


class Once(Embedder):
    """Embed a dataset once, however often it is asked for."""

    _known: tuple[Any, Tensor] | None = None

    def __call__(self, dataset: Any, *, mirrored: bool = False) -> Tensor:
        if self._known is None or self._known[0] is not dataset:
            self._known = dataset, super().__call__(dataset, mirrored=mirrored)
        return self._known[1]


def _embedder(run: Run) -> tuple[Embedder, Splits, str]:
    splits, split = load_split(run, None, run.config)
    return Once(run.classifier, splits, run.config, lambda batch: batch), splits, split


def roc(inputs: Sequence[Path]) -> Drawing:
    """Draw ROC curves of runs on pairs: the dataset's own, or those of a file among the inputs."""
    lists, folders = ([path for path in inputs if path.is_file() is is_list] for is_list in (True, False))
    if len(lists) > 1 or not folders:
        raise ValueError(f"roc takes runs and at most one list of pairs, got {len(folders)} and {len(lists)}")
    series: dict[str, tuple[list[float], list[float]]] = {}
    rows = []
    for name, run in zip(run_names(folders), map(load_run, folders), strict=True):
        embedder, splits, split = _embedder(run)
        images, settings = splits.split(split), run.config.data
        if lists:
            pairs = data.read_pairs(lists[0])
            images = data.load(settings.name, settings.root, "all") if data.has_pairs(settings.name) else images
        elif splits.pairs is not None:
            pairs = splits.pairs
        else:
            raise ValueError(f"{settings.name}, the data of {run.path}, has no list of pairs: give the file of one")
        verified = verify(embedder, images, pairs)
        curve = verified.roc
        least = 1 / int((~pairs.same).sum())
        series[name] = _thinned(curve.far.clamp(min=least), curve.tar)
        rows.append(
            {"run": name, "accuracy": verified.accuracy, "AUC": curve.auc, "EER": curve.eer}
            | {f"TAR at FAR {far}": curve.tar_at(far) for far in (0.01, 0.1)}
        )
    low = min(x[0] for x, _ in series.values())
    guess = [low ** (1 - k / 30) for k in range(31)]
    series["guess"] = (guess, guess)
    chart = line_chart(
        series,
        title="Verification of pairs",
        xlabel="false accept rate",
        ylabel="true accept rate",
        log="x",
        xlim=(low, 1.0),
        ylim=(0.0, 1.0),
        height=440,
    )
    return Drawing(chart, rows)


def _thinned(x: Tensor, y: Tensor) -> tuple[list[float], list[float]]:
    chosen = torch.linspace(0, len(x) - 1, min(len(x), _POINTS)).round().long()
    return x[chosen].tolist(), y[chosen].tolist()


def identification(inputs: Sequence[Path]) -> Drawing:
    """Draw the rank-1 and rank-10 rates of runs over the number of distractors."""
    rows = []
    for name, run in zip(run_names(inputs), map(load_run, inputs), strict=True):
        embedder, splits, split = _embedder(run)
        people = splits.split(split)
        most = int((people.labels.bincount() == 1).sum())
        if not most:
            raise ValueError(f"{run.path}: no distractors: no class of its {split} data has exactly one sample")
        numbers = sorted({round(most ** (k / 8)) for k in range(9)})
        for number in numbers:
            rates = identify(embedder, people, number).rates
            rows.append({"run": name, "distractors": number} | {f"rank {k}": rates[k] for k in _RANKS})
    series: dict[str, tuple[list[float], list[float]]] = {}
    for k in _RANKS:
        for row in rows:
            x, y = series.setdefault(f"{row['run']}, rank {k}", ([], []))
            x.append(row["distractors"])
            y.append(100 * row[f"rank {k}"])
    chart = line_chart(
        series,
        title="Identification among distractors",
        xlabel="distractors in the gallery",
        ylabel="identification rate, %",
        log="x",
        height=440,
    )
    return Drawing(chart, rows)
