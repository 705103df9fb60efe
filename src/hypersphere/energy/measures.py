"""Measures of how evenly neurons are spread, to be minimized: the energy and its alternatives.

Each maps groups of neurons (G, N, d), rows of any length, to one number per group (G,):

======================  ============================================================================================
energy                  the mean hyperspherical energy (MHE, Eq. 4)
comhe_random            the mean energy after random projections to at most 30 dimensions, drawn anew at every call
comhe_angle             the energy after the projection to at most 30 dimensions that best keeps the cosines
orthonormal             ‖WᵀW − I‖²_F over the neurons as they are (SphereNet, 2.4)
orthoreg                Σ_{i≠j} log(1 + exp(10·(cos θ_ij − 1))), which leaves pairs beyond a right angle alone
srip                    the spectral norm of WᵀW − I
separation              minus the least angle between two neurons
polarization            minus the least mean energy that a point of the sphere has with all neurons
covering                the largest angle that a point of the sphere has to the nearest neuron
gram_determinant        −1/N·log det K with K_ij = exp(−‖ŵ_i − ŵ_j‖²)
======================  ============================================================================================

The last four search for a pair or a point first and differentiate the angle or energy there (the envelope theorem).

Shapes: G groups, N neurons, d dimensions, k dimensions after a projection.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from .._internal import checks
from .._internal.overflow import clamp_abs, max_root
from .._internal.precision import without_autocast
from ..layers.cosine import unit
from .hyperspherical import at_least_float32, group_energy, is_alive
from .repulsion import NEAR, Law

Draw = Callable[[], Generator]
Measure = Callable[[Tensor, Law, Draw], Tensor]

PROJECTED = 30  # dimensions after a projection
PROJECTIONS = 8  # random projections a call


def energy(rows: Tensor, law: Law, draw: Draw) -> Tensor:
    """Compute the mean hyperspherical energy (MHE, Eq. 4)."""
    return group_energy(rows, law)


def comhe_random(rows: Tensor, law: Law, draw: Draw) -> Tensor:
    """Compute the mean energy after random projections."""
    groups, _, d = rows.shape
    k = min(PROJECTED, d)
    # drawn on the CPU for the same numbers on every device
    projection = torch.randn(PROJECTIONS, 1, d, k, generator=draw(), dtype=torch.float64).to(rows) / k**0.5
    projected = (unit(rows) @ projection).flatten(0, 1)
    return group_energy(projected, law).view(PROJECTIONS, groups).mean(0)


def comhe_angle(rows: Tensor, law: Law, draw: Draw, steps: int = 5) -> Tensor:
    """Compute the energy after the projection that best keeps the cosines."""
    p = unit(rows)
    k = min(PROJECTED, *p.shape[1:])
    with torch.no_grad():
        # The principal axes keep inner products best; a few steps of descent adapt them to cosines, unless k = d.
        cosines = p @ p.mT
        axes = _principal_axes(p.to(torch.float64))[..., :k].to(p.dtype)
    for _ in range(steps if k == PROJECTED < p.shape[2] else 0):
        with torch.enable_grad():
            leaf = axes.detach().requires_grad_()
            q = unit(p.detach() @ leaf)
            (slope,) = torch.autograd.grad((q @ q.mT - cosines).square().mean((1, 2)).sum(), leaf)
        length = torch.linalg.vector_norm(slope, dim=(1, 2), keepdim=True).clamp(min=1e-12)
        axes = axes - 0.05 * slope / length
    return group_energy(p @ axes, law)


def _principal_axes(p: Tensor) -> Tensor:
    """Return the right singular vectors (G, d, min(N, d)) of p (G, N, d), largest first, by the smaller Gram matrix."""
    if p.shape[1] >= p.shape[2]:
        return torch.linalg.eigh(p.mT @ p).eigenvectors.flip(2)
    squares, left = torch.linalg.eigh(p @ p.mT)
    left = left * (squares > 1e-12 * squares.amax(1, keepdim=True)).unsqueeze(1)  # drop noise
    return unit((p.mT @ left.flip(2)).mT).mT


def orthonormal(weight: Tensor) -> Tensor:
    """Compute ‖WᵀW − I‖²_F for kernels as the columns of W (SphereNet, 2.4), here the rows of `weight`.

    Args:
        weight: (N, ...), flattened to (N, d): rows are neurons.

    Example:
        >>> orthonormal(torch.eye(3)), orthonormal(2 * torch.eye(3))
        (tensor(0.), tensor(27.))
    """
    rows = at_least_float32(checks.rows("weight", weight)).unsqueeze(0)
    with without_autocast(rows):
        return deviation_from_orthonormal(rows).squeeze(0)


def deviation_from_orthonormal(rows: Tensor, law: Law | None = None, draw: Draw | None = None) -> Tensor:
    """Compute ‖WᵀW − I_N‖² = ‖WWᵀ − I_d‖² + N − d of each group from the smaller Gram matrix."""
    n, d = rows.shape[1:]
    rows = _with_finite_squares(rows)
    gram = rows @ rows.mT if n <= d else rows.mT @ rows
    identity = torch.eye(min(n, d), dtype=rows.dtype, device=rows.device)
    return (gram - identity).square().sum((1, 2)) + max(n - d, 0)


def _with_finite_squares(rows: Tensor) -> Tensor:
    """Clamp neurons (G, N, d) so that ‖WᵀW‖² is finite: to about 1e8 in float32."""
    return clamp_abs(rows, (max_root(rows.dtype, 1) / 2**20) ** 0.25 / math.sqrt(rows.shape[1] * rows.shape[2]))


def orthoreg(rows: Tensor, law: Law, draw: Draw, sharpness: float = 10.0) -> Tensor:
    """Compute Σ_{i≠j} log(1 + exp(sharpness·(cos θ_ij − 1)))."""
    p = unit(rows)
    terms = torch.nn.functional.softplus(sharpness * (p @ p.mT - 1))
    return (terms * _distinct_pairs(p)).sum((1, 2))


def srip(rows: Tensor, law: Law, draw: Draw) -> Tensor:
    """Compute the spectral norm of WᵀW − I: the largest |λ − 1| over its eigenvalues λ.

    The gradient is that of |‖W v‖² − 1| at the eigenvector v, which repeated eigenvalues leave finite.
    """
    n, d = rows.shape[1:]
    rows = _with_finite_squares(rows)
    rows = rows if n > d else rows.mT  # the smaller Gram matrix is rowsᵀ·rows
    with torch.no_grad():
        gram = (rows.mT @ rows).nan_to_num()  # eigh raises for NaN; the value below stays NaN
        squares, vectors = torch.linalg.eigh(gram.to(torch.float64))
        farthest = (squares - 1).abs().argmax(1)[:, None, None].expand(-1, min(n, d), 1)
        v = vectors.gather(2, farthest).to(rows.dtype)
    norm = ((rows @ v).square().sum((1, 2)) - 1).abs()
    return norm.clamp(min=1.0) if n > d else norm  # N > d: N − d eigenvalues are 0


def separation(rows: Tensor, law: Law, draw: Draw) -> Tensor:
    """Compute minus the least angle between two neurons."""
    p = unit(rows)
    with torch.no_grad():
        others = _distinct_pairs(p)
        nearest = torch.where(others, p @ p.mT, -2.0).flatten(1).argmax(1)
    group = torch.arange(len(p), device=p.device)
    u, v = p[group, nearest // p.shape[1]], p[group, nearest % p.shape[1]]
    return torch.where(others.flatten(1).any(1), -_angle(u, v), 0.0)


def polarization(rows: Tensor, law: Law, draw: Draw) -> Tensor:
    """Compute minus the least mean energy that a point of the sphere has with all neurons."""
    p = unit(rows)
    alive = is_alive(p).unsqueeze(1)

    def potential(points: Tensor, neurons: Tensor) -> Tensor:  # (G, M, d) → (G, M)
        terms = law.energy((2 - 2 * points @ neurons.mT).clamp(min=NEAR * NEAR))
        return (terms * alive).sum(2) / alive.sum(2).clamp(min=1)

    v = _find_lowest(p.detach(), potential, draw)
    return -potential(v, p).squeeze(1)


def covering(rows: Tensor, law: Law, draw: Draw) -> Tensor:
    """Compute the largest angle that a point of the sphere has to the nearest neuron."""
    p = unit(rows)
    alive = is_alive(p).unsqueeze(1)

    def nearness(points: Tensor, neurons: Tensor) -> Tensor:  # a smooth largest cosine
        return torch.where(alive, 30 * points @ neurons.mT, -60.0).logsumexp(2)

    v = _find_lowest(p.detach(), nearness, draw)
    nearest = torch.where(alive, v @ p.detach().mT, -2.0).squeeze(1).argmax(1)
    group = torch.arange(len(p), device=p.device)
    return _angle(v.squeeze(1), p[group, nearest])


def gram_determinant(rows: Tensor, law: Law, draw: Draw) -> Tensor:
    """Compute −1/N·log det K with K_ij = exp(−‖ŵ_i − ŵ_j‖²)."""
    p = unit(rows).to(torch.float64)
    kernel = torch.exp(2 * p @ p.mT - 2) * _distinct_pairs(p)  # exp(−‖ŵ_i − ŵ_j‖²)
    diagonal = (1 + 1e-6) * torch.eye(p.shape[1], dtype=p.dtype, device=p.device)  # not singular for coincident neurons
    factor = torch.linalg.cholesky(kernel + diagonal)
    num_alive = is_alive(p).sum(1).clamp(min=1)
    return (-2 / num_alive * factor.diagonal(dim1=1, dim2=2).log().sum(1)).to(rows.dtype)


#: a name of the table, or a function of neurons (N, d)
MeasureLike = str | Callable[[Tensor], Tensor]

REGULARIZERS: dict[str, Measure] = {
    "energy": energy,
    "comhe_random": comhe_random,
    "comhe_angle": comhe_angle,
    "orthonormal": deviation_from_orthonormal,
    "orthoreg": orthoreg,
    "srip": srip,
    "separation": separation,
    "polarization": polarization,
    "covering": covering,
    "gram_determinant": gram_determinant,
}
#: measures of directions alone, which are constant for a single neuron
OF_DIRECTIONS = frozenset(REGULARIZERS) - {"orthonormal", "srip"}
WEIGHTS: dict[str, tuple[float, float]] = {
    "energy": (10.0, 1.0),
    "comhe_random": (10.0, 1.0),
    "comhe_angle": (10.0, 1.0),
    "orthonormal": (1e-4, 0.0),
    "orthoreg": (1.0, 1.0),
    "srip": (1e-2, 0.0),
    "separation": (0.1, 0.1),
    "polarization": (10.0, 1.0),
    "covering": (0.1, 0.1),
    "gram_determinant": (10.0, 1.0),
}
"""Default weights of each measure in hidden layers and in the output layer; docs/energy.md shows their effect."""
ENERGIES = ("energy", "comhe_random", "comhe_angle")
"""Measures that support half space, where the hidden weight is a tenth (MHE, App. A)."""
ANGULAR = (*ENERGIES, "polarization")
"""Measures that support angles instead of distances."""
RANDOM = ("comhe_random",)
"""Measures whose value depends on the draw; others use it at most for the start of a search."""


def compute_measure(name: str, rows: Tensor, law: Law, draw: Draw) -> Tensor:
    """Compute the measure of each group, in at least float32: (G,)."""
    with without_autocast(rows):
        return REGULARIZERS[name](at_least_float32(rows), law, draw)


def default_weights(name: str, half_space: bool) -> tuple[float, float] | None:
    """Return the default weights of a measure in hidden layers and in the output layer; None if it has none."""
    if name not in WEIGHTS:
        return None
    hidden, output = WEIGHTS[name]
    return (hidden / 10 if half_space and name in ENERGIES else hidden), output


def _angle(u: Tensor, v: Tensor) -> Tensor:
    """Compute the angle between unit vectors (G, d) from their difference; the gradient is bounded at 0 and π."""
    half = (u - v).square().sum(1).clamp(min=1e-12).sqrt() / 2
    return 2 * half.clamp(max=1 - 1e-6).asin()


def _distinct_pairs(p: Tensor) -> Tensor:
    """Return which pairs (G, N, N) are of two different nonzero neurons."""
    alive = is_alive(p)
    same = torch.eye(p.shape[1], dtype=torch.bool, device=p.device)
    return alive.unsqueeze(1) & alive.unsqueeze(2) & ~same


def _find_lowest(
    p: Tensor, function: Callable[[Tensor, Tensor], Tensor], draw: Draw, starts: int = 64, steps: int = 30
) -> Tensor:
    """Find a point (G, 1, d) of the sphere where function(points, p) is small, by gradient descent from many starts."""
    v = unit(torch.randn(starts, p.shape[2], generator=draw(), dtype=torch.float64).to(p)).expand(len(p), -1, -1)
    for step in range(steps):
        with torch.enable_grad():
            leaf = v.detach().requires_grad_()
            (slope,) = torch.autograd.grad(function(leaf, p).sum(), leaf)
        slope = slope - v * (slope * v).sum(2, keepdim=True)
        v = unit(v - 0.3 * (1 - step / steps) * unit(slope))
    with torch.no_grad():
        lowest = function(v, p).argmin(1)
    return v[torch.arange(len(p), device=p.device), lowest].unsqueeze(1)


def check_measure(measure: Any) -> MeasureLike:
    if isinstance(measure, str):
        checks.choice("measure", measure, REGULARIZERS)
    elif not callable(measure):
        raise TypeError(f"measure must be one of {', '.join(REGULARIZERS)} or a function of neurons, got {measure!r}")
    return measure


def apply_user_measure(measure: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Apply a user's measure to each group: (G,)."""
    values = [measure(group) for group in rows]
    if not all(isinstance(value, Tensor) and value.numel() == 1 for value in values):
        got = values[0]
        raise TypeError(
            f"measure must return a tensor with one element for neurons (N, d), got "
            f"{f'shape {tuple(got.shape)}' if isinstance(got, Tensor) else type(got).__name__}"
        )
    return torch.stack([value.reshape(()) for value in values])
