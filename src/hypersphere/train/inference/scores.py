"""Evaluate a run on a split: loss, accuracy, accuracy per class, energies."""

from __future__ import annotations

import math
from typing import Any

from ...data import Graph
from .. import building
from ..config import Config
from ..distributed import World, device_of
from ..evaluation import evaluate
from ..splits import Splits, evaluation, load
from .run import Run


def scores(run: Run, split: str | None = None, config: Config | None = None) -> dict[str, Any]:
    """Evaluate a run on a split of its data, as the training does.

    Args:
        split: train, validation or test; None: test, or validation where there is no test.
        config: where the data are, how many are in a batch, and the device; None: as in the training.

    Returns:
        split, samples, loss, accuracy, classes (name → samples and accuracy, None where there are no samples),
        energies (layer → energy), energy (their sum), step; top5 with more than ten classes.

    Example:
        >>> import tempfile
        >>> from hypersphere.train import Config, fit, load_run
        >>> result = fit(Config(steps=2, out=tempfile.mkdtemp()), progress=False)
        >>> scores(load_run(result.path))["accuracy"] == result.summary["accuracy"]
        True
    """
    run.check_labels()
    config = run.config if config is None else config
    splits = load(config.data, run.config.seed)
    split = split or ("test" if splits.count("test") else "validation")
    _check_same(run, splits)
    classifier, world = run.classifier, World(device_of(config.device))
    classifier.to(world.device)
    batches = (batch.to(world.device) for batch in evaluation(splits, split, config.data, world))
    whole = splits.split(split)
    edges = whole.adjacency.to(world.device) if isinstance(whole, Graph) else None
    totals = evaluate(classifier, batches, len(run.labels), edges)
    assert totals is not None  # nothing interrupts it
    if not math.isfinite(totals.loss):
        raise ValueError(f"the loss of {run.path} is not finite")
    samples, correct = totals.samples.tolist(), totals.correct.tolist()
    energies = building.energies(classifier.network, classifier.head, run.config.energy)
    return {
        "split": split,
        "step": run.step,
        "samples": splits.count(split),
        "loss": totals.loss / sum(samples),
        "accuracy": sum(correct) / sum(samples),
        **({} if totals.top5 is None else {"top5": totals.top5 / sum(samples)}),
        "classes": {
            name: {"samples": n, "accuracy": hits / n if n else None}
            for name, n, hits in zip(run.labels, samples, correct, strict=True)
        },
        "energy": sum(energies.values()),
        "energies": energies,
    }


def _check_same(run: Run, splits: Splits) -> None:
    """Raise ValueError unless the data have the classes and shape that the run was trained on."""
    theirs, ours = splits.spec.classes, run.labels
    if theirs != ours:
        at = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), None)
        what = f"{len(theirs)} in place of {len(ours)}" if at is None else f"{theirs[at]!r} in place of {ours[at]!r}"
        raise ValueError(f"the data must have the classes of {run.path}, got {what}")
    if splits.spec.shape != run.spec.shape:
        raise ValueError(f"the data must have samples of shape {run.spec.shape}, got {splits.spec.shape}")
