"""Energies and forces of pairs of points, tile by tile, accurate for close pairs.

A pair of points p, p' at squared distance q = ‖p − p'‖² = ‖p‖² + ‖p'‖² − 2⟨p, p'⟩ has the energy

    φ = z^(−s/2)   (s > 0)      or      φ = −½·log z   (s = 0),

where z is q, or the squared angle θ² for the angular law; in half space the pair of p with −p' adds to it. As a
function of g = ⟨p, p'⟩ its derivative is D = dφ/dg = s·z^(−s/2−1)·(θ/sin θ or 1) (1 for s at s = 0), and with weights
a_i the gradient of Σ_i a_i Σ_j φ_ij is

    G_i = Σ_j (a_i + a_j)·D_ij·p_j.

Nothing larger than a tile of pairs is allocated. The distance of pairs nearer than 0.1 (CLOSE) comes from the
difference of the points, because 2 − 2c has no digits left there in float32. Pairs nearer than 0.03 (NEAR) repel with
the force of 0.03: with an unbounded force one step would make training diverge. In the energy, distances are at least
1e-6 (FLOOR). Points nearer than that coincide and are pushed apart in an arbitrary direction that depends on their
indices only, so with force/32.

Shapes: G groups, N points, d dimensions; a tile is (G, b, m).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..layers.cosine import unit

CLOSE, NEAR, FLOOR = 0.1, 0.03, 1e-6  # distances; see above
LARGE_S = 4.0  # FLOOR^-4 is far below float32's largest number; beyond, terms are summed in logs


@dataclass(frozen=True)
class Law:
    """Specify the energy: exponent, half space, angles; and the device mesh whose processes share the tiles of its sum,
    None if each computes all of them."""

    s: float = 2.0
    half_space: bool = False
    angular: bool = False
    mesh: Any = None

    @property
    def in_logs(self) -> bool:
        return self.s > LARGE_S

    def energy(self, squared_distance: Tensor) -> Tensor:
        """Compute the pair energy φ; it may overflow for s > LARGE_S."""
        z = self._z(squared_distance)
        return z.log().mul(-0.5) if self.s == 0 else self._power(z)

    def log_energy(self, squared_distance: Tensor) -> Tensor:
        """Compute log φ for s > 0."""
        return self._z(squared_distance).log().mul(-0.5 * self.s)

    def force(self, squared_distance: Tensor, shift: Tensor, energy: Tensor | None = None) -> Tensor:
        """Compute D/force_factor, divided by exp(shift) if energies are summed in logs; may overwrite `energy`."""
        z = self._z(squared_distance)
        if self.in_logs:
            force = z.log().mul_(-0.5 * self.s).sub_(shift).exp_().div_(z)
        elif self.s == 0:
            force = z.reciprocal()
        else:
            energy = self._power(z) if energy is None else energy
            force = energy.square_() if self.s == 2 else energy.div_(z)
        if self.angular:  # θ/sin θ; sin θ is bounded from below, as the energy has a kink at the antipode
            sine_squared = squared_distance * (1 - squared_distance / 4)
            force = force.mul_((z / sine_squared.clamp_(min=1e-6)).sqrt_())
        return force

    @property
    def force_factor(self) -> float:
        """The constant factor of D, which the sums leave out."""
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
        return z.log().mul(-0.5 * self.s).exp()  # takes less than half the time of pow


FillSelf = Callable[[Tensor, float], Any]
"""Fill a tile, in place, where row and column are the same neuron."""


class ClosePairs(NamedTuple):
    """Pairs of a tile that are nearer than CLOSE, with squared distances computed from the difference."""

    at: tuple[Tensor, ...]
    """group, row, column"""
    counts: Tensor
    """1, or 0 for unused entries of a list of fixed size."""
    squared: Tensor


class SignedTile(NamedTuple):
    """Squared distances of a tile of pairs: of p with p' (sign +1), or with −p' (sign −1)."""

    sign: int
    squared: Tensor
    close: ClosePairs | None


def signed_tiles(
    x: Tensor, y: Tensor, squares: tuple[Tensor, Tensor] | None, fill_self: FillSelf | None, law: Law
) -> Iterator[SignedTile]:
    """Yield the squared distances of x (G, b, d) to y (G, m, d), and to −y in half space.

    Args:
        squares: ‖x‖² (G, b) and ‖y‖² (G, m); None if all are 1.
        fill_self: None if no neuron is in both.
    """
    total = x.new_full((1, 1, 1), 2.0) if squares is None else squares[0].unsqueeze(2) + squares[1].unsqueeze(1)
    shape = (x.shape[0], x.shape[1], y.shape[1])
    q = torch.baddbmm(total.expand(shape), x, y.mT, alpha=-2)
    for sign in (1, -1) if law.half_space else (1,):
        squared = q if sign == 1 else 2 * total - q
        if fill_self is not None:
            fill_self(squared, 1.0)
        close = _close_pairs(squared.detach(), total, x.detach(), y.detach(), sign)
        if close is not None:  # value from the difference, derivative from the product
            better = (close.squared - squared.detach()[close.at]) * close.counts
            squared.index_put_(close.at, better, accumulate=True)
        yield SignedTile(sign, squared, close)


def _close_pairs(squared: Tensor, total: Tensor, x: Tensor, y: Tensor, sign: int) -> ClosePairs | None:
    """Find the close pairs, relative to `total` = ‖x‖² + ‖y‖², (1, 1, 1) or a tile."""
    relative = squared if total.numel() == 1 else squared * (2 / total)
    limit = CLOSE * CLOSE
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        if not relative.amin() < limit:
            return None
        places = (relative < limit).nonzero()
    else:  # a shape that depends on values would synchronize and break a graph
        groups, b, m = squared.shape
        places = torch.nonzero_static(relative < limit, size=groups * min(b + m, b * m))
        # pairs beyond the list keep their rounding error
        squared.copy_(torch.maximum(squared, 16 * torch.finfo(x.dtype).eps * total))
    counts = (places[:, 0] >= 0).to(squared.dtype)
    at = places.clamp(min=0).unbind(1)
    pieces = zip(*(index.split(_max_pairs(x)) for index in at), strict=True)
    distances = [(y[g, j] * sign).sub_(x[g, i]).square().sum(1) for g, i, j in pieces]
    return ClosePairs(at, counts, torch.cat(distances) if distances else counts)


def add_near_forces(
    forces: Tensor,
    side: SignedTile,
    points: tuple[Tensor, Tensor],
    indices: tuple[Tensor, Tensor],
    out: tuple[Tensor, Tensor | None],
) -> None:
    """Move the forces of pairs nearer than NEAR from the tile `forces` to G (G, N, d).

    The number of such pairs is bounded; others stay in the tile, where coincident ones have no direction.
    """
    if side.close is None:
        return
    at, counts, squared = side.close
    near = counts * (squared < NEAR * NEAR)
    if forces.device.type == "cpu" and not torch.compiler.is_compiling():
        chosen = near.nonzero().squeeze(1)[: _max_pairs(points[0])]
        at, near, squared = tuple(index[chosen] for index in at), near[chosen], squared[chosen]
    group, i, j = at
    strength = forces[at] * near
    forces.index_put_(at, -strength, accumulate=True)
    x = points[0][group, i]
    difference = points[1][group, j] * side.sign - x
    # Where the difference has no direction, a vector at right angles to x decides that depends on the pair only.
    tie_break = index_vectors(indices[1], x)[j] * side.sign - index_vectors(indices[0], x)[i]
    tie_break = unit(tie_break - x * ((tie_break * x).sum(1) / x.square().sum(1).clamp(min=1e-30)).unsqueeze(1))
    direction = unit(difference + 1e-7 * tie_break)
    strength = torch.where(squared < FLOOR * FLOOR, strength / 32, strength)
    push = direction * (strength * NEAR).unsqueeze(1)
    out[0].index_put_((group, i), push, accumulate=True)
    if out[1] is not None:
        out[1].index_put_((group, j), push * -side.sign, accumulate=True)


def _max_pairs(x: Tensor) -> int:
    """Return how many pairs of points (G, b, d) may be held at once."""
    return max(2**21 // x.shape[2], 4096)


def index_vectors(indices: Tensor, like: Tensor) -> Tensor:
    """Return a vector for each neuron (n, d), of length 1 or less, that depends on its index only."""
    d = like.shape[1]
    steps = torch.arange(1, d + 1, device=like.device, dtype=torch.float64)
    return (torch.outer(indices.to(torch.float64), steps * 2**0.5).cos() / d**0.5).to(like.dtype)


def tile_energies(sides: Iterable[SignedTile], fill_self: FillSelf | None, law: Law) -> list[Tensor]:
    """Compute φ of every side of a tile, or log φ if energies are summed in logs; self pairs add nothing."""
    tiles = []
    for side in sides:
        squared = side.squared if side.close is None else side.squared.clamp(min=FLOOR * FLOOR)
        tiles.append(law.log_energy(squared) if law.in_logs else law.energy(squared))
        if fill_self is not None:
            fill_self(tiles[-1], -math.inf if law.in_logs else 0.0)
    return tiles


def smooth_energy(sides: Iterable[SignedTile], law: Law, shift: Tensor) -> Tensor:
    """Compute φ (over exp(shift) for large s) for autograd: constant for pairs nearer than NEAR."""
    low, high = NEAR * NEAR, 4 - 1e-5 if law.angular else math.inf
    distances = [side.squared.clamp(low, high) for side in sides]
    first, *second = [(law.log_energy(q) - shift).exp() if law.in_logs else law.energy(q) for q in distances]
    return first + second[0] if second else first


def tile_forces(
    sides: Iterable[SignedTile],
    energies: list[Tensor],
    weights: Tensor | None,
    fill_self: FillSelf | None,
    points: tuple[Tensor, Tensor],
    indices: tuple[Tensor, Tensor],
    out: tuple[Tensor, Tensor | None],
    law: Law,
    shift: Tensor,
) -> Tensor:
    """Compute weights·D/force_factor of a tile, to be multiplied with its points.

    Near pairs are added to `out` directly. `energies` may hold those of the tile; they are overwritten.
    """
    tile: Tensor | None = None
    for k, side in enumerate(sides):
        if side.close is None:
            force = law.force(side.squared, shift, energies[k] if energies else None)
        else:  # `energies` are not clamped to NEAR
            force = law.force(side.squared.clamp(min=NEAR * NEAR), shift)
        if fill_self is not None:
            fill_self(force, 0.0)
        if weights is not None:
            force.mul_(weights)
        add_near_forces(force, side, points, indices, out)
        tile = force if tile is None else tile.sub_(force)
    assert tile is not None
    return tile


def add_energies(e: Tensor, tile: Tensor, dim: int, law: Law) -> Tensor:
    return torch.logaddexp(e, tile.logsumexp(dim)) if law.in_logs else e + tile.sum(dim)


def range_factors(a: Tensor, log_scale: Tensor, peak: Tensor, law: Law) -> tuple[Tensor, Tensor, Tensor]:
    """Return factors that keep forces finite for large s, each (G, 1, 1): the largest weight, the logarithm taken from
    every term, and the logarithm of the factor that restores both at the end."""
    if not law.in_logs:
        return a.new_ones(len(a), 1, 1), a.new_zeros(len(a), 1, 1), a.new_zeros(len(a), 1, 1)
    largest = a.abs().amax(1).clamp(min=torch.finfo(a.dtype).tiny).view(-1, 1, 1)
    # forces are those of distances >= NEAR; a single neuron has none
    shift = peak.clamp(max=law.s * math.log(1 / NEAR)).nan_to_num(neginf=0.0).view(-1, 1, 1)
    return largest, shift, shift + log_scale.view(-1, 1, 1) + largest.log()


def rescale_capped(g: Tensor, log_factor: Tensor, law: Law) -> Tensor:
    """Multiply g (G, N, d) by exp(log_factor), limited so that no element exceeds √(largest number).

    That leaves room for the division by the neurons' lengths; the direction does not change.
    """
    if not law.in_logs:
        return g
    info = torch.finfo(g.dtype)
    largest = g.abs().amax((1, 2), keepdim=True).clamp(min=1.0 / math.sqrt(info.max))  # so that the factor is finite
    room = 0.5 * math.log(info.max) - largest.log()
    return g * torch.minimum(log_factor, 0.999 * room).exp()


def clamp_finite(x: Tensor) -> Tensor:
    largest = torch.finfo(x.dtype).max
    return x.clamp(-largest, largest)
