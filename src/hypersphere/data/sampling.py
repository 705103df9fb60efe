"""Batches, splits and episodes of a dataset: pure functions of a seed, an epoch and the indices of the samples.

A dataset is any torch Dataset with ``len()``, ``ds[i] -> (tensor, int)`` and ``.labels``. Optional are ``.classes``
(labels must be valid indices), ``.inputs`` (all samples as one tensor, for whole batches at once) and
``.subset(indices)``. Random numbers come from :mod:`hypersphere.data._random`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from .._internal import checks
from . import _random
from ._dataset import check_range
from ._random import Indices, SampleGenerator
from .augment import Augmentation, AugmentationLike, resolve

IMBALANCES = ("single", "multiple", "mnist0")
MNIST0_KEPT = 100


def batches(
    dataset: Dataset[Any],
    batch_size: int,
    *,
    seed: int = 0,
    epoch: int = 0,
    start: int = 0,
    augment: AugmentationLike = None,
    shuffle: bool = True,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch of (inputs, labels), bit-identical for the same arguments, any `workers` and any `start`.

    The position of a sample in the epoch and its augmentation depend only on (seed, epoch, its index), not on the
    batch. The last batch may be smaller, but if `batch_size` is above 2 it has two samples at least.

    Args:
        dataset: a torch Dataset (:func:`hypersphere.data.load`); with ``.inputs`` whole batches are read at once,
            otherwise sample by sample.
        batch_size: samples in a batch, on each rank.
        seed, epoch: of order and augmentation.
        start: the first batch; the number of batches yields none, more is an error.
        augment: a name of :data:`~hypersphere.data.augment.AUGMENTATIONS`, or a callable(inputs (B, ...), generator)
            whose random numbers come from `generator`, a :class:`~hypersphere.data._random.SampleGenerator` with a row
            for each sample. Without ``.inputs`` it gets samples one by one, B = 1, since their sizes may differ. None:
            uint8 images become float32 (x−127.5)/128, as in all named ones, so a network trained with any ``cifar…``
            can be tested with None; other inputs are not changed.
        shuffle: False: in the order of the dataset.
        rank, world_size: this process gets its part of every batch of world_size·batch_size: one process with that
            batch size sees the same samples at the same step. All ranks have equally many batches; if there are fewer
            samples than ranks for the last one, it takes some from the batch before.
        workers: processes that prepare batches; useful if samples are decoded (image folders).

    Batches are in pinned memory if there is a CUDA device.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.arange(10.0), torch.arange(10) % 2)
        >>> [labels.tolist() for _, labels in batches(data, 4, shuffle=False)]
        [[0, 1, 0, 1], [0, 1, 0, 1], [0, 1]]
        >>> whole, rest = list(batches(data, 4, seed=1)), list(batches(data, 4, seed=1, start=2))
        >>> len(whole), torch.equal(whole[2][0], rest[0][0])
        (3, True)
    """
    count = num_batches(dataset, batch_size, world_size)
    seed, epoch = checks.integer("seed", seed, low=0), checks.integer("epoch", epoch, low=0)
    if checks.integer("start", start, low=0) > count:
        raise ValueError(f"start must be <= {count}, the number of batches, got {start}")
    if checks.integer("rank", rank, low=0) >= world_size:
        raise ValueError(f"rank must be < world_size = {world_size}, got {rank}")
    workers = checks.integer("workers", workers, low=0)
    augmentation = resolve(augment)
    if hasattr(dataset, "labels"):
        _check_labels(dataset)
    everything = np.arange(_check_length(dataset))
    order = _random.shuffle(seed, epoch, "order", everything) if shuffle else everything
    # With its own generator the loader does not draw from torch's global one.
    loader: DataLoader[Any] = DataLoader(
        _Batches(dataset, order, batch_size, rank, world_size, augmentation, seed, epoch),
        batch_size=None,
        sampler=range(start, count),
        num_workers=workers,
        worker_init_fn=_ignore_signals if workers else None,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator().manual_seed(0),
    )
    if not workers:
        return iter(loader)
    # A worker inherits the mask, so no signal can kill it before it has set its handlers.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _ignore_signals(worker: int) -> None:
    """Ignore SIGINT and the first SIGTERM, which reach all processes: the death of a worker would be an error.

    The second SIGTERM comes from the parent, to end its workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def num_batches(dataset: Dataset[Any], batch_size: int, world_size: int = 1) -> int:
    """Return the number of batches per epoch of :func:`batches` on every rank."""
    n = _check_length(dataset)
    batch_size = checks.integer("batch_size", batch_size, low=1)
    world_size = checks.integer("world_size", world_size, low=1)
    count = -(-n // (batch_size * world_size))
    if n < count * world_size:
        raise ValueError(
            f"world_size must leave a sample for each rank in every batch, got {world_size} ranks for {n} samples "
            f"in batches of {batch_size}"
        )
    return count


def bounds(samples: int, batch_size: int, world_size: int, i: int) -> tuple[int, int]:
    """Return where batch i of all ranks, `batch_size` samples in total, begins and ends in the order of an epoch."""
    last = (samples - 1) // batch_size
    # A last batch with fewer samples than ranks, or with one only, which BatchNorm cannot train on, takes some from the
    # one before.
    least = max(world_size, min(2, batch_size - 1, samples))
    last_begin = min(last * batch_size, samples - least)
    begin = last_begin if i == last else i * batch_size
    return begin, samples if i == last else min(begin + batch_size, last_begin)


def imbalance(dataset: Dataset[Any], kind: str, seed: int = 0) -> Dataset[Any]:
    """Remove random samples of some classes, as in the class-imbalance experiments of MHE.

    Args:
        dataset: with labels.
        kind: "single": the first tenth of the classes (at least one) keeps a tenth of its samples (CIFAR-10: class 0
            keeps 500; CIFAR-100: classes 0 to 9 keep 50); "multiple": class c of C keeps (c+1)/C (CIFAR-10:
            500·(c+1); CIFAR-100: 5·(c+1)); "mnist0": class 0 keeps 100 samples.
        seed: of the choice. The order is kept.

    Paper: 003, Sec. 5.1.3, Appendices A and H.1.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.zeros(100, 2), torch.arange(100) % 2)
        >>> data.labels, data.classes = data.tensors[1], ["even", "odd"]
        >>> imbalance(data, "multiple").labels.bincount()
        tensor([25, 50])
    """
    checks.choice("kind", kind, IMBALANCES)
    by_class = _indices_by_class(dataset)
    classes = len(by_class)
    kept = [len(indices) for indices in by_class]
    if kind == "single":
        for c in range(max(1, classes // 10)):
            kept[c] = -(-kept[c] // 10)
    elif kind == "multiple":
        kept = [-(-count * (c + 1) // classes) for c, count in enumerate(kept)]
    else:
        if kept[0] < MNIST0_KEPT:
            raise ValueError(f"dataset must have {MNIST0_KEPT} samples of class 0 for 'mnist0', got {kept[0]}")
        kept[0] = MNIST0_KEPT
    seed = checks.integer("seed", seed, low=0)
    chosen = [_random.shuffle(seed, 0, "imbalance", indices)[:n] for indices, n in zip(by_class, kept, strict=True)]
    return _make_subset(dataset, np.sort(np.concatenate(chosen)))


def holdout(dataset: Dataset[Any], size: int | float, seed: int = 0) -> tuple[Dataset[Any], Dataset[Any]]:
    """Split into (train, validation): `size` random samples are held out, in proportion to the classes.

    Args:
        dataset: with labels.
        size: number of validation samples; a float is a fraction of the dataset.
        seed: of the choice. Both parts keep the order.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.zeros(100, 2), torch.arange(100) % 4)
        >>> data.labels, data.classes = data.tensors[1], list("abcd")
        >>> [part.labels.bincount().tolist() for part in holdout(data, 20)]
        [[20, 20, 20, 20], [5, 5, 5, 5]]
    """
    by_class = _indices_by_class(dataset)
    n = sum(map(len, by_class))
    if isinstance(size, float):
        size = round(checks.number("size", size, low=0, high=1) * n)
    if not 1 <= checks.integer("size", size) < n:
        raise ValueError(f"size must be 1 to {n - 1} of {n} samples, got {size}")
    exact = [size * len(indices) / n for indices in by_class]
    quota = [int(share) for share in exact]
    # the rest goes to the largest remainders
    for c in sorted(range(len(exact)), key=lambda c: quota[c] - exact[c])[: size - sum(quota)]:
        quota[c] += 1
    seed = checks.integer("seed", seed, low=0)
    held = [_random.shuffle(seed, 0, "holdout", indices)[:k] for indices, k in zip(by_class, quota, strict=True)]
    return _split(dataset, np.concatenate(held))


def fold(dataset: Dataset[Any], number: int, folds: int, seed: int = 0) -> tuple[Dataset[Any], Dataset[Any]]:
    """Split into (train, validation) for cross-validation: part `number` of `folds` equal parts is held out.

    Each sample is in exactly one part. The parts differ by one sample at most, in total and in each class.

    Args:
        dataset: with labels.
        number: from 1 to `folds`.
        seed: of the choice. Both parts keep the order.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.zeros(100, 2), torch.arange(100) % 4)
        >>> data.labels, data.classes = data.tensors[1], list("abcd")
        >>> [part.labels.bincount().tolist() for part in fold(data, 1, 5)]
        [[20, 20, 20, 20], [5, 5, 5, 5]]
    """
    by_class = _indices_by_class(dataset)
    n = sum(map(len, by_class))
    if not 2 <= checks.integer("folds", folds) <= n:
        raise ValueError(f"folds must be 2 to {n}, the number of samples, got {folds}")
    if not 1 <= checks.integer("number", number) <= folds:
        raise ValueError(f"number must be 1 to {folds}, the number of folds, got {number}")
    seed = checks.integer("seed", seed, low=0)
    order = np.concatenate([_random.shuffle(seed, 0, "fold", indices) for indices in by_class])
    return _split(dataset, order[number - 1 :: folds])


def _split(dataset: Dataset[Any], held: Indices) -> tuple[Dataset[Any], Dataset[Any]]:
    """Return the dataset without the samples `held`, and these; both keep the order."""
    inside = np.zeros(_check_length(dataset), dtype=bool)
    inside[held] = True
    return _make_subset(dataset, np.flatnonzero(~inside)), _make_subset(dataset, np.flatnonzero(inside))


def episode(
    dataset: Dataset[Any],
    index: int,
    *,
    ways: int = 5,
    shots: int = 5,
    queries: int = 15,
    seed: int = 0,
    augment: AugmentationLike = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw few-shot episode number `index`: (support, support_labels, query, query_labels).

    Draws `ways` classes that have samples and, from each, `shots` samples for training and `queries` others for
    testing. Labels are 0 to ways−1; samples are ordered by class.

    Args:
        dataset: with labels.
        index: of the episode; classes and samples depend only on (seed, index).
        augment: as in :func:`batches`.

    Paper: 002, Appendix D (5-way, 5-shot).

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.randn(200, 2), torch.arange(200) % 10)
        >>> data.labels, data.classes = data.tensors[1], list("abcdefghij")
        >>> support, support_labels, query, query_labels = episode(data, 0, shots=1)
        >>> support.shape, support_labels.tolist(), query.shape
        (torch.Size([5, 2]), [0, 1, 2, 3, 4], torch.Size([75, 2]))
    """
    augmentation = resolve(augment)
    drawn = episode_indices(dataset, index, ways=ways, shots=shots, queries=queries, seed=seed).numpy()
    parts: list[Tensor] = []
    for part in (drawn[:, :shots], drawn[:, shots:]):
        inputs, _ = _fetch(dataset, part.reshape(-1), augmentation, seed, index)
        parts += [inputs, torch.arange(ways).repeat_interleave(part.shape[1])]
    support, support_labels, query, query_labels = parts
    return support, support_labels, query, query_labels


