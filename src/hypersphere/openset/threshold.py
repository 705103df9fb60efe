"""One threshold for deployment: accept a pair if its score is at least that, at a stated false accept rate.

Pairs share identities, so they are not independent: one unusual face takes part in thousands of pairs. With identities,
variances are those of the jackknife that leaves out one identity with all its pairs; they are not too small on average
(Efron and Stein, 1981). Rates get Wilson's interval for the number of independent pairs that has this variance. The
threshold's interval is where the FAR passes the two ends of its own interval (Woodruff, 1952). Nothing is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._internal import checks
from .._internal.tables import TableResult, TextTable, number
from ._embeddings import blocks, check_embeddings, check_labels
from .roc import check_scores, roc_curve

LEAST = 10  # false accepts that must be expected: with fewer the FAR is unknown by more than a factor of 1.8
BINS = 2**20  # of the cosines from −1 to 1

Interval = tuple[float, float]


class Estimate(NamedTuple):
    """A quantity with its confidence interval."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False, repr=False)
class OperatingPoint(TableResult):
    """A threshold with its error rates: the result of :func:`threshold_at`.

    Attributes:
        target: the largest FAR that was allowed.
        threshold: a pair is accepted if its score is at least this.
        threshold_interval: its end is infinite if the data cannot tell how high the threshold must be.
        far: false accept rate, the share of different pairs that are accepted.
        tar: true accept rate, the share of same pairs that are accepted.
        same_pairs, different_pairs: their numbers.
        identities: their number; None: unknown, the intervals take pairs as independent.
        confidence: of the intervals.
    """

    target: float
    threshold: float
    threshold_interval: Interval
    far: float
    far_interval: Interval
    tar: float
    tar_interval: Interval
    same_pairs: int
    different_pairs: int
    identities: int | None
    confidence: float

    @property
    def rows(self) -> list[Estimate]:
        """The threshold, the FAR and the TAR."""
        return [
            Estimate("threshold", self.threshold, *self.threshold_interval),
            Estimate("FAR", self.far, *self.far_interval),
            Estimate("TAR", self.tar, *self.tar_interval),
        ]

    def tables(self) -> list[TextTable]:
        cells = [[row.name, number(row.value), f"{number(row.low)} … {number(row.high)}"] for row in self.rows]
        return [TextTable([f"FAR ≤ {self.target:g}", "value", f"{100 * self.confidence:g} % interval"], cells)]

    def notes(self) -> list[str]:
        pairs = f"{self.same_pairs:,} same and {self.different_pairs:,} different pairs"
        if self.identities is None:
            return [f"{pairs}; the intervals take pairs as independent: if they share identities, they are too narrow"]
        return [f"{pairs} of {self.identities:,} identities, which the intervals allow for"]

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON; None is an infinite end of an interval."""
        tree: dict[str, Any] = {"target_far": self.target, "confidence": self.confidence}
        for row in self.rows:
            tree[row.name.lower()] = row.value
            tree[f"{row.name.lower()}_interval"] = [row.low, row.high if row.high < math.inf else None]
        counts = {"same_pairs": self.same_pairs, "different_pairs": self.different_pairs, "identities": self.identities}
        return tree | counts


def threshold_at(
    far: float, scores: Tensor, same: Tensor, *, identities: Tensor | None = None, confidence: float = 0.95
) -> OperatingPoint:
    """Choose the smallest threshold whose false accept rate is at most `far`, with confidence intervals.

    At least 10 false accepts must be expected, far ≥ 10 / (number of different pairs): a smaller FAR is refused.

    Args:
        scores: (P,) of pairs, high for those that are the same.
        same: (P,) bool.
        identities: (P, 2) integers, who is on the two images of each pair. Pairs that share an identity are not
            independent; without identities they are taken as independent, and the intervals may be too narrow.
        confidence: of the intervals.

    Example:
        >>> scores = torch.cat([torch.linspace(0.5, 1, 100), torch.linspace(-1, 0.6, 1000)])
        >>> point = threshold_at(0.01, scores, torch.arange(1100) < 100)
        >>> round(point.threshold, 3), point.far, point.tar
        (0.586, 0.01, 0.83)
    """
    scores, same = check_scores(scores, same)
    different_pairs = int((~same).sum())
    far, confidence = _check_far(far, different_pairs), _check_confidence(confidence)
    curve = roc_curve(scores, same)

    def lowest(rate: float) -> float:
        return float(curve.thresholds[curve.far <= rate][-1])

    threshold = lowest(far)
    if threshold == math.inf:
        share = float(curve.far[1])
        raise ValueError(f"far must be at least {share:g}, the share of different pairs with the highest score")
    accepted = scores >= threshold
    if identities is None:
        count = None
        true, false = (
            Rate(float(hits.double().mean()), len(hits), len(hits)) for hits in (accepted[same], accepted[~same])
        )
    else:
        members, places = _check_identities(identities, same).unique(return_inverse=True)
        count = len(members)
        true, false = (_of_list(accepted[kind], places[kind], count) for kind in (same, ~same))
    return _operating_point(far, threshold, lowest, true, false, count, confidence)


def threshold_of_embeddings(
    far: float, embeddings: Tensor, labels: Tensor, *, confidence: float = 0.95
) -> OperatingPoint:
    """Choose the threshold of the cosine for a false accept rate from all pairs of N embeddings.

    As :func:`threshold_at`, with the labels as identities, but no more than a block of pairs is in memory. The
    threshold is a multiple of 2⁻¹⁹.

    Args:
        embeddings: (N, d), of any length.
        labels: (N,) integers.

    Example:
        >>> labels = torch.arange(200) % 50
        >>> embeddings = torch.randn(50, 8)[labels] + 0.4 * torch.randn(200, 8)
        >>> point = threshold_of_embeddings(0.01, embeddings, labels)
        >>> point.same_pairs, point.different_pairs, point.far <= 0.01 < point.far_interval[1]
        (300, 19600, True)
    """
    check_embeddings("embeddings", embeddings, "(N, d)", 2)
    check_labels("labels", labels, len(embeddings))
    ids, order = labels.to(embeddings.device).unique(return_inverse=True)[1].sort()
    embeddings, sizes = embeddings[order], ids.bincount().double()
    same_pairs = int((sizes * (sizes - 1)).sum()) // 2
    different_pairs = len(ids) * (len(ids) - 1) // 2 - same_pairs
    if not same_pairs or not different_pairs:
        raise ValueError("labels must have two classes or more, one of them with two embeddings or more")
    far, confidence = _check_far(far, different_pairs), _check_confidence(confidence)
    above = _different_above(embeddings, ids)

    def lowest(rate: float) -> float:
        allowed = (above <= rate * different_pairs).nonzero()
        return -1 + 2 * int(allowed[0]) / BINS if len(allowed) else math.inf

    threshold = lowest(far)
    if threshold == math.inf:
        share = float(above[-1]) / different_pairs
        raise ValueError(f"far must be at least {share:g}, the share of different pairs with a cosine of about 1")
    same, different = _rates(embeddings, ids, sizes, threshold)
    return _operating_point(far, threshold, lowest, same, different, len(sizes), confidence)


class Rate(NamedTuple):
    """A share of n pairs, and the number of independent pairs that would have its variance."""

    share: float
    pairs: int
    effective: float

    def interval(self, confidence: float) -> Interval:
        """Return Wilson's interval for the number of independent pairs that would have this variance."""
        p, n, binomial = self.share, self.effective, self.share * (1 - self.share)
        z = NormalDist().inv_cdf((1 + confidence) / 2)
        centre, half = p + z * z / (2 * n), z * math.sqrt(binomial / n + z * z / (4 * n * n))
        low, high = ((centre + side * half) / (1 + z * z / n) for side in (-1, 1))
        return min(max(low, 0.0), p), max(min(high, 1.0), p)  # p is inside but for rounding


