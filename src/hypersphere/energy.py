"""The energy of neurons on the sphere (MHE, Eq. 1, 5, 8 and 18): how evenly their directions are spread.

E_s = Σ_{i≠j} ‖ŵ_i − ŵ_j‖^(−s), or Σ_{i≠j} log ‖ŵ_i − ŵ_j‖^(−1) for s = 0. High energy means redundant neurons, low
energy means neurons that keep away from each other. It does not see the neurons' lengths.

Energies are computed in float32 at least, tile by tile with hand-written gradients (see :mod:`hypersphere.repulsion`,
which also says what happens to neurons that coincide): memory grows as N, not as N². No energy or gradient is ever
infinite: a distance counts as 1e-6 at least, and large s is capped at the largest number of the dtype.

Shapes: N neurons, d their dimension, G groups of neurons, B batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from . import _checks
from .cosine import accumulation_dtype, apply, inverse_row_norm, unit
from .repulsion import (
    NEAR,
    Law,
    Own,
    RowEnergies,
    Side,
    add_up,
    finite,
    in_range,
    rescaled,
    smooth_energy,
    tile_energy,
    tile_pull,
    tile_sides,
)

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
    """The hyperspherical energy of neurons (MHE, Eq. 1).

        E_s = Σ_i Σ_{j≠i} f(‖ŵ_i − ŵ_j‖),    f(z) = z^(−s) for s > 0,  f(z) = log(1/z) for s = 0

    Args:
        weight: (N, ...), flattened to (N, d): rows are neurons. None may be zero.
        s: the power, s ≥ 0; larger s looks more at the nearest neighbours.
        half_space: add to every neuron its antipode −w (3.4): collinear neurons are redundant then, too. The sum runs
            over all 2N, each with its own antipode as well.
        angular: use the angle between neurons instead of their distance (Eq. 5).
        beta: (N,) positive constants, the lengths that the neurons are given (Eq. 18): distances are
            ‖β_i·ŵ_i − β_j·ŵ_j‖. Not with `angular`.
        reduction: "sum" is E_s; "mean" divides by N(N − 1), or in half space by 2N(2N − 1); "none" gives the share of
            every neuron, (N,), in half space together with its antipode's.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
        >>> hyperspherical_energy(square, s=2, reduction="sum")  # 8 neighbours at √2, 4 opposite at 2
        tensor(5.)
        >>> hyperspherical_energy(square[:2], half_space=True)  # the same four points
        tensor(0.4167)
    """
    rows = checked_rows(weight)
    law = checked_law(s, half_space, angular)
    _checks.choice("reduction", reduction, REDUCTIONS)
    lengths = None if beta is None else _checked_beta(beta, rows, law)
    p = _points(rows)
    _refuse_zero("weight", _alive(p))
    e = neuron_energies(p.unsqueeze(0), law, lengths, mean=reduction == "mean").squeeze(0)
    return e if reduction == "none" else _total(e, law)


def group_energy(rows: Tensor, law: Law) -> Tensor:
    """The mean energy of each group of neurons (G, N, d): (G,). Zero neurons count as if they were not there."""
    return _total(neuron_energies(_points(rows), law, mean=True), law)


def neuron_energies(p: Tensor, law: Law, lengths: Tensor | None = None, *, mean: bool) -> Tensor:
    """Every neuron's share of the energy, (G, N), for points of length one or zero (G, N, d).

    Args:
        lengths: β (N,) as in :func:`hyperspherical_energy`.
        mean: divide by the number of pairs. Points of length zero count as if they were not there.
    """
    n, alive = p.shape[1], _alive(p)
    living = alive.sum(1, keepdim=True).to(p.dtype)
    points, copies = (2 * living, 2) if law.half_space else (living, 1)  # an antipode sees what its neuron sees
    pairs = (points * (points - 1)).clamp(min=1) if mean else torch.ones_like(points)
    longest, squares = p.new_ones(()), None
    if lengths is not None:  # E(β) = b^(−s)·E(β/b): the longest has length one, and nothing overflows
        longest = lengths.amax()
        squares, p = (lengths / longest).square().expand(len(p), n), p * (lengths / longest).unsqueeze(1)
    log_scale = math.log(copies) - pairs.log() - law.s * longest.log()
    scale = finite(log_scale.exp() if law.in_logs else copies / pairs * longest.pow(-law.s))
    with torch.autocast(p.device.type, enabled=False):
        e = apply(RowEnergies, p, squares, log_scale, law)[0]
    e = e if law.in_logs else e * scale
    # Zero neurons are at right angles to all others: what they added is known.
    e = e - (n - living) * copies * scale * law.energy(p.new_tensor(2.0))
    if law.half_space:  # its own antipode
        e = e + scale * law.energy(p.new_tensor(4.0) if squares is None else 4 * squares)
    if law.s == 0:  # log(1/bz) = log(1/z) − log b
        e = e - longest.log() * (points - 1) * copies / pairs
    return torch.where(alive, e, 0.0)


def class_energy(weight: Tensor, labels: Tensor, s: float = 2.0, *, angular: bool = False) -> Tensor:
    """The energy of the classes that occur in a batch against all classes (MHE, 3.6 and Eq. 8).

        1/(m(N − 1)) · Σ_{i=1..m} Σ_{j≠y_i} f(‖ŵ_{y_i} − ŵ_j‖)

    It costs B × N × d; a class counts as often as it occurs among the labels.

    Args:
        weight: (N, ...), flattened to (N, d): one row for each class.
        labels: (B,) int64, the classes y_i of the batch.
        s, angular: as in :func:`hyperspherical_energy`.

    Example:
        >>> class_energy(torch.eye(3), torch.tensor([0, 0, 2]), s=2)  # all classes are √2 apart
        tensor(0.5000)
    """
    rows = checked_rows(weight)
    rows = rows.to(accumulation_dtype(rows.dtype))
    if len(rows) < 2:
        raise ValueError(f"weight must have two rows at least, got {tuple(weight.shape)}")
    if not isinstance(labels, Tensor) or labels.dtype is not torch.int64:
        raise TypeError(f"labels must be an int64 tensor, got {getattr(labels, 'dtype', type(labels).__name__)}")
    if labels.dim() != 1 or not len(labels):
        raise ValueError(f"labels must be (B,) and not empty, got {tuple(labels.shape)}")
    law = checked_law(s, False, angular)
    _refuse_zero("weight", inverse_row_norm(rows.detach()) > 0)
    if _may_read(labels):
        outside = labels[(labels < 0) | (labels >= len(rows))]
        if outside.numel():
            raise ValueError(f"labels must be in [0, {len(rows) - 1}], got {outside[0].item()} among others")
    return batch_energy(rows, labels, torch.full_like(labels, 1 / len(labels), dtype=rows.dtype), law)


def batch_energy(rows: Tensor, labels: Tensor, share: Tensor, law: Law) -> Tensor:
    """Σ_i share_i·e_i with the energies e_i of :func:`sample_energies`; the gradient is formed on the way."""
    wanted = torch.is_grad_enabled() and rows.requires_grad
    with torch.autocast(rows.device.type, enabled=False):
        total: Tensor = apply(_BatchEnergy, rows, labels, share.to(rows.dtype), law, wanted)[0]
    return total


def sample_energies(rows: Tensor, labels: Tensor, law: Law) -> Tensor:
    """e_i = 1/(N − 1)·Σ_{j≠y_i} f(‖ŵ_{y_i} − ŵ_j‖) for each label, (B,), of classes (N, d) in float32 at least.

    Classes with a zero weight count as if they were not there.
    """
    with torch.autocast(rows.device.type, enabled=False):
        energies: Tensor = apply(_SampleEnergies, rows, labels, law)
    return energies


class _BatchEnergy(Function):
    """The sum of the samples' energies, and its gradient, which costs less while the tiles are there."""

    @staticmethod
    def forward(rows: Tensor, labels: Tensor, share: Tensor, law: Law, wanted: bool) -> tuple[Tensor, Tensor]:
        energies, gradient = _sweep_classes(rows, labels, share, law, wanted)
        return finite((energies * share).sum()), gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.law, _ = inputs
        ctx.save_for_backward(*tensors, output[1])
        ctx.set_materialize_grads(False)
        if torch.compiler.is_compiling():  # which has no second derivatives
            ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        rows, labels, share, gradient = ctx.saved_tensors
        result = None if grad is None else gradient * grad
        if grad_gradient is None or torch.compiler.is_compiling():
            return result, None, None, None, None
        curvature, to_share = _class_curvature(rows, labels, share, ctx.law, grad_gradient)
        return curvature if result is None else result + curvature, None, to_share, None, None


