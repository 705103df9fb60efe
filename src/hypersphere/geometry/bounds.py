"""Energies, caps and holes in closed form: integrals, expected values, bounds.

`dim` is the dimension of the space: the sphere is S^(dim−1), and the papers' d (MHE; OPT, appendix L) is dim − 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._internal import checks
from ..energy.hyperspherical import hyperspherical_energy
from .points import unit_rows


def energy_integral(s: float, dim: int) -> float:
    """Compute I_s = ∬ ‖u − v‖^(−s) of the uniform distribution on the sphere (MHE, Eq. 9); s = 0: of log(1/‖u − v‖).

        I_s = 2^(dim−2−s)·Γ(dim/2)·Γ((dim−1−s)/2) / (√π·Γ(dim−1−s/2)),    infinite for s ≥ dim − 1

    It is the mean pair energy of random neurons and the limit of the minimal mean energy as N grows.

    Example:
        >>> round(energy_integral(1, dim=3), 9), energy_integral(2, dim=3)
        (1.0, inf)
    """
    s, dim = checks.number("s", s, low=0.0), checks.integer("dim", dim, low=2)
    if s >= dim - 1:
        return math.inf
    if s == 0:
        digamma = torch.tensor([dim - 1, (dim - 1) / 2], dtype=torch.float64).digamma()
        return float(digamma[0] - digamma[1]) / 2 - math.log(2)
    log = (dim - 2 - s) * math.log(2) + math.lgamma(dim / 2) + math.lgamma((dim - 1 - s) / 2)
    return math.exp(log - math.log(math.pi) / 2 - math.lgamma(dim - 1 - s / 2))


def expected_energy(
    s: float, dim: int, *, n: int | None = None, half_space: bool = False, angular: bool = False
) -> float:
    """Compute the expected "mean" energy of neurons drawn uniformly from the sphere; infinite for s ≥ dim − 1.

    In full space it is the energy integral, or ∫ θ^(−s) sin^(dim−2)θ dθ / ∫ sin^(dim−2)θ dθ with angles. In half space
    pairs of a neuron and its own antipode count too, so it depends on their number n.

    Example:
        >>> expected_energy(2, dim=27), expected_energy(2, dim=27, n=64, half_space=True)  # a 3×3×3 convolution of 64
        (0.5208..., 0.5187...)
    """
    s, dim = checks.number("s", s, low=0.0), checks.integer("dim", dim, low=2)
    pair = _mean_angle_energy(s, dim) if angular else energy_integral(s, dim)
    if not half_space:
        return pair
    if n is None:
        raise ValueError("n, the number of neurons, must be an int in half space, got None")
    # θ and π − θ have the same distribution.
    return _mean_in_half_space(checks.integer("n", n, low=1), 2 * pair, s, angular)


def energy_lower_bound(n: int, dim: int, s: float = 2.0, *, half_space: bool = False, angular: bool = False) -> float:
    """Compute a lower bound of the "mean" energy of n neurons.

    - Euclidean: the simplex's, (2n/(n−1))^(−s/2), as Σ‖u_i − u_j‖² ≤ 2n² over all pairs. Reached for n ≤ dim + 1.
    - Angular: (2π⌊n²/4⌋/(n(n−1)))^(−s), as a plane separates at most ⌊n²/4⌋ pairs. Reached for n = 2 and n = 3.
    - Half space: all pairs at the smallest mean squared cosine, max(0, (n−dim)/(dim(n−1))) by Welch's bound. Reached
      by orthonormal neurons and by equiangular tight frames.

    For s = 0 with log(1/·) instead of (·)^(−s).

    Example:
        >>> energy_lower_bound(4, dim=3, s=2), round(energy_lower_bound(3, dim=3, s=2, half_space=True), 9)
        (0.375, 0.45)
    """
    n, dim = checks.integer("n", n, low=1), checks.integer("dim", dim, low=1)
    s = checks.number("s", s, low=0.0)
    if half_space:
        c = math.sqrt((n - dim) / (dim * (n - 1))) if n > dim else 0.0
        distances = [math.acos(x) if angular else math.sqrt(2 - 2 * x) for x in (c, -c)]
        return _mean_in_half_space(n, sum(_potential(x, s) for x in distances), s, angular)
    if n == 1:
        return 0.0
    mean_angle = 2 * math.pi * (n * n // 4) / (n * (n - 1))
    return _potential(mean_angle if angular else math.sqrt(2 * n / (n - 1)), s)


def excess_energy(weight: Tensor, s: float = 2.0, *, half_space: bool = False, angular: bool = False) -> float:
    """Compute how far the mean energy of neurons is above :func:`energy_lower_bound`.

    For s > 0 relative to the bound (0.1: a tenth above it), for s = 0, where the bound can be zero or negative, the
    difference. Many neurons in few dimensions cannot attain the bound; :func:`expected_energy` is that of random ones.

    Args:
        weight: (N, ...), flattened to (N, d): rows are neurons, none zero.
        s, half_space, angular: as in :func:`hypersphere.hyperspherical_energy`.

    Example:
        >>> round(excess_energy(torch.eye(3)), 6), round(excess_energy(torch.eye(3), half_space=True), 6)
        (0.5, 0.0)
    """
    rows = unit_rows(weight)
    n, dim = rows.shape
    energy = float(hyperspherical_energy(rows, s, half_space=half_space, angular=angular))
    return excess_over(energy, energy_lower_bound(n, dim, s, half_space=half_space, angular=angular), s)


def excess_over(energy: float, bound: float, s: float) -> float:
    """Compute energy − bound, for s > 0 relative to the bound; zero if the bound is infinite."""
    if math.isinf(bound) or energy == bound:
        return 0.0
    if bound == 0 and s > 0:  # the bound underflows for large s
        return math.inf
    excess = (energy - bound) / (bound if s > 0 else 1.0)
    return excess if abs(excess) > 1e-12 else 0.0  # rounding


def cap_constant(dim: int) -> float:
    """Compute κ_d of OPT, Eq. 55, d = dim − 1: a small cap of angle α is κ_d·α^d of the sphere.

        κ_d = Γ((d+1)/2) / (d·√π·Γ(d/2))

    Example:
        >>> round(cap_constant(3), 9)
        0.25
    """
    return math.exp(_log_cap_constant(checks.integer("dim", dim, low=2) - 1))


def expected_holes(n: int, dim: int) -> float:
    """Compute the expected number of holes of n random neurons, B_d·n for large n, d = dim − 1 (OPT, Eq. 55 and 56).

    It is the number of facets of the neurons' convex hull:

        B_d = 2/(d+1)·κ_{d²}/κ_d^d

    Example:
        >>> round(expected_holes(2000, dim=3), 6)
        4000.0
    """
    n, d = checks.integer("n", n, low=1), checks.integer("dim", dim, low=2) - 1
    return n * _exp(math.log(2 / (d + 1)) + _log_cap_constant(d * d) - d * _log_cap_constant(d))


def cap_area(angle: float, dim: int) -> float:
    """Compute the share of the sphere within `angle` of a point, by quadrature of sin^(dim−2).

    Example:
        >>> round(cap_area(math.pi / 3, dim=3), 9)  # (1 − cos)/2
        0.25
    """
    angle = checks.number("angle", angle, low=0.0, high=math.pi)
    dim = checks.integer("dim", dim, low=2)
    if angle == 0 or angle > math.pi / 2:
        return 1 - cap_area(math.pi - angle, dim) if angle else 0.0
    x, weight = _quadrature()
    density = torch.exp((dim - 2) * torch.sin(angle * x).log() - _log_sine_integral(dim))
    return min(0.5, angle * float((density * weight).sum()))


def covering_lower_bound(n: int, dim: int) -> float:
    """Compute a lower bound of the covering radius of n points: the angle at which n caps have the area of the sphere.

    Example:
        >>> covering_lower_bound(2, dim=3) / math.pi
        0.5...
    """
    share = 1 / checks.integer("n", n, low=1)
    low, high = 0.0 if share < 1 else math.pi, math.pi
    while high - low > 1e-14:
        middle = (low + high) / 2
        low, high = (middle, high) if cap_area(middle, dim) < share else (low, middle)
    return low


def _log_cap_constant(d: int) -> float:
    return math.lgamma((d + 1) / 2) - math.lgamma(d / 2) - math.log(d) - math.log(math.pi) / 2


def _log_sine_integral(dim: int) -> float:
    """Compute log ∫_0^π sin^(dim−2)θ dθ."""
    return math.log(math.pi) / 2 + math.lgamma((dim - 1) / 2) - math.lgamma(dim / 2)


def _exp(log: float) -> float:
    return math.exp(log) if log < 709.0 else math.inf


def _potential(distance: float, s: float) -> float:
    """Compute f_s: distance^(−s), or log(1/distance) for s = 0."""
    if distance == 0:
        return math.inf
    return -math.log(distance) if s == 0 else _exp(-s * math.log(distance))


def _mean_in_half_space(n: int, pair: float, s: float, angular: bool) -> float:
    """Compute the mean over 2n(2n−1) pairs of neurons and antipodes; `pair` is f(θ) + f(π−θ) of ±w_i and ±w_j."""
    antipode = _potential(math.pi if angular else 2.0, s)
    return antipode if n == 1 else (2 * n * (n - 1) * pair + 2 * n * antipode) / (2 * n * (2 * n - 1))


def _mean_angle_energy(s: float, dim: int) -> float:
    """Compute E[θ^(−s)], for s = 0 E[log 1/θ], of the angle θ between two random directions."""
    a = dim - 1 - s
    if a <= 0:
        return math.inf
    x, weight = _quadrature()
    # For θ < π/2 substitute θ = π/2·x^(1/q): q removes the singularity of θ^(−s) sin^(dim−2)θ ~ θ^(a−1).
    q = min(a, 1.0)
    near, far = math.pi / 2 * x.pow(1 / q), math.pi - math.pi / 2 * x
    log_near = (dim - 2) * torch.sinc(near / math.pi).log() + (a / q - 1) * x.log() + a * math.log(math.pi / 2)
    log_far = (dim - 2) * torch.sin(math.pi / 2 * x).log() + math.log(math.pi / 2)
    if s == 0:
        near, far = -near.log(), -far.log()
    else:
        near, far = torch.ones_like(x), far.pow(-s)
    norm = _log_sine_integral(dim)
    return float((weight * (near * (log_near - norm).exp() / q + far * (log_far - norm).exp())).sum())


def _quadrature() -> tuple[Tensor, Tensor]:
    """Return nodes and weights of the tanh-sinh rule on (0, 1): exact to 1e-14, also for roots at the ends."""
    t = torch.arange(-128, 129, dtype=torch.float64) / 32
    x, rest = torch.sigmoid(math.pi * t.sinh()), torch.sigmoid(-math.pi * t.sinh())
    return x, math.pi * t.cosh() * x * rest / 32
