"""Hubs? How often each row is among the ten nearest of others: 4096 queries against all."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...openset import nearest
from .answers import Answer, count
from .vectors import CHUNK, Vectors

NEIGHBORS = 10
_LISTED = 100
_SKEWED = 1.0  # above that of uniform points


class Found(NamedTuple):
    """The nearest rows of queries, without themselves.

    Attributes:
        queries: (Q,) rows.
        indices, distances: (Q, k), the nearest first.
    """

    queries: npt.NDArray[np.int64]
    indices: Tensor
    distances: Tensor


def find_neighbors(vectors: Vectors, count: int) -> Found:
    """Search the nearest rows of `count` queries among all, with distances from differences, not from 2 − 2·cosine."""
    queries = vectors.sample(count)
    left = vectors.unit(queries)
    k = min(NEIGHBORS, len(vectors) - 1)
    scores, index = torch.empty(len(left), 0), torch.empty(len(left), 0, dtype=torch.int64)
    for start, part in vectors.blocks(CHUNK):
        found = nearest(left, part, min(k + 1, len(part)))
        scores, index = torch.cat([scores, found.scores], 1), torch.cat([index, found.indices + start], 1)
        scores, place = scores.topk(min(k + 1, scores.shape[1]))
        index = index.gather(1, place)
    index = drop_own(index, torch.from_numpy(queries))
    distances = torch.stack([(vectors.unit(column.numpy()) - left).double().norm(dim=1) for column in index.T], 1)
    distances, order = distances.sort(dim=1, stable=True)
    return Found(queries, index.gather(1, order), distances)


def drop_own(index: Tensor, own: Tensor) -> Tensor:
    """Drop the query itself from its neighbours (Q, k + 1); the last if there were more than k twins before it."""
    is_own = index == own.unsqueeze(1)
    is_own[:, -1] |= ~is_own.any(1)
    return index[~is_own].view(len(index), -1)


def distinct_distances(found: Found, repeated: npt.NDArray[np.bool_]) -> Tensor:
    """Return the distances (Q', k) of queries that repeat no other row; repeated neighbours (N,) are at infinity, last.

    Between two equal neighbours the ratio of distances is 1, which would make a TwoNN dimension too large.
    """
    is_repeated = torch.from_numpy(repeated)
    distances = found.distances.masked_fill(is_repeated[found.indices], torch.inf)
    return distances[~is_repeated[found.queries]].sort(1).values


def occurrences(found: Found, rows: int) -> Tensor:
    """Count how often each of the rows is a neighbour, (rows,) int64."""
    return torch.bincount(found.indices.flatten(), minlength=rows)


def skewness(counts: Tensor) -> float:
    """Compute the third standardized moment, 0 for equal counts.

    Example:
        >>> skewness(torch.tensor([0, 0, 0, 4]))
        1.1547...
    """
    centred = counts.double() - counts.double().mean()
    variance = float(centred.square().mean())
    return float(centred.pow(3).mean()) / variance**1.5 if variance > 0 else 0.0


def has_hubs(vectors: Vectors, found: Found, uniform: Vectors, even: Found) -> tuple[Answer, Tensor, Tensor]:
    """Compare the occurrences with those of uniform points, which have as many in the mean; return both too."""
    counts, even_counts = occurrences(found, len(vectors)), occurrences(even, len(uniform))
    skew, even_skew = skewness(counts), skewness(even_counts)
    never, even_never = (float((c == 0).double().mean()) for c in (counts, even_counts))
    limit = int(even_counts.max())
    order = counts.argsort(descending=True, stable=True)
    hubs = order[: int((counts > limit).sum())]
    listed = tuple(int(i) for i in vectors.number(hubs[:_LISTED].numpy()))
    is_fine = skew <= even_skew + _SKEWED
    verdict = f"{count(len(hubs), 'row')} retrieved more often than any uniform point: look, or centre"
    return (
        Answer(
            "hubs?",
            "no" if is_fine else verdict,
            is_fine,
            f"skewness {skew:.2f}, largest {int(counts.max())}, never {100 * never:.0f} %",
            f"{even_skew:.2f}, {limit}, {100 * even_never:.0f} %",
            listed,
            {
                **{"skewness": skew, "largest": int(counts.max()), "never_retrieved": never, "hubs": len(hubs)},
                **{"occurrences_of_listed": counts[hubs[:_LISTED]].tolist(), "queries": len(found.queries)},
                **{"uniform_skewness": even_skew, "uniform_largest": limit, "uniform_never_retrieved": even_never},
            },
        ),
        counts,
        even_counts,
    )