def _operating_point(
    far: float,
    threshold: float,
    lowest: Callable[[float], float],
    same: Rate,
    different: Rate,
    identities: int | None,
    confidence: float,
) -> OperatingPoint:
    """Add the intervals; lowest(rate) is the smallest threshold with a FAR of at most `rate`."""
    low, high = different.interval(confidence)
    return OperatingPoint(
        target=far,
        threshold=threshold,
        threshold_interval=(min(threshold, lowest(high)), max(threshold, lowest(low))),
        far=different.share,
        far_interval=(low, high),
        tar=same.share,
        tar_interval=same.interval(confidence),
        same_pairs=same.pairs,
        different_pairs=different.pairs,
        identities=identities,
        confidence=confidence,
    )


def _clustered(accepted: Tensor, pairs: Tensor, total: int) -> Rate:
    """Return the rate of `total` pairs of G identities, by the jackknife over these.

    Args:
        accepted, pairs: (G,) float64, of each identity the number of accepted pairs and of all pairs; a pair of two
            identities is counted for both.
    """
    seen = pairs > 0
    accepted, pairs = accepted[seen], pairs[seen]
    share = float(accepted.sum() / pairs.sum())
    groups, binomial = len(pairs), share * (1 - share)
    if not binomial:  # the pairs do not tell how far they depend on each other: an identity counts once
        return Rate(share, total, min(total, groups))
    if float(pairs.max()) == total:  # an identity is in all pairs
        return Rate(share, total, 1)
    without = (share * total - accepted) / (total - pairs)
    variance = (groups - 1) / groups * float((without - share).square().sum())
    return Rate(share, total, binomial / max(variance, binomial / total))


