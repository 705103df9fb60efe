"""Batches of a dataset, in the order and with the augmentation that a seed and an epoch decide.

A dataset is any torch Dataset with ``len()``, ``ds[i] -> (tensor, int)`` and ``.labels``. Optional are ``.classes``
(labels must be valid indices), ``.inputs`` (all samples as one tensor, for whole batches at once) and
``.subset(indices)``. Random numbers come from :mod:`hypersphere.data._random`.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .._internal import checks
from . import _random
from ._dataset import check_labels, check_length, check_one_label
from ._random import Indices, SampleGenerator
from .augment import Augmentation, AugmentationLike, resolve
from .class_balanced import BalancedOrder, ClassGroups, check_rank, check_start, classes_per_batch


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
    images_per_class: int | None = None,
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
        images_per_class: make every batch of batch_size / images_per_class classes with that many samples each, as
            :class:`~hypersphere.data.ClassBalancedSampler` does. A sample that comes again in an epoch is augmented
            anew. An epoch is as long as before, rounded down to whole batches.

    Batches are in pinned memory if there is a CUDA device.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.arange(10.0), torch.arange(10) % 2)
        >>> [labels.tolist() for _, labels in batches(data, 4, shuffle=False)]
        [[0, 1, 0, 1], [0, 1, 0, 1], [0, 1]]
        >>> whole, rest = list(batches(data, 4, seed=1)), list(batches(data, 4, seed=1, start=2))
        >>> len(whole), torch.equal(whole[2][0], rest[0][0])
        (3, True)
    """
    count = num_batches(dataset, batch_size, world_size, images_per_class)
    seed, epoch = checks.integer("seed", seed, low=0), checks.integer("epoch", epoch, low=0)
    start, rank = check_start(start, count), check_rank(rank, world_size)
    workers = checks.integer("workers", workers, low=0)
    augmentation = resolve(augment)
    if hasattr(dataset, "labels"):
        check_labels(dataset)
    everything = np.arange(check_length(dataset))
    order: Indices | BalancedOrder
    if images_per_class is not None:
        if not shuffle:
            raise ValueError("images_per_class shuffles: shuffle must be True")
        classes = classes_per_batch(batch_size, images_per_class) * world_size
        order = BalancedOrder(ClassGroups(check_one_label(dataset), classes, images_per_class), seed, epoch)
    else:
        order = _random.shuffle(seed, epoch, "order", everything) if shuffle else everything
    batches_of_rank = _Batches(dataset, order, batch_size, rank, world_size, augmentation, seed, epoch)
    # With its own generator the loader does not draw from torch's global one.
    loader: DataLoader[Any] = DataLoader(
        _InWorker(batches_of_rank) if workers else batches_of_rank,
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
        return _from_workers(iter(loader))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _ignore_signals(worker: int) -> None:
    """Ignore SIGINT and the first SIGTERM, which reach all processes: the death of a worker would be an error.

    A SIGTERM from the parent, which sends one at its exit, ends the worker.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    can_wait = hasattr(signal, "sigwaitinfo")  # not on macOS: torch's handler ends the worker, whoever sent it
    if can_wait:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        threading.Thread(target=_wait_for_the_end, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT] if can_wait else _SIGNALS)


def _wait_for_the_end() -> None:
    for _ in range(2):
        if signal.sigwaitinfo((signal.SIGTERM,)).si_pid == os.getppid():
            break
    os._exit(0)


class _WorkerTraceback(Exception):
    """Where an error was raised in a worker, as its cause."""


@dataclass(frozen=True, eq=False)
class _Failure:
    """A user error of a worker, returned in place of a batch: torch would put its traceback into the message."""

    kind: type[OSError] | type[ValueError]
    message: str
    traceback: str


@dataclass(frozen=True, eq=False)
class _InWorker(Dataset[Any]):
    """The same batches, with :class:`_Failure` for the errors that users see in one line."""

    batches: _Batches

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor] | _Failure:
        try:
            return self.batches[i]
        except (OSError, ValueError) as error:
            return _Failure(OSError if isinstance(error, OSError) else ValueError, str(error), traceback.format_exc())


def _from_workers(loaded: Iterator[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in loaded:
        if isinstance(batch, _Failure):
            del loaded  # ends the workers, which a traceback would keep
            raise batch.kind(batch.message) from _WorkerTraceback(f"\n{batch.traceback}")
        yield batch


def num_batches(
    dataset: Dataset[Any], batch_size: int, world_size: int = 1, images_per_class: int | None = None
) -> int:
    """Return the number of batches per epoch of :func:`batches` on every rank."""
    n = check_length(dataset)
    batch_size = checks.integer("batch_size", batch_size, low=1)
    world_size = checks.integer("world_size", world_size, low=1)
    if images_per_class is not None:
        return max(1, n // (batch_size * world_size))
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


@dataclass(frozen=True, eq=False)
class _Batches(Dataset[tuple[Tensor, Tensor]]):
    """Item i is batch i of a rank."""

    dataset: Dataset[Any]
    order: Indices | BalancedOrder
    batch_size: int
    rank: int
    world_size: int
    augmentation: Augmentation
    seed: int
    epoch: int

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        if isinstance(self.order, BalancedOrder):
            indices, before = self.order.batch(i, self.rank, self.world_size)
            draws = indices + before * len(self.order.order)
            return fetch(self.dataset, indices, self.augmentation, self.seed, self.epoch, draws)
        return fetch(self.dataset, self.indices(i, self.order), self.augmentation, self.seed, self.epoch)

    def indices(self, i: int, order: Indices) -> Indices:
        """Return the indices of batch i: this rank's part of batch i of all ranks, as even as possible."""
        begin, end = bounds(len(order), self.batch_size * self.world_size, self.world_size, i)
        share, rest = divmod(end - begin, self.world_size)
        low = begin + self.rank * share + min(self.rank, rest)
        return order[low : low + share + (self.rank < rest)]


def fetch(
    dataset: Dataset[Any],
    indices: Indices,
    augmentation: Augmentation,
    seed: int,
    epoch: int,
    draws: Indices | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the augmented inputs and the labels of these samples; `draws` decide the augmentation (the indices)."""
    draws = indices if draws is None else draws
    rows, n = torch.from_numpy(indices), check_length(dataset)
    inputs, labels = getattr(dataset, "inputs", None), getattr(dataset, "labels", None)
    if isinstance(inputs, Tensor) and isinstance(labels, Tensor) and len(inputs) == len(labels) == n:
        generator = SampleGenerator(seed, epoch, draws)
        return _augment(inputs.index_select(0, rows), augmentation, generator), labels[rows]
    samples: list[Tensor] = []
    targets: list[Tensor] = []
    for i, draw in zip(indices.tolist(), draws.tolist(), strict=True):
        x, y = _get_pair(dataset, i)
        sample = _augment(torch.as_tensor(x).unsqueeze(0), augmentation, SampleGenerator(seed, epoch, [draw]))
        samples.append(sample)
        targets.append(torch.as_tensor(y))
        if sample.shape != samples[0].shape:
            first, this = tuple(samples[0].shape[1:]), tuple(sample.shape[1:])
            images = len(first) == len(this) == 3 and first[0] == this[0]
            hint = "resize images with data.size in a config or augment='imagenet' in batches: " if images else ""
            raise ValueError(f"{hint}samples of a batch must have one shape, got {first} and {this} (sample {i})")
    return torch.cat(samples), torch.stack(targets)


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
