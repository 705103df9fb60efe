"""Spherical designs: point sets over which polynomials have the same mean as over the sphere.

A t-design does so for every polynomial of degree up to t. Shapes: N points, dim their dimension.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from .._internal import checks
from ..geometry.points import fibonacci_points, random_points
from ..layers.cosine import unit

_MOST_CONDITIONS = 210


def spherical_design(t: int, dim: int = 3) -> Tensor:
    """Return a spherical t-design of few points, (N, dim) float64.

    The regular polygon on the circle; elsewhere two poles (t = 1), the simplex (2), the cross-polytope (3), the
    icosahedron, the 24-cell and the 600-cell where they fit; else points ±u that solve the moment equations, found by
    least squares (on the sphere of dim 3 about t²/2 + t/2 + 8 of them).

    Args:
        t: the degree, t ≥ 1.
        dim: the dimension of the space, 2 at least. Above 2 there is a limit: t ≤ 19 for dim 3, 11 for 4, 7 for 5,
            5 for 6 and 7, 3 beyond.

    Example:
        >>> [len(spherical_design(t)) for t in (1, 2, 3, 5, 7)]
        [2, 4, 6, 12, 36]
    """
    t, dim = checks.integer("t", t, low=1), checks.integer("dim", dim, low=2)
    eye = torch.eye(dim, dtype=torch.float64)
    if dim == 2:
        return fibonacci_points(t + 1, dim=2)
    if t == 1:
        return torch.stack([eye[0], -eye[0]])
    if t == 2:
        corners = math.sqrt(1 + 1 / dim) * eye - (math.sqrt(dim + 1) + 1) / dim**1.5
        return unit(torch.cat([corners, torch.ones_like(corners[:1])]))
    if t == 3:
        return torch.cat([eye, -eye])
    if dim == 3 and t <= 5:
        golden = (1 + math.sqrt(5)) / 2
        half = torch.tensor([[0.0, 1.0, golden], [0.0, -1.0, golden]], dtype=torch.float64)
        quarter = torch.cat([half.roll(k, 1) for k in range(3)])
        return unit(torch.cat([quarter, -quarter]))
    if dim == 4 and t in (4, 5, 10, 11):
        return _cell24() if t <= 5 else _cell600()
    return _solve_moments(t, dim)


def _cell24() -> Tensor:
    eye = torch.eye(4, dtype=torch.float64)
    return torch.cat([eye, -eye, torch.tensor(list(itertools.product((-0.5, 0.5), repeat=4)), dtype=torch.float64)])


def _cell600() -> Tensor:
    """Return the 24-cell and the even permutations of (±φ, ±1, ±1/φ, 0)/2."""
    golden = (1 + math.sqrt(5)) / 2
    corners = []
    for order in itertools.permutations(range(4)):
        if sum(order[i] > order[j] for i, j in itertools.combinations(range(4), 2)) % 2 == 0:
            for signs in itertools.product((-0.5, 0.5), repeat=3):
                values = [signs[0] * golden, signs[1], signs[2] / golden, 0.0]
                corners.append([values[k] for k in order])
    return torch.cat([_cell24(), torch.tensor(corners, dtype=torch.float64)])


def _solve_moments(t: int, dim: int) -> Tensor:
    """Find points ±u over which all monomials of the largest even degree ≤ t have their mean; odd ones do by symmetry.

    Monomials of one even degree span the polynomials of all lower even degrees too, as ‖u‖ = 1.
    """
    degree = t - t % 2
    if (conditions := math.comb(degree + dim - 1, degree)) > _MOST_CONDITIONS:
        raise ValueError(f"t={t} is too large for dim={dim}: it needs {conditions} moments, over {_MOST_CONDITIONS}")
    chosen = itertools.combinations_with_replacement(range(dim), degree)
    powers = torch.tensor([[c.count(k) for k in range(dim)] for c in chosen], dtype=torch.float64)
    # With these scales Σ monomial(u)·monomial(v) = ⟨u, v⟩^degree: no direction is preferred.
    scale = torch.exp((math.lgamma(degree + 1) - torch.lgamma(powers + 1).sum(1)) / 2)
    mean = scale * torch.tensor([_moment(p) for p in powers.long().tolist()], dtype=torch.float64)

    # As many angles as equations and rotations are enough; a few more make it easy.
    least = math.ceil((conditions - 1 + dim * (dim - 1) / 2) / (dim - 1))
    for more in range(3, 40):
        n = least + more
        start = fibonacci_points(2 * n)[:n] if dim == 3 and more == 3 else random_points(n, dim, seed=more)
        if (points := _levenberg_marquardt(powers, scale, mean, start)) is not None:
            return torch.cat([points, -points])
    raise RuntimeError(f"no spherical {t}-design found in {dim} dimensions")


def _levenberg_marquardt(powers: Tensor, scale: Tensor, mean: Tensor, x: Tensor) -> Tensor | None:
    """Find unit rows x (N, dim) near the start over which the monomials (M,) have their mean; None after 60 steps."""
    damping, value, eye = 1e-2, _monomials(x, powers, scale), torch.eye(x.shape[1], dtype=powers.dtype)
    for _ in range(60):
        error = value.mean(0) - mean
        if error.norm() < 1e-13:
            return x
        slope = [powers[:, k] * _monomials(x, (powers - eye[k]).clamp_min(0), scale) for k in range(len(eye))]
        # Along the sphere; Σ x_k·∂/∂x_k gives a monomial times its degree.
        tangent = torch.stack(slope, 2) - powers[0].sum() * value.unsqueeze(2) * x.unsqueeze(1)
        jacobian = tangent.transpose(0, 1).flatten(1) / len(x)
        gram = jacobian @ jacobian.mT
        gram.diagonal().add_((damping + 1e-15) * gram.diagonal().mean())
        step = -(jacobian.mT @ torch.linalg.solve(gram, error)).view_as(x)
        y = unit(x + step / max(1.0, 2 * float(step.norm(dim=1).max())))
        value_there = _monomials(y, powers, scale)
        if (value_there.mean(0) - mean).norm() < error.norm():
            x, value, damping = y, value_there, damping / 5
        else:
            damping = max(damping, 1e-12) * 8
    return None


def _monomials(x: Tensor, powers: Tensor, scale: Tensor) -> Tensor:
    """Compute scale·Π x_k^power_k, (N, M), of points (N, dim) and powers (M, dim)."""
    return scale * x.unsqueeze(1).pow(powers).prod(2)


def _moment(powers: list[int]) -> float:
    """Compute the mean of Π x_k^p_k on the sphere: Π (p_k − 1)!! / (dim·(dim + 2)···(dim + Σp − 2)), 0 for odd p_k."""
    if any(k % 2 for k in powers):
        return 0.0
    above = math.prod(math.prod(range(1, k, 2)) for k in powers)
    return above / math.prod(range(len(powers), len(powers) + sum(powers), 2))