def _of_list(accepted: Tensor, places: Tensor, groups: int) -> Rate:
    """Return the rate of a list of pairs (P, 2) that are all same or all different."""
    columns = places[:, :1] if bool(places[0, 0] == places[0, 1]) else places
    who, weights = columns.flatten(), accepted.double().repeat_interleave(columns.shape[1])
    return _clustered(torch.bincount(who, weights, groups), who.bincount(minlength=groups).double(), len(accepted))


def _pairs_in_blocks(embeddings: Tensor, ids: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (cosines, ids of rows, ids of columns) of all pairs i < j; −2 is no pair."""
    at = torch.arange(len(ids), device=ids.device)
    for rows, columns, left, right in blocks(embeddings, embeddings):
        if rows.start >= columns.stop:
            continue
        cosines = (left @ right.T).clamp_(-1, 1)
        if rows.stop > columns.start:
            cosines.masked_fill_(at[rows, None] >= at[columns], -2.0)
        yield cosines, ids[rows], ids[columns]


def _different_above(embeddings: Tensor, ids: Tensor) -> Tensor:
    """Return the number of different pairs in each bin of the cosine and all above it, (BINS,)."""
    counts = torch.zeros(BINS, dtype=torch.float64, device=ids.device)
    for cosines, rows, columns in _pairs_in_blocks(embeddings, ids):
        different = cosines.masked_fill_(rows[:, None] == columns, -2.0)
        counts += torch.histc(different, BINS, -1, 1)  # float32 counts exactly: a block has 2²² pairs
    return counts.flip(0).cumsum(0).flip(0)


def _rates(embeddings: Tensor, ids: Tensor, sizes: Tensor, threshold: float) -> tuple[Rate, Rate]:
    """Return TAR and FAR."""
    groups = len(sizes)
    hits, false = torch.zeros_like(sizes), torch.zeros_like(sizes)
    for cosines, rows, columns in _pairs_in_blocks(embeddings, ids):
        i, j = (cosines >= threshold).nonzero(as_tuple=True)
        first, second = rows[i], columns[j]
        same = first == second
        hits += first[same].bincount(minlength=groups)
        for one in (first[~same], second[~same]):
            false += one.bincount(minlength=groups)
    of_same, of_different = sizes * (sizes - 1) / 2, sizes * (len(ids) - sizes)
    return (
        _clustered(hits, of_same, int(of_same.sum())),
        _clustered(false, of_different, int(of_different.sum()) // 2),
    )


def _check_far(far: Any, pairs: int) -> float:
    far = checks.number("far", far, low=0.0, high=1.0, open_low=True)
    if far * pairs < LEAST * (1 - 1e-9):
        smallest = f"the smallest far is {LEAST / pairs:.3g}" if pairs >= LEAST else "too few for any far"
        raise ValueError(
            f"far={far:g} needs {math.ceil(LEAST / far * (1 - 1e-9)):,} different pairs or more, so that {LEAST} false "
            f"accepts are expected, got {pairs:,}: {smallest}"
        )
    return far


def _check_confidence(confidence: Any) -> float:
    confidence = checks.number("confidence", confidence, low=0.0, high=1.0, open_low=True)
    if confidence == 1:
        raise ValueError("confidence must be < 1, got 1")
    return confidence


def _check_identities(identities: Any, same: Tensor) -> Tensor:
    if (
        not isinstance(identities, Tensor)
        or identities.is_floating_point()
        or identities.is_complex()
        or identities.shape != (len(same), 2)
    ):
        what = f"{tuple(identities.shape)} of {identities.dtype}" if isinstance(identities, Tensor) else identities
        raise ValueError(f"identities must be ({len(same)}, 2) integers, two per pair, got {what}")
    wrong = ((identities[:, 0] == identities[:, 1]) != same).nonzero()
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(f"identities must be equal where same is True and only there, but pair {at} differs")
    return identities
