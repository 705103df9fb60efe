"""Known minimal energies and largest separations of points on the sphere."""

from __future__ import annotations

import math
import sys

from .minimize import check_problem

# Points on S², n: the sums over unordered pairs for s = 0, 1 and 2. Computed with minimize_energy, each as the smaller
# result of two searches of 300 starts, which agree to 3e-14; those for s = 1 (Thomson) are well known. They agree with
# closed forms: bipyramids (n = 5, 7; s = 2 gives 17/4 and 41/4), the octahedron (n = 6), the icosahedron (n = 12; s = 2
# gives 39). For n = 5, 6 and 12 they are proven to be minima, for the others conjectured.
_ENERGIES = {
    5: (-4.420507155242, 6.474691494688, 4.25),
    6: (-6.23832462504, 9.985281374239, 6.75),
    7: (-8.182477864445, 14.452977414221, 10.25),
    8: (-10.42801778146, 19.675287861233, 14.336791083595),
    9: (-12.887752725759, 25.75998653127, 19.252868783988),
    10: (-15.563123389022, 32.716949460148, 25.041359722105),
    11: (-18.420479720831, 40.596450508191, 31.834721636642),
    12: (-21.606145230445, 49.165253057629, 39.0),
    13: (-24.866721875506, 58.853230611702, 47.773308980857),
    14: (-28.407813009242, 69.306363296626, 57.121208598377),
    15: (-32.147876283842, 80.670244114294, 67.486184735296),
    16: (-36.106152161951, 92.911655302545, 78.77264903099),
    17: (-40.273066961181, 106.050404828619, 91.047319314207),
    18: (-44.650287259231, 120.084467447492, 104.314685284825),
    19: (-49.199891565787, 135.089467556679, 118.825563648788),
    20: (-54.011129974584, 150.881568333756, 133.936978568433),
    21: (-59.000912135142, 167.64162239927, 150.325122743395),
    22: (-64.206007761661, 185.287536149308, 167.665785636498),
    23: (-69.578382592525, 203.930190662879, 186.403712869691),
    24: (-75.213984788629, 223.347074051805, 205.658437997707),
    25: (-80.997509990197, 243.812760298766, 226.545077259548),
    26: (-87.009423057047, 265.133326317357, 248.267138922104),
    27: (-93.251986400005, 287.302615033039, 270.798404208181),
    28: (-99.658609384125, 310.491542358202, 294.878471610052),
    29: (-106.254571170835, 334.634439920416, 320.216031756099),
    30: (-113.089255496514, 359.603945903763, 346.263630640791),
    31: (-120.110346639522, 385.530838063299, 373.580868961143),
    32: (-127.37886761478, 412.261274650529, 401.5),
}

# Tammes on S²: proven angles in radians that do not follow from the table below.
_SEPARATIONS = {
    7: 1.35907989763266,
    8: math.acos((2 * math.sqrt(2) - 1) / 7),  # the square antiprism
    9: math.acos(1 / 3),
    10: 1.15447983341927,
    11: math.acos(1 / math.sqrt(5)),  # the icosahedron without one of its points
    13: 0.99722359243812,
    14: 0.97163474288622,
    24: 0.76254773875098,  # the snub cube
}

# Points that are optimal for every s (Cohn and Kumar, Universally optimal distribution of points on spheres, Table 1):
# (n, dim): {cosine: number of other points at it}.
_φ = (1 + math.sqrt(5)) / 2
_UNIVERSAL: dict[tuple[int, int], dict[float, int]] = {
    (12, 3): {-1: 1, -1 / math.sqrt(5): 5, 1 / math.sqrt(5): 5},  # the icosahedron
    # the 600-cell
    (120, 4): {-1: 1, -_φ / 2: 12, -0.5: 20, (1 - _φ) / 2: 12, 0: 30, (_φ - 1) / 2: 12, 0.5: 20, _φ / 2: 12},
    (16, 5): {-0.6: 5, 0.2: 10},  # every other corner of the cube
    (27, 6): {-0.5: 10, 0.25: 16},  # Schläfli's
    (56, 7): {-1: 1, -1 / 3: 27, 1 / 3: 27},  # the 28 equiangular lines
    (240, 8): {-1: 1, -0.5: 56, 0: 126, 0.5: 56},  # the roots of E8
}


def known_minimum(n: int, dim: int = 3, s: float = 1.0) -> float | None:
    """Return the smallest known energy of n points on the unit sphere of R^dim; for s = inf the largest separation.

    The energy is the sum over unordered pairs of ‖x_i − x_j‖^(−s), or of −log‖x_i − x_j‖ for s = 0: half of what
    `hyperspherical_energy(points, s, reduction="sum")` counts. Known are: for every s regular polygons (dim 2),
    simplices (n ≤ dim + 1), cross-polytopes (n = 2·dim), the icosahedron, the 600-cell and four more; on S² for s = 0,
    1 and 2 n up to 32; for s = inf n up to 2·dim, and on S² n up to 14 and 24.

    Returns:
        The energy, at most the largest float; for s = inf the angle in radians; None if unknown.

    Example:
        >>> known_minimum(5), known_minimum(12, s=2.0), known_minimum(5, dim=3, s=3.0)
        (6.474691494688, 39.0, None)
        >>> known_minimum(24, s=math.inf)  # radians
        0.76254773875098
    """
    n, dim, s = check_problem(n, dim, s)
    counts = _distance_counts(n, dim)
    if s == math.inf:
        if counts:
            return 2 * math.asin(math.sqrt(min(counts)) / 2)
        if dim + 1 < n < 2 * dim:
            return math.pi / 2  # that of n = 2·dim with points left out
        return _SEPARATIONS.get(n) if dim == 3 else None
    if counts is not None:
        total = n / 2 * sum(count * _energy(squared, s) for squared, count in counts.items())
        return min(total, sys.float_info.max)
    if dim == 3 and n in _ENERGIES and s in (0, 1, 2):
        return _ENERGIES[n][int(s)]
    return None


def _distance_counts(n: int, dim: int) -> dict[float, int] | None:
    """Return {squared distance: count} from each point, for configurations that are optimal for every s; else None."""
    if n == 1:
        return {}
    if dim == 2:
        return {4 * math.sin(math.pi * k / n) ** 2: 1 if 2 * k == n else 2 for k in range(1, n // 2 + 1)}
    if n <= dim + 1:
        return {2 * n / (n - 1): n - 1}
    if n == 2 * dim:
        return {2: n - 2, 4: 1}
    if (n, dim) in _UNIVERSAL:
        return {2 - 2 * cosine: count for cosine, count in _UNIVERSAL[n, dim].items()}
    return None


def _energy(squared: float, s: float) -> float:
    if s == 0:
        return -math.log(squared) / 2
    try:
        return float(squared ** (-s / 2))
    except OverflowError:
        return math.inf
