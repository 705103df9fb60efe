"""Tiled sums over all pairs of neurons, and over the classes of a batch and all classes, as autograd Functions.

:mod:`hypersphere.energy.repulsion` computes one tile; here tiles are summed and differentiated twice.

Shapes: G groups, N points or classes, d dimensions, B batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .._internal.collectives import RowShards
from .._internal.functions import apply
from .._internal.precision import without_autocast
from .._internal.sharding import position_in, reduce_
from ..layers.cosine import inverse_row_norm, unit
from .repulsion import (
    NEAR,
    FillSelf,
    Law,
    SignedTile,
    add_energies,
    clamp_finite,
    range_factors,
    rescale_capped,
    signed_tiles,
    smooth_energy,
    tile_energies,
    tile_forces,
)

MIN_SIDE = 64  # of a tile
FEW = 256  # neurons: processes do not share fewer, because adding up their forces takes longer than their pairs


class TotalEnergy(Function):
    """Compute the total energy Σ_i e_i (G,) of points (G, N, d) that are `alive` (G, N), among themselves.

    For large s it is multiplied by exp(log_scale) and capped at the largest number.

    The other points are zero, at right angles to all. The gradient is computed in the same pass over the tiles and is
    an output so that it has second derivatives.
    """

    @staticmethod
    def forward(
        p: Tensor, alive: Tensor, squares: Tensor | None, log_scale: Tensor, law: Law, needs_grad: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        at_once = needs_grad and not law.in_logs
        e, gradient = _sweep_pairs(p, squares, law, energy=True, forces=at_once)
        peak = e.amax(1)
        if needs_grad and law.in_logs:
            gradient = _forces(p, None, squares, log_scale, peak, law)
        if law.in_logs:  # zero points add next to nothing
            total = _exp_capped(torch.where(alive, e, -math.inf).logsumexp(1) + log_scale.view(-1))
        else:
            dead = (~alive).sum(1, keepdim=True)
            sides = 2 if law.half_space else 1
            total = torch.where(alive, e - dead * (sides * law.energy(p.new_tensor(2.0))), 0.0).sum(1)
        return total, gradient.mul_(2 * law.force_factor) if at_once else gradient, peak

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        p, _, squares, log_scale, ctx.law, _ = inputs
        _, gradient, peak = output
        ctx.save_for_backward(p, squares, log_scale, peak, gradient)
        ctx.mark_non_differentiable(peak, *([gradient] if torch.compiler.is_compiling() else []))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, v: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
        p, squares, log_scale, peak, gradient = ctx.saved_tensors
        result = None if grad is None else gradient * grad.view(-1, 1, 1)
        if v is not None and not torch.compiler.is_compiling():
            curvature, _ = _curvature(p, p.new_ones(p.shape[:2]), v, squares, log_scale, peak, ctx.law)
            result = curvature if result is None else result + curvature
        return result, None, None, None, None, None


class RowEnergies(Function):
    """Compute the energy of each neuron: e_i = Σ_j φ_ij (G, N) of points (G, N, d).

    For large s they are multiplied by exp(log_scale) and capped at the largest number.

    The backward pass computes the tiles again; only the points are saved. The second output is the largest log e_i of
    each group (G,), with which the backward pass avoids overflow for large s.
    """

    @staticmethod
    def forward(p: Tensor, squares: Tensor | None, log_scale: Tensor, law: Law) -> tuple[Tensor, Tensor]:
        e, _ = _sweep_pairs(p, squares, law, energy=True)
        return _exp_capped(e + log_scale) if law.in_logs else e, e.amax(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        p, squares, log_scale, ctx.law = inputs
        ctx.save_for_backward(p, squares, log_scale, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, a: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
        p, squares, log_scale, peak = ctx.saved_tensors
        with without_autocast(p):
            return apply(_Forces, p, a, squares, log_scale, peak, ctx.law), None, None, None


class _Forces(Function):
    """Compute the forces G_i = Σ_j (a_i + a_j)·D_ij·p_j of points (G, N, d) with weights a (G, N)."""

    @staticmethod
    def forward(p: Tensor, a: Tensor, squares: Tensor | None, log_scale: Tensor, peak: Tensor, law: Law) -> Tensor:
        return _forces(p, a, squares, log_scale, peak, law)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.law = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        p, a, squares, log_scale, peak = ctx.saved_tensors
        return *_curvature(p, a, v, squares, log_scale, peak, ctx.law), None, None, None, None


def _forces(p: Tensor, a: Tensor | None, squares: Tensor | None, log_scale: Tensor, peak: Tensor, law: Law) -> Tensor:
    """Compute G with weights a (G, N), or 1; finite for any s."""
    largest, shift, log_factor = range_factors(p.new_ones(len(p), 1) if a is None else a, log_scale, peak, law)
    weights = None if a is None else a / largest.squeeze(2)
    _, g = _sweep_pairs(p, squares, law, forces=True, weights=weights, shift=shift)
    return rescale_capped(g.mul_(law.force_factor * (2 if a is None else 1)), log_factor, law)


def _sweep_pairs(
    p: Tensor,
    squares: Tensor | None,
    law: Law,
    *,
    energy: bool = False,
    forces: bool = False,
    weights: Tensor | None = None,
    shift: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum energies and forces over all pairs, tile by tile; the processes of a mesh share the tiles.

    Returns the energies e (G, N), or their logarithms, and Σ_j (a_i + a_j or 1)·D_ij·p_j / force_factor (G, N, d).
    """
    e = p.new_full(p.shape[:2], -math.inf if law.in_logs else 0.0)
    g, all_indices = torch.zeros_like(p) if forces else p.new_empty(0), torch.arange(p.shape[1], device=p.device)
    shift = p.new_zeros(()) if shift is None else shift
    mesh = law.mesh if p.shape[1] >= FEW else None
    for i, j in _tiles(p) if mesh is None else _own_tiles(p, mesh):
        fill_self = _fill_diagonal if i == j else None
        pair_squares = None if squares is None else (squares[:, i], squares[:, j])
        sides = list(signed_tiles(p[:, i], p[:, j], pair_squares, fill_self, law))
        energies = tile_energies(sides, fill_self, law) if energy else []
        for tile in energies:
            e[:, i] = add_energies(e[:, i], tile, -1, law)
            if i != j:
                e[:, j] = add_energies(e[:, j], tile, -2, law)
        if forces:
            both = None if weights is None else weights[:, i].unsqueeze(2) + weights[:, j].unsqueeze(1)
            points, indices = (p[:, i], p[:, j]), (all_indices[i], all_indices[j])
            out = (g[:, i], None if i == j else g[:, j])
            tile = tile_forces(sides, energies, both, fill_self, points, indices, out, law, shift)
            g[:, i].baddbmm_(tile, p[:, j])
            if i != j:
                g[:, j].baddbmm_(tile.mT, p[:, i])
    if mesh is not None:
        e = _add_up(e, mesh, law) if energy else e
        g = reduce_(g, mesh) if forces else g
    return e, g


