"""How pairs of points repel each other: energies and forces, tile by tile, with the close pairs taken care of.

A pair of points p, p' at squared distance q = ‖p − p'‖² = ‖p‖² + ‖p'‖² − 2⟨p, p'⟩ has the energy

    φ = z^(−s/2)   (s > 0)      or      φ = −½·log z   (s = 0),

where z is q, or the squared angle θ² for the angular law; in half space the pair of p with −p' adds to it. As a
function of g = ⟨p, p'⟩ its derivative is D = dφ/dg = s·z^(−s/2−1)·(θ/sin θ or 1), and with weights a_i the gradient
of Σ_i a_i Σ_j φ_ij is

    G_i = Σ_j (a_i + a_j)·D_ij·p_j.

Nothing larger than a tile of pairs is formed. Pairs nearer than 0.1 get their distance from the difference of the
points, because 2 − 2c has no digits left there in float32. Nearer than 0.03 (NEAR) a pair repels with the force of
0.03: an unbounded force would throw neurons out of the training in one step. In the energy a distance counts as 1e-6
(FLOOR) at least; nearer than that points coincide: they are pushed apart in a direction that depends on their indices
alone, and, because it says nothing, gently, with 1/32 of the force.

Shapes: G groups, N points, d dimensions; a tile is (G, b, m).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .cosine import apply

CLOSE, NEAR, FLOOR = 0.1, 0.03, 1e-6  # distances; see above
LARGE_S = 4.0  # FLOOR^-4 is far below float32's largest number; beyond, terms are summed in logs


@dataclass(frozen=True)
class Law:
    """Which energy: its power s, whether antipodes take part, and whether distances are angles."""

    s: float = 2.0
    half_space: bool = False
    angular: bool = False

    @property
    def in_logs(self) -> bool:
        return self.s > LARGE_S

    def energy(self, squared_distance: Tensor) -> Tensor:
        """φ; for s > LARGE_S it may overflow."""
        z = self._z(squared_distance)
        return z.log().mul(-0.5) if self.s == 0 else self._power(z)

    def log_energy(self, squared_distance: Tensor) -> Tensor:
        """log φ for s > 0."""
        return self._z(squared_distance).log().mul(-0.5 * self.s)

    def force(self, squared_distance: Tensor, shift: Tensor) -> Tensor:
        """D = dφ/dg; divided by exp(shift) where energies are summed in logs."""
        z = self._z(squared_distance)
        if self.s == 0:
            force = z.reciprocal()
        elif self.in_logs:
            force = z.log().mul_(-0.5 * self.s).sub_(shift).exp_().div_(z).mul_(self.s)
        elif self.s == 2 and not self.angular:
            return z.reciprocal().square_().mul_(2)
        else:
            force = self._power(z).div_(z).mul_(self.s)
        if self.angular:  # θ/sin θ; at the antipode the energy has a kink, and sin θ is bounded from below
            sine_squared = squared_distance * (1 - squared_distance / 4)
            force = force.mul_((z / sine_squared.clamp_(min=1e-6)).sqrt_())
        return force

    def _z(self, squared_distance: Tensor) -> Tensor:
        if not self.angular:
            return squared_distance
        return (squared_distance / 4).clamp(max=1).sqrt().asin().mul(2).square()

    def _power(self, z: Tensor) -> Tensor:
        if self.s == 2:
            return z.reciprocal()
        if self.s == 1:
            return z.rsqrt()
        return z.log().mul(-0.5 * self.s).exp()  # less than half the price of pow


Own = Callable[[Tensor, float], Any]
"""Writes a value into a tile, in place, where row and column are the same neuron."""


class ClosePairs(NamedTuple):
    """Pairs of a tile that are nearer than CLOSE: where, and p'·sign − p."""

    at: tuple[Tensor, Tensor, Tensor]
    counts: Tensor
    """1, or 0 for the places of a list that could not be filled."""
    difference: Tensor
    squared: Tensor


class Side(NamedTuple):
    """A tile of pairs: of p with p' (sign +1), or with −p' (sign −1)."""

    sign: int
    squared: Tensor
    close: ClosePairs | None


