"""Energies and holes in closed form: integrals, growth laws, expected values, bounds.

`dim` is the dimension of the space: the sphere is S^(dim−1), and the papers' d (MHE; OPT, appendix L) is dim − 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Growth:
    """How the minimal energy grows with N: constant·p(N), p(N) = N^power, times log N if `log`."""

    power: float
    log: bool
    constant: float | None
    """The limit of the minimal energy divided by p(N); None if unknown."""

    def p(self, n: int) -> float:
        """Compute p(N)."""
        return n**self.power * (math.log(n) if self.log else 1.0)

    def energy(self, n: int) -> float:
        """Compute the leading term, constant·p(N)."""
        if self.constant is None:
            raise ValueError("the constant of this growth law is unknown; only power and p(n) are known")
        return self.constant * self.p(n)


def growth_law(s: float, dim: int) -> Growth:
    """Return how the minimal energy Σ_{i≠j} ‖u_i − u_j‖^(−s) of N points grows (MHE, Theorem 2; Eq. 10, 12 and 13).

    I_s·N² for s < dim − 1;  κ·N²·log N for s = dim − 1, κ = :func:`cap_constant`;  C·N^(1 + s/(dim−1)) above, with the
    constant 2ζ(s)/(2π)^s on the circle and no simple form elsewhere.

    Example:
        >>> growth_law(1, dim=3)
        Growth(power=2.0, log=False, constant=1.0...)
        >>> growth_law(4, dim=3)
        Growth(power=3.0, log=False, constant=None)
    """
    s, dim = checks.number("s", s, low=0.0), checks.integer("dim", dim, low=2)
    if s < dim - 1:
        return Growth(2.0, False, energy_integral(s, dim))
    if s == dim - 1:
        return Growth(2.0, True, cap_constant(dim))
    zeta = float(torch.special.zeta(torch.tensor(s, dtype=torch.float64), 1))
    return Growth(1 + s / (dim - 1), False, 2 * zeta / (2 * math.pi) ** s if dim == 2 else None)


def circle_energy(n: int, s: float) -> float:
    """Compute the minimal energy of n points on the circle (the regular n-gon): n·Σ_{k=1..n−1} (2 sin πk/n)^(−s).

    Example:
        >>> round(circle_energy(4, s=2), 9)
        5.0
    """
    n, s = checks.integer("n", n, low=1), checks.number("s", s, low=0.0)
    chords = 2 * torch.sin(math.pi / n * torch.arange(1, n, dtype=torch.float64))
    return n * float(-chords.log().sum() if s == 0 else chords.pow(-s).sum())


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


def log_energy_bounds(weight: Tensor, s: float = 2.0) -> tuple[float, float]:
    """Return (mean of log f_s, log of mean f_s) over all pairs; by Jensen's inequality the first is not larger.

    MHE, 3.2: the first is the mean of E_log = Σ log f_s = s·E_0, which is why minimizing E_0 relaxes minimizing E_s.

    Args:
        weight: (N, ...), flattened to (N, d): rows are neurons, two at least, none zero.
        s: the power, s > 0.

    Example:
        >>> log_energy_bounds(torch.eye(3), s=2)  # equal when all distances are
        (-0.693..., -0.693...)
    """
    s, rows = checks.number("s", s, low=0.0, open_low=True), unit_rows(weight)
    if len(rows) < 2:
        raise ValueError(f"weight must have at least 2 rows, got {len(rows)}")
    energies = [float(hyperspherical_energy(rows, power)) for power in (0.0, s)]
    return s * energies[0], math.log(energies[1])


def cap_constant(dim: int) -> float:
    """Compute κ_d of OPT, Eq. 55, d = dim − 1: a small cap of angle α is κ_d·α^d of the sphere.

        κ_d = Γ((d+1)/2) / (d·√π·Γ(d/2))

    Example:
        >>> round(cap_constant(3), 9)
        0.25
    """
    return math.exp(_log_cap_constant(checks.integer("dim", dim, low=2) - 1))


def facet_constant(dim: int) -> float:
    """Compute B_d of OPT, Eq. 55, d = dim − 1: the convex hull of N random neurons has about B_d·N facets.

        B_d = 2/(d+1)·κ_{d²}/κ_d^d

    Example:
        >>> round(facet_constant(4), 4)
        6.7677
    """
    d = checks.integer("dim", dim, low=2) - 1
    return _exp(math.log(2 / (d + 1)) + _log_cap_constant(d * d) - d * _log_cap_constant(d))


def expected_holes(n: int, dim: int) -> float:
    """Compute the expected number of holes of n random neurons, B_d·n for large n (OPT, Eq. 56).

    Example:
        >>> round(expected_holes(2000, dim=3), 6)
        4000.0
    """
    return facet_constant(dim) * checks.integer("n", n, low=1)


def expected_hole_moment(n: int, dim: int, p: float) -> float:
    """Compute the expected Σ ρ^p over the holes of n random neurons (OPT, Lemma 5), up to a factor 1 + O(n^(−2/d)).

    With d = dim − 1 it is

        B_d·κ_d^(−p/d)·Γ(d + p/d)·Γ(n + 1) / (Γ(d)·Γ(n + p/d))

    Example:
        >>> round(expected_hole_moment(2000, dim=3, p=1), 1), round(expected_hole_moment(2000, dim=3, p=2), 6)
        (237.8, 16.0)
    """
    n, p = checks.integer("n", n, low=1), checks.number("p", p, low=0.0)
    d = checks.integer("dim", dim, low=2) - 1
    log = math.lgamma(d + p / d) - math.lgamma(d) + math.lgamma(n + 1) - math.lgamma(n + p / d)
    return facet_constant(dim) * _exp(log - p / d * _log_cap_constant(d))


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
