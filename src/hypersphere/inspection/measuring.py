"""Measure the neurons of a layer: which are dead, redundant or opposite, energy, rank, lengths, singular values.

Shapes: G groups, N neurons in each, d their dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..energy.hyperspherical import group_energy
from ..energy.repulsion import Law
from ..geometry.bounds import energy_lower_bound, excess_over, expected_energy
from .dead_neurons import neuron_lengths
from .layer_report import LayerReport
from .pairs import LISTED, LONGEST, Directions, PairStatistics, TooCoarse
from .sources import LayerSource
from .verdict import grade_layer

SAMPLED = 4096
"""In a file, pairs are compared among at most this many neurons of a group: of more, a sample with a fixed seed."""


@torch.no_grad()
def measure(source: LayerSource, law: Law, duplicate_angle: float, *, exact: bool) -> LayerReport:
    """Measure a layer.

    Args:
        exact: compute in float64, and compare all neurons. Else compute layers of float32 or less in float32 where its
            digits suffice, and compare a sample of many neurons.
    """
    rows = source.matrix()
    if rows.dtype.itemsize == 1:  # float8 has hardly any arithmetic
        rows = rows.float()
    num_groups, n, d = rows.shape
    lengths = neuron_lengths(rows, exact)
    dead, broken = lengths == 0, lengths.isnan()
    alive = ~(dead | broken)
    index = None if exact else sample(n)
    chosen = torch.arange(n) if index is None else index
    used = lengths.where(alive, 0.0)
    if index is not None:
        rows, used = rows[:, index], used[:, index]
    groups, scale = _compare(rows, used, chosen + n * torch.arange(num_groups)[:, None], law, duplicate_angle, exact)
    energies = [group.energies() for group in groups]
    energy, half_energy = (sum(values) / num_groups for values in zip(*energies, strict=True))
    pairs = [group.pairs for group in groups if group.pairs is not None]
    bounds = (energy_lower_bound(group.count, d, law.s, angular=law.angular) for group in groups if group.count > 1)
    bound = sum(bounds) / num_groups
    random = expected_energy(law.s, d, angular=law.angular) * len(pairs) / num_groups if d > 1 else math.inf
    comparable = bool(pairs) and random < math.inf
    nearest = min((p.nearest for p in pairs), default=None)
    ranks = [group.effective_rank for group in groups if group.count]
    counted = lengths[alive]
    report = LayerReport(
        name=source.name,
        neurons=n,
        dimension=d,
        energy=energy,
        half_energy=half_energy,
        excess=excess_over(energy, bound, law.s) if pairs else None,
        random_excess=excess_over(random, bound, law.s) if comparable else None,
        relative_energy=energy / random if comparable and law.s > 0 and math.isfinite(energy) else None,
        separation=nearest[0] if nearest else None,
        closest=nearest[1:] if nearest else None,
        duplicates=_closest(p.near for p in pairs),
        duplicate_pairs=sum(p.count for p in pairs),
        redundant=tuple(i for p in pairs for i in p.redundant),
        opposites=_closest(p.opposed for p in pairs),
        opposite_pairs=sum(p.opposite_count for p in pairs),
        dead=_indices(dead),
        broken=_indices(broken),
        mean_angle=sum(p.mean_angle for p in pairs) / len(pairs) if pairs else None,
        effective_rank=sum(ranks) / len(ranks) if ranks else 0.0,
        orthonormality=sum(group.overlap(scale) for group in groups) / num_groups
        + float(dead.cpu()[:, chosen].sum()) / num_groups,  # (0 − 1)² each
        largest_singular=scale * max(group.directions.largest_singular() for group in groups),
        shortest=float(counted.min()) if len(counted) else None,
        longest=float(counted.max()) if len(counted) else None,
        norm_spread=float(counted.std(correction=0) / counted.mean()) if len(counted) else None,
        groups=num_groups,
        sampled=None if index is None else len(index),
        is_output=source.is_output,
        tensor=source.tensor,
        shape=source.shape,
        dtype=source.dtype,
        kind=source.kind,
        assumed=source.assumed,
        passed_over=source.passed_over,
    )
    return replace(report, verdict=grade_layer(report))


@dataclass(frozen=True)
class ComparedGroup:
    """Neurons that see the same inputs, compared with each other; indices are neurons of the layer."""

    directions: Directions
    """Of those that are alive."""
    law: Law
    pairs: PairStatistics | None
    """None for fewer than two."""
    effective_rank: float

    @property
    def count(self) -> int:
        """The number of neurons that are alive."""
        return len(self.directions.rows)

    def energies(self) -> tuple[float, float]:
        """Compute the mean energy of pairs, and with the antipode of every neuron."""
        k, law, pairs = self.count, self.law, self.pairs
        if not k:
            return 0.0, 0.0
        if law.in_logs:
            points = self.directions.points.unsqueeze(0)
            return float(group_energy(points, law)), float(group_energy(points, replace(law, half_space=True)))
        own = 2 * k * float(law.energy(torch.tensor(4.0, dtype=torch.float64)))  # each neuron and its antipode
        full, both = (0.0, 0.0) if pairs is None else (pairs.energy, 4 * (pairs.energy + pairs.antipodal_energy))
        return 2 * full / max(1, k * (k - 1)), (both + own) / (2 * k * (2 * k - 1))

    def overlap(self, scale: float) -> float:
        """Compute ‖WWᵀ − I‖²_F of neurons that were divided by `scale`."""
        squares = (scale * self.directions.lengths).clamp(max=LONGEST).square()
        return (2 * self.pairs.overlap if self.pairs else 0.0) + float((squares - 1).square().sum())


def _compare(
    rows: Tensor, lengths: Tensor, numbers: Tensor, law: Law, duplicate_angle: float, exact: bool
) -> tuple[list[ComparedGroup], float]:
    """Compare the neurons (G, N, d) of each group; return them, and by how much they were shortened.

    Args:
        lengths: (G, N) in float64, 0 for neurons that are left out.
        numbers: (G, N), the indices of the neurons in the layer.
    """
    scale = 1.0
    if float(lengths.amax()) > 1e100:  # their squares must be finite
        scale = 2.0**800
        rows, lengths = rows / scale, lengths / scale

    def compare_all(lengths: Tensor, dtype: torch.dtype) -> list[ComparedGroup]:
        groups = zip(rows, lengths, numbers, strict=True)
        return [_compare_group(*group, law, duplicate_angle, dtype) for group in groups]

    if rows.dtype is not torch.float64 and not exact:
        with suppress(TooCoarse):
            return compare_all(lengths, torch.float32), scale
        lengths = torch.linalg.vector_norm(rows, dim=2, dtype=torch.float64).where(lengths > 0, 0.0)
    return compare_all(lengths, torch.float64), scale


def _compare_group(
    rows: Tensor, lengths: Tensor, numbers: Tensor, law: Law, duplicate_angle: float, dtype: torch.dtype
) -> ComparedGroup:
    """Compare the neurons (N, d) of a group; float32 raises TooCoarse where it does not suffice."""
    alive = lengths > 0
    if not bool(alive.all()):
        rows, lengths, numbers = rows[alive], lengths[alive], numbers[alive.to(numbers.device)]
    directions = Directions(rows, lengths, dtype)
    pairs = directions.pairs(law, duplicate_angle).renumbered(numbers.tolist()) if len(rows) > 1 else None
    return ComparedGroup(directions, law, pairs, directions.effective_rank() if len(rows) else 0.0)


def sample(n: int) -> Tensor | None:
    """Draw neurons if there are more than :data:`SAMPLED`; always the same."""
    if n <= SAMPLED:
        return None
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:SAMPLED].sort().values


def _closest(lists: Iterable[list[tuple[float, int, int]]]) -> tuple[tuple[int, int], ...]:
    """Return the closest pairs of all groups, at most LISTED."""
    return tuple((i, j) for _, i, j in sorted(pair for pairs in lists for pair in pairs)[:LISTED])


def _indices(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.flatten().nonzero().flatten().tolist())
