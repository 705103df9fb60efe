"""Rotate a weight that tensor parallelism split over processes, each of which rotates its part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from .._internal.precision import accumulation_dtype
from .._internal.sharding import copy_to, gather, replicate
from .block_rotation import BlockRotation, rotate_weight


def rotate_split_weight(weight: Any, rotations: Sequence[BlockRotation], magnitude: Tensor | None) -> Tensor:
    """Compute :func:`rotate_weight` of a DTensor (N, d), split as it is.

    R_in needs whole neurons and R_out whole columns: a weight that is split the other way is exchanged, there and back.
    """
    from torch.distributed.tensor import DTensor, Shard

    mesh, out = weight.device_mesh, weight
    for rotation in rotations:
        parts = [Shard(1 if rotation.of_outputs else 0)]
        kept = None if rotation.kept is None else gather(copy_to(mesh, rotation.kept))
        own = replace(rotation, numbers=replicate(rotation.numbers, mesh), kept=kept)
        rotated = rotate_weight(out.redistribute(placements=parts).to_local(), [own]).contiguous()
        out = DTensor.from_local(rotated, mesh, parts, run_check=False, shape=weight.shape, stride=weight.stride())
    if magnitude is not None:
        out = (out.to(accumulation_dtype(out.dtype)) * magnitude.unsqueeze(1)).to(weight.dtype)
    rotated_weight: Tensor = out.redistribute(placements=weight.placements)
    return rotated_weight
