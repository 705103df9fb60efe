"""The energy of neurons on the sphere (MHE, Eq. 1, 5, 8 and 18): how evenly their directions are spread.

E_s = Σ_{i≠j} ‖ŵ_i − ŵ_j‖^(−s), or Σ_{i≠j} log ‖ŵ_i − ŵ_j‖^(−1) for s = 0. High energy means redundant neurons, low
energy means neurons that keep away from each other. It does not depend on the neurons' lengths.

Energies are computed in at least float32, tile by tile, with hand-written gradients: memory grows as N, not as N².
Neurons that coincide are handled in :mod:`hypersphere.energy.repulsion`. Energies and gradients are always finite:
distances are at least 1e-6, and for large s the result is capped at the largest number of the dtype.

Shapes: N neurons, d their dimension, G groups of neurons, B batch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._internal import checks
from .._internal.collectives import RowShards
from .._internal.functions import apply, needs_naive_formula
from .._internal.overflow import StatelessFunction
from .._internal.precision import accumulation_dtype, without_autocast
from .._internal.sharding import gather
from ..layers.cosine import inverse_row_norm, unit
from .naive import naive_energies
from .repulsion import Law, clamp_finite
from .tiles import BatchEnergy, RowEnergies, SampleEnergies, TotalEnergy

REDUCTIONS = ("mean", "sum", "none")


def hyperspherical_energy(
    weight: Tensor,
    s: float = 2.0,
    *,
    half_space: bool = False,
    angular: bool = False,
    beta: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Compute the hyperspherical energy of neurons (MHE, Eq. 1).

        E_s = Σ_i Σ_{j≠i} f(‖ŵ_i − ŵ_j‖),    f(z) = z^(−s) for s > 0,  f(z) = log(1/z) for s = 0

    Args:
        weight: (N, ...), flattened to (N, d): rows are neurons. None may be zero.
        s: the power, s ≥ 0; the larger s, the more the nearest neighbours count.
        half_space: add the antipode −w of every neuron (3.4), so that collinear neurons are redundant too. The sum runs
            over all 2N points, including pairs of a neuron and its own antipode.
        angular: use the angle between neurons instead of their distance (Eq. 5).
        beta: (N,) positive constants from 1e-6 to 1e6, the lengths of the neurons (Eq. 18): distances are
            ‖β_i·ŵ_i − β_j·ŵ_j‖. Not with `angular`.
        reduction: "sum" is E_s; "mean" divides by N(N − 1), or in half space by 2N(2N − 1); "none" returns
            the energy of every neuron, (N,), in half space together with its antipode's.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
        >>> hyperspherical_energy(square, s=2, reduction="sum")  # 8 neighbours at √2, 4 opposite at 2
        tensor(5.)
        >>> hyperspherical_energy(square[:2], half_space=True)  # the same four points
        tensor(0.4167)
    """
    rows = checks.rows("weight", gather(weight))
    law = make_law(s, half_space, angular)
    checks.choice("reduction", reduction, REDUCTIONS)
    lengths = None if beta is None else _check_beta(beta, rows, law)
    p = unit(at_least_float32(rows)).unsqueeze(0)
    _reject_dead("weight", is_alive(p).squeeze(0))
    return point_energies(p, law, lengths, mean=reduction == "mean", per_neuron=reduction == "none").squeeze(0)


def group_energy(rows: Tensor, law: Law) -> Tensor:
    """Compute the mean energy of each group of neurons (G, N, d): (G,). Zero neurons are ignored."""
    return point_energies(unit(at_least_float32(rows)), law, mean=True)


