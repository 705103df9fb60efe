"""Pairs of images for verification."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import torch
from torch import Tensor

from ._dataset import LazyDataset


class Pair(NamedTuple):
    """Two images by name, whether they show the same person, and their fold."""

    first: str
    second: str
    same: bool
    fold: int


@dataclass(frozen=True, eq=False)
class Pairs(Sequence[Pair]):
    """A list of P pairs.

    Attributes:
        first, second: names of the images, such as "Abel_Pacheco_0001".
        same: (P,) bool.
        fold: (P,) int64, 0 to folds − 1.
        folds: the number of folds; 1 for a list without folds.
    """

    first: list[str]
    second: list[str]
    same: Tensor
    fold: Tensor
    folds: int

    def __len__(self) -> int:
        return len(self.first)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> list[Pair]: ...
    def __getitem__(self, index: int | slice) -> Pair | list[Pair]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return Pair(self.first[index], self.second[index], bool(self.same[index]), int(self.fold[index]))

    def locate(self, dataset: LazyDataset) -> Tensor:
        """Return the indices (P, 2) int64 of the images of each pair in `dataset`, LFW's split all."""
        names = [os.path.splitext(os.path.basename(path))[0] for path in dataset.paths]
        indices, counts = {name: i for i, name in enumerate(names)}, Counter(names)
        for name in (*self.first, *self.second):
            if counts[name] != 1:
                got = "none" if name not in indices else f"{counts[name]} files of this name"
                raise ValueError(f"dataset must have the image {name} of the list of pairs once, got {got}")
        return torch.tensor([[indices[a], indices[b]] for a, b in zip(self.first, self.second, strict=True)])

    def __repr__(self) -> str:
        folds = "1 fold" if self.folds == 1 else f"{self.folds} folds"
        return f"Pairs({len(self)} pairs, {int(self.same.sum())} of the same person, {folds})"