def tile_sides(
    x: Tensor, y: Tensor, squares: tuple[Tensor, Tensor] | None, own: Own | None, law: Law
) -> Iterator[Side]:
    """The squared distances of x (G, b, d) to y (G, m, d), and to −y in half space.

    Args:
        squares: ‖x‖² (G, b) and ‖y‖² (G, m); None if all are 1.
        own: None if no neuron is in both.
    """
    total = x.new_full((1, 1, 1), 2.0) if squares is None else squares[0].unsqueeze(2) + squares[1].unsqueeze(1)
    shape = (x.shape[0], x.shape[1], y.shape[1])
    q = torch.baddbmm(total.expand(shape), x, y.mT, alpha=-2)
    for sign in (1, -1) if law.half_space else (1,):
        squared = q if sign == 1 else 2 * total - q
        if own is not None:
            own(squared, 1.0)
        close = _close_pairs(squared, x, y, sign)
        if close is not None:
            squared.index_put_(close.at, (close.squared - squared[close.at]) * close.counts, accumulate=True)
        yield Side(sign, squared, close)


def _close_pairs(squared: Tensor, x: Tensor, y: Tensor, sign: int) -> ClosePairs | None:
    limit = CLOSE * CLOSE
    rows = max(squared.shape[0] * (squared.shape[1] + squared.shape[2]), 2**20 // x.shape[2])  # bounds the memory
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        if not squared.amin() < limit:
            return None
        places = (squared < limit).nonzero()[:rows]
    else:  # no shape may depend on a value: it would wait for the device, and break a graph
        rows = squared.shape[0] * min(squared.shape[1] + squared.shape[2], squared.shape[1] * squared.shape[2])
        places = torch.nonzero_static(squared < limit, size=rows)
    counts = (places[:, 0] >= 0).to(squared.dtype)
    group, i, j = places.clamp(min=0).unbind(1)
    difference = (y[group, j] * sign).sub_(x[group, i])
    return ClosePairs((group, i, j), counts, difference, difference.square().sum(1))


def add_near_forces(force: Tensor, side: Side, names: tuple[Tensor, Tensor], to_x: Tensor, to_y: Tensor | None) -> None:
    """Takes the pairs nearer than NEAR out of the tile `force` and adds what they do to G (G, N, d) directly."""
    close = side.close
    if close is None:
        return
    counts = close.counts * (close.squared < NEAR * NEAR)
    at_near = force[close.at] * counts
    force.index_put_(close.at, -at_near, accumulate=True)
    group, i, j = close.at
    own = _own_vectors(names[1][j], close.difference) * side.sign - _own_vectors(names[0][i], close.difference)
    direction = close.difference + 1e-7 * own  # decides only where the difference itself has no direction
    length = torch.linalg.vector_norm(direction, dim=1).clamp(min=1e-30)
    strength = at_near * torch.where(close.squared < FLOOR * FLOOR, 1 / 32, 1.0)
    push = direction * (strength * NEAR / length).unsqueeze(1)
    to_x.index_put_((group, i), push, accumulate=True)
    if to_y is not None:
        to_y.index_put_((group, j), push * -side.sign, accumulate=True)


def _own_vectors(index: Tensor, like: Tensor) -> Tensor:
    """For each neuron a vector of its own (n, d), of length 1 or less, that depends on nothing but its index."""
    d = like.shape[1]
    steps = torch.arange(1, d + 1, device=like.device, dtype=torch.float64)
    return (torch.outer(index.to(torch.float64), steps * 2**0.5).cos() / d**0.5).to(like.dtype)


class RowEnergies(Function):
    """e_i = Σ_j φ_ij of points (G, N, d), and for large s times exp(log_scale), capped at the largest number.

    The tiles are computed again in the backward pass: nothing is kept but the points. The second output is the largest
    log e_i of each group (G,), by which the backward pass keeps large s in range.
    """

    @staticmethod
    def forward(p: Tensor, squares: Tensor | None, log_scale: Tensor, law: Law) -> tuple[Tensor, Tensor]:
        e = p.new_full(p.shape[:2], -math.inf if law.in_logs else 0.0)
        for i, j in _tiles(p):
            tile = tile_energy(tile_sides(p[:, i], p[:, j], _of(squares, i, j), _own(i, j), law), _own(i, j), law)
            e[:, i] = add_up(e[:, i], tile, -1, law)
            if i != j:
                e[:, j] = add_up(e[:, j], tile, -2, law)
        if not law.in_logs:
            return e, p.new_zeros(len(p))
        return (e + log_scale).exp().clamp(max=torch.finfo(p.dtype).max), e.amax(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        p, squares, log_scale, ctx.law = inputs
        ctx.save_for_backward(p, squares, log_scale, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, a: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
        p, squares, log_scale, peak = ctx.saved_tensors
        with torch.autocast(p.device.type, enabled=False):
            return apply(_Pull, p, a, squares, log_scale, peak, ctx.law), None, None, None


class _Pull(Function):
    """G_i = Σ_j (a_i + a_j)·D_ij·p_j of points (G, N, d) and weights (G, N), in range for any s."""

    @staticmethod
    def forward(p: Tensor, a: Tensor, squares: Tensor | None, log_scale: Tensor, peak: Tensor, law: Law) -> Tensor:
        largest, shift, log_factor = in_range(a, log_scale, peak, law)
        a = a / largest.squeeze(2)
        g, every = torch.zeros_like(p), torch.arange(p.shape[1], device=p.device)
        for i, j in _tiles(p):
            weights = a[:, i].unsqueeze(2) + a[:, j].unsqueeze(1)
            sides = tile_sides(p[:, i], p[:, j], _of(squares, i, j), _own(i, j), law)
            to_y = None if i == j else g[:, j]
            pull = tile_pull(sides, weights, _own(i, j), (every[i], every[j]), g[:, i], to_y, law, shift)
            g[:, i].baddbmm_(pull, p[:, j])
            if i != j:
                g[:, j].baddbmm_(pull.mT, p[:, i])
        return rescaled(g, log_factor, law)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.law = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        """The derivative along v, tile by tile; the force of pairs nearer than NEAR counts as constant."""
        p, a, squares, log_scale, peak = ctx.saved_tensors
        largest, shift, log_factor = in_range(a, log_scale, peak, ctx.law)
        grad_p, grad_a = torch.zeros_like(p), torch.zeros_like(a)
        for i, j in _tiles(p):
            with torch.enable_grad():
                x, a_x = _leaf(p[:, i]), _leaf(a[:, i] / largest.squeeze(2))
                y, a_y = (x, a_x) if i == j else (_leaf(p[:, j]), _leaf(a[:, j] / largest.squeeze(2)))
                sides = tile_sides(x, y, _of(squares, i, j), _own(i, j), ctx.law)
                phi = smooth_energy(sides, ctx.law, shift)
                loss = ((a_x.unsqueeze(2) + a_y.unsqueeze(1)) * phi).sum() * (0.5 if i == j else 1.0)
                g_x, g_y = torch.autograd.grad(loss, (x, y), create_graph=True)
                along = (g_x * v[:, i]).sum() + (0 if i == j else (g_y * v[:, j]).sum())
            h_x, h_y, h_a_x, h_a_y = torch.autograd.grad(
                along, (x, y, a_x, a_y), allow_unused=True, materialize_grads=True
            )
            grad_p[:, i] += h_x
            grad_a[:, i] += h_a_x
            if i != j:
                grad_p[:, j] += h_y
                grad_a[:, j] += h_a_y
        grad_p = rescaled(grad_p, log_factor, ctx.law)
        grad_a = rescaled(grad_a.unsqueeze(2), log_factor - largest.log(), ctx.law).squeeze(2)
        return grad_p, grad_a, None, None, None, None


def tile_energy(sides: Iterable[Side], own: Own | None, law: Law) -> Tensor:
    """φ of a tile, or log φ where energies are summed in logs; nothing for a neuron with itself."""
    value = law.log_energy if law.in_logs else law.energy
    first, *second = [value(side.squared.clamp(min=FLOOR * FLOOR)) for side in sides]
    for other in second:
        first = torch.logaddexp(first, other) if law.in_logs else first.add_(other)
    if own is not None:
        own(first, -math.inf if law.in_logs else 0.0)
    return first


def smooth_energy(sides: Iterable[Side], law: Law, shift: Tensor) -> Tensor:
    """φ (by exp(shift) for large s) for automatic differentiation: constant for pairs nearer than NEAR."""
    low, high = NEAR * NEAR, 4 - 1e-5 if law.angular else math.inf
    parts = [side.squared.clamp(low, high) for side in sides]
    first, *second = [(law.log_energy(q) - shift).exp() if law.in_logs else law.energy(q) for q in parts]
    return first + second[0] if second else first


def tile_pull(
    sides: Iterable[Side],
    weights: Tensor | float,
    own: Own | None,
    names: tuple[Tensor, Tensor],
    to_x: Tensor,
    to_y: Tensor | None,
    law: Law,
    shift: Tensor,
) -> Tensor:
    """Weights·D of a tile, ready to be multiplied with points; what near pairs do is added to `to_x` and `to_y`."""
    pull = None
    for side in sides:
        force = law.force(side.squared.clamp(min=NEAR * NEAR), shift).mul_(weights)
        if own is not None:
            own(force, 0.0)
        add_near_forces(force, side, names, to_x, to_y)
        pull = force if pull is None else pull.sub_(force)
    assert pull is not None
    return pull


def add_up(e: Tensor, tile: Tensor, dim: int, law: Law) -> Tensor:
    return torch.logaddexp(e, tile.logsumexp(dim)) if law.in_logs else e + tile.sum(dim)


def in_range(a: Tensor, log_scale: Tensor, peak: Tensor, law: Law) -> tuple[Tensor, Tensor, Tensor]:
    """What keeps forces in range for large s, each (G, 1, 1): the largest weight, the logarithm that is taken out of
    every term, and the logarithm of the factor that brings both back at the end."""
    if not law.in_logs:
        return a.new_ones(len(a), 1, 1), a.new_zeros(len(a), 1, 1), a.new_zeros(len(a), 1, 1)
    largest = a.abs().amax(1).clamp(min=torch.finfo(a.dtype).tiny).view(-1, 1, 1)
    # distances are at most π, and forces are those of a distance of NEAR at least
    shift = peak.clamp(-2 * law.s, law.s * math.log(1 / NEAR)).view(-1, 1, 1)
    return largest, shift, shift + log_scale.view(-1, 1, 1) + largest.log()


def rescaled(g: Tensor, log_factor: Tensor, law: Law) -> Tensor:
    """g (G, N, d) times exp(log_factor), with its largest element below the square root of the largest number.

    What comes next (a division by the neurons' lengths) then has room too, and the direction is kept.
    """
    if not law.in_logs:
        return g
    info = torch.finfo(g.dtype)
    room = 0.5 * math.log(info.max) - g.abs().amax((1, 2), keepdim=True).clamp(min=info.tiny).log()
    return g * torch.minimum(log_factor, room).exp()


def finite(x: Tensor) -> Tensor:
    largest = torch.finfo(x.dtype).max
    return x.clamp(-largest, largest)


def _tiles(p: Tensor) -> Iterator[tuple[slice, slice]]:
    """Row and column slices of the upper triangle of pairs."""
    groups, n, _ = p.shape
    side = max(64, math.isqrt((2**18 if p.device.type == "cpu" else 2**24) // groups))  # 1 MB stays in a CPU's cache
    if torch.compiler.is_compiling():  # which unrolls the loop
        side = max(side, -(-n // 4))
    slices = [slice(start, min(start + side, n)) for start in range(0, n, side)]
    return ((i, j) for k, i in enumerate(slices) for j in slices[k:])


def _own(i: slice, j: slice) -> Own | None:
    """Writes a value where row and column are the same neuron."""
    return (lambda tile, value: tile.diagonal(dim1=1, dim2=2).fill_(value)) if i == j else None


def _of(squares: Tensor | None, i: slice, j: slice) -> tuple[Tensor, Tensor] | None:
    return None if squares is None else (squares[:, i], squares[:, j])


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()