def point_energies(
    p: Tensor, law: Law, lengths: Tensor | None = None, *, mean: bool = False, per_neuron: bool = False
) -> Tensor:
    """Compute the energy of groups of points (G, N, d) of length one or zero: (G,), or (G, N) with `per_neuron`.

    Args:
        lengths: β (N,) as in :func:`hyperspherical_energy`.
        mean: divide by the number of pairs.
        per_neuron: return the energy of every neuron. Without it, points of length zero are ignored.
    """
    alive = is_alive(p)
    num_alive = alive.sum(1, keepdim=True).to(p.dtype)
    # A neuron and its antipode have the same energy.
    points, copies = (2 * num_alive, 2) if law.half_space else (num_alive, 1)
    pairs = (points * (points - 1)).clamp(min=1) if mean else torch.ones_like(points)
    shortest, squares = p.new_ones(()), None
    if lengths is not None:  # E(β) = b^(−s)·E(β/b): scale the shortest to length one
        shortest, lengths = lengths.amin(), lengths / lengths.amin()
        squares, p = lengths.square().expand(p.shape[:2]), p * lengths.unsqueeze(1)
    log_scale = math.log(copies) - pairs.log() - law.s * shortest.log()
    scale = clamp_finite(log_scale.exp() if law.in_logs else copies / pairs * shortest.pow(-law.s))
    constant = torch.zeros_like(scale)
    if law.half_space:  # a neuron and its own antipode
        constant = constant + scale * law.energy(p.new_tensor(4.0) if squares is None else 4 * squares)
    if law.s == 0:  # log(1/bz) = log(1/z) − log b
        constant = constant - shortest.log() * (points - 1) * copies / pairs
    constant = torch.where(alive, constant, 0.0)
    needs_grad = torch.is_grad_enabled() and p.requires_grad
    with without_autocast(p):
        if needs_naive_formula():
            pairs = ~torch.eye(p.shape[1], dtype=torch.bool, device=p.device)
            pairs = pairs if per_neuron else pairs & alive.unsqueeze(2) & alive.unsqueeze(1)
            e = naive_energies(p, p, None if squares is None else (squares, squares), pairs, log_scale, law)
            e = e if law.in_logs else e * scale
            return clamp_finite(e + constant) if per_neuron else clamp_finite(e.sum(1) + constant.sum(1))
        if not per_neuron:
            total = apply(TotalEnergy, p, alive, squares, log_scale, law, needs_grad)[0]
            return clamp_finite((total if law.in_logs else total * scale.squeeze(1)) + constant.sum(1))
        e = apply(RowEnergies, p, squares, log_scale, law)[0]
    return clamp_finite((e if law.in_logs else e * scale) + constant)


def class_energy(weight: Tensor, labels: Tensor, s: float = 2.0, *, angular: bool = False) -> Tensor:
    """Compute the energy between the classes of a batch and all classes (MHE, 3.6 and Eq. 8).

        1/(m(N − 1)) · Σ_{i=1..m} Σ_{j≠y_i} f(‖ŵ_{y_i} − ŵ_j‖)

    The cost is B × N × d. A class counts as often as it occurs in the labels.

    Args:
        weight: (N, ...), flattened to (N, d): one row for each class.
        labels: (B,) int64, the classes y_i of the batch.
        s, angular: as in :func:`hyperspherical_energy`.

    Example:
        >>> class_energy(torch.eye(3), torch.tensor([0, 0, 2]), s=2)  # all classes are √2 apart
        tensor(0.5000)
    """
    rows = at_least_float32(checks.rows("weight", gather(weight)))
    if len(rows) < 2:
        raise ValueError(f"weight must have at least 2 rows, got {tuple(weight.shape)}")
    check_labels(labels, len(rows))
    law = make_law(s, False, angular)
    _reject_dead("weight", inverse_row_norm(rows.detach()) > 0)
    return batch_energy(rows, labels, torch.full_like(labels, 1 / len(labels), dtype=rows.dtype), law)


def estimate_energy(rows: Tensor, law: Law, index: Tensor) -> Tensor:
    """Estimate the mean energy of groups of neurons (G, N, d) from those at `index` (n,), without bias: (G,).

    The sum over the drawn pairs is scaled by N(N − 1)/(n(n − 1)). Pairs of a neuron and its own antipode are not a
    random sample of all pairs, so they are added separately.
    """
    n, total_n = len(index), rows.shape[1]
    drawn = rows[:, index]
    total = point_energies(unit(at_least_float32(drawn)), law)
    num_alive, all_alive = (_count_alive(r) for r in (drawn, rows))
    antipodes = 2 * law.energy(total.new_tensor(4.0)) if law.half_space else total.new_zeros(())
    total = (total - num_alive * antipodes) * (total_n * (total_n - 1) / (n * (n - 1))) + all_alive * antipodes
    points = 2 * all_alive if law.half_space else all_alive
    return total / (points * (points - 1)).clamp(min=1)


def batch_energy(rows: Tensor, labels: Tensor, share: Tensor, law: Law, shards: RowShards | None = None) -> Tensor:
    """Compute Σ_i share_i·e_i with the energies e_i of :func:`sample_energies`, and its gradient in the same pass."""
    if needs_naive_formula():
        return clamp_finite((sample_energies(rows, labels, law) * share.to(rows.dtype)).sum())
    needs_grad = torch.is_grad_enabled() and rows.requires_grad
    with without_autocast(rows):
        total: Tensor = apply(BatchEnergy, rows, labels, share.to(rows.dtype), law, needs_grad, shards)[0]
    return total


def sample_energies(rows: Tensor, labels: Tensor, law: Law, shards: RowShards | None = None) -> Tensor:
    """Compute e_i = 1/(N − 1)·Σ_{j≠y_i} f(‖ŵ_{y_i} − ŵ_j‖) for each label, (B,), of classes (N, d), at least float32.

    Classes with a zero weight are ignored. With shards, `rows` are the classes of this process; labels count all, and
    the gradient of all samples has to arrive in every process.
    """
    with without_autocast(rows):
        if needs_naive_formula():
            return _naive_sample_energies(rows, labels, law)
        energies: Tensor = apply(SampleEnergies, rows, labels, law, shards)
    return energies


