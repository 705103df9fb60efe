"""Measure the neurons of a layer: what :func:`diagnose` computes, and lengths, singular values, orthonormality."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from .._internal.precision import accumulation_dtype
from ..energy.hyperspherical import make_law
from ..layers.cosine import inverse_row_norm
from ..neurons.stored import StoredNeurons
from .diagnosis import Row
from .diagnosis.analysis import Group, compare_groups, make_row
from .diagnosis.pairs import LONGEST, TooCoarse
from .rows import Layer
from .verdict import judge

SAMPLED = 4096
"""Pairs are compared among at most this many neurons of a group: of more, a sample with a fixed seed."""
DUPLICATE_ANGLE = 0.1
"""Neurons nearer than this are near-duplicates, in radians."""


@torch.no_grad()
def measure(name: str, stored: StoredNeurons, tensor: Tensor, dtype: str) -> Layer:
    """Measure the layer in its tensor."""
    rows = stored.matrix(tensor)
    if rows.dtype.itemsize == 1:  # float8 has hardly any arithmetic
        rows = rows.float()
    lengths = _lengths(rows)
    broken = lengths.isnan()
    dead = torch.zeros_like(broken)
    if bool((lengths < 1e-3).any()):
        too_short = inverse_row_norm(rows.flatten(0, 1)) == 0  # for a direction, as in diagnose
        dead = too_short.view_as(broken) & ~broken
    num_groups, n, _ = rows.shape
    index = sample(n)
    used = lengths.where(~(broken | dead), 0.0)
    chosen, used = (rows, used) if index is None else (rows[:, index], used[:, index])
    groups, scale = _compare(chosen, used)
    row = make_row(name, groups)
    if index is not None:
        row = _with_indices(row, [g * n + i for g in range(num_groups) for i in index.tolist()])
    counted = lengths[~(broken | dead)]
    layer = Layer(
        **{
            **vars(row),
            "neurons": n,
            "assumed": stored.assumed,
            "dead": tuple(dead.flatten().nonzero().flatten().tolist()),
        },
        tensor=stored.key,
        kind=stored.kind,
        passed_over=stored.passed_over,
        shape=tuple(tensor.shape),
        dtype=dtype,
        sampled=None if index is None else len(index),
        broken=tuple(broken.flatten().nonzero().flatten().tolist()),
        orthonormality=sum(_orthonormality(each, scale) for each in groups) / num_groups,
        largest_singular=scale * max(each.directions.largest_singular() for each in groups),
        shortest=float(counted.min()) if len(counted) else None,
        longest=float(counted.max()) if len(counted) else None,
        norm_spread=float(counted.std(correction=0) / counted.mean()) if len(counted) else None,
    )
    return replace(layer, verdict=judge(layer))


def _lengths(rows: Tensor) -> Tensor:
    """Compute the lengths of rows, in float64 where float32 has not the range; NaN for rows with NaN or infinity."""
    lengths = torch.linalg.vector_norm(rows, dim=-1, dtype=accumulation_dtype(rows.dtype)).double()
    if not bool(((lengths > 1e-15) & (lengths < 1e15)).all()):
        size = rows.abs().amax(-1, keepdim=True).double()
        scaled = rows / size.where(size > 0, 1.0)  # 1e300 has no square, infinity / infinity is NaN
        lengths = torch.linalg.vector_norm(scaled, dim=-1, dtype=torch.float64) * size.squeeze(-1)
        lengths = lengths.clamp(max=torch.finfo(torch.float64).max)
    return lengths


def _compare(rows: Tensor, lengths: Tensor) -> tuple[list[Group], float]:
    """Compare the neurons (G, N, d) of each group; return them, and by how much they were shortened."""
    law, scale = make_law(2.0, False, False), 1.0
    if float(lengths.amax()) > 1e100:  # their squares must be finite
        scale = 2.0**800
        rows, lengths = rows / scale, lengths / scale
    if rows.dtype is not torch.float64:
        with suppress(TooCoarse):
            return compare_groups(rows, law, DUPLICATE_ANGLE, lengths, torch.float32), scale
        exact = torch.linalg.vector_norm(rows, dim=2, dtype=torch.float64)
        lengths = exact.where(lengths > 0, 0.0)
    return compare_groups(rows, law, DUPLICATE_ANGLE, lengths), scale


def _orthonormality(group: Group, scale: float) -> float:
    """Compute ‖WWᵀ − I‖²_F; zero neurons count too."""
    squares = (scale * group.directions.lengths).clamp(max=LONGEST).square()
    overlap = 0.0 if group.pairs is None else 2 * group.pairs.overlap
    return overlap + float((squares - 1).square().sum()) + len(group.dead)


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
