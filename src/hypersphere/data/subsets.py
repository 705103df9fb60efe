"""Parts of a dataset: imbalanced classes, held-out samples, folds. All keep the order and depend only on a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import Dataset

from .._internal import checks
from . import _random
from ._dataset import check_length, indices_by_class, make_subset
from ._random import Indices

IMBALANCES = ("single", "multiple", "mnist0")
MNIST0_KEPT = 100


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
        >>> import torch
        >>> data = torch.utils.data.TensorDataset(torch.zeros(100, 2), torch.arange(100) % 2)
        >>> data.labels, data.classes = data.tensors[1], ["even", "odd"]
        >>> imbalance(data, "multiple").labels.bincount()
        tensor([25, 50])
    """
    checks.choice("kind", kind, IMBALANCES)
    by_class = indices_by_class(dataset)
    classes = len(by_class)
    counts = [len(indices) for indices in by_class]
    if kind == "single":
        for c in range(max(1, classes // 10)):
            counts[c] = -(-counts[c] // 10)
    elif kind == "multiple":
        counts = [-(-count * (c + 1) // classes) for c, count in enumerate(counts)]
    else:
        if counts[0] < MNIST0_KEPT:
            raise ValueError(f"dataset must have {MNIST0_KEPT} samples of class 0 for 'mnist0', got {counts[0]}")
        counts[0] = MNIST0_KEPT
    seed = checks.integer("seed", seed, low=0)
    chosen = [_random.shuffle(seed, 0, "imbalance", indices)[:n] for indices, n in zip(by_class, counts, strict=True)]
    return make_subset(dataset, np.sort(np.concatenate(chosen)))


def holdout(dataset: Dataset[Any], size: int | float, seed: int = 0) -> tuple[Dataset[Any], Dataset[Any]]:
    """Split into (train, validation): `size` random samples are held out, in proportion to the classes.

    Args:
        dataset: with labels.
        size: number of validation samples; a float is a fraction of the dataset.
        seed: of the choice. Both parts keep the order.

    Example:
        >>> import torch
        >>> data = torch.utils.data.TensorDataset(torch.zeros(100, 2), torch.arange(100) % 4)
        >>> data.labels, data.classes = data.tensors[1], list("abcd")
        >>> [part.labels.bincount().tolist() for part in holdout(data, 20)]
        [[20, 20, 20, 20], [5, 5, 5, 5]]
    """
    by_class = indices_by_class(dataset)
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
        >>> import torch
        >>> data = torch.utils.data.TensorDataset(torch.zeros(100, 2), torch.arange(100) % 4)
        >>> data.labels, data.classes = data.tensors[1], list("abcd")
        >>> [part.labels.bincount().tolist() for part in fold(data, 1, 5)]
        [[20, 20, 20, 20], [5, 5, 5, 5]]
    """
    by_class = indices_by_class(dataset)
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
    inside = np.zeros(check_length(dataset), dtype=bool)
    inside[held] = True
    return make_subset(dataset, np.flatnonzero(~inside)), make_subset(dataset, np.flatnonzero(inside))