def _add_up(e: Tensor, mesh: Any, law: Law) -> Tensor:
    """Add up the energies, or their logarithms, over the processes."""
    if not law.in_logs:
        return reduce_(e, mesh)
    largest = reduce_(e.clone(), mesh, "MAX").nan_to_num_(neginf=0.0)
    return reduce_((e - largest).exp_(), mesh).log_().add_(largest)


def _curvature(
    p: Tensor, a: Tensor, v: Tensor, squares: Tensor | None, log_scale: Tensor, peak: Tensor, law: Law
) -> tuple[Tensor, Tensor]:
    """Compute the derivatives of ⟨G, v⟩ by p and a, tile by tile; the force of pairs nearer than NEAR is constant."""
    largest, shift, log_factor = range_factors(a, log_scale, peak, law)
    grad_p, grad_a = torch.zeros_like(p), torch.zeros_like(a)
    for i, j in _tiles(p):
        with torch.enable_grad(), without_autocast(p):
            x, a_x = _leaf(p[:, i]), _leaf(a[:, i] / largest.squeeze(2))
            y, a_y = (x, a_x) if i == j else (_leaf(p[:, j]), _leaf(a[:, j] / largest.squeeze(2)))
            pair_squares = None if squares is None else (squares[:, i], squares[:, j])
            phi = smooth_energy(signed_tiles(x, y, pair_squares, _fill_diagonal if i == j else None, law), law, shift)
            loss = ((a_x.unsqueeze(2) + a_y.unsqueeze(1)) * phi).sum() * (0.5 if i == j else 1.0)
            g_x, g_y = torch.autograd.grad(loss, (x, y), create_graph=True)
            along = (g_x * v[:, i]).sum() + (0 if i == j else (g_y * v[:, j]).sum())
        inputs = (x, y, a_x, a_y)
        h_x, h_y, h_a_x, h_a_y = torch.autograd.grad(along, inputs, allow_unused=True, materialize_grads=True)
        grad_p[:, i] += h_x
        grad_a[:, i] += h_a_x
        if i != j:
            grad_p[:, j] += h_y
            grad_a[:, j] += h_a_y
    to_a = rescale_capped(grad_a.unsqueeze(2), log_factor - largest.log(), law).squeeze(2)
    return rescale_capped(grad_p, log_factor, law), to_a