def episode_indices(
    dataset: Dataset[Any], index: int, *, ways: int = 5, shots: int = 5, queries: int = 15, seed: int = 0
) -> Tensor:
    """Return which samples :func:`episode` draws, (ways, shots + queries) int64, the support first.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.randn(200, 2), torch.arange(200) % 10)
        >>> data.labels, data.classes = data.tensors[1], list("abcdefghij")
        >>> drawn = episode_indices(data, 0, shots=1)
        >>> drawn.shape, torch.equal(data.tensors[0][drawn[:, 0]], episode(data, 0, shots=1)[0])
        (torch.Size([5, 16]), True)
    """
    index, seed = checks.integer("index", index, low=0), checks.integer("seed", seed, low=0)
    ways, shots = checks.integer("ways", ways, low=1), checks.integer("shots", shots, low=1)
    queries = checks.integer("queries", queries, low=0)
    by_class = _indices_by_class(dataset)
    nonempty = [c for c, indices in enumerate(by_class) if len(indices)]
    if ways > len(nonempty):
        raise ValueError(f"ways must be <= {len(nonempty)}, the number of classes with samples, got {ways}")
    for c in nonempty:
        if len(by_class[c]) < shots + queries:
            raise ValueError(
                f"shots + queries must be <= the samples of every class, got {shots} + {queries}, "
                f"but class {c} has {len(by_class[c])}"
            )
    classes = _random.shuffle(seed, index, "episode classes", nonempty)[:ways]
    drawn = [_random.shuffle(seed, index, "episode", by_class[c])[: shots + queries] for c in classes]
    return torch.from_numpy(np.stack(drawn))


