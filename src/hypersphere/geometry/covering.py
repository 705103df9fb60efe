"""Covering radius and holes: how far a point of the sphere can be from all neurons (OPT, appendix L).

The widest hole is the covering radius. With K the convex hull of the unit neurons and h(u) = max_i⟨u, ŵ_i⟩ it is
arccos(min h) over all unit u, so that

- if the origin is inside K, it is arccos of the distance from the origin to the nearest facet: exact by a convex hull,
  which has too many facets in high dimension,
- if the origin is outside K, it is π minus the radius of the smallest cap that holds all neurons, at −x/‖x‖ with x the
  point of K nearest to the origin: exact in every dimension. This is the case for N ≤ d, with a right angle or more.

Everything is computed in float64, without gradients. Shapes: N neurons, d their dimension, F facets.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._internal import checks
from .._internal.modules import import_extra
from ..layers.cosine import unit
from .bounds import covering_lower_bound, expected_holes
from .points import angle_between, random_points, unit_rows

_MOST_FACETS = 4e6  # takes about a minute
_FLAT = 1e-10  # lengths below count as zero


def covering_radius(weight: Tensor, *, method: str = "auto", starts: int = 64, seed: int = 0) -> Tensor:
    """Compute the covering radius: the largest angle from a point of the sphere to its nearest neuron (OPT, Eq. 50).

        max_{‖u‖=1} min_i arccos⟨u, ŵ_i⟩

    Args:
        weight: (N, ...), flattened to (N, d): rows are neurons, none zero.
        method: "exact" uses a convex hull (scipy) and raises if it would have more than four million facets;
            "estimate" is the widest hole that a search finds, a lower bound; "auto" is exact if possible, else the
            estimate, with a warning. :func:`covering_bounds` gives both bounds.
        starts, seed: of the search.

    Returns:
        The angle in radians, a float64 scalar.

    Example:
        >>> cube = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3)
        >>> covering_radius(cube).cos() ** 2  # at the middle of a side
        tensor(0.3333, dtype=torch.float64)
    """
    checks.choice("method", method, ("auto", "exact", "estimate"))
    rows = unit_rows(weight)
    if method != "estimate":
        exact = _exact_radius(rows, _balancing_weights(rows))
        if exact is not None:
            return rows.new_tensor(exact)
        if method == "exact":
            raise ValueError(f'method must be "estimate" for {_describe_size(rows)}')
        checks.warn_once(
            "covering_radius returns the widest hole it found, a lower bound: the convex hull has too many facets. "
            'covering_bounds gives both bounds; method="estimate" avoids this warning.'
        )
    return rows.new_tensor(_search_widest_hole(rows, starts, seed))


def covering_bounds(weight: Tensor, *, starts: int = 64, seed: int = 0) -> tuple[float, float]:
    """Return a lower and an upper bound of the covering radius, in any dimension; equal if it is known exactly.

    Lower: the widest hole that a search finds, and the radius at which N caps have the area of the sphere. Upper: with
    weights λ_i > 0, Σλ_i = 1, that balance the neurons, Σλ_i·ŵ_i = 0, every unit u has
    max_i⟨u, ŵ_i⟩ ≥ Σλ_i⟨u, ŵ_i⟩² ≥ σ, the smallest eigenvalue of Σλ_i·ŵ_i·ŵ_iᵀ ((h − x)(x + 1) ≥ 0
    for −1 ≤ x ≤ h; take the mean over λ): the radius is at most arccos σ. The simplex attains this.

    Args:
        weight, starts, seed: as in :func:`covering_radius`.

    Example:
        >>> covering_bounds(torch.eye(100))  # at −(1, …, 1), arccos(−1/10)
        (1.67..., 1.67...)
    """
    rows = unit_rows(weight)
    n, d = rows.shape
    balanced = _balancing_weights(rows)
    exact = _exact_radius(rows, balanced)
    if exact is not None:
        return exact, exact
    lower = max(_search_widest_hole(rows, starts, seed), covering_lower_bound(n, d))
    if balanced is None:
        return lower, math.pi / 2
    residual = float((balanced @ rows).norm())  # Σλ·ŵ, zero up to rounding
    sigma = _smallest_moment(rows, balanced)
    return lower, math.acos(max(0.0, (sigma - residual) / (1 - residual)))


def hole_radii(weight: Tensor) -> Tensor:
    """Compute the radii ρ = 2 sin(α/2) of all holes, largest first: (F,) float64 (OPT, appendix L).

    A hole is the cap of angular radius α cut off by a facet of the neurons' convex hull; ρ is the distance from its
    centre to its rim. A facet with more than d corners is one hole: the cube has 6, not 12. On the circle the holes are
    the gaps between neighbours.

    Args:
        weight: (N, ...), flattened to (N, d), d ≥ 2: rows are neurons, none zero and not all in one plane.

    Example:
        >>> hole_radii(torch.cat([torch.eye(3), -torch.eye(3)]))  # the octahedron
        tensor([0.9194, 0.9194, 0.9194, 0.9194, 0.9194, 0.9194, 0.9194, 0.9194], dtype=torch.float64)
    """
    rows = unit_rows(weight)
    n, d = rows.shape
    if d == 2:
        angles = _half_gaps(rows)
    elif d == 1 or n <= d or torch.linalg.matrix_rank(rows - rows.mean(0), atol=_FLAT, rtol=0.0) < d:
        raise ValueError(f"weight must have rows that are not all in one plane, got {n} in {d} dimensions")
    elif _count_facets(n, d) > _MOST_FACETS:
        raise ValueError(f"weight must have fewer rows or columns for a convex hull, got {_describe_size(rows)}")
    else:
        rounding = 100 * torch.finfo(weight.dtype).eps
        angles = _hull_angles(rows, merge=min(max(rounding, 1e-9), 1e-4))  # coarser for half precision
    return (2 * torch.sin(angles / 2)).sort(descending=True).values


def _exact_radius(rows: Tensor, balanced: Tensor | None) -> float | None:
    """Compute the covering radius; None if the convex hull would be too large."""
    n, d = rows.shape
    if d == 1:
        return 0.0 if rows.min() < 0 < rows.max() else math.pi
    if d == 2:
        return float(_half_gaps(rows).max())
    if balanced is None:  # the origin is not inside, or close to the surface
        nearest = _nearest_to_origin(rows)
        if nearest.norm() > _FLAT:
            return float(angle_between(rows, -unit(nearest)).min())
        if n <= d or torch.linalg.matrix_rank(rows, atol=_FLAT, rtol=0.0) < d:
            return math.pi / 2  # at right angles to the span of the neurons
    if _count_facets(n, d) > _MOST_FACETS:
        return None
    return float(_hull_angles(rows, merge=None).max())


def _half_gaps(rows: Tensor) -> Tensor:
    """Return half the angles between neighbours on the circle; coincident neurons count once."""
    turns = torch.atan2(rows[:, 1], rows[:, 0]).sort().values
    gaps = torch.diff(turns, append=turns[:1] + 2 * math.pi)
    return gaps[gaps > 1e-15] / 2


def _count_facets(n: int, d: int) -> float:
    """Estimate an upper bound for the number of facets of the convex hull of n points in d dimensions."""
    half, rest = d // 2, d - d // 2
    most = math.comb(n - rest, half) + math.comb(n - half - 1, rest - 1)  # the upper bound theorem
    return min(float(most) if most < 1e300 else math.inf, expected_holes(n, d))


def _describe_size(rows: Tensor) -> str:
    n, d = rows.shape
    return f"{n} neurons in {d} dimensions (about {_count_facets(n, d):.0e} facets; {_MOST_FACETS:.0e} are the limit)"


def _hull_angles(rows: Tensor, merge: float | None) -> Tensor:
    """Return α of every facet; neighbouring simplices whose normals differ by less than `merge` are one facet."""
    hull = _import_scipy("spatial").ConvexHull(rows.cpu().numpy())
    normals = rows.new_tensor(hull.equations[:, :-1])
    angles = angle_between(normals, rows[torch.as_tensor(hull.simplices[:, 0], device=rows.device).long()])
    if merge is None:
        return angles
    neighbours = torch.as_tensor(hull.neighbors, device=rows.device).long()
    same = ((normals[neighbours] - normals[:, None]).norm(dim=-1) < merge).nonzero().cpu()
    pairs = (same[:, 0].numpy(), neighbours.cpu()[same[:, 0], same[:, 1]].numpy())
    graph = _import_scipy("sparse").coo_array(([True] * len(same), pairs), shape=(len(angles), len(angles)))
    facet = _import_scipy("sparse.csgraph").connected_components(graph, directed=False)[1]
    largest = angles.new_zeros(int(facet.max()) + 1)
    return largest.scatter_reduce(0, torch.as_tensor(facet, device=rows.device).long(), angles, "amax")


def _nearest_to_origin(rows: Tensor) -> Tensor:
    """Find the point of the convex hull nearest to the origin (d,).

    Minimizing ‖Wᵀλ‖² + (Σλ − 1)² over λ ≥ 0 gives its weights up to their sum.
    """
    system = torch.cat([rows, rows.new_ones(len(rows), 1)], 1).mT.cpu().numpy()
    target = [0.0] * rows.shape[1] + [1.0]
    weights = rows.new_tensor(_import_scipy("optimize").nnls(system, target, maxiter=10 * sum(system.shape))[0])
    return weights @ rows / weights.sum()


def _balancing_weights(rows: Tensor) -> Tensor | None:
    """Find weights λ > 0, Σλ = 1, with Σλ_i·ŵ_i = 0; they exist if the origin is inside the convex hull.

    The most even ones are λ ∝ exp(W·a), where a minimizes log Σ exp(W·a), by Newton's method. None if it does not
    converge (the origin is outside, on the surface or very close to it) or the neurons lie in a plane.
    """
    n, d = rows.shape
    if n <= d:
        return None
    a, eye = rows.new_zeros(d), torch.eye(d, dtype=rows.dtype, device=rows.device)
    for _ in range(50):
        heights = rows @ a
        if heights.max() < 0:  # all neurons are on one side of a plane through the origin
            return None
        weights = heights.softmax(0)
        mean = weights @ rows
        if mean.norm() < 1e-13:
            return weights if _smallest_moment(rows, weights) > _FLAT else None
        covariance = (rows * weights[:, None]).mT @ rows - torch.outer(mean, mean)
        step = -torch.linalg.solve(covariance + 1e-14 * eye, mean)
        slope, value, length = float(mean @ step), heights.logsumexp(0), 1.0
        while (rows @ (a + length * step)).logsumexp(0) > value + 0.1 * length * slope and length > 1e-6:
            length /= 2
        a = a + length * step
    return None


def _smallest_moment(rows: Tensor, weights: Tensor) -> float:
    """Return the smallest eigenvalue of Σλ_i·ŵ_i·ŵ_iᵀ."""
    return float(torch.linalg.eigvalsh((rows * weights[:, None]).mT @ rows)[0])


def _search_widest_hole(rows: Tensor, starts: int, seed: int) -> float:
    """Search for the widest hole: move points away from their nearest neurons, in ever smaller steps."""
    u = random_points(checks.integer("starts", starts, low=1), rows.shape[1], seed).to(rows.device)
    for step in torch.logspace(math.log10(0.5), -5, 300).tolist():
        push = (10 / step * u @ rows.mT).softmax(1) @ rows
        push -= (push * u).sum(1, keepdim=True) * u
        u = unit(u - step * unit(push))
    return float(angle_between(u, rows[(u @ rows.mT).argmax(1)]).max())


def _import_scipy(module: str) -> Any:
    return import_extra(f"scipy.{module}", "scipy", "the convex hull", "geometry")
