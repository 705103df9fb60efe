"""Verification: do two embeddings show the same class? In folds, as for LFW."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._internal import checks
from .._internal.tables import TableResult, TextTable, number, percent
from ._embeddings import check_embeddings, unit_rows
from .roc import FARS, Roc, check_same, roc_curve


class FoldAccuracy(NamedTuple):
    """The accuracy of a fold at the threshold of the other folds."""

    fold: int
    accuracy: float
    threshold: float


@dataclass(frozen=True, eq=False, repr=False)
class Verification(TableResult):
    """The result of :func:`verify_pairs` on F folds and P pairs.

    Attributes:
        accuracies: (F,) of each fold, at the threshold of the other folds.
        thresholds: (F,) of the cosine.
        scores: (P,) cosines, each centred as its fold is.
        roc: of the scores of all folds.
    """

    accuracies: Tensor
    thresholds: Tensor
    scores: Tensor
    roc: Roc

    @property
    def rows(self) -> list[FoldAccuracy]:
        """The accuracy and the threshold of each fold."""
        folds = zip(self.accuracies.tolist(), self.thresholds.tolist(), strict=True)
        return [FoldAccuracy(i, accuracy, threshold) for i, (accuracy, threshold) in enumerate(folds)]

    def tables(self) -> list[TextTable]:
        cells = [[str(row.fold), percent(row.accuracy), number(row.threshold)] for row in self.rows]
        return [TextTable(["fold", "accuracy", "threshold"], cells, left=0), *self.roc.tables()]

    def notes(self) -> list[str]:
        return [f"accuracy {percent(self.accuracy)} ± {percent(self.std)} over folds, {len(self.scores)} pairs"]

    @property
    def accuracy(self) -> float:
        """The mean over the folds."""
        return float(self.accuracies.mean())

    @property
    def std(self) -> float:
        """The standard deviation over the folds (divided by F − 1)."""
        return float(self.accuracies.std())

    def to_dict(self, fars: Sequence[float] = FARS) -> Mapping[str, Any]:
        """Return all values by name, ready for JSON."""
        return {
            "accuracy": self.accuracy,
            "std": self.std,
            "tar": {f"{far:g}": self.roc.tar_at(far) for far in fars},
            "folds": self.accuracies.tolist(),
            "thresholds": self.thresholds.tolist(),
            **self.roc.to_dict(),
        }


def verify_pairs(first: Tensor, second: Tensor, same: Tensor, fold: Tensor) -> Verification:
    """Verify P pairs of embeddings, fold by fold: the mean and the threshold come from the other folds.

    For each fold, the mean embedding of the pairs of all other folds is subtracted, and a pair is accepted if the
    cosine of the two is at least the threshold with the best accuracy on the other folds. SphereFace's protocol; it
    takes the embeddings of an image and of its mirror image, concatenated.

    Args:
        first, second: (P, d) embeddings of the two images of each pair.
        same: (P,) bool, whether they show the same class.
        fold: (P,) integers, 0 to F − 1; see :func:`divide_into_folds`.

    Example:
        >>> centres, label = torch.eye(4), torch.arange(40) % 4
        >>> same = torch.arange(40) % 8 < 4
        >>> first, second = centres[label], centres[torch.where(same, label, (label + 1) % 4)]
        >>> result = verify_pairs(first, second, same, divide_into_folds(same, 5))
        >>> result.accuracy, result.roc.auc
        (1.0, 1.0)
    """
    check_embeddings("first", first, "(P, d)", 2)
    check_embeddings("second", second, f"{tuple(first.shape)} as first is", 2, tuple(first.shape))
    same = check_same(same, len(first))
    number = _check_folds(fold, same)
    both = torch.stack([first, second]).detach().double()  # (2, P, d)
    both = both / both.abs().amax().clamp(min=torch.finfo(both.dtype).tiny)  # the mean must not overflow
    scores = both.new_empty(len(first))
    accuracies, thresholds = [], []
    for i in range(number):
        here = fold == i
        centred = unit_rows(both - both[:, ~here].mean((0, 1)))
        cosines = (centred[0] * centred[1]).sum(1)
        thresholds.append(best_threshold(cosines[~here], same[~here]))
        scores[here] = cosines[here]
        accuracies.append(((cosines[here] >= thresholds[-1]) == same[here]).double().mean())
    at = torch.tensor(thresholds, dtype=torch.float64)
    return Verification(torch.stack(accuracies), at, scores, roc_curve(scores, same))


def best_threshold(scores: Tensor, same: Tensor) -> float:
    """Return a threshold with the most pairs right, halfway between two scores; of several the middle one.

    Beyond the largest and the smallest score it lies 1 away, so that nothing or everything is accepted.
    """
    curve = roc_curve(scores, same)
    hits, misses = float(same.sum()), float((~same).sum())
    right = (curve.tar * hits + (1 - curve.far) * misses).round()  # whole numbers: ties are exact
    best = (right == right.max()).nonzero().flatten()
    i = int(best[len(best) // 2])
    values = curve.thresholds[1:]
    padded = torch.cat([values[:1] + 2, values, values[-1:] - 2])
    return float((padded[i] + padded[i + 1]) / 2)


def divide_into_folds(same: Tensor, folds: int = 10) -> Tensor:
    """Divide a list of pairs into folds in its order, (P,) int64; each has its share of same and different pairs.

    For lists without folds, such as LFW's pairsDevTest.txt.

    Example:
        >>> divide_into_folds(torch.tensor([True, True, True, True, False, False]), 2).tolist()
        [0, 0, 1, 1, 0, 1]
    """
    folds = checks.integer("folds", folds, low=2)
    same = check_same(same, len(same) if isinstance(same, Tensor) and same.dim() else 0)
    result = torch.empty(len(same), dtype=torch.int64, device=same.device)
    for kind, name in ((same, "same"), (~same, "different")):
        n = int(kind.sum())
        if n < folds:
            raise ValueError(f"folds must be <= {n}, the number of {name} pairs, got {folds}")
        result[kind] = torch.arange(n, device=same.device) * folds // n
    return result


def _check_folds(fold: Any, same: Tensor) -> int:
    """Return the number of folds; every fold must have pairs, and all others together both kinds."""
    if not isinstance(fold, Tensor) or fold.is_floating_point() or fold.is_complex() or fold.shape != same.shape:
        got = f"{tuple(fold.shape)} of {fold.dtype}" if isinstance(fold, Tensor) else type(fold).__name__
        raise ValueError(f"fold must be ({len(same)},) integers, one per pair, got {got}")
    number = int(fold.max()) + 1
    if int(fold.min()) < 0 or number < 2:
        raise ValueError(f"fold must be 0 to F − 1 for F >= 2 folds, got {int(fold.min())} to {number - 1}")
    for i in range(number):
        if not bool((fold == i).any()):
            raise ValueError(f"every fold must have pairs, but fold {i} of {number} has none")
        rest = same[fold != i]
        if not bool(rest.any()) or bool(rest.all()):
            raise ValueError(f"the folds other than {i} must have same and different pairs, to choose its threshold")
    return number
