"""The nearest neighbours of embeddings: top k by cosine or inner product, in blocks."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._internal import checks
from ._embeddings import Rows, blocks

METRICS = ("cosine", "inner_product")
ENGINES = ("torch", "faiss")
GROUP = 64  # scores of a group; the k largest scores are in the k groups with the largest maxima


class Neighbors(NamedTuple):
    """The nearest neighbours of Q queries, the nearest first."""

    scores: Tensor
    """(Q, k) float32."""
    indices: Tensor
    """(Q, k) int64, rows of the database."""


@torch.no_grad()
def nearest(
    queries: Rows, database: Rows | None = None, k: int = 10, *, metric: str = "cosine", engine: str = "torch"
) -> Neighbors:
    """Return the k nearest rows of `database` for each query, by exact search in float32.

    All pairs are compared in blocks of 1024 × 4,096, so memory does not grow with either number of rows. Of equal
    scores the lower index comes first.

    Args:
        queries: (Q, d) floats: a tensor, or a numpy array such as ``np.load("embeddings.npy", mmap_mode="r")``.
        database: (N, d) likewise; it may be on another device. None: the queries, each without itself.
        k: at most N, or N − 1 without `database`.
        metric: "cosine", 0 for a zero vector, or "inner_product".
        engine: "torch", on the device of the queries, or "faiss" (``pip install faiss-cpu``), on the CPU; both give
            the same neighbours up to rounding.

    Example:
        >>> database = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
        >>> nearest(torch.tensor([[2.0, 0.0]]), database, k=2)
        Neighbors(scores=tensor([[1.0000, 0.6000]]), indices=tensor([[0, 2]]))
        >>> nearest(database, k=1).indices.flatten().tolist()  # without itself
        [2, 2, 1]
    """
    checks.choice("metric", metric, METRICS)
    checks.choice("engine", engine, ENGINES)
    _check_rows("queries", queries)
    is_self = database is None
    if database is None:
        database = queries
    else:
        _check_rows("database", database)
        if queries.shape[1] != database.shape[1]:
            raise ValueError(f"database must be (N, {queries.shape[1]}) as queries are, got {tuple(database.shape)}")
    most = len(database) - is_self
    if checks.integer("k", k, low=1) > most:
        raise ValueError(f"k must be <= {most}, the number of rows to choose from, got {k}")
    top_of_block = _top_by_faiss if engine == "faiss" else _top
    device = queries.device if isinstance(queries, Tensor) else None
    best = torch.full((len(queries), k), -torch.inf, device=device)
    index = torch.full((len(queries), k), -1, device=device)
    for rows, columns, left, right in blocks(queries, database, unit=metric == "cosine"):
        scores, place = top_of_block(left, right, min(k + is_self, len(right)))
        place = place + columns.start
        if is_self:
            itself = torch.arange(rows.start, rows.stop, device=device).unsqueeze(1)
            scores = scores.masked_fill(place == itself, -torch.inf)
        scores, place = torch.cat([best[rows], scores], 1), torch.cat([index[rows], place], 1)
        best[rows], chosen = scores.topk(k)
        index[rows] = place.gather(1, chosen)
    index, order = index.sort(1)
    best, order = best.gather(1, order).sort(dim=1, descending=True, stable=True)
    return Neighbors(best.clamp(-1, 1) if metric == "cosine" else best, index.gather(1, order))


def _top(left: Tensor, right: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest inner products of each row of `left` with those of `right`, and where they are."""
    scores = left @ right.T
    groups = scores.shape[1] // GROUP
    if scores.shape[1] % GROUP or 4 * k > groups:
        values, places = scores.topk(k)
        return values, places
    grouped = scores.unflatten(1, (groups, GROUP))
    chosen = grouped.amax(2).topk(k).indices
    values, places = grouped.gather(1, chosen.unsqueeze(2).expand(-1, -1, GROUP)).flatten(1).topk(k)
    return values, chosen.gather(1, places // GROUP) * GROUP + places % GROUP


def _top_by_faiss(left: Tensor, right: Tensor, k: int) -> tuple[Tensor, Tensor]:
    try:
        faiss: Any = import_module("faiss")
    except ImportError:
        raise ImportError("engine='faiss' needs faiss: pip install faiss-cpu") from None
    values, places = faiss.knn(left.cpu().numpy(), right.cpu().numpy(), k, faiss.METRIC_INNER_PRODUCT)
    return torch.from_numpy(values).to(left.device), torch.from_numpy(places).to(left.device)


def _check_rows(name: str, rows: Any) -> None:
    if isinstance(rows, np.ndarray):
        if not np.issubdtype(rows.dtype, np.floating):
            raise TypeError(f"{name} must have a floating point dtype, got {rows.dtype}")
    else:
        checks.floating(name, rows)
    if rows.ndim != 2 or not rows.shape[1]:
        raise ValueError(f"{name} must be (n, d), got {tuple(rows.shape)}")
