"""The geometry's formulas, literally and slowly: what hypersphere.geometry is tested against; nothing is shared."""

import itertools
import math

import torch
from torch import Tensor

from tests.reference import angle


# OPT, Eq. 51
def separation(rows: Tensor) -> float:
    return min(float(angle(u, v)) for u, v in itertools.combinations(rows.double(), 2))


# OPT, Eq. 50: the farthest point is the middle of a cap, on either side, with some of the neurons on its rim
def covering_radius(rows: Tensor) -> float:
    rows = rows.double() / rows.double().norm(dim=1, keepdim=True)
    n, d = rows.shape
    largest = 0.0
    for size in range(1, min(n, d) + 1):
        for rim in itertools.combinations(range(n), size):
            corners = rows[list(rim)]
            middle = corners.T @ torch.linalg.solve(corners @ corners.T, torch.ones(size, dtype=rows.dtype))
            for u in (middle, -middle):
                largest = max(largest, min(float(angle(u, w)) for w in rows))
    return largest


# OPT, Eq. 52: every d neurons with all others on one side are a facet; its hole is the cap cut off by their plane
def hole_radii(rows: Tensor) -> list[float]:
    rows = rows.double() / rows.double().norm(dim=1, keepdim=True)
    n, d = rows.shape
    radii = []
    for corners in itertools.combinations(range(n), d):
        plane = torch.linalg.svd(rows[list(corners[1:])] - rows[corners[0]])[2][-1]
        others = [k for k in range(n) if k not in corners]
        heights = (rows[others] - rows[corners[0]]) @ plane
        if (heights < 0).all() or (heights > 0).all():
            outward = -plane if (heights > 0).all() else plane
            radii.append(float((outward - rows[corners[0]]).norm()))
    return sorted(radii, reverse=True)


# OPT, Eq. 54 to 57, in the paper's d
def surface(d: int) -> float:
    return 2 * math.pi ** ((d + 1) / 2) / math.gamma((d + 1) / 2) if d else 2.0


def kappa(d: int) -> float:
    return surface(d - 1) / surface(d) / d


def facets(d: int) -> float:
    return 2 / (d + 1) * kappa(d * d) / kappa(d) ** d


def hole_moment(n: int, d: int, p: float) -> float:
    return facets(d) * kappa(d) ** (-p / d) * math.gamma(d + p / d) / math.gamma(d) * n ** (1 - p / d)  # large n


# MHE, Eq. 9: the mean over the sphere of a function of the angle, by the midpoint rule
def mean_over_sphere(f, dim: int, steps: int = 200_000) -> float:
    theta = (torch.arange(steps, dtype=torch.float64) + 0.5) * math.pi / steps
    density = theta.sin() ** (dim - 2)
    return float((f(theta) * density).sum() / density.sum())


def potential(distance: Tensor, s: float) -> Tensor:
    return torch.log(1 / distance) if s == 0 else distance**-s


def pair_energies(rows: Tensor, s: float, half_space: bool = False, angular: bool = False) -> list[float]:
    """f_s of all ordered pairs, in half space of the explicit 2N neurons."""
    rows = torch.cat([rows, -rows]) if half_space else rows
    rows = rows.double() / rows.double().norm(dim=1, keepdim=True)
    pairs = itertools.permutations(rows, 2)
    return [float(potential(angle(u, v) if angular else (u - v).norm(), s)) for u, v in pairs]


# Spherical designs: monomials and their means over the sphere
def largest_moment_error(points: Tensor, t: int) -> float:
    dim, worst = points.shape[1], 0.0
    for degree in range(1, t + 1):
        for chosen in itertools.combinations_with_replacement(range(dim), degree):
            powers = [chosen.count(k) for k in range(dim)]
            exact = 0.0
            if not any(p % 2 for p in powers):
                gammas = math.prod(math.gamma((p + 1) / 2) for p in powers)
                exact = gammas * math.gamma(dim / 2) / (math.pi ** (dim / 2) * math.gamma((degree + dim) / 2))
            mean = float(math.prod(points[:, k] ** p for k, p in enumerate(powers)).mean())
            worst = max(worst, abs(mean - exact))
    return worst


# OPT, appendix G
def kernel(u: Tensor, v: Tensor) -> float:
    return 0.5 - float(angle(u, v)) / (2 * math.pi)


def kernel_discrepancy(rows: Tensor) -> float:
    n, d = rows.shape
    expected = mean_over_sphere(lambda theta: (0.5 - theta / (2 * math.pi)) ** 2, d)
    return sum(kernel(u, v) ** 2 for u in rows for v in rows) / n**2 - expected


def diversity_bound(rows: Tensor, m: int, delta: float) -> float:  # Eq. 46
    d, l2 = rows.shape[1], kernel_discrepancy(rows)
    first = math.log(d) / math.sqrt(d) * math.sqrt(2 * l2) * m * (4 / m * math.log(1 / delta)) ** (1 / 4)
    second = 2 * math.log(d) / math.sqrt(d) * m * math.sqrt(4 / (3 * m) * math.log(1 / delta))
    return first + second + math.log(d) / math.sqrt(d) * m * l2 + 2


def gradient_matrix(weight: Tensor, x: Tensor, v: Tensor) -> Tensor:
    """D of Eq. 44: (d·n, m)."""
    columns = [torch.cat([vi * (w @ xj > 0) * xj for vi, w in zip(v, weight, strict=True)]) for xj in x]
    return torch.stack(columns, 1)


def loss(weight: Tensor, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
    return (torch.relu(x @ weight.T) @ v - y).square().sum() / (2 * len(x))
