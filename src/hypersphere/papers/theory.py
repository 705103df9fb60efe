"""Closed forms and bounds that only the papers' arguments need, beside those of :mod:`hypersphere.geometry`.

- How the minimal energy grows with N (MHE, Theorem 2), and Jensen's bounds of its logarithm (MHE, 3.2).
- The moments of the holes between random neurons (OPT, appendix L).
- Why evenly spread neurons train well (OPT, appendix G): networks of one hidden layer, f(x) = Σ_i v_i·relu(⟨w_i, x⟩).
  Their gradient is D·r with r = (f(x) − y)/m, so that a small gradient means a small training error if the smallest
  singular value of D is not small (Eq. 45). Lemma 4 bounds that from below by how evenly the neurons are spread, L₂(W).

Everything is computed in float64, without gradients. Shapes: n neurons, d their dimension, m samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .._internal import checks
from ..energy.hyperspherical import hyperspherical_energy
from ..geometry.bounds import cap_constant, energy_integral, expected_holes
from ..geometry.covering import hole_radii
from ..geometry.points import row_blocks, unit_rows


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


def hole_moment(weight: Tensor, p: float) -> Tensor:
    """Compute Σ ρ^p over all holes (OPT, Eq. 52); p = 0 counts them, and (Σ ρ^p)^(1/p) tends to the widest as p grows.

    :func:`expected_hole_moment` is the expected value for random neurons.

    Example:
        >>> hole_moment(torch.cat([torch.eye(3), -torch.eye(3)]), p=2)
        tensor(6.7624, dtype=torch.float64)
    """
    p = checks.number("p", p, low=0.0)
    return hole_radii(weight).pow(p).sum()


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
    log -= p / d * math.log(cap_constant(dim))
    return expected_holes(1, dim) * (math.exp(log) if log < 709 else math.inf)


# ------------------------------------------------------------------------------------------------- diversity


def arc_cosine_kernel(weight: Tensor) -> Tensor:
    """Compute k(u, v) = 1/2 − arccos⟨û, v̂⟩/(2π) of all pairs of neurons, (n, n) float64 (OPT, Lemma 4).

    It is the probability that a random input makes both active: 1/2 for equal neurons, 0 for opposite ones.

    Example:
        >>> arc_cosine_kernel(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))[0]
        tensor([0.5000, 0.2500, 0.0000], dtype=torch.float64)
    """
    rows = unit_rows(weight)
    return _kernel(rows, rows).fill_diagonal_(0.5)


def kernel_discrepancy(weight: Tensor) -> float:
    """Compute L₂(W) = 1/n²·Σ_{i,j} k(w_i, w_j)² − E[k(u, v)²] (OPT, Lemma 4): 0 for evenly spread neurons.

    The expectation over independent uniform directions is 1/16 + ψ'(d/2)/(8π²), with ψ' the trigamma function.

    Example:
        >>> round(kernel_discrepancy(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])), 4)  # 1/8 − 1/12
        0.0417
    """
    rows = unit_rows(weight)
    n, d = rows.shape
    mean = sum(float(_kernel(rows[block], rows).square().sum()) for block in row_blocks(n)) / n**2
    trigamma = float(torch.special.zeta(2, torch.tensor(d / 2, dtype=torch.float64)))  # polygamma has 9 digits only
    return mean - 1 / 16 - trigamma / (8 * math.pi**2)


def diversity_bound(weight: Tensor, m: int, delta: float) -> float:
    """Compute the right side of OPT's Eq. 46, which bounds ρ(W): small for evenly spread neurons.

        (log d/√d)·(√(2L₂)·m·(4/m·log 1/δ)^¼ + 2m·√(4/(3m)·log 1/δ) + m·L₂) + 2

    By Lemma 4 s_m(D)² ≥ n·m·γ_m/2 − c·n·ρ(W), with probability 1 − δ minus two small terms; the paper does not give γ_m
    and c.

    Args:
        weight: (n, ...), flattened to (n, d): rows are neurons, none zero.
        m: the number of samples.
        delta: δ in (0, 1].

    Example:
        >>> even, bunched = torch.cat([torch.eye(9), -torch.eye(9)]), torch.ones(18, 9) + torch.eye(18, 9)
        >>> diversity_bound(even, 100, 0.1) < diversity_bound(bunched, 100, 0.1)
        True
    """
    m, d = checks.integer("m", m, low=1), unit_rows(weight).shape[1]
    log = -math.log(checks.number("delta", delta, low=0.0, high=1.0, open_low=True))
    even = max(0.0, kernel_discrepancy(weight))  # negative only by rounding
    terms = math.sqrt(2 * even) * m * (4 / m * log) ** 0.25 + 2 * m * math.sqrt(4 / (3 * m) * log) + m * even
    return math.log(d) / math.sqrt(d) * terms + 2


def smallest_singular_value(weight: Tensor, x: Tensor, v: Tensor | None = None) -> float:
    """Compute s_m(D), the m-th singular value of D (d·n × m) with blocks v_i·relu'(⟨w_i, x_j⟩)·x_j (OPT, Eq. 44).

    Computed from DᵀD = (XXᵀ) ∘ (SᵀS), S_ij = v_i·relu'(⟨w_i, x_j⟩), m × m; zero below about 1e-7 of the largest.

    Args:
        weight: (n, ...), flattened to (n, d): rows are neurons.
        x: (m, d) inputs.
        v: (n,) weights of the output, ±1 in the paper; None for ones.

    Example:
        >>> smallest_singular_value(torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        1.0
    """
    _, x, _, slopes = _check_network(weight, x, v)
    return _smallest_singular(x, slopes)


def training_error_bound(weight: Tensor, x: Tensor, y: Tensor, v: Tensor | None = None) -> tuple[float, float]:
    """Return the training error ‖r‖ and its bound ‖∂L/∂W‖/s_m(D) (OPT, Eq. 45), r = (f(x) − y)/m.

    L = 1/(2m)·Σ(f(x_i) − y_i)². The bound is infinite if s_m(D) is zero, with more samples than weights for example.

    Args:
        weight, x, v: as in :func:`smallest_singular_value`.
        y: (m,) targets.

    Example:
        >>> training_error_bound(torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([1.0, 0.0]))
        (1.0, 2.0)
    """
    rows, x, v, slopes = _check_network(weight, x, v)
    checks.floating("y", y)
    if y.shape != x.shape[:1]:
        raise ValueError(f"y must be ({len(x)},) for {len(x)} inputs, got {tuple(y.shape)}")
    r = (v @ (rows @ x.mT).relu() - y.detach().to(x)) / len(x)
    gradient = (slopes * r) @ x  # Eq. 43, a row for each neuron
    smallest = _smallest_singular(x, slopes)
    return float(r.norm()), float(gradient.norm()) / smallest if smallest else math.inf


def _kernel(u: Tensor, v: Tensor) -> Tensor:
    return 0.5 - torch.arccos((u @ v.mT).clamp(-1, 1)) / (2 * math.pi)


def _check_network(weight: Tensor, x: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return weight (n, d), x (m, d), v (n,) in float64, and S (n, m)."""
    rows = checks.rows("weight", weight).detach().double()
    for name, tensor in {"x": x, "v": v}.items():
        if tensor is not None:
            checks.floating(name, tensor)
    n, d = rows.shape
    if x.dim() != 2 or x.shape[1] != d or not len(x):
        raise ValueError(f"x must be (m, {d}) and not empty, as the neurons have {d} dimensions; got {tuple(x.shape)}")
    if v is not None and v.shape != (n,):
        raise ValueError(f"v must be ({n},) for {n} neurons, got {tuple(v.shape)}")
    x = x.detach().to(rows)
    v = rows.new_ones(n) if v is None else v.detach().to(rows)
    return rows, x, v, v[:, None] * (rows @ x.mT > 0)


def _smallest_singular(x: Tensor, slopes: Tensor) -> float:
    gram = (x @ x.mT) * (slopes.mT @ slopes)
    values = torch.linalg.eigvalsh(gram)
    rounding = len(x) * torch.finfo(x.dtype).eps * float(values[-1])
    return math.sqrt(values[0]) if values[0] > rounding else 0.0
