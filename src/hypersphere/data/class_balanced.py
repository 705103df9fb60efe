"""Batches of P classes with K images each: the order of an epoch, and a sampler for any torch DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Sampler

from .._internal import checks
from .._internal.draws import stable_hash
from . import _random
from ._random import Indices


class ClassGroups:
    """Samples by class: what does not change from epoch to epoch. Labels may be any integers (N,), also of 10⁷ samples.

    Args:
        classes, images: of a batch of all processes.
    """

    def __init__(self, labels: Any, classes: int, images: int) -> None:
        if isinstance(labels, Tensor):
            labels = labels.cpu().numpy()
        labels = np.asarray(labels)
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or not len(labels):
            raise ValueError(f"labels must be integers (N,), one per sample, got {labels.shape} of {labels.dtype}")
        _, numbers, self.sizes = np.unique(labels, return_inverse=True, return_counts=True)
        if classes > len(self.sizes):
            raise ValueError(
                f"batch_size / images_per_class over all processes must be <= {len(self.sizes)}, the number of "
                f"classes, got {classes}"
            )
        self.numbers = numbers.astype(np.int32)
        self.begins = np.cumsum(self.sizes) - self.sizes
        self.classes, self.images = classes, images

    def __len__(self) -> int:
        """Return the batches of an epoch: as many samples as there are, at least one batch."""
        return max(1, len(self.numbers) // (self.classes * self.images))


class BalancedOrder:
    """One epoch: classes are dealt in rounds, a class takes the next of its images each time.

    A round shuffles all classes and deals them in batches; the rest, fewer than a batch, sit it out. In round r a class
    of n images takes those at r·K, …, r·K + K − 1 (mod n) of its own shuffled order.
    """

    def __init__(self, groups: ClassGroups, seed: int, epoch: int) -> None:
        self.groups, self.seed, self.epoch = groups, seed, epoch
        shift = np.uint64(64 - max(1, (len(groups.sizes) - 1).bit_length()))
        words = _random.random_bits(stable_hash(seed, epoch, "images of classes"), np.arange(len(groups.numbers)))
        words >>= np.uint64(64) - shift
        words |= groups.numbers.astype(np.uint64) << shift
        self.order: Indices = np.argsort(words, kind="stable")  # by class, in each by its random bits
        self.round, self.classes = -1, np.empty(0, np.int64)

    def batch(self, i: int, rank: int = 0, world_size: int = 1) -> tuple[Indices, Indices]:
        """Return the samples of batch i of a process, class by class, and how often each was taken before."""
        groups = self.groups
        number, place = divmod(i, len(groups.sizes) // groups.classes)
        if number != self.round:
            everything = np.arange(len(groups.sizes))
            self.round, self.classes = number, _random.shuffle(self.seed, self.epoch, f"round {number}", everything)
        own = groups.classes // world_size
        begin = place * groups.classes + rank * own
        chosen = self.classes[begin : begin + own, None]
        places, sizes = number * groups.images + np.arange(groups.images), groups.sizes[chosen]
        return self.order[groups.begins[chosen] + places % sizes].ravel(), (places // sizes).ravel()


class ClassBalancedSampler(Sampler[list[int]]):
    """Yield batches of `batch_size` / `images_per_class` classes with `images_per_class` images each.

    For triplet and contrastive losses, and for long-tailed sets: all classes are seen equally often. Pass it as
    ``DataLoader(dataset, batch_sampler=...)``. The batches are a pure function of labels, sizes, seed and epoch.

    - An epoch has as many samples as the dataset (rounded down to whole batches).
    - Of a class with fewer images than `images_per_class` all are in the batch, then again from its first one.
    - With several processes each has its own classes in a batch, and as many batches as the others; one process with
      batches of world_size·batch_size sees the same samples.

    Args:
        labels: (N,) integers, of the samples in the order of the dataset: a tensor, an array or a list.
        batch_size: on each process; a multiple of `images_per_class`.
        images_per_class: samples of a class in a batch.
        seed: of all epochs.
        rank, world_size: None: of torch.distributed if it is initialized, else 0 and 1.

    Example:
        >>> labels = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3])
        >>> sampler = ClassBalancedSampler(labels, batch_size=4, images_per_class=2)
        >>> [labels[batch].tolist() for batch in sampler]
        [[3, 3, 2, 2], [0, 0, 1, 1]]
        >>> sampler.set_epoch(1)  # before each epoch, as of torch's DistributedSampler
        >>> first, second = sampler
        >>> sampler.set_epoch(1, start=1)  # go on after one batch
        >>> list(sampler) == [second]
        True
    """

    def __init__(
        self,
        labels: Any,
        batch_size: int,
        images_per_class: int,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        is_distributed = dist.is_available() and dist.is_initialized()
        world_size = (dist.get_world_size() if is_distributed else 1) if world_size is None else world_size
        rank = (dist.get_rank() if is_distributed else 0) if rank is None else rank
        self.seed = checks.integer("seed", seed, low=0)
        self.world_size = checks.integer("world_size", world_size, low=1)
        self.rank = check_rank(rank, self.world_size)
        classes = classes_per_batch(batch_size, images_per_class)
        self.groups = ClassGroups(labels, classes * self.world_size, images_per_class)
        self.epoch, self.start = 0, 0

    def __len__(self) -> int:
        """Return the batches of a whole epoch."""
        return len(self.groups)

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the epoch, and its batch to begin with, of the next iteration."""
        self.epoch = checks.integer("epoch", epoch, low=0)
        self.start = check_start(start, len(self))

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the next batch; what workers of a DataLoader have fetched ahead counts as done."""
        return {"epoch": self.epoch, "start": self.start}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where :meth:`state_dict` was called."""
        self.set_epoch(state["epoch"], state["start"])

    def __iter__(self) -> Iterator[list[int]]:
        order = BalancedOrder(self.groups, self.seed, self.epoch)
        for i in range(self.start, len(self)):
            self.start = i + 1
            yield order.batch(i, self.rank, self.world_size)[0].tolist()
        self.start = 0


def classes_per_batch(batch_size: Any, images_per_class: Any) -> int:
    """Return the classes in a batch of a process."""
    batch_size = checks.integer("batch_size", batch_size, low=1)
    images_per_class = checks.integer("images_per_class", images_per_class, low=1)
    if batch_size % images_per_class:
        raise ValueError(f"batch_size must be a multiple of images_per_class = {images_per_class}, got {batch_size}")
    return batch_size // images_per_class


def check_rank(rank: Any, world_size: int) -> int:
    if checks.integer("rank", rank, low=0) >= world_size:
        raise ValueError(f"rank must be < world_size = {world_size}, got {rank}")
    return int(rank)


def check_start(start: Any, batches: int) -> int:
    if checks.integer("start", start, low=0) > batches:
        raise ValueError(f"start must be <= {batches}, the number of batches, got {start}")
    return int(start)