@dataclass(frozen=True, eq=False)
class _Batches(Dataset[tuple[Tensor, Tensor]]):
    """Item i is batch i of a rank."""

    dataset: Dataset[Any]
    order: Indices
    batch_size: int
    rank: int
    world_size: int
    augmentation: Augmentation
    seed: int
    epoch: int

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return _fetch(self.dataset, self.indices(i), self.augmentation, self.seed, self.epoch)

    def indices(self, i: int) -> Indices:
        """Return the indices of batch i: this rank's part of batch i of all ranks, as even as possible."""
        begin, end = bounds(len(self.order), self.batch_size * self.world_size, self.world_size, i)
        each, more = divmod(end - begin, self.world_size)
        low = begin + self.rank * each + min(self.rank, more)
        return self.order[low : low + each + (self.rank < more)]


def _fetch(
    dataset: Dataset[Any], indices: Indices, augmentation: Augmentation, seed: int, epoch: int
) -> tuple[Tensor, Tensor]:
    rows = torch.from_numpy(indices)
    inputs, labels = getattr(dataset, "inputs", None), getattr(dataset, "labels", None)
    if (
        isinstance(inputs, Tensor)
        and isinstance(labels, Tensor)
        and len(inputs) == len(labels) == _check_length(dataset)
    ):
        generator = SampleGenerator(seed, epoch, indices)
        return _augment(inputs.index_select(0, rows), augmentation, generator), labels[rows]
    inputs_of_items: list[Tensor] = []
    labels_of_items: list[Any] = []
    for i in indices.tolist():
        x, y = _get_pair(dataset, i)
        inputs_of_items.append(
            _augment(torch.as_tensor(x).unsqueeze(0), augmentation, SampleGenerator(seed, epoch, [i]))
        )
        labels_of_items.append(y)
        if inputs_of_items[-1].shape != inputs_of_items[0].shape:
            first, this = (tuple(x.shape[1:]) for x in (inputs_of_items[0], inputs_of_items[-1]))
            images = len(first) == len(this) == 3 and first[0] == this[0]
            hint = "resize images with data.size in a config or augment='imagenet' in batches: "
            raise ValueError(
                f"{hint if images else ''}samples of a batch must have one shape, got {first} and {this} (sample {i})"
            )
    return torch.cat(inputs_of_items), torch.stack([torch.as_tensor(y) for y in labels_of_items])


