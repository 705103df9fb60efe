"""What is measured of a layer: one record for models, state_dicts and files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..train.storage.records import finite


@dataclass(frozen=True)
class Finding:
    """What was found in a layer."""

    name: str
    """A key of :data:`hypersphere.inspection.verdict.REMEDIES`."""
    text: str


@dataclass(frozen=True)
class Verdict:
    """The grade of a layer: broken, wasteful (neurons are dead or redundant), crowded (more than random), or good."""

    grade: str
    findings: tuple[Finding, ...]
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class LayerReport:
    """One layer. Angles are in radians; indices are output channels of the whole layer.

    With groups, energies, the mean angle, the effective rank and the orthonormality are means over groups, the
    separation is the smallest, and pairs are within a group. Fields that need a pair are None if no group has two
    nonzero neurons.
    """

    name: str
    neurons: int
    """N, in each group."""
    dimension: int
    """d, the dimension of a neuron."""
    energy: float
    """The mean energy of pairs in full space; 0 without pairs."""
    half_energy: float
    """The mean energy in half space, with the antipode of every neuron."""
    excess: float | None
    """(energy − bound)/bound, with the lower bound for N neurons; for s = 0 energy − bound."""
    random_excess: float | None
    """The expected excess of random neurons, to compare with; None if infinite (d ≤ s + 1)."""
    relative_energy: float | None
    """The energy divided by that of random neurons; None if that is infinite, or for s = 0."""
    separation: float | None
    """The smallest angle between two neurons."""
    closest: tuple[int, int] | None
    """The two neurons at that angle."""
    duplicates: tuple[tuple[int, int], ...]
    """Pairs nearer than `duplicate_angle`, the nearest first, at most LISTED."""
    duplicate_pairs: int
    """The number of such pairs."""
    redundant: tuple[int, ...]
    """Neurons that have a near-duplicate with a lower index."""
    opposites: tuple[tuple[int, int], ...]
    """Pairs nearer than `duplicate_angle` to being opposite, the nearest first, at most LISTED."""
    opposite_pairs: int
    """The number of such pairs."""
    dead: tuple[int, ...]
    """Neurons that are zero; all other fields but the orthonormality ignore them."""
    broken: tuple[int, ...]
    """Neurons with NaN or infinity, in a file; all other fields ignore them."""
    mean_angle: float | None
    effective_rank: float
    """exp of the entropy of the singular values (divided by their sum) of the unit neurons (Roy and Vetterli, 2007)."""
    orthonormality: float
    """‖WWᵀ − I‖²_F of the neurons as they are, the measure "orthonormal"."""
    largest_singular: float
    """The largest singular value of a group."""
    shortest: float | None
    """The length of the shortest neuron that is not zero."""
    longest: float | None
    norm_spread: float | None
    """The standard deviation of the lengths divided by their mean."""
    groups: int = 1
    sampled: int | None = None
    """How many neurons pairs were compared of, and energies and ranks computed; None: all."""
    is_output: bool = False
    tensor: str = field(default="", compare=False)
    """The name of the tensor in the state_dict or file."""
    shape: tuple[int, ...] = field(default=(), compare=False)
    dtype: str = field(default="", compare=False)
    kind: str = field(default="linear", compare=False)
    """linear, convolution, embedding or recurrent."""
    assumed: str = field(default="", compare=False)
    """What names and shapes in a state_dict or a file do not tell; empty if they do, and for a model."""
    passed_over: str = field(default="", compare=False)
    """Why :func:`select` and :func:`diagnose` pass over the matrix; empty for a layer."""
    verdict: Verdict = field(default=Verdict("good", (), ""), compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON: tuples as lists, and None for infinity."""
        fields: dict[str, Any] = finite(asdict(self))
        return fields
