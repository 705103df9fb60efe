"""Take the metrics of a table's row from a finished run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...train.inference.run import load_run
from ...train.inference.scores import scores
from ...train.results import Result
from .. import gan_score
from ..table import PaperTable

OPEN = {"verification": "eer", "few_shot": "interval"}  # metric → a key of the summary that only open sets have


def metrics_of(table: PaperTable, result: Result, train: Callable[[str], Result]) -> dict[str, float]:
    """Return the metrics of a run, the table's own first.

    Args:
        train: returns the run of a row by name, for a classifier that scores generated images.
    """
    summary = result.summary
    metrics: dict[str, Any] = {}
    if summary.accuracy is not None:
        metrics = {"accuracy": 100 * summary.accuracy, "error": 100 - 100 * summary.accuracy}
    if (top5 := summary.metrics.get("top5")) is not None:
        metrics["top5_error"] = 100 - 100 * top5
    if summary.energy is not None:
        metrics["energy"] = summary.energy
    if summary.validation is not None and (accuracy := summary.validation["accuracy"]) is not None:
        metrics["validation_accuracy"] = 100 * accuracy
    if table.metric in OPEN:
        if OPEN[table.metric] not in summary.metrics:
            name = result.config.data.name
            raise ValueError(f"{table.metric} needs test classes that are not trained on; those of {name} are the same")
        metrics[table.metric] = metrics.get("accuracy")
    if table.target is not None:
        metrics["steps"] = _steps_to(table.target, result)
    if result.config.data.imbalance is not None:
        metrics |= _class0(result)
    if table.scoring is not None:
        classifier = train(table.scoring.classifier) if result.config.model.is_generator else result
        metrics |= gan_score.score(result, classifier, table.scoring.images)
    if metrics.get(table.metric) is None:
        raise ValueError(f"the run {result.path} has no metric {table.metric}")
    return {table.metric: metrics.pop(table.metric), **{k: v for k, v in metrics.items() if v is not None}}


def _steps_to(target: float, result: Result) -> float:
    """Return the first step whose validation accuracy reaches the target; the last step + 1 if none does."""
    lines = [line for line in result.metrics if line.split == "validation"]
    reached = [line.step for line in lines if 100 * (line.accuracy or 0.0) >= target]
    return float(reached[0] if reached else result.summary.step + 1)


def _class0(result: Result) -> dict[str, float]:
    """Return the test accuracy and error of the first class, the one with few samples."""
    assert result.path is not None
    measured = scores(load_run(result.path)).to_dict()
    accuracy = next(iter(measured["classes"].values()))["accuracy"]
    return {"class0_accuracy": 100 * accuracy, "class0_error": 100 - 100 * accuracy}
