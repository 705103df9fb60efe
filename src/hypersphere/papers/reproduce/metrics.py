"""Take the figures of a table's row from a finished run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...train.inference.run import load_run
from ...train.inference.scores import scores
from ...train.results import Result
from .. import gan_score
from ..table import Table

OPEN = {"verification": "eer", "few_shot": "interval"}  # figure → a key of the summary that only open sets have


def figures_of(table: Table, result: Result, train: Callable[[str], Result]) -> dict[str, float]:
    """Return the figures of a run, the table's own first.

    Args:
        train: returns the run of a row by name, for a classifier that scores generated images.
    """
    summary = result.summary
    found: dict[str, Any] = {}
    if summary.get("accuracy") is not None:
        found = {"accuracy": 100 * summary["accuracy"], "error": 100 - 100 * summary["accuracy"]}
    if summary.get("top5") is not None:
        found["top5_error"] = 100 - 100 * summary["top5"]
    if summary.get("energy") is not None:
        found["energy"] = summary["energy"]
    if summary.get("validation"):
        found["validation_accuracy"] = 100 * summary["validation"]["accuracy"]
    if table.figure in OPEN:
        if OPEN[table.figure] not in summary:
            name = result.config.data.name
            raise ValueError(f"{table.figure} needs test classes that are not trained on; those of {name} are the same")
        found[table.figure] = found.get("accuracy")
    if table.target is not None:
        found["steps"] = _steps_to(table.target, result)
    if result.config.data.imbalance is not None:
        found |= _class0(result)
    if "classifier" in table.options:
        classifier = train(table.options["classifier"]) if result.config.model.is_generator else result
        found |= gan_score.score(result, classifier, table.options["images"])
    if found.get(table.figure) is None:
        raise ValueError(f"the run {result.path} has no figure {table.figure}")
    return {table.figure: found.pop(table.figure), **{k: v for k, v in found.items() if v is not None}}


def _steps_to(target: float, result: Result) -> float:
    """Return the first step whose validation accuracy reaches the target; the last step + 1 if none does."""
    lines = [line for line in result.metrics if line.get("split") == "validation"]
    reached = [line["step"] for line in lines if 100 * line["accuracy"] >= target]
    return float(reached[0] if reached else result.summary["step"] + 1)


def _class0(result: Result) -> dict[str, float]:
    """Return the test accuracy and error of the first class, the one with few samples."""
    assert result.path is not None
    first = next(iter(scores(load_run(result.path))["classes"].values()))
    return {"class0_accuracy": 100 * first["accuracy"], "class0_error": 100 - 100 * first["accuracy"]}
