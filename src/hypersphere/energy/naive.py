"""Energies of pairs by naive autograd, for vmap, forward-mode AD and nested transforms of torch.func.

The Functions of :mod:`hypersphere.energy.tiles` work in place and on lists of close pairs, which vmap cannot batch.
Here all pairs are held at once, (G, b, m). Values and derivatives are the same: distances at least FLOOR, pairs nearer
than NEAR with the constant force of NEAR along their difference. Except that coincident points have no direction here,
and that a sum that is capped at the dtype's largest number has derivative 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .repulsion import FLOOR, NEAR, Law


def naive_energies(
    x: Tensor, y: Tensor, squares: tuple[Tensor, Tensor] | None, pairs: Tensor, log_scale: Tensor, law: Law
) -> Tensor:
    """Compute Σ_j φ_ij (G, b) of points x (G, b, d) with y (G, m, d), over the `pairs` (b, m) or (G, b, m) that count.

    For large s it is multiplied by exp(log_scale) (G, 1) and capped at the largest number.
    """
    total = 2.0 if squares is None else squares[0].unsqueeze(2) + squares[1].unsqueeze(1)
    e, log_terms = x.new_zeros(()), []
    for sign in (1, -1) if law.half_space else (1,):
        from_product = total - 2 * sign * (x @ y.mT)
        # value from the difference, derivative from the product
        squared = torch.where(pairs, _replace(from_product, _squared_distances(x, sign * y)), 1.0)
        smooth = squared.clamp(NEAR * NEAR, 4 - 1e-5 if law.angular else math.inf)
        exact = squared.clamp(min=FLOOR * FLOOR)
        if law.in_logs:
            log_terms.append(_replace(law.log_energy(smooth), law.log_energy(exact)))
        else:
            e = e + torch.where(pairs, _replace(law.energy(smooth), law.energy(exact)), 0.0).sum(2)
        log_force = _log_near_force(law) + (log_scale if law.in_logs else torch.zeros_like(log_scale))
        largest = 0.5 * math.log(torch.finfo(x.dtype).max)
        e = e + _near_forces(x, sign * y, squared, pairs, log_force.clamp(max=largest).exp().unsqueeze(2))
    if not law.in_logs:
        return e
    logs = torch.where(pairs, torch.stack(log_terms), torch.finfo(x.dtype).min / 4)
    return (logs.logsumexp((0, 3)) + log_scale).exp().clamp(max=torch.finfo(x.dtype).max) + e


def _replace(x: Tensor, value: Tensor) -> Tensor:
    """Return `value` with the derivative of x."""
    return x + (value - x).detach()


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Compute ‖x_i − y_j‖² (G, b, m) from the differences, a few rows at a time, without derivatives."""
    x, y = x.detach(), y.detach()
    rows = max(1, 2**22 // max(y[0].numel(), 1))
    pieces = [(part.unsqueeze(2) - y.unsqueeze(1)).square().sum(3) for part in x.split(rows, 1)]
    return torch.cat(pieces, 1)


def _log_near_force(law: Law) -> float:
    """Compute the logarithm of NEAR·D at the distance NEAR."""
    theta = 2 * math.asin(NEAR / 2)
    z = theta**2 if law.angular else NEAR**2
    angular = math.log(theta / math.sin(theta)) if law.angular else 0.0
    return math.log(law.force_factor * NEAR) - (law.s / 2 + 1) * math.log(z) + angular


def _near_forces(x: Tensor, y: Tensor, squared: Tensor, pairs: Tensor, force: Tensor) -> Tensor:
    """Return zeros (G, b) whose derivative is Σ_j force·⟨u_ij, dx_i − dy_j⟩, u_ij the unit vector from x_i to y_j, over
    pairs nearer than NEAR."""
    near = pairs & (squared < NEAR * NEAR)
    a = torch.where(near, force / squared.clamp(min=FLOOR * FLOOR).sqrt(), 0.0).detach()
    dx, dy, x, y = x - x.detach(), y - y.detach(), x.detach(), y.detach()
    # ⟨y_j − x_i, dx_i − dy_j⟩, term by term
    own = (a @ y - a.sum(2, keepdim=True) * x) * dx + (a @ dy) * x
    return own.sum(2) - (a @ (y * dy).sum(2, keepdim=True)).squeeze(2)
