"""Datasets: in memory, decoded image by image, graphs; and checks of any torch Dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
import torch.utils.data
from torch import Tensor

from ._random import Indices as RowIndices

AnyDataset = torch.utils.data.Dataset[Any]
Indices = Sequence[int] | Tensor


class MissingSplit(ValueError):
    """The dataset is there, but not this split of it."""


def check_range(name: str, labels: Tensor, classes: int) -> None:
    """Require labels from 0 to classes - 1."""
    low, high = labels.aminmax() if labels.numel() else (0, -1)
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise ValueError(f"{name} must be 0 to {classes - 1} for {classes} classes, got {wrong}")


class Dataset(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """N samples: ``len(ds)``, ``ds[i] -> (tensor, int)``, ``ds.labels`` (N,) int64, ``ds.classes`` their names.

    Base of :class:`ArrayDataset` and :class:`LazyDataset`.
    """

    labels: Tensor
    classes: list[str]

    def __init__(self, labels: Any, classes: Sequence[str]) -> None:
        self.labels = torch.as_tensor(labels)
        self.classes = list(classes)
        if self.labels.dim() != 1 or self.labels.is_floating_point() or self.labels.is_complex():
            raise ValueError(f"labels must be (N,) integers, got {tuple(self.labels.shape)} of {self.labels.dtype}")
        self.labels = self.labels.long()
        check_range("labels", self.labels, len(self.classes))

    def __len__(self) -> int:
        return len(self.labels)

    def _check_index(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be -{len(self)} to {len(self) - 1}, got {index}")
        return index % len(self)

    def subset(self, indices: Indices) -> Self:
        """Return the dataset of these rows, in this order, with the same classes."""
        raise NotImplementedError

    def _check_indices(self, indices: Indices) -> Tensor:
        rows = torch.as_tensor(indices)
        if rows.dim() != 1 or (rows.numel() and (rows.is_floating_point() or rows.dtype == torch.bool)):
            raise ValueError(f"indices must be (n,) integers, got {tuple(rows.shape)} of {rows.dtype}")
        rows = rows.long()
        if rows.numel() and not -len(self) <= int(rows.min()) <= int(rows.max()) < len(self):
            raise IndexError(f"indices must be -{len(self)} to {len(self) - 1}")
        return rows


class ArrayDataset(Dataset):
    """A dataset in memory: ``ds.inputs`` (N, ...) holds all samples.

    Example:
        >>> ds = ArrayDataset(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), [0, 1, 1], ["cat", "dog"])
        >>> ds.subset([1, 2]).labels
        tensor([1, 1])
    """

    inputs: Tensor

    def __init__(self, inputs: Tensor, labels: Any, classes: Sequence[str]) -> None:
        super().__init__(labels, classes)
        if not isinstance(inputs, Tensor) or not inputs.dim() or len(inputs) != len(self.labels):
            got = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
            raise ValueError(f"inputs must be a tensor of {len(self.labels)} samples, one per label, got {got}")
        self.inputs = inputs

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        index = self._check_index(index)
        return self.inputs[index], int(self.labels[index])

    def subset(self, indices: Indices) -> Self:
        rows = self._check_indices(indices)
        return type(self)(self.inputs[rows], self.labels[rows], self.classes)

    def __repr__(self) -> str:
        shape, dtype = tuple(self.inputs.shape), str(self.inputs.dtype).removeprefix("torch.")
        return f"{type(self).__name__}({dtype} {shape}, {len(self.classes)} classes)"


class LazyDataset(Dataset):
    """A dataset of files: ``ds[i]`` decodes ``ds.paths[i]`` with ``decode(path) -> tensor``."""

    paths: list[str]
    decode: Callable[[str], Tensor]

    def __init__(
        self, paths: Sequence[str], labels: Any, classes: Sequence[str], decode: Callable[[str], Tensor]
    ) -> None:
        super().__init__(labels, classes)
        if len(paths) != len(self.labels):
            raise ValueError(f"paths must have {len(self.labels)} elements, one per label, got {len(paths)}")
        self.paths = list(paths)
        self.decode = decode

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        index = self._check_index(index)
        return self.decode(self.paths[index]), int(self.labels[index])

    def subset(self, indices: Indices) -> Self:
        rows = self._check_indices(indices)
        return type(self)([self.paths[i] for i in rows.tolist()], self.labels[rows], self.classes, self.decode)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} files, {len(self.classes)} classes)"


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph of N nodes with classes.

    Attributes:
        features: (N, F) float32, as in the files (not normalized).
        adjacency: (N, N) sparse COO float32 of ones, coalesced, symmetric, without loops.
        labels: (N,) int64; −1 if unknown (the isolated nodes of Citeseer).
        train, val, test: (N,) bool, the nodes of each split.
        classes: names of the classes.
    """

    features: Tensor
    adjacency: Tensor
    labels: Tensor
    train: Tensor
    val: Tensor
    test: Tensor
    classes: list[str]

    def __repr__(self) -> str:
        nodes, features = self.features.shape
        masks = "/".join(str(int(mask.sum())) for mask in (self.train, self.val, self.test))
        edges = self.adjacency._nnz() // 2
        return f"Graph({nodes} nodes, {edges} edges, {features} features, {len(self.classes)} classes, {masks} nodes)"