def _get_pair(dataset: Dataset[Any], i: int) -> tuple[Any, Any]:
    item = dataset[i]
    if not isinstance(item, tuple | list) or len(item) != 2:
        got = f"a {type(item).__name__} of {len(item)}" if isinstance(item, tuple | list) else type(item).__name__
        raise TypeError(f"dataset[{i}] must be a pair (input, label), got {got}")
    return item[0], item[1]


def _augment(inputs: Tensor, augmentation: Augmentation, generator: SampleGenerator) -> Tensor:
    out = augmentation(inputs, generator)
    if not isinstance(out, Tensor) or len(out) != len(inputs):
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(f"augment must return a tensor of {len(inputs)} samples, got {got}")
    return out.contiguous()


def _check_length(dataset: Any) -> int:
    if isinstance(dataset, np.ndarray | Tensor):
        raise TypeError(
            f"dataset must be a torch Dataset of (input, label), got {type(dataset).__name__}; "
            "use hypersphere.data.ArrayDataset(torch.as_tensor(inputs), labels, classes)"
        )
    if (
        not hasattr(dataset, "__len__")
        or not hasattr(dataset, "__getitem__")
        or isinstance(dataset, IterableDataset | Mapping)
    ):
        raise TypeError(f"dataset must have len() and dataset[i], got {type(dataset).__name__}")
    n = len(dataset)
    if not n:
        raise ValueError("dataset must have samples, got none")
    return n


