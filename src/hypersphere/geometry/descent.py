"""The energy of many small sets of points at once, and L-BFGS on the sphere that lowers it.

K starts at once, n points, dim dimensions. What is minimized is F = (1/s)·log mean‖x_i − x_j‖^(−s), the logarithm of
the energy without its scale: it never overflows, its limit for s → 0 is the mean of −log‖x_i − x_j‖ (Whyte's problem),
and for s → ∞ minus the logarithm of the least distance (Tammes' problem).

Points are columns here, x (K, dim, n): sums over a few coordinates are five times faster than along rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_BLOCK = 2**17  # pairs that are looked at together: 1 MB, which stays in the cache
_MEMORY = 8  # steps that L-BFGS remembers
_HALVINGS = 25


def mean_log_energy(x: Tensor, s: float, half_space: bool = False) -> tuple[Tensor, Tensor]:
    """F (K,) of x (K, dim, n), unit columns, n > 1, and its gradient on the sphere; computed in blocks of points.

    With c = x_i·x_j and r² = 2 − 2c, dF/dx_i = (2/Σw)·Σ_j w_ij·x_j/r_ij² for the weights w = r^(−s) of ordered pairs.
    In half space the pairs of x_i and −x_j are in the mean too (each point's own antipode is not).

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
                diagonal.fill_(1)  # its log is 0, and its gradient is along x_i
                logs -= 0.5 * squared.log().sum((1, 2))
                weights = 1 / squared
            else:
                diagonal.fill_(math.inf)
                weights = squared.log().mul_(-s / 2)
                # The largest term so far is taken out of all; what was summed before is brought to the same scale.
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
    """L-BFGS for all starts x (K, dim, n) at once, each with its own step length; the points and their F (K,).

    A step follows the straight line and is normalized back; what is remembered is projected to the new tangent space.
    A start ends when n times its gradient is no longer than `tolerance` at any point, or when rounding ends it.
    """
    starts, dim, n = x.shape
    reach = 0.5 * n ** (-1 / (dim - 1))  # about a quarter of the distance between neighbours
    first = n * reach**2  # the first step, per gradient: of the size of an inverse second derivative
    points, values, index = x.clone(), x.new_empty(starts), torch.arange(starts, device=x.device)
    f, g = mean_log_energy(x, s, half_space)
    moves = turns = x.new_zeros(0, *x.shape)  # the steps, latest last, and what they changed in the gradient
    failed = x.new_zeros(starts, dtype=torch.bool)
    stuck = failed
    for _ in range(steps):
        ended = (n * _longest(g).view(-1) <= tolerance) | stuck
        if ended.any():
            points[index[ended]], values[index[ended]] = x[ended], f[ended]
            x, f, g, index, failed = (v[~ended] for v in (x, f, g, index, failed))
            moves, turns = moves[:, ~ended], turns[:, ~ended]
        if not len(index):
            break
        direction = -_times_inverse_hessian(g, moves, turns, first)
        slope = _dot(direction, g)
        if (uphill := (slope >= 0).view(-1)).any():
            direction[uphill], moves[:, uphill] = -first * g[uphill], 0
            slope = _dot(direction, g)
        length = (reach / _longest(direction)).clamp_(max=1)
        new_x, new_f, new_g, fails = _search(x, f, g, direction, slope, length, s, half_space)
        moves = torch.cat([_tangent(new_x, moves[1 - _MEMORY :]), _tangent(new_x, length * direction)[None]])
        turns = torch.cat([_tangent(new_x, turns[1 - _MEMORY :]), (new_g - _tangent(new_x, g))[None]])
        moves[:, fails] = 0  # forget all and try the gradient itself; if that fails too, rounding has ended it
        stuck, failed = fails & failed, fails
        x, f, g = new_x, new_f, new_g
    points[index], values[index] = x, f
    return points, values


def _times_inverse_hessian(g: Tensor, moves: Tensor, turns: Tensor, first: float) -> Tensor:
    """The two loops of L-BFGS; a pair without positive curvature counts for nothing."""
    curvature = _dot(moves, turns)
    inverse = torch.where(curvature > 0, 1 / curvature, 0.0)
    q, parts = g.clone(), []
    for move, turn, c in zip(moves.flip(0), turns.flip(0), inverse.flip(0), strict=True):
        parts.append(c * _dot(move, q))
        q -= parts[-1] * turn
    if len(moves):
        q *= torch.where(curvature[-1] > 0, curvature[-1] / _dot(turns[-1], turns[-1]), first)
    else:
        q *= first
    for move, turn, c, part in zip(moves, turns, inverse, reversed(parts), strict=True):
        q += (part - c * _dot(turn, q)) * move
    return q


def _search(
    x: Tensor, f: Tensor, g: Tensor, direction: Tensor, slope: Tensor, length: Tensor, s: float, half_space: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Shorten `length`, in place, for every start until F falls enough: the new x, F and gradient, and which failed.

    The slack is what rounding does to F: near the minimum the gradient still improves where F no longer can.
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
        # The lowest point of the parabola through what is known, within reason.
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