def _tiles(p: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield row and column slices of the upper triangle of pairs."""
    n, side = p.shape[1], _side(p)
    if torch.compiler.is_compiling():  # it unrolls the loop
        side = max(side, -(-n // 4))
    slices = _slices(n, side)
    return ((i, j) for k, i in enumerate(slices) for j in slices[k:])


def _own_tiles(p: Tensor, mesh: Any) -> list[tuple[slice, slice]]:
    """Return the tiles of this process: with enough rows, as many on and beside the diagonal as in any other."""
    n, count = p.shape[1], 2 * mesh.size()
    rounds = -(-n // (_side(p) * count))
    slices = _slices(n, max(MIN_SIDE, -(-n // (rounds * count))))
    beside = [(i, j) for k, i in enumerate(slices) for j in slices[k + 1 :]]
    return [*((i, i) for i in slices), *beside][position_in(mesh) :: mesh.size()]


def _side(p: Tensor) -> int:
    """Return the side of a tile of points (G, N, d): 1 MB stays in a CPU's cache."""
    return max(MIN_SIDE, math.isqrt((2**18 if p.device.type == "cpu" else 2**24) // len(p)))


def _slices(n: int, side: int) -> list[slice]:
    return [slice(start, min(start + side, n)) for start in range(0, n, side)]


def _fill_diagonal(tile: Tensor, value: float) -> None:
    tile.diagonal(dim1=1, dim2=2).fill_(value)


def _exp_capped(log_energy: Tensor) -> Tensor:
    return log_energy.exp().clamp(max=torch.finfo(log_energy.dtype).max)


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


class BatchEnergy(Function):
    """Sum the samples' energies, with the gradient from the same pass over the tiles."""

    @staticmethod
    def forward(
        rows: Tensor, labels: Tensor, share: Tensor, law: Law, needs_grad: bool, shards: RowShards | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        energies, gradient = _sweep_classes(rows, labels, share, law, needs_grad, shards)
        return clamp_finite((energies * share).sum()), gradient, energies

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.law, _, ctx.shards = inputs
        _, gradient, energies = output
        ctx.save_for_backward(*tensors, gradient, energies)
        ctx.set_materialize_grads(False)
        # a compiler has no second derivatives
        ctx.mark_non_differentiable(energies, *([gradient] if torch.compiler.is_compiling() else []))

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_gradient: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
        rows, labels, share, gradient, energies = ctx.saved_tensors
        result = to_share = None
        if grad is not None:
            result, to_share = _scale_gradient(gradient, grad), energies * grad
        if grad_gradient is not None and not torch.compiler.is_compiling():
            if ctx.shards is not None:
                raise RuntimeError("the energy of sharded classes has no second derivatives")
            curvature, more = _class_curvature(rows, labels, share, ctx.law, grad_gradient)
            result = curvature if result is None else result + curvature
            to_share = more if to_share is None else to_share + more
        return result, None, to_share, None, None, None


class SampleEnergies(Function):
    """Compute the energy of each sample: that of its class with all other classes."""

    @staticmethod
    def forward(rows: Tensor, labels: Tensor, law: Law, shards: RowShards | None = None) -> Tensor:
        return _sweep_classes(rows, labels, rows.new_ones(len(labels)), law, False, shards)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        rows, labels, ctx.law, ctx.shards = inputs
        ctx.save_for_backward(rows, labels)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        rows, labels = ctx.saved_tensors
        with without_autocast(rows):
            return apply(BatchEnergy, rows, labels, grad, ctx.law, True, ctx.shards)[1], None, None, None


def _sweep_classes(
    rows: Tensor, labels: Tensor, share: Tensor, law: Law, needs_grad: bool, shards: RowShards | None
) -> tuple[Tensor, Tensor]:
    """Compute e_i (B,) and, if wanted, the gradient of Σ share_i·e_i (N, d), in one pass over the classes.

    Large s takes two passes: the first finds the range for the second. With shards, `rows` are those of this process
    and labels count all classes.
    """
    inverse, first = inverse_row_norm(rows), 0
    own: Any = slice(None)  # the labels whose classes are here
    classes = torch.stack([(inverse > 0).sum(), (inverse == 0).sum()])
    x = rows.new_zeros(len(labels), rows.shape[1])
    if shards is not None:
        first, own, classes = shards.start, shards.find(labels), reduce_(classes, shards.mesh)
    here = labels[own] - first
    x[own] = rows[here] * inverse[here].unsqueeze(1)
    x = (x if shards is None else reduce_(x, shards.mesh)).unsqueeze(0)
    e, gradient = rows.new_full((1, len(labels)), -math.inf if law.in_logs else 0.0), rows.new_empty(0)
    if law.in_logs or not needs_grad:
        for _, y, fill_self in _class_tiles(rows, inverse, labels - first):
            (tile,) = tile_energies(signed_tiles(x, y, None, fill_self, law), fill_self, law)
            e = add_energies(e, tile, -1, law)
        if shards is not None:
            e = _add_up(e, shards.mesh, law)
    others = (classes[0].to(rows.dtype) - 1).clamp(min=1)
    if needs_grad:
        largest, shift, log_factor = range_factors(share.unsqueeze(0), -others.log(), e.amax(1), law)
        weights = share.unsqueeze(1) / largest * law.force_factor / (1 if law.in_logs else others)
        all_indices = torch.arange(first, first + len(rows), device=rows.device)
        gradient, to_x = torch.empty_like(rows), torch.zeros_like(x)
        for j, y, fill_self in _class_tiles(rows, inverse, labels - first):
            sides = list(signed_tiles(x, y, None, fill_self, law))
            tiles = [] if law.in_logs else tile_energies(sides, fill_self, law)
            for tile in tiles:
                e = add_energies(e, tile, -1, law)
            to_y = torch.zeros_like(y)
            forces = tile_forces(
                sides, tiles, weights, fill_self, (x, y), (labels, all_indices[j]), (to_x, to_y), law, shift
            )
            to_x.baddbmm_(forces, y)
            to_y.baddbmm_(forces.mT, x)
            _unit_backward(to_y[0], y[0], inverse[j], gradient[j])
        if shards is not None:
            to_x, e = reduce_(to_x, shards.mesh), e if law.in_logs else reduce_(e, shards.mesh)
        of_labels = _unit_backward(to_x[0][own], x[0][own], inverse[here], torch.empty_like(x[0][own]))
        gradient.index_add_(0, here, of_labels)
        gradient = rescale_capped(gradient.unsqueeze(0), log_factor, law).squeeze(0) if len(rows) else gradient
    e = _exp_capped(e.squeeze(0) - others.log()) if law.in_logs else e.squeeze(0) / others
    # Zero classes are at right angles to all others: subtract their energy.
    e = e - classes[1] / others * law.energy(rows.new_tensor(2.0))
    return torch.where(x[0].square().sum(1) > 0.5, e, 0.0), gradient


def _scale_gradient(gradient: Tensor, grad: Tensor) -> Tensor:
    """Compute gradient·grad, in place if the graph is not kept: the gradient is as large as the weights."""
    keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
    if grad.device.type != "cpu" or torch.compiler.is_compiling() or torch.is_grad_enabled() or keeps_graph():
        return gradient * grad
    return gradient.mul_(grad)


def _class_tiles(rows: Tensor, inverse: Tensor, labels: Tensor) -> Iterator[tuple[slice, Tensor, FillSelf]]:
    """Yield slices of the classes, their unit weights (1, m, d), and a function that fills a tile at the labels."""
    n, side = len(rows), max(64, (2**20 if rows.device.type == "cpu" else 2**25) // len(labels))
    if torch.compiler.is_compiling():  # it unrolls the loop
        side = max(side, -(-n // 8))
    for start in range(0, n, side):
        j = slice(start, min(start + side, n))
        local, m = (labels - start).view(1, -1, 1), j.stop - start

        def fill(tile: Tensor, value: float, local: Tensor = local, m: int = m) -> None:
            at = local.clamp(0, m - 1)
            tile.scatter_(2, at, torch.where(local == at, value, tile.gather(2, at)))

        yield j, (rows[j] * inverse[j].unsqueeze(1)).unsqueeze(0), fill


def _unit_backward(grad: Tensor, y: Tensor, inverse: Tensor, into: Tensor) -> Tensor:
    """Compute the gradient of w (m, d) from that of its unit vector y."""
    along = (grad * y).sum(1, keepdim=True)
    return torch.addcmul(grad, y, along, value=-1, out=into).mul_(inverse.unsqueeze(1))


def _class_curvature(rows: Tensor, labels: Tensor, share: Tensor, law: Law, v: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the derivatives of ⟨gradient, v⟩ by the weights and by the shares, with autograd."""
    with torch.enable_grad(), without_autocast(rows):
        leaf, share = rows.detach().requires_grad_(), share.detach().requires_grad_()
        p = unit(leaf)
        squared = torch.where(F.one_hot(labels, len(rows)).bool(), 1.0, 2 - 2 * p[labels] @ p.mT)
        zero = squared.new_zeros(())
        shift = law.log_energy(squared.detach().clamp(min=NEAR * NEAR)).amax() if law.in_logs else zero
        phi = smooth_energy([SignedTile(1, squared, None)], law, shift)
        (gradient,) = torch.autograd.grad((share.unsqueeze(1) * phi).sum(), leaf, create_graph=True)
        along = (gradient * v).sum()
    curvature, to_share = torch.autograd.grad(along, (leaf, share))
    log_factor = (shift - ((inverse_row_norm(rows) > 0).sum() - 1).clamp(min=1).log()).view(1, 1, 1)
    if not law.in_logs:
        return curvature * log_factor.exp().view(1), to_share * log_factor.exp().view(1)
    scaled, to_share = (rescale_capped(x.view(1, len(x), -1), log_factor, law) for x in (curvature, to_share))
    return scaled.squeeze(0), to_share.flatten()