def _check_labels(dataset: Any) -> None:
    """Require one label per sample, in the range of the classes."""
    labels, n = dataset.labels, _check_length(dataset)
    if not isinstance(labels, Tensor) or len(labels) != n:
        got = f"{len(labels)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(f"dataset.labels must be a tensor of {n} labels, one per sample, got {got}")
    classes = getattr(dataset, "classes", None)
    if classes is not None and labels.dim() == 1:
        check_range("dataset.labels", labels, len(classes))


def _indices_by_class(dataset: Any) -> list[Indices]:
    """Return the indices of every class."""
    _check_length(dataset)
    if not isinstance(getattr(dataset, "labels", None), Tensor):
        raise TypeError(
            f"dataset must have .labels, a tensor of one int per sample, got {type(dataset).__name__} without"
        )
    _check_labels(dataset)
    labels: Tensor = dataset.labels
    if labels.dim() != 1 or labels.is_floating_point():
        raise ValueError(f"dataset.labels must be ints (N,), got {tuple(labels.shape)} {labels.dtype}")
    if int(labels.min()) < 0:
        raise ValueError(f"dataset.labels must be >= 0, got {int(labels.min())}")
    classes = getattr(dataset, "classes", None)
    count = int(labels.max()) + 1 if classes is None else len(classes)
    ordered = np.argsort(labels.numpy(), kind="stable")
    return np.split(ordered, np.searchsorted(labels.numpy()[ordered], np.arange(1, count)))


def _make_subset(dataset: Any, indices: Indices) -> Dataset[Any]:
    if hasattr(dataset, "subset"):
        chosen: Dataset[Any] = dataset.subset(torch.from_numpy(indices))
        return chosen
    return LabelledSubset(dataset, indices)


class LabelledSubset(Subset[Any]):
    """A subset, with labels and classes, of a dataset that has no ``.subset``."""

    def __init__(self, dataset: Any, indices: Indices) -> None:
        super().__init__(dataset, indices.tolist())
        self.labels: Tensor = dataset.labels[torch.from_numpy(indices)]
        if hasattr(dataset, "classes"):
            self.classes = dataset.classes