def check_length(dataset: Any) -> int:
    """Return the number of samples, at least one, of any torch Dataset with len() and dataset[i]."""
    if isinstance(dataset, np.ndarray | Tensor):
        raise TypeError(
            f"dataset must be a torch Dataset of (input, label), got {type(dataset).__name__}; "
            "use hypersphere.data.ArrayDataset(torch.as_tensor(inputs), labels, classes)"
        )
    indexed = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not indexed or isinstance(dataset, torch.utils.data.IterableDataset | Mapping):
        raise TypeError(f"dataset must have len() and dataset[i], got {type(dataset).__name__}")
    n = len(dataset)
    if not n:
        raise ValueError("dataset must have samples, got none")
    return n


def check_labels(dataset: Any) -> None:
    """Require one label per sample, in the range of the classes."""
    labels, n = dataset.labels, check_length(dataset)
    if not isinstance(labels, Tensor) or len(labels) != n:
        got = f"{len(labels)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(f"dataset.labels must be a tensor of {n} labels, one per sample, got {got}")
    classes = getattr(dataset, "classes", None)
    if classes is not None and labels.dim() == 1:
        check_range("dataset.labels", labels, len(classes))


def check_one_label(dataset: Any) -> Tensor:
    """Return the labels, one integer per sample."""
    labels = getattr(dataset, "labels", None)
    if not isinstance(labels, Tensor):
        raise TypeError(
            f"dataset must have .labels, a tensor of one int per sample, got {type(dataset).__name__} without"
        )
    check_labels(dataset)
    if labels.dim() != 1 or labels.is_floating_point():
        raise ValueError(f"dataset.labels must be ints (N,), got {tuple(labels.shape)} {labels.dtype}")
    return labels


def indices_by_class(dataset: Any) -> list[RowIndices]:
    """Return the indices of every class."""
    check_length(dataset)
    labels = check_one_label(dataset)
    if int(labels.min()) < 0:
        raise ValueError(f"dataset.labels must be >= 0, got {int(labels.min())}")
    classes = getattr(dataset, "classes", None)
    count = int(labels.max()) + 1 if classes is None else len(classes)
    ordered = np.argsort(labels.numpy(), kind="stable")
    return np.split(ordered, np.searchsorted(labels.numpy()[ordered], np.arange(1, count)))


def make_subset(dataset: Any, indices: RowIndices) -> AnyDataset:
    """Return these samples of any torch Dataset with labels, in this order."""
    if hasattr(dataset, "subset"):
        chosen: AnyDataset = dataset.subset(torch.from_numpy(indices))
        return chosen
    return LabelledSubset(dataset, indices)


class LabelledSubset(torch.utils.data.Subset[Any]):
    """A subset, with labels and classes, of a dataset that has no ``.subset``."""

    def __init__(self, dataset: Any, indices: RowIndices) -> None:
        super().__init__(dataset, indices.tolist())
        self.labels: Tensor = dataset.labels[torch.from_numpy(indices)]
        if hasattr(dataset, "classes"):
            self.classes = dataset.classes
