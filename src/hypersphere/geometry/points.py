"""Points on the sphere: the closest pair, and reference point sets.

Everything is computed in float64, without gradients. Shapes: N neurons, d their dimension.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._internal import checks
from ..layers.cosine import unit

_BLOCK = 1 << 21  # numbers in one block of the Gram matrix: 16 MB
_BY_DIFFERENCE = "donot_use_mm_for_euclid_dist"


def separation(weight: Tensor) -> Tensor:
    """Compute the smallest angle between two neurons, in radians (OPT, Eq. 51): min_{i≠j} arccos⟨ŵ_i, ŵ_j⟩.

    Accurate for close pairs too: the angle is computed from the difference of the neurons, not from their cosine.

    Args:
        weight: (N, ...), flattened to (N, d): rows are neurons, two at least, none zero.

    Returns:
        A float64 scalar. Memory grows with N, not with N².

    Example:
        >>> separation(torch.eye(3)), separation(torch.tensor([[1.0, 0.0], [1.0, 1e-9]]))
        (tensor(1.5708, dtype=torch.float64), tensor(1.0000e-09, dtype=torch.float64))
    """
    rows = unit_rows(weight)
    i, j = _closest_indices(rows)
    return angle_between(rows[i], rows[j])


def closest_pair(weight: Tensor) -> tuple[int, int, float]:
    """Return (i, j, angle) of the closest two neurons, i < j; among equals the first found.

    Example:
        >>> closest_pair(torch.tensor([[1.0, 0.0], [-1.0, 0.1], [0.0, 1.0]]))
        (1, 2, 1.47...)
    """
    rows = unit_rows(weight)
    i, j = _closest_indices(rows)
    return i, j, float(angle_between(rows[i], rows[j]))


def random_points(n: int, dim: int, seed: int = 0) -> Tensor:
    """Draw n points uniformly from the unit sphere of `dim` dimensions, (n, dim) float64; equal seeds, equal points.

    Example:
        >>> random_points(2, 3)
        tensor([[...]], dtype=torch.float64)
    """
    n, dim = checks.integer("n", n, low=1), checks.integer("dim", dim, low=1)
    generator = torch.Generator().manual_seed(checks.integer("seed", seed, low=0))
    return unit(torch.randn(n, dim, dtype=torch.float64, generator=generator))


def fibonacci_points(n: int, dim: int = 3) -> Tensor:
    """Return n nearly even points, (n, dim) float64: the Fibonacci lattice for dim 3, the regular n-gon for dim 2.

    On the sphere point i is at height 1 − (2i + 1)/n, rotated by i golden angles.

    Example:
        >>> fibonacci_points(4, dim=2).round()
        tensor([[ 1.,  0.], [ 0.,  1.], [-1.,  0.], [-0., -1.]], dtype=torch.float64)
    """
    n, dim = checks.integer("n", n, low=1), checks.integer("dim", dim)
    checks.choice("dim", dim, (2, 3))
    i = torch.arange(n, dtype=torch.float64)
    if dim == 2:
        turn = 2 * math.pi / n * i
        return torch.stack([turn.cos(), turn.sin()], 1)
    height = 1 - (2 * i + 1) / n
    turn, radius = math.pi * (3 - math.sqrt(5)) * i, (1 - height.square()).sqrt()
    return torch.stack([radius * turn.cos(), radius * turn.sin(), height], 1)


@torch.no_grad()
def unit_rows(weight: Tensor) -> Tensor:
    """Return the directions (N, d) of neurons (N, ...) in float64; raise for a zero neuron."""
    rows = checks.rows("weight", weight).detach().double()
    if not bool(rows.isfinite().all()):
        raise ValueError(f"weight must be finite, got NaN or infinity in row {_first_true(~rows.isfinite().all(1))}")
    rows = unit(rows / rows.abs().amax(1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny))
    if not bool(rows.any(1).all()):
        raise ValueError(f"weight must not have zero rows, got one at {_first_true(~rows.any(1))}")
    return rows


def angle_between(u: Tensor, v: Tensor) -> Tensor:
    """Compute the angle of unit vectors along the last dimension, accurate near 0 and near π."""
    return 2 * torch.atan2((u - v).norm(dim=-1), (u + v).norm(dim=-1))


def row_blocks(n: int) -> list[slice]:
    """Return slices of n rows: an eighth or at least 256, so that the pairs i < j can be computed without most of the
    others, and not more than two million elements of an n × n matrix."""
    size = max(1, min(max(256, n // 8), _BLOCK // n))
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _closest_indices(rows: Tensor) -> tuple[int, int]:
    """Return the indices i < j of the closest pair."""
    n, d = rows.shape
    if n < 2:
        raise ValueError(f"weight must have at least 2 rows, got {n}")
    rounding = 4 * d * torch.finfo(rows.dtype).eps  # bound of the error of a cosine
    highest, nearest, pair = -math.inf, math.inf, (0, 1)
    for block in row_blocks(n):
        cosine = rows[block] @ rows[block.start :].mT  # column k is row block.start + k
        size = len(cosine)
        seen = torch.ones(size, size, dtype=torch.bool, device=rows.device).tril()
        cosine[:, :size].masked_fill_(seen, -math.inf)
        top = float(cosine.max())
        if top < highest - rounding:
            continue
        highest = max(highest, top)
        if highest > 0.99:  # cosines of close pairs are too coarse: measure all candidates
            candidates = cosine >= highest - rounding
            i, j = candidates.any(1).nonzero()[:, 0], candidates.any(0).nonzero()[:, 0]
        else:
            candidates = cosine == top
            i, j = (k[:1] for k in candidates.nonzero(as_tuple=True))
        distance = torch.cdist(rows[i + block.start], rows[j + block.start], compute_mode=_BY_DIFFERENCE)
        distance.masked_fill_(~candidates[i][:, j], math.inf)
        least = int(distance.argmin())
        if distance.view(-1)[least] < nearest:
            nearest = float(distance.view(-1)[least])
            pair = (int(i[least // len(j)]) + block.start, int(j[least % len(j)]) + block.start)
        if nearest == 0:
            break
    return pair


def _first_true(rows: Tensor) -> int:
    """Return the first index that is true."""
    return int(rows.nonzero()[0])