class _SampleEnergies(Function):
    @staticmethod
    def forward(rows: Tensor, labels: Tensor, law: Law) -> Tensor:
        return _sweep_classes(rows, labels, rows.new_ones(len(labels)), law, False)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        rows, labels, ctx.law = inputs
        ctx.save_for_backward(rows, labels)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        rows, labels = ctx.saved_tensors
        with torch.autocast(rows.device.type, enabled=False):
            return apply(_BatchEnergy, rows, labels, grad, ctx.law, True)[1], None, None


def _sweep_classes(rows: Tensor, labels: Tensor, share: Tensor, law: Law, wanted: bool) -> tuple[Tensor, Tensor]:
    """The energies e_i (B,) and, if wanted, the gradient of Σ share_i·e_i (N, d), from one pass over the classes.

    Large s takes two: the first finds the range of the second.
    """
    inverse = inverse_row_norm(rows)
    x = (rows[labels] * inverse[labels].unsqueeze(1)).unsqueeze(0)
    e, gradient = rows.new_full((1, len(labels)), -math.inf if law.in_logs else 0.0), rows.new_empty(0)
    if law.in_logs or not wanted:
        for _, y, own in _class_tiles(rows, inverse, labels):
            e = add_up(e, tile_energy(tile_sides(x, y, None, own, law), own, law), -1, law)
    others = ((inverse > 0).sum().to(rows.dtype) - 1).clamp(min=1)
    if wanted:
        largest, shift, log_factor = in_range(share.unsqueeze(0), -others.log(), e.amax(1), law)
        weights, every = (
            share.unsqueeze(1) / largest / (1 if law.in_logs else others),
            torch.arange(len(rows), device=rows.device),
        )
        gradient, to_x = torch.empty_like(rows), torch.zeros_like(x)
        for j, y, own in _class_tiles(rows, inverse, labels):
            sides = list(tile_sides(x, y, None, own, law))
            if not law.in_logs:
                e = add_up(e, tile_energy(sides, own, law), -1, law)
            to_y = torch.zeros_like(y)
            pull = tile_pull(sides, weights, own, (labels, every[j]), to_x, to_y, law, shift)
            to_x.baddbmm_(pull, y)
            to_y.baddbmm_(pull.mT, x)
            gradient[j] = _through_unit(to_y, y, inverse[j])
        gradient.index_add_(0, labels, _through_unit(to_x, x, inverse[labels]))
        gradient = rescaled(gradient.unsqueeze(0), log_factor, law).squeeze(0)
    e = (
        (e.squeeze(0) - others.log()).exp().clamp(max=torch.finfo(e.dtype).max)
        if law.in_logs
        else e.squeeze(0) / others
    )
    # Zero classes are at right angles to all others: what they added is known.
    e = e - (inverse == 0).sum() / others * law.energy(rows.new_tensor(2.0))
    return torch.where(inverse[labels] > 0, e, 0.0), gradient


