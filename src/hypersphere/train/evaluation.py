"""Measure loss and accuracy of a classifier: while it trains, and in `hypersphere evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .building import Classifier, targets_of
from .splits import Batch


@dataclass(frozen=True)
class Totals:
    """Sums over the samples of a split.

    Attributes:
        loss: of all samples.
        samples: of each class, (C,).
        correct: of those, how many were predicted right.
    """

    loss: float
    samples: Tensor
    correct: Tensor


@torch.no_grad()
def evaluate(
    model: Classifier,
    batches: Iterable[Batch],
    classes: int,
    edges: Tensor | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Totals | None:
    """Sum loss and hits over batches that are on the model's device; None if `interrupted` returned True.

    Args:
        edges: the adjacency of a graph, which is one batch.
    """
    loss, samples, correct = 0.0, *torch.zeros(2, classes, dtype=torch.long)
    for batch in batches:
        if interrupted():
            return None
        value, given = model(batch.inputs, batch.labels, edges)
        targets, hits = (each.cpu() for each in predictions(model, given, batch))
        loss += float(value) * len(targets)
        samples += targets.bincount(minlength=classes)
        correct += targets[hits].bincount(minlength=classes)
    return Totals(loss, samples, correct)


def predictions(model: Classifier, given: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return targets (n,) and whether each prediction is correct.

    Negative labels, such as those of nodes outside the split, are left out.
    """
    targets = targets_of(batch.inputs, batch.labels, given).flatten()
    hits = model.logits(given.float()).argmax(-1).flatten() == targets
    return targets[targets >= 0], hits[targets >= 0]
