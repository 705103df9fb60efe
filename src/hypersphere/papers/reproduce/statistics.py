"""Means over seeds, and whether two rows differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import fmean, stdev
from typing import NamedTuple

SIGNIFICANT = 0.05  # p-value below which two rows count as different


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the sample standard deviation; None for a single value.

    Example:
        >>> mean_and_deviation([1.0, 2.0, 3.0])
        (2.0, 1.0)
    """
    return fmean(values), stdev(values) if len(values) > 1 else None


def welch(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the two-sided p-value of Welch's t-test: how likely a difference of means this large is by chance.

    None if either has fewer than two values, or if neither has any spread.

    Example:
        >>> round(welch([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), 5)
        0.02131
    """
    spread = _error_of_difference(one, other)
    if spread is None:
        return None
    error, freedom = spread
    return _tail(abs(mean_and_deviation(one)[0] - mean_and_deviation(other)[0]) / error, freedom)


def confidence(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return half the width of the confidence interval of a difference of means; it excludes 0 if welch < SIGNIFICANT.

    None where :func:`welch` is.

    Example:
        >>> round(confidence([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), 4)
        2.267
    """
    spread = _error_of_difference(one, other)
    if spread is None:
        return None
    error, freedom = spread
    return error * _quantile(freedom)


class Paired(NamedTuple):
    """The mean of differences of pairs, half the width of its confidence interval, and the p-value of Student's test.

    interval and p are None for fewer than two pairs, and if all differences are the same.
    """

    mean: float
    interval: float | None
    p: float | None


def paired(one: Sequence[float], other: Sequence[float]) -> Paired:
    """Test whether the mean of other − one is 0, pair by pair: Student's t-test with n − 1 degrees of freedom.

    What a pair shares, such as a seed's data and order, does not count as spread.

    Example:
        >>> mean, interval, p = paired([1.0, 2.0, 3.0], [2.0, 3.5, 4.0])
        >>> round(mean, 3), round(interval, 3), round(p, 4)
        (1.167, 0.717, 0.0198)
    """
    differences = [b - a for a, b in zip(one, other, strict=True)]
    mean, deviation = mean_and_deviation(differences)
    if not deviation:
        return Paired(mean, None, None)
    error, freedom = deviation / math.sqrt(len(differences)), len(differences) - 1
    return Paired(mean, error * _quantile(freedom), _tail(abs(mean) / error, freedom))


@cache
def _quantile(freedom: float) -> float:
    """Return the t with P(|T| > t) = SIGNIFICANT, by bisection."""
    low, high = 0.0, 1.0
    while _tail(high, freedom) > SIGNIFICANT:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(middle, freedom) > SIGNIFICANT else (low, middle)
    return high


def _error_of_difference(one: Sequence[float], other: Sequence[float]) -> tuple[float, float] | None:
    """Return the standard error of a difference of means and its degrees of freedom (Welch, Satterthwaite)."""
    if min(len(one), len(other)) < 2:
        return None
    variances = [(mean_and_deviation(values)[1] or 0.0) ** 2 / len(values) for values in (one, other)]
    if sum(variances) == 0:
        return None
    shares = (variance**2 / (len(values) - 1) for variance, values in zip(variances, (one, other), strict=True))
    return math.sqrt(sum(variances)), sum(variances) ** 2 / sum(shares)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method.

    Those below a level are all correct with a probability of at least 1 − the level.

    Example:
        >>> holm([0.01, 0.5, 0.02])
        [0.03, 0.5, 0.04]
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    for done, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - done) * p_values[i]))
        corrected[i] = largest
    return corrected


@cache
def _tail(t: float, freedom: float, pieces: int = 300) -> float:
    """Return P(|T| > t) of Student's distribution, by Simpson's rule."""
    # With t = sqrt(v)·tan(a) the density is proportional to cos(a)^(v-1), which is smooth on [0, atan(t / sqrt(v))].
    step = math.atan(t / math.sqrt(freedom)) / pieces
    weights = [1, *([4, 2] * (pieces // 2 - 1)), 4, 1]
    area = math.fsum(w * math.cos(i * step) ** (freedom - 1) for i, w in enumerate(weights)) * step / 3
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return min(1.0, max(0.0, 1 - 2 * scale * area))


def agreement(paper: Sequence[float | None], measured: Sequence[Sequence[float]]) -> dict[str, int]:
    """Count the measured pairs of rows that the paper orders: in the same order, the opposite one, undecided, untested.

    A pair is decided if Welch's test over the seeds finds a difference at :data:`SIGNIFICANT`, and untested where the
    test cannot be made: one of its rows has a single seed.

    Example:
        >>> agreement([1.0, 2.0], [[1.0, 1.1, 0.9], [2.0, 2.1, 1.9]])
        {'same': 1, 'opposite': 0, 'undecided': 0, 'untested': 0}
    """
    counts = {"same": 0, "opposite": 0, "undecided": 0, "untested": 0}
    for i in range(len(paper)):
        for j in range(i):
            first, second = paper[i], paper[j]
            if first is None or second is None or first == second or not measured[i] or not measured[j]:
                continue
            p = welch(measured[i], measured[j])
            if p is None:
                counts["untested"] += 1
            elif p >= SIGNIFICANT:
                counts["undecided"] += 1
            else:
                difference = mean_and_deviation(measured[i])[0] - mean_and_deviation(measured[j])[0]
                counts["same" if (difference > 0) == (first > second) else "opposite"] += 1
    return counts
