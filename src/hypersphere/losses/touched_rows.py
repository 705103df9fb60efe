"""The gradient of a head's weight as a sparse tensor of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from .._internal.overflow import saturating_cast


class TouchedRows:
    """The rows of the weight that have a gradient, and that gradient as a sparse tensor.

    Args:
        weight: (C·K, d).
        row: (B,), the rows of the labels' classes; they are always among them.
        inside: (B,), whether the class is here.
    """

    def __init__(self, weight: Tensor, row: Tensor, inside: Tensor) -> None:
        self.weight, self.row = weight, row[inside]
        self.index: list[Tensor] = []
        self.values: list[Tensor] = []
        self.at_labels: tuple[Tensor, Tensor] | None = None

    def labels(self, of_block: slice) -> Tensor:
        """Return which rows of a block are of a label, (n,)."""
        here = self.row[(self.row >= of_block.start) & (self.row < of_block.stop)] - of_block.start
        mask = torch.zeros(of_block.stop - of_block.start, dtype=torch.bool, device=here.device)
        return mask.index_fill_(0, here, True)

    def add(self, of_block: slice, picked: Tensor, values: Tensor | None) -> None:
        """Add rows of a block by number, or as a mask with gradient 0."""
        picked = picked.nonzero().squeeze(1) if values is None else picked
        self.index.append(picked + of_block.start)
        zeros = self.weight.new_zeros(len(picked), self.weight.shape[1]) if values is None else values
        self.values.append(zeros)

    def gradient(self) -> Tensor:
        index, values = torch.cat(self.index), torch.cat(self.values)
        if self.at_labels is not None:
            row, of_rows = self.at_labels
            place = torch.searchsorted(index, row).clamp_max(len(index) - 1)
            values.index_add_(0, place, (of_rows * (index[place] == row).unsqueeze(1)).to(values.dtype))
        values, size = saturating_cast(values, self.weight.dtype), self.weight.shape
        return torch.sparse_coo_tensor(index.unsqueeze(0), values, size, check_invariants=False, is_coalesced=True)
