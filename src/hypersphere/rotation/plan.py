"""The plan of one layer's rotation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .._internal.draws import generator
from ..neurons import Layout
from ..orthogonal import ORTHOGONALIZERS, Orthogonalizer
from .block_rotation import ROWS
from .rules import NONE

OUTPUT = "output_"  # begins the names of what rotates the outputs


@dataclass(frozen=True)
class Plan:
    """How the neurons of one weight are rotated."""

    method: str
    dimension: int
    blocks: int = 1
    shared: bool = False
    sample: int | None = None
    init: str = "identity"
    learned: bool = False
    layout: Layout = ROWS
    """Without groups along the outputs, which share one rotation."""
    apply: str = "weight"
    """"weight": the rotation changes the weight; "activation": it acts on what goes in and out of the layer; "auto":
    each call takes the way with the fewest multiplications (see cheapest_path.py)."""
    side: str = "input"
    outputs: int = 0
    """The number of neurons, if the outputs are rotated."""
    output_blocks: int = 1
    shuffle: bool = False
    scaled: bool = False
    magnitude: bool = False
    dropout: float = 0.0
    frozen: bool = False
    """The weight cannot be modified, so the rotation is not merged: it is quantized or tied."""

    @property
    def size(self) -> int:
        """The dimensions of one block of the inputs."""
        return self.sample or self.dimension // self.blocks

    @property
    def sides(self) -> list[RotatedSide]:
        """The rotations of this plan: of the inputs, of the outputs, or both."""
        sides = []
        if self.side != "output":
            sides.append(RotatedSide("", self.dimension, self.sample or self.dimension, self.size))
        if self.side != "input":
            sides.append(RotatedSide(OUTPUT, self.outputs, self.outputs, self.outputs // self.output_blocks))
        return sides

    @property
    def multiplications(self) -> int:
        """How many it takes to rotate one row of inputs and of outputs."""
        return sum(side.rotated * side.size for side in self.sides)

    @property
    def redrawn(self) -> bool:
        """Whether a Resampler merges the rotation and draws its dimensions anew."""
        return self.sample is not None or self.shuffle

    @property
    def orthogonalizer(self) -> Orthogonalizer | None:
        return None if self.method == NONE else ORTHOGONALIZERS[self.method]

    @property
    def keeps_angles(self) -> bool:
        """Whether training keeps the angles between neurons, and so their energy."""
        orthogonal = self.orthogonalizer is None or self.orthogonalizer.orthogonal
        return orthogonal and not self.learned and not self.magnitude and self.side == "input"

    def starts(self) -> dict[str, Tensor]:
        """Return the initial parameters (blocks, *shape) of every side by name; {} if the method has none."""
        method = self.orthogonalizer
        if method is None:
            return {}
        starts = {}
        for side in self.sides:
            blocks = [method.start(side.size, self.init) for _ in range(1 if self.shared else side.blocks)]
            for block in blocks:
                if tuple(block.shape) != tuple(method.shape(side.size)):
                    wanted, got = tuple(method.shape(side.size)), tuple(block.shape)
                    raise ValueError(f"start of method {method.name!r} must return shape {wanted}, got {got}")
            starts[side.prefix + method.name] = torch.stack(blocks)
        return starts

    def draw_dims(self, seed: int, draw: int) -> dict[str, Tensor]:
        """Draw the dimensions of every side, by name, for draw number `draw`."""
        drawn = {}
        for side in self.sides if self.redrawn else []:
            stream = generator(seed, side.prefix, draw)
            dims = torch.randperm(side.dimension, generator=stream, device="cpu")[: side.rotated]
            drawn[side.prefix + "dims"] = dims if self.shuffle else dims.sort().values
        return drawn


@dataclass(frozen=True)
class RotatedSide:
    """The block-diagonal rotation of the inputs or of the outputs of a weight."""

    prefix: str
    """Of its names in a state_dict."""
    dimension: int
    rotated: int
    """How many of the dimensions are rotated at a time."""
    size: int
    """The dimensions of one block."""

    @property
    def blocks(self) -> int:
        return self.rotated // self.size
