"""What is known of one layer."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

LISTED = 1000
"""How many near-duplicate pairs a row lists at most: a layer that has collapsed has N(N − 1)/2 of them."""


@dataclass(frozen=True)
class Row:
    """What is known of one layer. Angles are in radians; indices are output channels of the whole layer.

    With groups, energies, the mean angle and the effective rank are means over groups, the separation is the least, and
    pairs are within a group. What needs a pair is None where no group has two living neurons.
    """

    name: str
    neurons: int
    """N, in each group."""
    dimension: int
    """d, the numbers that a neuron has."""
    energy: float
    """The mean energy of pairs in full space; 0 without pairs."""
    half_energy: float
    """The mean energy in half space, where every neuron's antipode takes part."""
    excess: float | None
    """The energy above the least that any N neurons could have, as a share of it; for s = 0 the difference."""
    random_excess: float | None
    """The excess that random neurons have on average, to compare with; None where it is infinite (d ≤ s + 1)."""
    separation: float | None
    """The least angle between two neurons."""
    closest: tuple[int, int] | None
    """The two neurons at that angle."""
    duplicates: tuple[tuple[int, int], ...]
    """Pairs nearer than `duplicate_angle`, the nearest first, LISTED at most."""
    duplicate_pairs: int
    """How many such pairs there are."""
    redundant: tuple[int, ...]
    """Neurons that have a near-duplicate with a lower index."""
    dead: tuple[int, ...]
    """Neurons that are zero; they count in nothing else."""
    mean_angle: float | None
    effective_rank: float
    """exp of the entropy of the singular values (divided by their sum) of the unit neurons (Roy and Vetterli, 2007)."""
    groups: int = 1
    is_output: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The fields for JSON: tuples as lists, and None for an infinite excess."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
