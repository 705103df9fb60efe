"""The energy of many small sets of points at once, and L-BFGS on the sphere to minimize it.

K starts at once, n points, dim dimensions. The objective is F = (1/s)·log mean‖x_i − x_j‖^(−s), the logarithm of
the energy without its scale: it never overflows, its limit for s → 0 is the mean of −log‖x_i − x_j‖ (Whyte's problem),
and for s → ∞ minus the logarithm of the least distance (Tammes' problem).

Points are columns here, x (K, dim, n): sums over a few coordinates are five times faster than along rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_BLOCK = 2**17  # pairs per block: 1 MB, which fits in the cache
_MEMORY = 8  # steps in the history of L-BFGS
_HALVINGS = 25


def mean_log_energy(x: Tensor, s: float, half_space: bool = False) -> tuple[Tensor, Tensor]:
    """Compute F (K,) of x (K, dim, n), unit columns, n > 1, and its gradient on the sphere, in blocks of points.

    With c = x_i·x_j and r² = 2 − 2c, dF/dx_i = (2/Σw)·Σ_j w_ij·x_j/r_ij² for the weights w = r^(−s) of ordered pairs.
    In half space the pairs of x_i and −x_j, i ≠ j, are in the mean too.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
        >>> f, gradient = mean_log_energy(square.T[None], s=2.0)
        >>> float(f.mul(2).exp()), bool(gradient.abs().max() < 1e-6)  # four pairs at √2, two at 2
        (0.4166..., True)
    """
    (starts, _, n), signs = x.shape, (1, -1) if half_space else (1,)
    width = max(1, _BLOCK // (starts * n))
    pairs = n * (n - 1) * len(signs)
    gradient, logs = torch.zeros_like(x), x.new_zeros(starts)
    top, total = x.new_full((starts, 1, 1), -math.inf), x.new_zeros(starts, 1, 1)
    for first in range(0, n, width):
        block = slice(first, first + width)
        cosines = x.mT @ x[..., block]
        for sign in signs:
            squared = cosines.mul(-2 * sign).add_(2).clamp_(min=1e-15)
            diagonal = squared.diagonal(-first, 1, 2)
            if s == 0:
                diagonal.fill_(1)  # log 1 = 0, and the gradient along x_i is projected away
                logs -= 0.5 * squared.log().sum((1, 2))
                weights = 1 / squared
            else:
                diagonal.fill_(math.inf)
                weights = squared.log().mul_(-s / 2)
                # Factor out the largest term so far and rescale the previous sums.
                previous, top = top, torch.maximum(top, weights.amax((1, 2), keepdim=True))
                scale = (previous - top).exp_()
                weights.sub_(top).exp_()
                total = total * scale + weights.sum((1, 2), keepdim=True)
                gradient *= scale
                weights.div_(squared)
            gradient[..., block] += sign * (x @ weights)
    if s == 0:
        return logs / pairs, _tangent(x, gradient) * (2 / pairs)
    return (top + (total / pairs).log()).view(-1) / s, _tangent(x, gradient * (2 / total))


def descend(x: Tensor, s: float, half_space: bool, steps: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """Run L-BFGS for all starts x (K, dim, n) at once, each with its own step length; return points and F (K,).

    A step is straight and normalized back to the sphere; the history is projected to the new tangent space. A start
    ends when n times its gradient is at most `tolerance` at every point, or when rounding prevents progress.
    """
    starts, dim, n = x.shape
    reach = 0.5 * n ** (-1 / (dim - 1))  # about a quarter of the distance of neighbours
    first = n * reach**2  # first step / gradient: about an inverse second derivative
    points, values, index = x.clone(), x.new_empty(starts), torch.arange(starts, device=x.device)
    f, g = mean_log_energy(x, s, half_space)
    moves = changes = x.new_zeros(0, *x.shape)  # steps, latest last, and changes of the gradient
    failed = x.new_zeros(starts, dtype=torch.bool)
    stuck = failed
    for _ in range(steps):
        finished = (n * _longest(g).view(-1) <= tolerance) | stuck
        if finished.any():
            points[index[finished]], values[index[finished]] = x[finished], f[finished]
            x, f, g, index, failed = (v[~finished] for v in (x, f, g, index, failed))
            moves, changes = moves[:, ~finished], changes[:, ~finished]
        if not len(index):
            break
        direction = -_times_inverse_hessian(g, moves, changes, first)
        slope = _dot(direction, g)
        if (uphill := (slope >= 0).view(-1)).any():
            direction[uphill], moves[:, uphill] = -first * g[uphill], 0
            slope = _dot(direction, g)
        length = (reach / _longest(direction)).clamp_(max=1)
        new_x, new_f, new_g, fails = _line_search(x, f, g, direction, slope, length, s, half_space)
        moves = torch.cat([_tangent(new_x, moves[1 - _MEMORY :]), _tangent(new_x, length * direction)[None]])
        changes = torch.cat([_tangent(new_x, changes[1 - _MEMORY :]), (new_g - _tangent(new_x, g))[None]])
        moves[:, fails] = 0  # drop the history and try the gradient; if that fails too, stop
        stuck, failed = fails & failed, fails
        x, f, g = new_x, new_f, new_g
    points[index], values[index] = x, f
    return points, values


def _times_inverse_hessian(g: Tensor, moves: Tensor, changes: Tensor, first: float) -> Tensor:
    """Run the two loops of L-BFGS; pairs without positive curvature are ignored."""
    curvature = _dot(moves, changes)
    inverse = torch.where(curvature > 0, 1 / curvature, 0.0)
    q, parts = g.clone(), []
    for move, change, c in zip(moves.flip(0), changes.flip(0), inverse.flip(0), strict=True):
        parts.append(c * _dot(move, q))
        q -= parts[-1] * change
    if len(moves):
        q *= torch.where(curvature[-1] > 0, curvature[-1] / _dot(changes[-1], changes[-1]), first)
    else:
        q *= first
    for move, change, c, part in zip(moves, changes, inverse, reversed(parts), strict=True):
        q += (part - c * _dot(change, q)) * move
    return q


def _line_search(
    x: Tensor, f: Tensor, g: Tensor, direction: Tensor, slope: Tensor, length: Tensor, s: float, half_space: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Backtrack `length`, in place, for every start until F decreases enough; return x, F, gradient, and which failed.

    The slack covers rounding of F: near the minimum the gradient still improves when F no longer can.
    """
    slack = 1e-15 * (1 + f.abs())
    new_x = _unit(x + length * direction)
    new_f, new_g = mean_log_energy(new_x, s, half_space)
    for _ in range(_HALVINGS):
        fall = (length * slope).view(-1)
        fails = new_f > f + 1e-4 * fall + slack
        k = fails.nonzero()[:, 0]
        if not len(k):
            break
        # the minimum of the interpolating parabola, clamped
        length[k] *= (fall[k] / (2 * (fall[k] + f[k] - new_f[k]))).clamp_(0.1, 0.5)[:, None, None]
        new_x[k] = _unit(x[k] + length[k] * direction[k])
        new_f[k], new_g[k] = mean_log_energy(new_x[k], s, half_space)
    else:
        new_x[k], new_f[k], new_g[k] = x[k], f[k], g[k]
    return new_x, new_f, new_g, fails


def _unit(x: Tensor) -> Tensor:
    return x / x.square().sum(-2, keepdim=True).sqrt_()


def _tangent(x: Tensor, v: Tensor) -> Tensor:
    return v - (v * x).sum(-2, keepdim=True) * x


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((-2, -1), keepdim=True)


def _longest(v: Tensor) -> Tensor:
    return v.square().sum(-2).amax(-1).sqrt_()[:, None, None]
