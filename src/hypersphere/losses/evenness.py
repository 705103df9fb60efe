"""How evenly embeddings are spread over the sphere, as losses: functions of a batch (B, d), rows of any length.

==================  ============================================================================  =====================
loss                value                                                                         from
==================  ============================================================================  =====================
koleo               −mean_i log(‖x̂_i − its nearest‖ + 1e-8)                                       Sablayrolles 2019
uniformity          log mean_{i≠j} exp(−t‖x̂_i − x̂_j‖²)                                            Wang & Isola 2020
alignment           mean_i ‖x̂_i − ŷ_i‖^α                                                          Wang & Isola 2020
gor                 M₁² + max(0, M₂ − 1/d), M_k the mean of ⟨x̂_i, x̂_j⟩^k over i ≠ j                Zhang et al. 2017
hug                 α·E_2(class weights) + β·mean over classes of mean ‖x̂ − ŵ_y‖                  Liu et al. 2023
==================  ============================================================================  =====================

:mod:`hypersphere.losses.slices` has the two that look at random directions. All are computed in at least float32, and
none forms a tensor of B × B × d; uniformity holds one tile of pairs at a time.

Shapes: B batch, d embedding size, C classes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._internal import checks
from .._internal.functions import apply, is_transformed
from .._internal.precision import without_autocast
from ..energy.hyperspherical import at_least_float32, group_energy, hyperspherical_energy, make_law
from ..energy.repulsion import index_vectors
from ..layers.cosine import unit, unit_unchecked
from .head_inputs import check_labels

_NEAREST_GRADIENT = 1e-4  # the gradient of a pair that is nearer is that of a pair at this distance
_TILE = 512  # rows of a tile of pairs: 1 MB in float32
_LARGEST_T = 20.0  # exp(−4t) is above float32's smallest number


def koleo(embeddings: Tensor, topk: int = 1) -> Tensor:
    """Compute −mean log(‖x̂_i − x̂_j‖ + 1e-8) over the `topk` nearest j of every i: large if embeddings have twins.

    The gradient of a pair nearer than 1e-4 is that of a pair at 1e-4. Twins, whose difference has no direction, are
    pushed apart along one that depends on their places in the batch.

    Args:
        embeddings: (B, d), B > topk.
        topk: how many neighbours of each count.

    Example:
        >>> koleo(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))  # −log √2
        tensor(-0.3466)
    """
    rows = as_rows("embeddings", embeddings)
    topk = checks.integer("topk", topk, low=1)
    if topk >= len(rows):
        raise ValueError(f"topk must be below the number of embeddings ({len(rows)}), got {topk}")
    with without_autocast(rows):
        x = unit(rows)
        return -_log_distances(x, _find_nearest(x.detach(), topk)).mean()


def uniformity(embeddings: Tensor, t: float = 2.0) -> Tensor:
    """Compute log mean_{i≠j} exp(−t‖x̂_i − x̂_j‖²), between −4t and 0; for uniform points in many dimensions −2t.

    Args:
        embeddings: (B, d), B > 1.
        t: in (0, 20].

    Example:
        >>> uniformity(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        tensor(-4.)
    """
    rows = as_rows("embeddings", embeddings)
    t = checks.number("t", t, low=0.0, high=_LARGEST_T, open_low=True)
    with without_autocast(rows):
        x = unit(rows)
        if is_transformed() or torch.compiler.is_compiling():
            return _plain_uniformity(x, t)
        value: Tensor = apply(_Uniformity, x, t, torch.is_grad_enabled() and x.requires_grad)[0]
        return value


def alignment(embeddings: Tensor, others: Tensor, alpha: float = 2.0) -> Tensor:
    """Compute mean ‖x̂_i − ŷ_i‖^α of pairs that belong together.

    Args:
        embeddings, others: (B, d) each.
        alpha: α >= 1.

    Example:
        >>> alignment(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 3.0]]))
        tensor(2.)
    """
    x, y = as_rows("embeddings", embeddings, low=1), as_rows("others", others, low=1)
    if x.shape != y.shape:
        raise ValueError(f"others must have the shape of embeddings {tuple(x.shape)}, got {tuple(y.shape)}")
    alpha = checks.number("alpha", alpha, low=1.0)
    with without_autocast(x):
        difference = unit(x) - unit(y)
        return difference.square().sum(1).mean() if alpha == 2 else _lengths(difference).pow(alpha).mean()


def gor(
    embeddings: Tensor,
    others: Tensor | None = None,
    *,
    mean_weight: float = 1.0,
    second_moment_weight: float = 1.0,
    second_moment_threshold: float | None = None,
) -> Tensor:
    """Compute the global orthogonal regularizer of unrelated pairs: M₁² + max(0, M₂ − 1/d), both 0 if they are uniform.

    M₁ and M₂ are the means of ⟨x̂_i, ŷ_j⟩ and of its square over i ≠ j. The cost is B × min(B, d) × d.

    Args:
        embeddings: (B, d), B > 1.
        others: y (B, d), of which y_i belongs to x_i; None: x itself.
        mean_weight, second_moment_weight: factors of the two terms.
        second_moment_threshold: in place of 1/d.

    Example:
        >>> gor(torch.eye(3))
        tensor(0.)
        >>> gor(torch.ones(4, 2))  # 1 + (1 − 1/2)
        tensor(1.5000)
    """
    rows = as_rows("embeddings", embeddings)
    other = rows if others is None else as_rows("others", others)
    if rows.shape != other.shape:
        raise ValueError(f"others must have the shape of embeddings {tuple(rows.shape)}, got {tuple(other.shape)}")
    weights = [
        checks.number(name, value, low=0.0)
        for name, value in (("mean_weight", mean_weight), ("second_moment_weight", second_moment_weight))
    ]
    limit = 1 / rows.shape[1]
    if second_moment_threshold is not None:
        limit = checks.number("second_moment_threshold", second_moment_threshold, low=0.0, high=1.0)
    with without_autocast(rows):
        x, y = unit(rows), unit(other)
        pairs, own = len(x) * (len(x) - 1), (x * y).sum(1)
        first = (x.sum(0) @ y.sum(0) - own.sum()) / pairs
        if len(x) <= x.shape[1]:
            squares = (x @ y.mT).square().sum()
        else:  # Σ ⟨x_i, y_j⟩² = ⟨XᵀX, YᵀY⟩
            squares = ((x.mT @ x) * (y.mT @ y)).sum()
        second = (squares - own.square().sum()) / pairs
        return weights[0] * first.square() + weights[1] * (second - limit).clamp_min(0)


def hug(embeddings: Tensor, labels: Tensor, weight: Tensor, *, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    """Compute α·E_2(W) + β·mean over classes of the mean of ‖x̂ − ŵ_y‖: classes spread, samples close to their class.

    E_2 is the mean hyperspherical energy with s = 2. Classes without a sample in the batch have no distance.

    Args:
        embeddings: (B, d).
        labels: (B,) int64.
        weight: (C, d), a row for each class, for instance of a loss head.

    Example:
        >>> hug(torch.eye(2), torch.tensor([0, 1]), torch.eye(2))  # two classes √2 apart, samples on them
        tensor(0.5000)
    """
    x, rows = as_rows("embeddings", embeddings, low=1), as_rows("weight", weight)
    if x.shape[1] != rows.shape[1]:
        raise ValueError(f"weight must be (C, {x.shape[1]}), got {tuple(weight.shape)}")
    check_labels(labels, len(x))
    if checks.can_read_values(labels) and not bool(((labels >= 0) & (labels < len(rows))).all()):
        raise ValueError(f"labels must be in [0, {len(rows) - 1}], got {labels.min().item()} to {labels.max().item()}")
    alpha, beta = (checks.number(name, value, low=0.0) for name, value in (("alpha", alpha), ("beta", beta)))
    with without_autocast(x):
        dtype = torch.promote_types(x.dtype, rows.dtype)
        distances = _lengths(unit(x.to(dtype)) - unit(rows.to(dtype))[labels])
        counts = torch.bincount(labels, minlength=len(rows))
        share = 1 / counts[labels].to(dtype) / (counts > 0).sum()
        return alpha * hyperspherical_energy(rows) + beta * (distances * share).sum()


def energy(embeddings: Tensor, s: float = 2.0, *, half_space: bool = False, angular: bool = False) -> Tensor:
    """Compute the mean :func:`hypersphere.hyperspherical_energy` of the rows (B, d) that are not zero.

    Example:
        >>> energy(torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]))  # two points √2 apart
        tensor(0.5000)
    """
    rows = as_rows("embeddings", embeddings)
    return group_energy(rows.unsqueeze(0), make_law(s, half_space, angular)).squeeze(0)


def as_rows(name: str, embeddings: Any, low: int = 2) -> Tensor:
    """Check embeddings (B, d) with B >= low; return them in at least float32."""
    checks.floating(name, embeddings)
    if embeddings.dim() != 2 or embeddings.shape[0] < low or not embeddings.shape[1]:
        raise ValueError(f"{name} must be (B, d) with at least {low} rows, got {tuple(embeddings.shape)}")
    return at_least_float32(embeddings)


def _lengths(difference: Tensor) -> Tensor:
    """Compute the lengths of vectors (..., d), with gradient 0 at 0."""
    return (difference * unit_unchecked(difference)).sum(-1)


def _find_nearest(x: Tensor, count: int) -> Tensor:
    """Return the indices (B, count) of the other unit rows that are nearest to each, a block of rows at a time."""
    blocks = []
    for start in range(0, len(x), _TILE):
        cosines = x[start : start + _TILE] @ x.mT
        cosines.diagonal(start).fill_(-math.inf)
        blocks.append(cosines.topk(count, 1).indices)
    return torch.cat(blocks)


def _log_distances(x: Tensor, nearest: Tensor) -> Tensor:
    """Compute log(‖x_i − x_j‖ + 1e-8) (B, n) for the rows j = nearest (B, n), with the gradient of :func:`koleo`."""
    difference = x.unsqueeze(1) - x[nearest]
    distance = _lengths(difference)
    close = distance.detach() < _NEAREST_GRADIENT
    order = index_vectors(torch.arange(len(x), device=x.device), x)
    direction = unit(difference.detach() + 1e-10 * (order.unsqueeze(1) - order[nearest]))
    linear = (difference * direction).sum(2) / _NEAREST_GRADIENT
    logs = (distance + 1e-8).log()
    return torch.where(close, linear + (logs - linear).detach(), torch.where(close, 1.0, distance).add(1e-8).log())


def _plain_uniformity(x: Tensor, t: float) -> Tensor:
    """Compute :func:`uniformity` of unit rows by operations with all derivatives."""
    terms = (2 * t * (x @ x.mT - 1)).exp()
    others = ~torch.eye(len(x), dtype=torch.bool, device=x.device)
    return ((terms * others).sum() / (len(x) * (len(x) - 1))).log()


class _Uniformity(Function):
    """The logarithm of the mean over pairs; its gradient is computed in the same pass over the tiles."""

    @staticmethod
    def forward(x: Tensor, t: float, needs_grad: bool) -> tuple[Tensor, Tensor]:
        total, gradient = x.new_zeros((), dtype=torch.float64), torch.zeros_like(x) if needs_grad else x.new_empty(0)
        starts = range(0, len(x), _TILE)
        buffer = x.new_empty(_TILE * _TILE)
        for i in starts:
            rows = x[i : i + _TILE]
            for j in range(i, len(x), _TILE):
                columns = x[j : j + _TILE]
                out = buffer[: len(rows) * len(columns)].view(len(rows), len(columns))
                tile = torch.mm(rows, columns.mT, out=out).sub_(1).mul_(2 * t).exp_()
                if i == j:
                    tile.fill_diagonal_(0.0)
                total += tile.sum() * (1 if i == j else 2)
                if needs_grad:
                    gradient[i : i + _TILE].addmm_(tile, columns)
                    if i != j:
                        gradient[j : j + _TILE].addmm_(tile.mT, rows)
        value = (total / (len(x) * (len(x) - 1))).log().to(x.dtype)
        return value, gradient.mul_((4 * t / total).to(x.dtype)) if needs_grad else gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.t, _ = inputs
        ctx.save_for_backward(x, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None]:
        x, gradient = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return gradient * grad, None, None
        (exact,) = torch.autograd.grad(_plain_uniformity(x, ctx.t), x, create_graph=True)
        return exact * grad, None, None