def _naive_sample_energies(rows: Tensor, labels: Tensor, law: Law) -> Tensor:
    p = unit(rows)
    alive = is_alive(p)
    pairs = alive & alive[labels].unsqueeze(1) & (labels.unsqueeze(1) != torch.arange(len(rows), device=rows.device))
    log_others = (alive.sum().to(rows.dtype) - 1).clamp(min=1).log()
    e = naive_energies(p[labels].unsqueeze(0), p.unsqueeze(0), None, pairs, -log_others.view(1, 1), law).squeeze(0)
    return e if law.in_logs else e / log_others.exp()


def at_least_float32(weight: Tensor) -> Tensor:
    """Cast to at least float32; the gradient is clamped to the range of float16 if that was the dtype."""
    if weight.dtype is torch.float16:
        return apply(_FromFloat16, weight)
    return weight.to(accumulation_dtype(weight.dtype))


class _FromFloat16(StatelessFunction):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clamp(-65504, 65504).half()

    @staticmethod
    def tangents(ctx: Any, dx: Tensor) -> Tensor:
        return dx.float()


def _count_alive(rows: Tensor) -> Tensor:
    """Count the nonzero neurons of each group (G, N, d): (G,)."""
    return (inverse_row_norm(at_least_float32(rows.detach()).flatten(0, 1)) > 0).view(rows.shape[:2]).sum(1)


def is_alive(p: Tensor) -> Tensor:
    """Return which points (..., d), of length one or zero, are not zero."""
    return torch.linalg.vector_norm(p.detach(), dim=-1) > 0.5


def make_law(s: float, half_space: bool, angular: bool, name: str = "s") -> Law:
    """Check s (up to 1e6; beyond, only the nearest pair counts) and make a :class:`Law`."""
    hint = " (geometry.minimize_energy solves s=inf)"
    return Law(checks.number(name, s, low=0.0, high=1e6, hint=hint), bool(half_space), bool(angular))


def check_labels(labels: Tensor, classes: int, ignored: int | None = None) -> None:
    if not isinstance(labels, Tensor) or labels.dtype is not torch.int64:
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels must be an int64 tensor, got {got}")
    if labels.dim() != 1 or not len(labels):
        raise ValueError(f"labels must be (B,) and not empty, got {tuple(labels.shape)}")
    if checks.can_read_values(labels):
        outside = labels[((labels < 0) | (labels >= classes)) & (True if ignored is None else labels != ignored)]
        if outside.numel():
            raise ValueError(f"labels must be in [0, {classes - 1}], got {outside[0].item()} among others")


def _check_beta(beta: Tensor, rows: Tensor, law: Law) -> Tensor:
    if law.angular:
        raise ValueError("beta must be None with angular=True: angles do not depend on lengths")
    if not isinstance(beta, Tensor) or beta.shape != rows.shape[:1]:
        got = tuple(beta.shape) if isinstance(beta, Tensor) else type(beta).__name__
        raise ValueError(f"beta must be a tensor of shape ({len(rows)},), one number for each neuron, got {got}")
    checks.floating("beta", beta)
    if checks.can_read_values(beta) and not bool(((beta >= 1e-6) & (beta <= 1e6)).all()):
        bad = int((~((beta >= 1e-6) & (beta <= 1e6))).nonzero()[0, 0])
        raise ValueError(f"beta must be positive, from 1e-6 to 1e6, got {beta[bad].item()} at {bad}")
    return beta.detach().to(rows.device, accumulation_dtype(rows.dtype))


def _reject_dead(name: str, alive: Tensor) -> None:
    """Raise if a neuron is not alive (N,): it is zero and has no direction."""
    if checks.can_read_values(alive) and not bool(alive.all()):
        raise ValueError(
            f"{name} must not have rows that are zero, contain NaN, or are too long to be squared in float32; "
            f"got {format_rows((~alive).nonzero().flatten().tolist())}"
        )


def format_rows(rows: list[int]) -> str:
    """Format row numbers for a message."""
    return f"{len(rows)} ({', '.join(map(str, rows[:10]))}{', ...' if len(rows) > 10 else ''})"


def warn_zero_neurons(name: str, rows: Tensor) -> bool:
    """Warn if the layer has zero neurons; return whether it has."""
    if rows.is_meta:
        return False
    dead = (inverse_row_norm(at_least_float32(rows.detach()).flatten(0, 1)) == 0).nonzero().flatten().tolist()
    if dead:
        checks.warn(f"layer {name!r} has zero neurons, which have no direction and are ignored: {format_rows(dead)}")
    return bool(dead)
