"""Points of minimal energy on the sphere: the problems of Thomson (s = 1), Whyte (s = 0) and Tammes (s = inf)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .._internal import checks
from .._internal.progress import track
from .contacts import LARGEST_SYSTEM, equalize_contacts, largest_cosine
from .descent import descend

MOST_POINTS = 100_000  # every step computes all pairs
MOST_NUMBERS = 10_000_000  # n·dim
LARGEST_SEED = 2**63 - 1
LARGEST_S = 1e6  # distances of its optimum differ from those of inf by about 1e-5

# `with torch.device` would slow down every operation.
_FACTORY: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
_PAIRS = 2**19  # pairs of points in a chunk of starts
_FINALISTS = 8  # starts that are refined to the end
_ROUGH = 1e-5  # tolerance of the first search, which selects them
_CLOSE = 1e-6  # largest relative difference from the best energy for a finalist
# Values that differ by less are equal, and the earlier start counts: rounding depends on the CPU and must not choose.
_EQUAL_ROUGH, _EQUAL = 1e-9, 1e-12
# A large s is reached through smaller ones. Some Tammes optima are found from random points at 160 and hardly from
# minima of smaller s (n = 10, 18, 26), others from those (the 24-cell): half of the starts begin at s = 1.
_FIRST_S, _FACTOR, _STAGES = 160.0, 8.0, 6


def minimize_energy(
    n: int,
    dim: int = 3,
    s: float = 1.0,
    *,
    half_space: bool = False,
    starts: int | None = None,
    steps: int = 2000,
    tolerance: float = 1e-9,
    seed: int = 0,
    progress: bool = False,
) -> Tensor:
    """Find n points on the unit sphere of R^dim with minimal energy Σ_{i<j}‖x_i − x_j‖^(−s), from many starts.

    s = 0 is the logarithmic energy Σ −log‖x_i − x_j‖; s = inf maximizes the smallest distance (contacts are equal up to
    rounding; beyond about 300 points in space to 1e-6). Known optima for every s are returned directly: regular
    polygons, simplices, orthonormal points in half space. For a few dozen points most starts find the global minimum;
    for hundreds the result is a good local one. The same arguments give the same points.

    Args:
        n: number of points.
        dim: dimension of the space, 2 or more; the sphere is S^(dim−1).
        s: from 0 to 1e6, or inf.
        half_space: minimize the energy of the 2n points ±x_i (MHE, 3.3): the points stand for lines.
        starts: random starts; None: 64, fewer beyond 64 points, at least 4; twice that for s above 160.
        steps: largest number of L-BFGS steps; a quarter of it for each smaller s on the way to one above 160.
        tolerance: a start ends when n times the gradient of (1/s)·log energy is at most this at every point.
        seed: of the starts; a larger number of starts begins with the same ones.
        progress: show a progress bar if it takes longer than two seconds.

    Returns:
        (n, dim), float64, unit rows.

    Example:
        >>> points = minimize_energy(12)  # the icosahedron
        >>> f"{torch.pdist(points).reciprocal().sum():.9f}"
        '49.165253058'
        >>> points = minimize_energy(8, s=math.inf)  # the square antiprism
        >>> f"{2 * torch.asin(torch.pdist(points).min() / 2):.9f} radians"
        '1.306527162 radians'
    """
    n, dim, s = check_problem(n, dim, s)
    starts = default_starts(n, s) if starts is None else checks.integer("starts", starts, low=1)
    steps = checks.integer("steps", steps, low=1)
    tolerance = checks.number("tolerance", tolerance, low=0.0)
    seed = checks.integer("seed", seed, low=0)
    if seed > LARGEST_SEED:
        raise ValueError(f"seed must be <= {LARGEST_SEED}, got {seed}")
    chunk = max(1, min(starts, _PAIRS // n**2))
    with _one_thread():
        if (points := _known_optimum(n, dim, half_space)) is not None:
            return points
        search: Iterable[Tensor] = _search(n, dim, s, half_space, starts, chunk, steps, tolerance, seed)
        if progress:
            search = track(search, f"{n} points in {dim} dimensions", math.ceil(starts / chunk) + 1)
        return deque(search, maxlen=1).pop()


def _search(
    n: int, dim: int, s: float, half_space: bool, starts: int, chunk: int, steps: int, tolerance: float, seed: int
) -> Iterator[Tensor]:
    """Yield the best points so far, after every chunk of starts and at the end."""
    path = [s] if s <= _FIRST_S else [t for k in range(_STAGES) if (t := _FIRST_S * _FACTOR**k) < s]
    path += [s] if _FIRST_S < s < math.inf else []
    rough_steps = steps if len(path) == 1 else max(1, steps // 4)
    start_generator, noise_generator = (torch.Generator("cpu").manual_seed(seed) for _ in range(2))
    best, values = torch.empty(0, dim, n, **_FACTORY), torch.empty(0, **_FACTORY)
    for done in range(0, starts, chunk):
        # One draw per start, so that the draws do not depend on the number of starts.
        draws = [torch.randn(dim, n, generator=start_generator, **_FACTORY) for _ in range(min(chunk, starts - done))]
        x = normalize(torch.stack(draws), dim=1)
        if s > _FIRST_S and len(odd := x[(done + 1) % 2 :: 2]):
            odd[:] = descend(odd, 1.0, half_space, steps, _ROUGH)[0]
        x, value = _descend_along(path[:3], x, half_space, rough_steps, _ROUGH, noise_generator)
        best, values = torch.cat([best, x]), torch.cat([values, value])
        order = values.div(_EQUAL_ROUGH).round().argsort(stable=True)[:_FINALISTS]
        best, values = best[order], values[order]
        yield best[0].T.contiguous()
    if len(path) == 1:  # otherwise the last s decides
        best = best[values <= values.min() + _CLOSE]
    tolerance = _ROUGH if s == math.inf else tolerance
    best, values = _descend_along(path[3:] or path[-1:], best, half_space, steps, tolerance, noise_generator)
    best = best.mT
    if s == math.inf and n * (dim + 1) < LARGEST_SYSTEM:
        best = torch.stack([equalize_contacts(x, path[-1], half_space) for x in best])
        values = torch.tensor([largest_cosine(x, half_space) for x in best], **_FACTORY)
    first = (values <= values.min() + _EQUAL).nonzero()[0, 0]
    yield best[first].contiguous()


def _descend_along(
    path: list[float], x: Tensor, half_space: bool, steps: int, tolerance: float, noise_generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Minimize from x (K, dim, n) for one s after the other."""
    _, dim, n = x.shape
    for s in path:
        if s > _FIRST_S:
            # A symmetric optimum of the previous s may be a saddle point of this one (n = 27): add noise.
            noise = torch.randn(x.shape, generator=noise_generator, **_FACTORY)
            x = normalize(x + noise * (_FACTOR / s * n ** (-1 / (dim - 1))), dim=1)
        x, values = descend(x, s, half_space, steps, tolerance)
    return x, values


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: operations are small, and on busy cores several threads are ten times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def default_starts(n: int, s: float) -> int:
    return max(4, min(64, 4096 // n)) * (2 if s > _FIRST_S else 1)


def check_problem(n: Any, dim: Any, s: Any) -> tuple[int, int, float]:
    n, dim = checks.integer("n", n, low=1), checks.integer("dim", dim, low=2)
    if n > MOST_POINTS:
        raise ValueError(f"n must be <= {MOST_POINTS}, got {n}")
    if n * dim > MOST_NUMBERS:
        raise ValueError(f"n·dim must be <= {MOST_NUMBERS}, got {n}·{dim}")
    if s != math.inf:
        s = checks.number("s", s, low=0.0, high=LARGEST_S, hint=" (inf is allowed too)")
    return n, dim, float(s)


def _known_optimum(n: int, dim: int, half_space: bool) -> Tensor | None:
    """Return points that are optimal for every s, if known; else None."""
    if half_space and n <= dim:
        return torch.eye(n, dim, **_FACTORY)
    if dim == 2:
        angle = torch.arange(n, **_FACTORY) * ((1 if half_space else 2) * math.pi / n)
        return torch.stack([angle.cos(), angle.sin()], 1)
    if n <= dim + 1 and not half_space:
        points = torch.zeros(n, dim, **_FACTORY)
        for k in range(min(n, dim)):  # all points after k have the same coordinate k
            points[k, k] = (1 - points[k].square().sum()).sqrt()
            points[k + 1 :, k] = (-1 / max(n - 1, 1) - points[k + 1 :] @ points[k]) / points[k, k]
        return normalize(points, dim=-1)
    return None
