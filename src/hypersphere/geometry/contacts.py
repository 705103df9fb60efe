"""Refine a near-optimal solution of Tammes' problem by Newton's method on the optimality conditions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

STEPS = 24  # usually 3 to 5 are enough; a misjudged rank of the singular system costs a step
LARGEST_SYSTEM = 2000  # unknowns; beyond, solving would take longer than the search


def equalize_contacts(x: Tensor, s: float, half_space: bool) -> Tensor:
    """Move points x (n, dim) that are optimal for a large s to the optimum for s = inf; return x if that fails."""
    moved = _newton(x, s, half_space)
    return moved if largest_cosine(moved, half_space) < largest_cosine(x, half_space) else x


def largest_cosine(x: Tensor, half_space: bool) -> float:
    """Return the largest cosine of two points (n, dim); in half space, of the lines through them.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
        >>> largest_cosine(square, half_space=False), largest_cosine(square, half_space=True)
        (0.0, 1.0)
    """
    cosines = x @ x.T
    return float((cosines.abs() if half_space else cosines).fill_diagonal_(-1).amax())


def _newton(x: Tensor, s: float, half_space: bool) -> Tensor:
    """Minimize τ with ±x_i·x_j = τ at the m contacts and ‖x_i‖ = 1.

    With multipliers λ (m,) and μ (n,) an optimum has Σ_j ±λ_ij x_j + μ_i x_i = 0 and Σλ = 1. The weights r^(−s) of the
    pairs show which of them are contacts, and equal λ up to terms of order 1/s. Rotations, and points without contact,
    make the equations singular; the shortest solution does not move along these.
    """
    start, (n, dim) = x, x.shape
    i, j = torch.triu_indices(n, n, 1, device=x.device)
    cosines = (x @ x.T)[i, j]
    sign = cosines.sign() if half_space else torch.ones_like(cosines)
    weights = (-s / 2 * (2 - 2 * sign * cosines).log()).softmax(0)
    contact = weights > 1e-5 * weights.max()
    i, j, sign, cosines, weights = (v[contact] for v in (i, j, sign, cosines, weights))
    m, size = len(i), n * dim
    if size + m + n + 1 > LARGEST_SYSTEM:
        return x
    is_contact = torch.cat([x.new_ones(m), x.new_zeros(n)])
    row, point = torch.arange(m, device=x.device), torch.arange(n, device=x.device)
    corner, identity = x.new_zeros(m + n, m + n), x.new_ones(dim).diag()

    def stress(multipliers: Tensor) -> Tensor:
        matrix = multipliers[m:].diag()
        matrix[i, j] = matrix[j, i] = sign * multipliers[:m]
        return matrix

    multipliers = torch.cat([weights / weights.sum(), x.new_zeros(n)])
    multipliers[m:] = -(stress(multipliers) @ x * x).sum(1)
    tau = (sign * cosines).mean()
    best, least = start, x.new_tensor(1.0)
    for _ in range(STEPS):
        pull = stress(multipliers)
        constraints = x.new_zeros(m + n, n, dim)  # derivatives
        constraints[row, i], constraints[row, j] = sign[:, None] * x[j], sign[:, None] * x[i]
        constraints[m + point, point] = x
        values = torch.cat([sign * (x[i] * x[j]).sum(1) - tau, (x.square().sum(1) - 1) / 2])
        residual = torch.cat([(pull @ x).flatten(), values, 1 - multipliers[:m].sum(0, keepdim=True)])
        error = residual.abs().max()
        if not error < 1:  # NaN included
            break
        if error < least:
            best, least = x, error
        if error < 4e-15:
            break
        borders = torch.cat([constraints.flatten(1), corner, -is_contact[:, None]], 1)
        matrix = torch.cat(
            [
                torch.cat([torch.kron(pull, identity), borders[:, :size].T, x.new_zeros(size, 1)], 1),
                borders,
                torch.cat([x.new_zeros(1, size), -is_contact[None], x.new_zeros(1, 1)], 1),
            ]
        )
        step = torch.linalg.lstsq(matrix, residual[:, None], rcond=1e-10, driver="gelsd").solution[:, 0]
        x = x - step[:size].view(n, dim)
        multipliers, tau = multipliers - step[size:-1], tau - step[-1]
    return normalize(best, dim=-1)
