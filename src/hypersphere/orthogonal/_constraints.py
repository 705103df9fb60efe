"""Generalized OPT: matrices with other constraints than orthogonality, or a small network (OPT, App. J)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ._method import Orthogonalizer, clamp_parameters, from_matrix, normal, normal_start, scaled_product, zeros


def positive_definite(p: Tensor) -> Tensor:
    """Compute LLᵀ; the diagonal of L is exp of P's diagonal."""
    lower = _cholesky(p)
    return lower @ lower.mT


def banded(p: Tensor) -> Tensor:
    """Keep the three middle diagonals."""
    return p.triu(-1).tril(1)


def symmetric(p: Tensor) -> Tensor:
    return p.triu() + p.triu(1).mT


def skew(p: Tensor) -> Tensor:
    return p.triu(1) - p.triu(1).mT


def _cholesky(p: Tensor) -> Tensor:
    # (e^±15)² and its inverse still have digits in float32
    return p.tril(-1) + torch.diag_embed(p.diagonal(dim1=-2, dim2=-1).clamp(-15.0, 15.0).exp())


def _cholesky_start(m: int, init: str) -> Tensor:
    return zeros(m, m) if init == "identity" else normal(m, m)


def _network(p: Tensor, v: Tensor) -> Tensor:
    """Compute v + W₂ᵀ·relu(W₁v) for every row, P = (W₁, W₂)."""
    first, second = clamp_parameters(p).unbind(-3)
    return v + (v @ first.mT).relu() @ second


def _network_start(m: int, init: str) -> Tensor:
    first, second = normal(2, m, m) / m**0.5  # so that W₁v is about as long as v
    return torch.stack([first, torch.zeros_like(second) if init == "identity" else second])


def _no_matrix(p: Tensor) -> Tensor:
    raise ValueError("method 'network' has no matrix: it is v + MLP(v)")


def _apply_positive_definite(p: Tensor, v: Tensor) -> Tensor:
    lower = _cholesky(clamp_parameters(p))
    return v @ lower @ lower.mT


_MATRICES = [
    replace(
        from_matrix("positive_definite", positive_definite, start=_cholesky_start, free=lambda m: m * (m + 1) // 2),
        apply=lambda p, v: scaled_product(_apply_positive_definite, p, v),
    ),
    from_matrix("upper", torch.triu, free=lambda m: m * (m + 1) // 2),
    from_matrix("lower", torch.tril, free=lambda m: m * (m + 1) // 2),
    from_matrix("banded", banded, free=lambda m: 3 * m - 2),
    from_matrix("symmetric", symmetric, free=lambda m: m * (m + 1) // 2),
    from_matrix(
        "skew",
        skew,
        start=normal_start("skew", "whose R is never the identity, as vᵀRv = 0"),
        free=lambda m: m * (m - 1) // 2,
    ),
    from_matrix("hessenberg_upper", lambda p: p.triu(-1), free=lambda m: m * (m + 1) // 2 + m - 1),
    from_matrix("hessenberg_lower", lambda p: p.tril(1), free=lambda m: m * (m + 1) // 2 + m - 1),
    Orthogonalizer(
        "network",
        lambda m: (2, m, m),
        _network_start,
        _no_matrix,
        lambda p, v: scaled_product(_network, p, v),
        orthogonal=False,
    ),
]
CONSTRAINTS = {method.name: method for method in _MATRICES}
