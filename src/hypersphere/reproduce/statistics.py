"""Means over seeds, and whether two rows differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

SIGNIFICANT = 0.05  # p-value below which two rows count as different


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the sample standard deviation; None for a single value.

    Example:
        >>> mean_and_deviation([1.0, 2.0, 3.0])
        (2.0, 1.0)
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def welch(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the two-sided p-value of Welch's t-test: how likely a difference of means this large is by chance.

    None if either has fewer than two values. Two rows without any spread differ (0) or do not (1).

    Example:
        >>> round(welch([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), 5)
        0.02131
    """
    if min(len(one), len(other)) < 2:
        return None
    (mean_a, a), (mean_b, b) = mean_and_deviation(one), mean_and_deviation(other)
    assert a is not None
    assert b is not None
    part_a, part_b = a * a / len(one), b * b / len(other)
    if part_a + part_b == 0:
        return float(mean_a == mean_b)
    t = abs(mean_a - mean_b) / math.sqrt(part_a + part_b)
    freedom = (part_a + part_b) ** 2 / (part_a**2 / (len(one) - 1) + part_b**2 / (len(other) - 1))
    return _tail(t, freedom)


def _tail(t: float, freedom: float, pieces: int = 1000) -> float:
    """Return P(|T| > t) of Student's distribution, by Simpson's rule."""
    # With t = sqrt(v)·tan(a) the density is proportional to cos(a)^(v-1), which is smooth on [0, atan(t / sqrt(v))].
    step = math.atan(t / math.sqrt(freedom)) / pieces
    weights = [1, *([4, 2] * (pieces // 2 - 1)), 4, 1]
    area = math.fsum(w * math.cos(i * step) ** (freedom - 1) for i, w in enumerate(weights)) * step / 3
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return min(1.0, max(0.0, 1 - 2 * scale * area))


def agreement(
    paper: Sequence[float | None], measured: Sequence[Sequence[float]], *, tolerance: float = 0.0
) -> dict[str, int]:
    """Count the pairs of rows that the paper orders: measured in the same order, in the opposite one, or undecided.

    A pair is decided if Welch's test over the seeds finds a difference at :data:`SIGNIFICANT`.

    Args:
        tolerance: differences of the paper up to this are no order.

    Example:
        >>> agreement([1.0, 2.0], [[1.0, 1.1, 0.9], [2.0, 2.1, 1.9]])
        {'same': 1, 'opposite': 0, 'undecided': 0}
    """
    counts = {"same": 0, "opposite": 0, "undecided": 0}
    for i in range(len(paper)):
        for j in range(i):
            first, second = paper[i], paper[j]
            if first is None or second is None or abs(first - second) <= tolerance:
                continue
            if not measured[i] or not measured[j]:
                continue
            p = welch(measured[i], measured[j])
            if p is None or p >= SIGNIFICANT:
                counts["undecided"] += 1
            else:
                means = mean_and_deviation(measured[i])[0] - mean_and_deviation(measured[j])[0]
                counts["same" if (means > 0) == (first > second) else "opposite"] += 1
    return counts
