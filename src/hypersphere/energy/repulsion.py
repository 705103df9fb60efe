"""How pairs of points repel each other: energies and forces, tile by tile, with the close pairs taken care of.

A pair of points p, p' at squared distance q = ‖p − p'‖² = ‖p‖² + ‖p'‖² − 2⟨p, p'⟩ has the energy

    φ = z^(−s/2)   (s > 0)      or      φ = −½·log z   (s = 0),

where z is q, or the squared angle θ² for the angular law; in half space the pair of p with −p' adds to it. As a
function of g = ⟨p, p'⟩ its derivative is D = dφ/dg = s·z^(−s/2−1)·(θ/sin θ or 1) (1 for s at s = 0), and with weights
a_i the gradient of Σ_i a_i Σ_j φ_ij is

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

from ..cosine import unit

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

    def force(self, squared_distance: Tensor, shift: Tensor, energy: Tensor | None = None) -> Tensor:
        """D/strength; divided by exp(shift) where energies are summed in logs. It may overwrite `energy`, if given."""
        z = self._z(squared_distance)
        if self.in_logs:
            force = z.log().mul_(-0.5 * self.s).sub_(shift).exp_().div_(z)
        elif self.s == 0:
            force = z.reciprocal()
        else:
            energy = self._power(z) if energy is None else energy
            force = energy.square_() if self.s == 2 else energy.div_(z)
        if self.angular:  # θ/sin θ; at the antipode the energy has a kink, and sin θ is bounded from below
            sine_squared = squared_distance * (1 - squared_distance / 4)
            force = force.mul_((z / sine_squared.clamp_(min=1e-6)).sqrt_())
        return force

    @property
    def strength(self) -> float:
        """The constant in D, which the sums leave out."""
        return self.s if self.s > 0 else 1.0

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
    """Pairs of a tile that are nearer than CLOSE: where, and their squared distances from the difference."""

    at: tuple[Tensor, ...]
    """group, row, column"""
    counts: Tensor
    """1, or 0 for the places of a list that could not be filled."""
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
        close = _close_pairs(squared.detach(), total, x.detach(), y.detach(), sign)
        if close is not None:  # the value comes from the difference, the derivative from the product
            better = (close.squared - squared.detach()[close.at]) * close.counts
            squared.index_put_(close.at, better, accumulate=True)
        yield Side(sign, squared, close)


def _close_pairs(squared: Tensor, total: Tensor, x: Tensor, y: Tensor, sign: int) -> ClosePairs | None:
    """`total` is ‖x‖² + ‖y‖², (1, 1, 1) or a tile: what is close depends on the points' lengths."""
    relative = squared if total.numel() == 1 else squared * (2 / total)
    limit = CLOSE * CLOSE
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        if not relative.amin() < limit:
            return None
        places = (relative < limit).nonzero()
    else:  # no shape may depend on a value: it would wait for the device, and break a graph
        groups, b, m = squared.shape
        places = torch.nonzero_static(relative < limit, size=groups * min(b + m, b * m))
        # pairs beyond the list are not resolved better than rounding
        squared.copy_(torch.maximum(squared, 16 * torch.finfo(x.dtype).eps * total))
    counts = (places[:, 0] >= 0).to(squared.dtype)
    at = places.clamp(min=0).unbind(1)
    pieces = zip(*(index.split(_listed(x)) for index in at), strict=True)
    distances = [(y[g, j] * sign).sub_(x[g, i]).square().sum(1) for g, i, j in pieces]
    return ClosePairs(at, counts, torch.cat(distances) if distances else counts)


def add_near_forces(
    pull: Tensor,
    side: Side,
    points: tuple[Tensor, Tensor],
    names: tuple[Tensor, Tensor],
    to: tuple[Tensor, Tensor | None],
) -> None:
    """Takes the pairs nearer than NEAR out of the tile `pull` and adds what they do to G (G, N, d) directly.

    The list of such pairs is bounded; those beyond it stay in the tile, where coincident ones have no direction.
    """
    if side.close is None:
        return
    at, counts, squared = side.close
    near = counts * (squared < NEAR * NEAR)
    if pull.device.type == "cpu" and not torch.compiler.is_compiling():
        chosen = near.nonzero().squeeze(1)[: _listed(points[0])]
        at, near, squared = tuple(index[chosen] for index in at), near[chosen], squared[chosen]
    group, i, j = at
    strength = pull[at] * near
    pull.index_put_(at, -strength, accumulate=True)
    x = points[0][group, i]
    difference = points[1][group, j] * side.sign - x
    # What decides where the difference has no direction: a vector of the pair's own, at right angles to x.
    own = _own_vectors(names[1], x)[j] * side.sign - _own_vectors(names[0], x)[i]
    own = unit(own - x * ((own * x).sum(1) / x.square().sum(1).clamp(min=1e-30)).unsqueeze(1))
    direction = unit(difference + 1e-7 * own)
    strength = strength * torch.where(squared < FLOOR * FLOOR, 1 / 32, 1.0)
    push = direction * (strength * NEAR).unsqueeze(1)
    to[0].index_put_((group, i), push, accumulate=True)
    if to[1] is not None:
        to[1].index_put_((group, j), push * -side.sign, accumulate=True)


