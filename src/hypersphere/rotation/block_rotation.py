"""Apply block-diagonal rotations: to the weight of a layer, or to its inputs and outputs.

With W = R_out V R_inᵀ the layer computes x Wᵀ = ((x R_in) Vᵀ) R_outᵀ, so R_in can act on the inputs and R_out on the
outputs, and the neurons V (rows) are neither changed nor copied.

Shapes: N neurons, d inputs, B blocks of m dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._internal.overflow import saturating_cast
from .._internal.precision import accumulation_dtype, without_autocast
from ..neurons import Layout, from_neuron_rows, neuron_rows
from ..orthogonal import Orthogonalizer

ROWS = Layout()


@dataclass(frozen=True)
class BlockRotation:
    """The rotation of the inputs, or of the outputs, of a weight.

    Args:
        method: how the numbers give R.
        numbers: (B, *shape of the method), at least float32; one block if it is shared.
        size: the dimensions m of a block.
        dims: the dimensions that are rotated, in the order of the blocks; None: all of them.
        of_outputs: R mixes neurons instead of their inputs.
        kept: (blocks,) bool, False for blocks that dropout replaces by the identity; None: all are kept.
    """

    method: Orthogonalizer
    numbers: Tensor
    size: int
    dims: Tensor | None = None
    of_outputs: bool = False
    kept: Tensor | None = None

    def blocks(self, shape: Sequence[int]) -> int:
        """Return the number of blocks for neurons of the shape (N, d)."""
        return (shape[0 if self.of_outputs else 1] if self.dims is None else len(self.dims)) // self.size

    def matrices(self) -> Tensor:
        """Return R as (B, m, m), in at least float32."""
        matrices = self.method.matrix(self.numbers)
        if self.kept is None:
            return matrices
        eye = torch.eye(self.size, dtype=matrices.dtype, device=matrices.device)
        return torch.where(self.kept[:, None, None], matrices, eye)

    def rotate_rows(self, rows: Tensor) -> Tensor:
        """Compute V Rᵀ for rows V (n, d), without forming R if that is cheaper."""
        if self.kept is not None:
            return self.rotate_features(rows, transposed=True)
        chosen = rows if self.dims is None else rows.index_select(1, self.dims)
        if len(self.numbers) == 1:  # one block, or a shared one
            out = self.method.apply(self.numbers.squeeze(0), chosen.reshape(-1, self.size)).view_as(chosen)
        else:
            blocks = chosen.unflatten(1, (-1, self.size)).transpose(0, 1)
            out = self.method.apply(self.numbers, blocks).transpose(0, 1).flatten(1)
        return out if self.dims is None else rows.index_copy(1, self.dims, out)

    def rotate_features(self, x: Tensor, dim: int = -1, *, transposed: bool = False) -> Tensor:
        """Compute x R (or x Rᵀ) along a dimension of x that has d elements."""
        if dim != -1:
            return self.rotate_features(x.movedim(dim, -1), transposed=transposed).movedim(-1, dim)
        matrices = self.matrices()
        matrices = (matrices.mT if transposed else matrices).to(accumulation_dtype(x.dtype))
        with without_autocast(x):
            exact = x.to(matrices.dtype)
            chosen = exact if self.dims is None else exact.index_select(-1, self.dims)
            if len(matrices) == 1:
                out = (chosen.reshape(-1, self.size) @ matrices[0]).view(chosen.shape)
            else:
                blocks = chosen.reshape(-1, len(matrices), self.size).transpose(0, 1)
                out = torch.bmm(blocks, matrices).transpose(0, 1).reshape(chosen.shape)
            out = out if self.dims is None else exact.index_copy(-1, self.dims, out)
        return saturating_cast(out, x.dtype)


def rotate_weight(
    weight: Tensor, rotations: Sequence[BlockRotation], layout: Layout = ROWS, magnitude: Tensor | None = None
) -> Tensor:
    """Compute diag(magnitude)·R_out V R_inᵀ for a weight with neurons V."""
    rows = neuron_rows(weight, layout)
    out = rows.flatten(0, 1).to(accumulation_dtype(weight.dtype))
    with without_autocast(weight):
        for rotation in rotations:
            out = rotation.rotate_rows(out.mT).mT if rotation.of_outputs else rotation.rotate_rows(out)
        if magnitude is not None:
            out = out * magnitude.unsqueeze(1)
    return from_neuron_rows(saturating_cast(out.reshape(rows.shape), weight.dtype), weight.shape, layout)


def rotate_activations(
    compute: Callable[[Tensor, Tensor | None], Tensor],
    x: Tensor,
    bias: Tensor | None,
    rotations: Sequence[BlockRotation],
    magnitude: Tensor | None,
    dim: int = -1,
) -> Tensor:
    """Compute a layer with the weight of :func:`rotate_weight`, by rotating its inputs and outputs instead.

    Args:
        compute: compute(x, bias) is the layer with its neurons V as they are.
        dim: the dimension of features, counted from the end: -1, or that of a convolution's channels.
    """
    for rotation in rotations:
        x = x if rotation.of_outputs else rotation.rotate_features(x, dim)
    outer = [rotation for rotation in rotations if rotation.of_outputs]
    late = bool(outer) or magnitude is not None  # the bias is added last
    y = compute(x, None if late else bias)
    for rotation in outer:
        y = rotation.rotate_features(y, dim, transposed=True)
    features = (-1, *[1] * (-1 - dim))
    if magnitude is not None:
        y = y * magnitude.to(y.dtype).view(features)
    return y + bias.to(y.dtype).view(features) if late and bias is not None else y
