"""Few-shot episodes of a dataset: pure functions of a seed and the number of the episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .._internal import checks
from . import _random
from ._dataset import indices_by_class
from .augment import AugmentationLike, resolve
from .batching import fetch


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
    support, query = drawn[:, :shots], drawn[:, shots:]
    labels = [torch.arange(ways).repeat_interleave(indices.shape[1]) for indices in (support, query)]
    inputs = [fetch(dataset, indices.reshape(-1), augmentation, seed, index)[0] for indices in (support, query)]
    return inputs[0], labels[0], inputs[1], labels[1]


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
    by_class = indices_by_class(dataset)
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
