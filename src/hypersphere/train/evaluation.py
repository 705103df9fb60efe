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
        top5: samples whose class is among the five largest logits; None for up to :data:`FEW_CLASSES` classes.
    """

    loss: float
    samples: Tensor
    correct: Tensor
    top5: int | None = None


FEW_CLASSES = 10  # up to so many classes, five guesses say little


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
    top5 = 0 if classes > FEW_CLASSES else None
    for batch in batches:
        if interrupted():
            return None
        value, given = model(batch.inputs, batch.labels, edges)
        targets, hits = (each.cpu() for each in predictions(model, given, batch))
        if top5 is not None:
            top5 += int(predictions(model, given, batch, 5)[1].sum())
        loss += float(value) * len(targets)
        samples += targets.bincount(minlength=classes)
        correct += targets[hits].bincount(minlength=classes)
    return Totals(loss, samples, correct, top5)


def predictions(model: Classifier, given: Tensor, batch: Batch, top: int = 1) -> tuple[Tensor, Tensor]:
    """Return targets (n,) and whether each prediction is correct: the target is among the `top` largest logits.

    Negative labels, such as those of nodes outside the split, are left out.
    """
    targets = targets_of(batch.inputs, batch.labels, given).flatten()
    logits = model.logits(given.float())
    guesses = logits.argmax(-1, keepdim=True) if top == 1 else logits.topk(top).indices
    hits = (guesses.flatten(0, -2) == targets[:, None]).any(1)
    return targets[targets >= 0], hits[targets >= 0]