def _class_tiles(rows: Tensor, inverse: Tensor, labels: Tensor) -> Iterator[tuple[slice, Tensor, Own]]:
    """Slices of the classes, their unit weights (1, m, d), and what writes into a tile (1, B, m) at a label's own."""
    n, side = len(rows), max(64, (2**19 if rows.device.type == "cpu" else 2**25) // len(labels))
    if torch.compiler.is_compiling():  # which unrolls the loop
        side = max(side, -(-n // 8))
    for start in range(0, n, side):
        j = slice(start, min(start + side, n))
        local, m = (labels - start).view(1, -1, 1), j.stop - start

        def write(tile: Tensor, value: float, local: Tensor = local, m: int = m) -> None:
            at = local.clamp(0, m - 1)
            tile.scatter_(2, at, torch.where(local == at, value, tile.gather(2, at)))

        yield j, (rows[j] * inverse[j].unsqueeze(1)).unsqueeze(0), write


def _through_unit(grad: Tensor, y: Tensor, inverse: Tensor) -> Tensor:
    """The gradient of w (m, d), given that of its unit vector y (1, m, d)."""
    return grad.addcmul(y, (grad * y).sum(2, keepdim=True), value=-1).squeeze(0).mul_(inverse.unsqueeze(1))


def _class_curvature(rows: Tensor, labels: Tensor, share: Tensor, law: Law, v: Tensor) -> tuple[Tensor, Tensor]:
    """The derivatives of ⟨gradient, v⟩ by the weights and by the shares, by automatic differentiation."""
    with torch.enable_grad():
        leaf, share = rows.detach().requires_grad_(), share.detach().requires_grad_()
        p = unit(leaf)
        squared = torch.where(F.one_hot(labels, len(rows)).bool(), 1.0, 2 - 2 * p[labels] @ p.mT)
        zero = squared.new_zeros(())
        shift = law.log_energy(squared.detach().clamp(min=NEAR * NEAR)).amax() if law.in_logs else zero
        phi = smooth_energy([Side(1, squared, None)], law, shift)
        (gradient,) = torch.autograd.grad((share.unsqueeze(1) * phi).sum(), leaf, create_graph=True)
        along = (gradient * v).sum()
    curvature, to_share = torch.autograd.grad(along, (leaf, share))
    log_factor = (shift - (_alive(p).sum() - 1).clamp(min=1).log()).view(1, 1, 1)
    if not law.in_logs:
        return curvature * log_factor.exp().view(1), to_share * log_factor.exp().view(1)
    scaled, to_share = (rescaled(x.view(1, len(x), -1), log_factor, law) for x in (curvature, to_share))
    return scaled.squeeze(0), to_share.flatten()


class _StraightCap(Function):
    """Infinity becomes the largest number; the gradient does not notice."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return finite(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def _total(e: Tensor, law: Law) -> Tensor:
    total: Tensor = e.sum(-1)
    return apply(_StraightCap, total) if law.in_logs else total


def _points(rows: Tensor) -> Tensor:
    return unit(rows.to(accumulation_dtype(rows.dtype)))


def _alive(p: Tensor) -> Tensor:
    """Which of the points (..., d), of length one or zero, are not zero."""
    return torch.linalg.vector_norm(p.detach(), dim=-1) > 0.5


def checked_law(s: float, half_space: bool, angular: bool) -> Law:
    return Law(_checks.number("s", s, low=0.0), bool(half_space), bool(angular))


def checked_rows(weight: Tensor) -> Tensor:
    """`weight` (N, ...) as rows (N, d)."""
    _checks.floating("weight", weight)
    if weight.dim() < 2 or not weight.numel():
        raise ValueError(f"weight must be (N, ...) with one neuron at least, got {tuple(weight.shape)}")
    return weight.flatten(1)


def _checked_beta(beta: Tensor, rows: Tensor, law: Law) -> Tensor:
    if law.angular:
        raise ValueError("beta must be None with angular=True: angles do not see lengths")
    if not isinstance(beta, Tensor) or beta.shape != rows.shape[:1]:
        got = tuple(beta.shape) if isinstance(beta, Tensor) else type(beta).__name__
        raise ValueError(f"beta must be a tensor of shape ({len(rows)},), one number for each neuron, got {got}")
    if _may_read(beta) and not bool(((beta > 0) & beta.isfinite()).all()):
        bad = int((~((beta > 0) & beta.isfinite())).nonzero()[0, 0])
        raise ValueError(f"beta must be positive and finite, got {beta[bad].item()} at {bad}")
    return beta.detach().to(rows.device, accumulation_dtype(rows.dtype))


def _refuse_zero(name: str, alive: Tensor) -> None:
    """`alive` (N,): a zero neuron has no direction."""
    if _may_read(alive) and not bool(alive.all()):
        dead = (~alive).nonzero().flatten().tolist()
        shown = ", ".join(map(str, dead[:10])) + (", ..." if len(dead) > 10 else "")
        raise ValueError(f"{name} must have no zero rows, got {len(dead)}: {shown}")


def _may_read(x: Tensor) -> bool:
    """Whether values may be looked at: not in a graph, and not where there are none."""
    return not (torch.compiler.is_compiling() or x.is_meta or torch._C._are_functorch_transforms_active())
