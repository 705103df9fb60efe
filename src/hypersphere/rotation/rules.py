"""The rules of a rotation, without torch: which options go together, and how a layer is split or sampled.

:func:`hypersphere.rotate` and the group ``rotation`` of a config ask the same rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from .._internal.catalog import METHODS

NONE = "none"  # fixed neurons without rotation
TRIANGLES = ("cayley", "exponential")  # methods whose numbers are a skew-symmetric matrix
APPLY = ("auto", "activation", "weight")
SIDES = ("input", "output", "both")
NEURONS = ("fixed", "learned")


@dataclass(frozen=True)
class RotationOptions:
    """The options of :func:`hypersphere.rotate` that decide how each layer is rotated."""

    method: str = "cayley"
    init: str = "identity"
    neurons: str = "fixed"
    blocks: int = 1
    block_size: int | None = None
    share_blocks: bool = False
    sample: float | None = None
    apply: str = "auto"
    side: str = "input"
    shuffle: bool = False
    scaled: bool = False
    magnitude: bool = False
    dropout: float = 0.0

    @classmethod
    def of(cls, settings: Any) -> RotationOptions:
        """Take the options that a config's group has; the others keep their defaults."""
        return cls(**{f.name: getattr(settings, f.name) for f in fields(cls) if hasattr(settings, f.name)})

    @property
    def splits(self) -> bool:
        """Whether layers are split into blocks."""
        return self.blocks != 1 or self.block_size is not None

    def check(self, prefix: str = "") -> None:
        """Raise ValueError if two options contradict each other; `prefix` stands before their names."""
        for broken, message in self._rules(prefix):
            if broken:
                raise ValueError(message)

    def _rules(self, p: str) -> Iterator[tuple[Any, str]]:
        sampled, identity, split = self.sample is not None, self.init == "identity", self.splits
        yield (
            self.blocks != 1 and self.block_size is not None,
            f"give {p}blocks or {p}block_size, not both; got {self.blocks} and {self.block_size}",
        )
        yield self.share_blocks and not split, f"{p}share_blocks needs {p}blocks > 1 or {p}block_size"
        needing = {
            "blocks": self.blocks != 1,
            "block_size": self.block_size is not None,
            "sample": sampled,
            f"apply={self.apply}": self.apply == "activation",
            f"side={self.side}": self.side != "input",
        } | {name: bool(getattr(self, name)) for name in ("shuffle", "scaled", "magnitude", "dropout")}
        used = ", ".join(p + name for name, is_used in needing.items() if is_used)
        yield self.method == NONE and used, f"{p}method=none rotates nothing: remove {used}"
        yield (
            self.scaled and self.method not in TRIANGLES,
            f"{p}scaled needs {p}method to be one of {', '.join(TRIANGLES)}; got {self.method}",
        )
        yield (
            self.init not in METHODS.get(self.method, (self.init,)),
            f"{p}method={self.method} cannot begin at the identity: set {p}init=normal",
        )
        yield sampled and split, f"{p}sample needs whole layers: remove {p}blocks and {p}block_size"
        yield sampled and not identity, f"{p}sample needs {p}init=identity"
        yield sampled and self.side != "input", f"{p}sample needs {p}side=input, got {self.side}"
        yield (
            self.sample is not None
            and not (0 < self.sample < 1 if isinstance(self.sample, float) else self.sample > 1),
            f"{p}sample must be a share below 1 or an integer >= 2, got {self.sample}",
        )
        yield self.shuffle and not split, f"{p}shuffle needs {p}blocks > 1 or {p}block_size"
        yield self.shuffle and not identity, f"{p}shuffle needs {p}init=identity"
        yield not 0 <= self.dropout < 1, f"{p}dropout must be at least 0 and below 1, got {self.dropout}"


def count_blocks(dimension: int, blocks: int, block_size: int | None, *, channel: int = 1) -> int:
    """Return the number of blocks of a layer; 0 if it cannot be split like this and stays whole.

    A block has at least two dimensions. `blocks` are of whole channels of `channel` elements (OPT, App. I); a block of
    `block_size` may cut through them.
    """
    if block_size is not None:
        return dimension // block_size if block_size > 1 and dimension % block_size == 0 else 0
    size = dimension // blocks if dimension % blocks == 0 else 0
    return blocks if size > 1 and size % channel == 0 else 0


def sample_size(dimension: int, sample: float) -> int:
    """Return how many dimensions of a layer are rotated at a time; a layer with fewer than two stays whole."""
    return round(sample * dimension) if isinstance(sample, float) else sample