def _listed(x: Tensor) -> int:
    """How many pairs of points (G, b, d) may be held at once."""
    return max(2**21 // x.shape[2], 4096)


def _own_vectors(names: Tensor, like: Tensor) -> Tensor:
    """For each neuron a vector of its own (n, d), of length 1 or less, that depends on nothing but its index."""
    d = like.shape[1]
    steps = torch.arange(1, d + 1, device=like.device, dtype=torch.float64)
    return (torch.outer(names.to(torch.float64), steps * 2**0.5).cos() / d**0.5).to(like.dtype)


def tile_energies(sides: Iterable[Side], own: Own | None, law: Law) -> list[Tensor]:
    """φ of every side of a tile, or log φ where energies are summed in logs; nothing for a neuron with itself."""
    tiles = []
    for side in sides:
        squared = side.squared if side.close is None else side.squared.clamp(min=FLOOR * FLOOR)
        tiles.append(law.log_energy(squared) if law.in_logs else law.energy(squared))
        if own is not None:
            own(tiles[-1], -math.inf if law.in_logs else 0.0)
    return tiles


def smooth_energy(sides: Iterable[Side], law: Law, shift: Tensor) -> Tensor:
    """φ (by exp(shift) for large s) for automatic differentiation: constant for pairs nearer than NEAR."""
    low, high = NEAR * NEAR, 4 - 1e-5 if law.angular else math.inf
    parts = [side.squared.clamp(low, high) for side in sides]
    first, *second = [(law.log_energy(q) - shift).exp() if law.in_logs else law.energy(q) for q in parts]
    return first + second[0] if second else first


def tile_pull(
    sides: Iterable[Side],
    energies: list[Tensor],
    weights: Tensor | None,
    own: Own | None,
    points: tuple[Tensor, Tensor],
    names: tuple[Tensor, Tensor],
    to: tuple[Tensor, Tensor | None],
    law: Law,
    shift: Tensor,
) -> Tensor:
    """Weights·D/strength of a tile, to be multiplied with its points; what near pairs do is added to both in `to`.

    `energies` may hold the tile's; they are overwritten.
    """
    tile: Tensor | None = None
    for k, side in enumerate(sides):
        if side.close is None:
            force = law.force(side.squared, shift, energies[k] if energies else None)
        else:  # the energies are of distances below NEAR as well
            force = law.force(side.squared.clamp(min=NEAR * NEAR), shift)
        if own is not None:
            own(force, 0.0)
        if weights is not None:
            force.mul_(weights)
        add_near_forces(force, side, points, names, to)
        tile = force if tile is None else tile.sub_(force)
    assert tile is not None
    return tile


def add_up(e: Tensor, tile: Tensor, dim: int, law: Law) -> Tensor:
    return torch.logaddexp(e, tile.logsumexp(dim)) if law.in_logs else e + tile.sum(dim)


def in_range(a: Tensor, log_scale: Tensor, peak: Tensor, law: Law) -> tuple[Tensor, Tensor, Tensor]:
    """What keeps forces in range for large s, each (G, 1, 1): the largest weight, the logarithm that is taken out of
    every term, and the logarithm of the factor that brings both back at the end."""
    if not law.in_logs:
        return a.new_ones(len(a), 1, 1), a.new_zeros(len(a), 1, 1), a.new_zeros(len(a), 1, 1)
    largest = a.abs().amax(1).clamp(min=torch.finfo(a.dtype).tiny).view(-1, 1, 1)
    # forces are those of a distance of NEAR at least; a single neuron has none
    shift = peak.clamp(max=law.s * math.log(1 / NEAR)).nan_to_num(neginf=0.0).view(-1, 1, 1)
    return largest, shift, shift + log_scale.view(-1, 1, 1) + largest.log()


def rescaled(g: Tensor, log_factor: Tensor, law: Law) -> Tensor:
    """g (G, N, d) times exp(log_factor), with its largest element below the square root of the largest number.

    What comes next (a division by the neurons' lengths) then has room too, and the direction is kept.
    """
    if not law.in_logs:
        return g
    info = torch.finfo(g.dtype)
    largest = g.abs().amax((1, 2), keepdim=True).clamp(min=1.0 / math.sqrt(info.max))  # the factor stays finite too
    room = 0.5 * math.log(info.max) - largest.log()
    return g * torch.minimum(log_factor, 0.999 * room).exp()


def finite(x: Tensor) -> Tensor:
    largest = torch.finfo(x.dtype).max
    return x.clamp(-largest, largest)
