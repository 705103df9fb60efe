"""Measure the neurons of a layer: what :func:`diagnose` computes, and lengths, singular values, orthonormality."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..cosine import inverse_row_norm
from ..diagnosis import Row
from ..diagnosis.analysis import Directions, diagnose_directions
from ..energy.hyperspherical import make_law
from ..energy.measures import deviation_from_orthonormal
from .layers import Unit
from .rows import Layer
from .verdict import judge

SAMPLED = 4096
"""Pairs are compared among at most this many neurons: of more, a sample with a fixed seed."""
DUPLICATE_ANGLE = 0.1
"""Neurons nearer than this are near-duplicates, in radians."""


@torch.no_grad()
def measure(unit: Unit, tensor: Tensor, dtype: str) -> Layer:
    """Measure the layer in its tensor."""
    rows = unit.rows(tensor)
    if rows.dtype.itemsize == 1:  # float8 has hardly any arithmetic
        rows = rows.float()
    lengths = _lengths(rows)
    broken = lengths.isnan()
    dead = (inverse_row_norm(rows) == 0) & ~broken  # too short for a direction, as in diagnose
    index = sample(len(rows))
    chosen = rows if index is None else rows[index]
    if broken.any():
        chosen = chosen.clone()
        chosen[broken if index is None else broken[index]] = 0.0
    heads = unit.heads if index is None else 1
    chosen = chosen.reshape(heads, -1, unit.dimension)
    if float(lengths.nan_to_num().amax()) > 1e100:  # its squares must be finite
        chosen = chosen.double() / 2.0**800
    directions = Directions.of(chosen)
    used = lengths.nan_to_num().where(~dead, 0.0)
    orthonormality, largest = _spectrum(directions, used if index is None else used[index])
    row = diagnose_directions(unit.name, directions, make_law(2.0, False, False), DUPLICATE_ANGLE)
    if index is not None:
        row = _with_indices(row, index.tolist())
    counted = lengths[~(broken | dead)]
    layer = Layer(
        **{
            **vars(row),
            "neurons": unit.neurons // heads,
            "dead": tuple(dead.nonzero().flatten().tolist()),
        },
        tensor=unit.tensor,
        kind=unit.kind,
        shape=tuple(tensor.shape),
        dtype=dtype,
        sampled=None if index is None else len(index),
        broken=tuple(broken.nonzero().flatten().tolist()),
        orthonormality=orthonormality,
        largest_singular=largest,
        shortest=float(counted.min()) if len(counted) else None,
        longest=float(counted.max()) if len(counted) else None,
        norm_spread=float(counted.std(correction=0) / counted.mean()) if len(counted) else None,
    )
    return replace(layer, verdict=judge(layer))


def _lengths(rows: Tensor) -> Tensor:
    """Compute the lengths of rows in float64, a block at a time; NaN for rows with NaN or infinity."""
    blocks = []
    for block in rows.split(max(1, (1 << 20) // rows.shape[1])):
        values = block.double()
        low, high = torch.aminmax(values, dim=1, keepdim=True)
        size = torch.maximum(high, -low)
        scaled = values / size.where(size > 0, 1.0)  # 1e300 has no square
        length = torch.linalg.vector_norm(scaled, dim=1) * size.squeeze(1)  # infinity / infinity is NaN
        blocks.append(length.clamp(max=torch.finfo(torch.float64).max))
    return torch.cat(blocks)


def sample(n: int) -> Tensor | None:
    """Draw neurons if there are more than :data:`SAMPLED`; always the same."""
    if n <= SAMPLED:
        return None
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:SAMPLED].sort().values


def _with_indices(row: Row, index: list[int]) -> Row:
    """Replace places in a sample by rows of the layer."""

    def pairs(found: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        return tuple((index[i], index[j]) for i, j in found)

    return replace(
        row,
        closest=pairs((row.closest,))[0] if row.closest else None,
        duplicates=pairs(row.duplicates),
        redundant=tuple(index[i] for i in row.redundant),
        opposites=pairs(row.opposites),
    )


def _spectrum(directions: Directions, lengths: Tensor) -> tuple[float, float]:
    """Compute the mean of ‖WWᵀ − I‖² over groups, and the largest singular value of any, with these lengths."""
    neurons = directions.points * lengths.view(*directions.alive.shape, 1)
    orthonormality = float(deviation_from_orthonormal(neurons).mean())
    size = float(lengths.amax()) or 1.0
    neurons = neurons / size
    gram = neurons @ neurons.mT if neurons.shape[1] <= neurons.shape[2] else neurons.mT @ neurons
    return orthonormality, size * math.sqrt(max(0.0, float(torch.linalg.eigvalsh(gram).amax())))
