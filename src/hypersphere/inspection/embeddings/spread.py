"""Collapsed? Uneven? The spectrum of all directions, the intrinsic dimension, and the evenness of a sample."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...energy.hyperspherical import hyperspherical_energy
from ...losses.evenness import uniformity
from .answers import Answer, count
from .vectors import Vectors

CONE, FIRST, LOW_RANK, UNEVEN = 0.5, 0.25, 0.5, 2.0
_SAMPLE = 4096


@dataclass(frozen=True)
class Spectrum:
    """The first two moments of directions.

    Attributes:
        mean: (d,).
        variances: (d,) of the principal components, the largest first.
        directions: (d, d), a component a column.
    """

    count: int
    mean: Tensor
    variances: Tensor
    directions: Tensor

    @property
    def mean_cosine(self) -> float:
        """The mean over all pairs of two rows: (‖Σx̂‖² − N)/(N(N − 1))."""
        return float((self.mean.double().square().sum() * self.count - 1) / (self.count - 1))

    @property
    def effective_rank(self) -> float:
        """exp of the entropy of the singular values of the centred directions."""
        values = self.variances.sqrt()
        return float(torch.special.entr(values / values.sum().clamp_min(1e-300)).sum().exp())

    @property
    def first_share(self) -> float:
        return float(self.variances[0] / self.variances.sum().clamp_min(1e-300))


def measure_spectrum(vectors: Vectors) -> Spectrum:
    """Compute the moments of all directions, block by block."""
    d = vectors.dimension
    total, squares = torch.zeros(d, dtype=torch.float64), torch.zeros(d, d, dtype=torch.float64)
    shift = vectors.unit(slice(0, min(256, len(vectors)))).mean(0)  # keeps the digits of narrow cones
    for _, x in vectors.blocks():
        x = x - shift
        total += x.sum(0, dtype=torch.float64)
        squares += x.T @ x
    mean = total / len(vectors)
    values, directions = torch.linalg.eigh(squares / len(vectors) - mean.outer(mean))
    values = values.flip(0).clamp_min(0)
    values = values.where(values > 1e-7 * values[0], 0.0)  # rounding of the float32 products
    return Spectrum(len(vectors), (mean + shift).float(), values, directions.flip(1).float().contiguous())


def two_nn(distances: Tensor) -> float | None:
    """Compute the TwoNN dimension (Facco et al. 2017) from the sorted distances (Q, k) of neighbours.

    The slope through 0 of −log(1 − F) over log(r₂/r₁), by the 90 % smallest ratios. Twins, r₁ = 0, are passed over, and
    so are infinite distances.

    Example:
        >>> points = torch.rand(1000, 2, generator=torch.Generator().manual_seed(0))
        >>> distances = torch.cdist(points, points).sort(1).values[:, 1:4]
        >>> 1.8 < two_nn(distances) < 2.2
        True
    """
    apart = distances > 0
    first = apart.int().argmax(1, keepdim=True)
    is_known = apart.any(1) & (first.squeeze(1) + 1 < distances.shape[1])
    distances, first = distances[is_known].double(), first[is_known]
    ratios = (distances.gather(1, first + 1).squeeze(1) / distances.gather(1, first).squeeze(1)).log()
    ratios = ratios[ratios.isfinite()].sort().values
    if len(ratios) < 10:
        return None
    kept = math.floor(0.9 * len(ratios))
    x, y = ratios[:kept], -torch.log1p(-torch.arange(1, kept + 1, dtype=torch.float64) / len(ratios))
    squares = float(x.square().sum())
    return float((x * y).sum()) / squares if squares > 0 else None


def is_collapsed(seen: Spectrum, uniform: Spectrum, dimensions: tuple[float | None, float | None]) -> Answer:
    """Compare the spectrum with that of uniform points; `dimensions` are by :func:`two_nn`."""
    length, chance = (float(spectrum.mean.norm()) for spectrum in (seen, uniform))
    found = []
    if length > CONE:
        found.append("a narrow cone: subtract the mean")
    if seen.first_share > max(FIRST, 2 * uniform.first_share):
        found.append("one direction dominates: remove it")
    if seen.effective_rank < LOW_RANK * uniform.effective_rank:
        found.append(f"{count(round(seen.effective_rank), 'dimension')} in use: cut")
    intrinsic = [f", TwoNN {value:.3g}" if value else "" for value in dimensions]
    return Answer(
        "collapsed?",
        "; ".join(found) or "no",
        not found,
        f"‖mean‖ {length:.2f}, rank {seen.effective_rank:.0f}{intrinsic[0]}",
        f"{chance:.2f}, {uniform.effective_rank:.0f}{intrinsic[1]}",
        details={
            **{"mean_length": length, "mean_cosine": seen.mean_cosine, "effective_rank": seen.effective_rank},
            **{
                "first_share": seen.first_share,
                "two_nn": dimensions[0],
                "uniform_effective_rank": uniform.effective_rank,
            },
            **{"uniform_two_nn": dimensions[1], "uniform_first_share": uniform.first_share},
        },
    )


def is_uneven(vectors: Vectors, uniform: Vectors, duplicates: tuple[int, ...]) -> Answer:
    """Compare uniformity and energy of a sample without duplicates with those of uniform points."""
    drawn = vectors.sample(_SAMPLE)
    drawn = drawn[~np.isin(vectors.number(drawn), duplicates)]
    if len(drawn) < 2:
        return Answer("uneven?", "all rows are duplicates", False, "one direction")
    sample = vectors.unit(drawn)
    even = uniform.unit(slice(0, len(sample)))
    values = [(float(uniformity(x)), float(hyperspherical_energy(x))) for x in (sample, even)]
    (loss, energy), (even_loss, even_energy) = values
    excess = math.exp(loss - even_loss)
    verdict = f"clustered: {excess:.2g} times the pair potential of uniform points"
    return Answer(
        "uneven?",
        verdict if excess > UNEVEN else "no",
        excess <= UNEVEN,
        f"uniformity {loss:.3f}, energy {energy:.3g}",
        f"{even_loss:.3f}, {even_energy:.3g}",
        details={
            **{"uniformity": loss, "energy": energy, "uniform_uniformity": even_loss, "uniform_energy": even_energy},
            **{"excess": excess - 1, "energy_excess": energy / even_energy - 1, "sampled": len(sample)},
        },
    )
