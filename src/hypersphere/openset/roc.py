"""The ROC curve of scores, its area, equal error rate and true accept rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._internal import checks
from .._internal.tables import TableResult, TextTable, number, percent

FARS = (0.001, 0.01, 0.1)  # false accept rates in tables and JSON


class RocPoint(NamedTuple):
    """A point of a ROC curve."""

    far: float
    tar: float
    threshold: float


@dataclass(frozen=True, eq=False, repr=False)
class Roc(TableResult):
    """A ROC curve from (0, 0) to (1, 1), a point for every threshold; float64.

    Attributes:
        far: false accept rates, the share of different pairs with a score >= the threshold.
        tar: true accept rates, the share of same pairs with a score >= the threshold.
        thresholds: decreasing; the first is infinite and accepts nothing.
    """

    far: Tensor
    tar: Tensor
    thresholds: Tensor

    @property
    def rows(self) -> list[RocPoint]:
        """The points of the curve."""
        columns = (x.tolist() for x in (self.far, self.tar, self.thresholds))
        return [RocPoint(*point) for point in zip(*columns, strict=True)]

    def tables(self) -> list[TextTable]:
        rates = [percent(self.tar_at(far)) for far in FARS]
        cells = [str(len(self.far)), number(self.auc), percent(self.eer), *rates]
        return [TextTable(["points", "AUC", "EER", *(f"TAR at FAR {far:g}" for far in FARS)], [cells], left=0)]

    def to_dict(self) -> Mapping[str, Any]:
        return {"auc": self.auc, "eer": self.eer, "roc": self.corners()}

    @property
    def auc(self) -> float:
        """The area under the curve by the trapezoidal rule: the share of ordered couples, ties counted half."""
        return float(torch.trapezoid(self.tar, self.far))

    @property
    def eer(self) -> float:
        """The equal error rate: where the straight line between points meets far = 1 − tar."""
        excess = self.far - (1 - self.tar)  # increases from −1 to 1
        i = int((excess >= 0).nonzero()[0])
        below, above = float(excess[i - 1]), float(excess[i])
        share = -below / (above - below)
        return float(self.far[i - 1] + share * (self.far[i] - self.far[i - 1]))

    def tar_at(self, far: float) -> float:
        """Return the largest true accept rate of a threshold whose false accept rate is at most `far`.

        Not interpolated: with n different pairs, a `far` below 1/n allows no false accept.
        """
        limit = checks.number("far", far, low=0.0, high=1.0)
        return float(self.tar[self.far <= limit].max())

    def corners(self) -> dict[str, list[float | None]]:
        """Return far, tar and threshold without the points inside a horizontal or vertical line.

        None is the infinite threshold.
        """
        right, up = self.far.diff() > 0, self.tar.diff() > 0
        turns = (right[1:] != right[:-1]) | (up[1:] != up[:-1]) | (right[1:] & up[1:])
        corner = torch.cat([turns.new_ones(1), turns, turns.new_ones(1)])
        far, tar, thresholds = (x[corner].tolist() for x in (self.far, self.tar, self.thresholds))
        return {"far": far, "tar": tar, "thresholds": [None, *thresholds[1:]]}


def roc_curve(scores: Tensor, same: Tensor) -> Roc:
    """Compute the ROC curve of scores (P,), high for pairs that are the same (P,) bool.

    Equal scores are one point, so the order of the pairs does not matter.

    Example:
        >>> curve = roc_curve(torch.tensor([0.9, 0.8, 0.7, 0.1]), torch.tensor([True, False, True, False]))
        >>> curve.auc, curve.eer, curve.tar_at(0.1)
        (0.75, 0.5, 0.5)
    """
    scores, same = check_scores(scores, same)
    ordered, order = scores.sort(descending=True)
    last = torch.cat([ordered[1:] != ordered[:-1], torch.ones(1, dtype=torch.bool, device=scores.device)])
    hits = same[order].cumsum(0)[last].double()
    misses = (~same[order]).cumsum(0)[last].double()
    zero = hits.new_zeros(1)
    far, tar = torch.cat([zero, misses / misses[-1]]), torch.cat([zero, hits / hits[-1]])
    return Roc(far, tar, torch.cat([zero + torch.inf, ordered[last].double()]))


def check_scores(scores: Any, same: Any) -> tuple[Tensor, Tensor]:
    """Require finite scores (P,) and bools (P,) of which some are True and some are False."""
    checks.floating("scores", scores)
    if scores.dim() != 1 or not scores.isfinite().all():
        what = f"shape {tuple(scores.shape)}" if scores.dim() != 1 else "NaN or infinity"
        raise ValueError(f"scores must be (P,) and finite, got {what}")
    return scores, check_same(same, len(scores))


def check_same(same: Any, pairs: int) -> Tensor:
    """Require bools (P,), some True and some False."""
    if not isinstance(same, Tensor) or same.dtype is not torch.bool:
        raise TypeError(f"same must be a bool tensor, got {same.dtype if isinstance(same, Tensor) else same!r}")
    if same.shape != (pairs,):
        raise ValueError(f"same must be ({pairs},), one per pair, got {tuple(same.shape)}")
    if not bool(same.any()) or bool(same.all()):
        only = "no pairs" if not pairs else f"only {'same' if bool(same.any()) else 'different'} pairs"
        raise ValueError(f"same must have pairs of both kinds, got {only}")
    return same
