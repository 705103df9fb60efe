"""How good a run is on a split: loss, accuracy, accuracy of every class, energies."""

from __future__ import annotations

import math
from typing import Any

import torch

from ...data import Graph
from .. import building
from ..config import Config
from ..distributed import World, device_of
from ..splits import Splits, evaluation, load, mask_of
from .run import Run


@torch.no_grad()
def scores(run: Run, split: str | None = None, config: Config | None = None) -> dict[str, Any]:
    """The figures of a run on a split of its data, as a training logs them.

    Args:
        split: train, validation or test; None: test, or validation where there is no test.
        config: where the data are, how many are in a batch, and the device; None: as in the training.

    Returns:
        split, samples, loss, accuracy, classes (name → samples and accuracy, None where there are no samples),
        energies (layer → energy), energy (their sum), step.

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
    classifier, device = run.classifier, device_of(config.device)
    classifier.to(device)
    right, there = torch.zeros(2, len(run.labels), dtype=torch.long)
    total = 0.0
    for inputs, labels, edges in _batches(splits, split, config):
        loss, given = classifier(inputs.to(device), labels.to(device), None if edges is None else edges.to(device))
        targets = building.targets_of(inputs, labels, given).flatten()
        hits = classifier.logits(given).argmax(-1).flatten().cpu() == targets
        kept = targets >= 0
        there += targets[kept].bincount(minlength=len(run.labels))
        right += targets[kept & hits].bincount(minlength=len(run.labels))
        total += float(loss) * int(kept.sum())
    if not math.isfinite(total):
        raise ValueError(f"the loss of {run.path} is not finite: its weights are no good")
    energies = building.energies(classifier.network, classifier.head, run.config.energy)
    return {
        "split": split,
        "step": run.step,
        "samples": splits.count(split),
        "loss": total / int(there.sum()),
        "accuracy": int(right.sum()) / int(there.sum()),
        "classes": {
            name: {"samples": n, "accuracy": hits / n if n else None}
            for name, n, hits in zip(run.labels, there.tolist(), right.tolist(), strict=True)
        },
        "energy": sum(energies.values()),
        "energies": energies,
    }


def _batches(splits: Splits, split: str, config: Config) -> Any:
    """Inputs, labels and, of a graph, its edges; labels of nodes outside the split are -100."""
    whole = splits.split(split)
    if isinstance(whole, Graph):
        return [(whole.features, torch.where(mask_of(whole, split), whole.labels, -100), whole.adjacency)]
    alone = World(torch.device("cpu"))
    return ((batch.inputs, batch.labels, None) for batch in evaluation(splits, split, config.data, alone))


def _check_same(run: Run, splits: Splits) -> None:
    """The data are of the kind that the run was trained on."""
    theirs, ours = splits.spec.classes, run.labels
    if theirs != ours:
        at = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), None)
        what = f"{len(theirs)} in place of {len(ours)}" if at is None else f"{theirs[at]!r} in place of {ours[at]!r}"
        raise ValueError(f"the data must have the classes of {run.path}, got {what}")
    if splits.spec.shape != run.spec.shape:
        raise ValueError(f"the data must have samples of shape {run.spec.shape}, got {splits.spec.shape}")
