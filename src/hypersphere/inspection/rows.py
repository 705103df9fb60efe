"""One layer of an inspected file, and what is found in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .diagnosis import Row


@dataclass(frozen=True)
class Finding:
    """What was found in a layer."""

    name: str
    """A key of :data:`hypersphere.inspection.verdict.REMEDIES`."""
    text: str


@dataclass(frozen=True)
class Verdict:
    """How a layer is: broken, wasteful (neurons are dead or redundant), crowded (more than random neurons), or good."""

    grade: str
    findings: tuple[Finding, ...]
    text: str = ""

    def __str__(self) -> str:
        return self.text


NO_VERDICT = Verdict("good", ())


@dataclass(frozen=True)
class Layer(Row):
    """One layer of a file. Angles are in radians; indices are rows of the layer."""

    tensor: str = ""
    """The name of the tensor in the file."""
    kind: str = "linear"
    """linear, convolution, embedding or recurrent."""
    passed_over: str = ""
    """Why :func:`select` and :func:`diagnose` pass over the matrix; empty for a layer."""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    sampled: int | None = None
    """How many neurons pairs were compared of, and energies and ranks computed; None: all."""
    broken: tuple[int, ...] = ()
    """Neurons with NaN or infinity; all other fields ignore them."""
    orthonormality: float = 0.0
    """‖WWᵀ − I‖²_F of the neurons as they are, the measure "orthonormal"; a mean over groups."""
    largest_singular: float = 0.0
    shortest: float | None = None
    """The length of the shortest neuron that is not zero."""
    longest: float | None = None
    norm_spread: float | None = None
    """The standard deviation of the lengths divided by their mean."""
    verdict: Verdict = NO_VERDICT

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"verdict": asdict(self.verdict)}
