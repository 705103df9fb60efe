"""Measure loss and accuracy of a classifier: while it trains, and in `hypersphere evaluate`."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .networks import Classifier, targets_of
from .splits import Batch, DataSpec
from .storage.predictions import LARGEST_IMAGE, MOST_PAIRS, MOST_WORST


@dataclass(frozen=True)
class Totals:
    """Sums over the samples of a split.

    Attributes:
        loss: of all samples.
        samples: of each class, (C,).
        correct: of these, how many were predicted right.
        top5: samples whose class is among the five largest logits; None for up to :data:`FEW_CLASSES` classes.
    """

    loss: float
    samples: Tensor
    correct: Tensor
    top5: int | None = None


FEW_CLASSES = 10  # no top-5 accuracy up to this many classes


@torch.no_grad()
def evaluate(
    model: Classifier,
    batches: Iterable[Batch],
    classes: int,
    edges: Tensor | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    collected: Predictions | None = None,
) -> Totals | None:
    """Sum loss and hits over batches that are on the model's device; None if `interrupted` returned True.

    Args:
        edges: the adjacency of a graph, which is one batch.
        collected: add the predictions to it.
    """
    loss, samples, correct = 0.0, *torch.zeros(2, classes, dtype=torch.long)
    top5 = 0 if classes > FEW_CLASSES else None
    for batch in batches:
        if interrupted():
            return None
        value, output = model(batch.inputs, batch.labels, edges)
        targets, hits = (tensor.cpu() for tensor in predictions(model, output, batch))
        if top5 is not None:
            top5 += int(predictions(model, output, batch, 5)[1].sum())
        if collected is not None:
            collected.add(model, output, batch)
        loss += float(value) * len(targets)
        samples += targets.bincount(minlength=classes)
        correct += targets[hits].bincount(minlength=classes)
    return Totals(loss, samples, correct, top5)


def predictions(model: Classifier, output: Tensor, batch: Batch, top: int = 1) -> tuple[Tensor, Tensor]:
    """Return targets (n,) and whether each prediction is correct: the target is among the `top` largest logits.

    Negative labels, such as those of nodes outside the split, are left out.
    """
    targets = targets_of(batch.inputs, batch.labels, output).flatten()
    logits = model.logits(output.float())
    guesses = logits.argmax(-1, keepdim=True) if top == 1 else logits.topk(top).indices
    hits = (guesses.flatten(0, -2) == targets[:, None]).any(1)
    return targets[targets >= 0], hits[targets >= 0]


class Predictions:
    """Collect which classes are confused, and the images that are predicted wrong with the highest loss.

    Args:
        spec: of the data; other kinds than images have no worst samples.
    """

    def __init__(self, spec: DataSpec) -> None:
        self.spec = spec
        self._seen = 0
        self._codes: list[Tensor] = []  # label * classes + prediction
        self._worst: list[tuple[float, int, int, int, float, Tensor]] = []  # -loss, index, label, prediction, ...

    def add(self, model: Classifier, output: Tensor, batch: Batch) -> None:
        targets = targets_of(batch.inputs, batch.labels, output).flatten()
        logits = model.logits(output.float()).flatten(0, -2)[targets >= 0]
        targets = targets[targets >= 0]
        guesses = logits.argmax(1)
        self._codes.append((targets * len(self.spec.classes) + guesses).cpu())
        if self.spec.kind == "images":
            self._add_worst(batch, targets, guesses, logits.log_softmax(1))
        self._seen += len(targets)

    def _add_worst(self, batch: Batch, targets: Tensor, guesses: Tensor, logs: Tensor) -> None:
        losses = -logs.gather(1, targets[:, None])[:, 0]
        losses = losses.where((guesses != targets) & losses.isfinite(), -1.0)
        limit = -self._worst[-1][0] if len(self._worst) == MOST_WORST else 0.0
        for i in losses.topk(min(MOST_WORST, len(losses))).indices.tolist():
            if float(losses[i]) > limit:
                place = self._seen + i, int(targets[i]), int(guesses[i])
                image = batch.inputs[i].clone().cpu()  # not a view of the whole batch
                self._worst.append((-float(losses[i]), *place, float(logs[i].max().exp()), image))
        self._worst = sorted(self._worst, key=lambda sample: sample[:2])[:MOST_WORST]

    def tree(self) -> dict[str, Any]:
        """Return what predictions/<split>.json holds, but for the split and the model."""
        classes = len(self.spec.classes)
        codes, counts = torch.cat(self._codes).unique(return_counts=True)
        labels, guesses, right = codes // classes, codes % classes, codes // classes == codes % classes
        samples = torch.zeros(classes, dtype=torch.long).index_add_(0, labels, counts)
        correct = torch.zeros(classes, dtype=torch.long).index_add_(0, labels[right], counts[right])
        wrong = torch.stack([labels, guesses, counts], 1)[~right]
        order = wrong[:, 2].argsort(descending=True, stable=True)[:MOST_PAIRS]
        return {
            "classes": self.spec.classes,
            "samples": samples.tolist(),
            "correct": correct.tolist(),
            "confused": wrong[order].tolist(),
            "worst": [
                {"index": index, "label": label, "prediction": guess, "confidence": min(sure, 1.0), "loss": -loss}
                | _thumbnail(image, self.spec.dtype == "uint8")
                for loss, index, label, guess, sure, image in self._worst
            ],
        }


def _thumbnail(image: Tensor, is_normalized: bool) -> dict[str, Any]:
    """Return size and pixels of an image (C, H, W); grey unless it has three channels."""
    if image.shape[0] != 3:
        image = image.mean(0, keepdim=True)
    if max(image.shape[1:]) > LARGEST_IMAGE:
        shrink = LARGEST_IMAGE / max(image.shape[1:])
        size = [max(1, round(side * shrink)) for side in image.shape[1:]]
        image = F.interpolate(image[None], size, mode="area")[0]
    if not is_normalized:  # numbers of any range
        low, high = image.min(), image.max()
        image = (image - low) / (high - low).clamp(min=1e-12) * 1.99 - 0.99
    pixels = (image * 128 + 127.5).nan_to_num(0).round().clamp(0, 255).to(torch.uint8).movedim(0, -1).contiguous()
    return {"size": list(pixels.shape), "pixels": base64.b64encode(pixels.numpy().tobytes()).decode()}
