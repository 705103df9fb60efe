"""Datasets by name. Each module of the package registers its own."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._internal.nearest import check_options, nearest_few, unknown_name
from ._pairs import Pairs

Loader = Callable[..., Any]
PairsReader = Callable[[Path | None, str], Pairs]
Root = str | os.PathLike[str] | None


@dataclass(frozen=True)
class RegisteredDataset:
    """A dataset of :data:`DATASETS`; see :func:`register`."""

    loader: Loader
    kind: str | None = None
    folders: tuple[str, ...] = ()
    pairs: PairsReader | None = None


DATASETS: dict[str, RegisteredDataset] = {}


def register(
    name: str,
    loader: Loader,
    *,
    kind: str | None = None,
    folders: tuple[str, ...] = (),
    pairs: PairsReader | None = None,
) -> None:
    """Register a dataset under a name, for :func:`load`.

    Args:
        loader: ``loader(root, split, **options)`` returns a torch Dataset with ``labels`` and ``classes`` (such as
            :class:`ArrayDataset`); root is a Path or None.
        kind: images, points, text or graph; a config is then checked for a network that takes it. None: not checked.
        folders: the folders its official files come in, below root.
        pairs: ``pairs(root, split)`` returns the :class:`Pairs` of a split, for a set whose test is verification.

    Example:
        >>> import torch
        >>> from hypersphere.data import ArrayDataset
        >>> def coins(root, split, faces=2):
        ...     return ArrayDataset(torch.rand(6, 3), torch.arange(6) % faces, [str(i) for i in range(faces)])
        >>> register("coins", coins)
        >>> load("coins", faces=3)
        ArrayDataset(float32 (6, 3), 3 classes)
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be a str, got {name!r}")
    if not callable(loader):
        raise TypeError(f"loader must be a function loader(root, split, **options), got {loader!r}")
    DATASETS[name] = RegisteredDataset(loader, kind, folders, pairs)


def names() -> list[str]:
    """Return all names for :func:`load`."""
    return sorted(DATASETS)


def load(name: str, root: Root = None, split: str = "train", **options: Any) -> Any:
    """Load a dataset from its official files. Nothing is downloaded.

    Args:
        name: one of :func:`names`.
        root: the folder that holds the official folders (MNIST/raw, cifar-10-batches-bin, planetoid, ...), or one of
            these itself; None: the environment variable HYPERSPHERE_DATA. ``digits`` needs none.
        split: train | test; also val for cifar_fs, fc100, mini_imagenet and image_folder, all for orl and lfw.
        options: labels="fine" | "coarse" for cifar100; classes=10 | 40 and points for modelnet; context and stride for
            text.

    Returns:
        A torch Dataset with len(), ds[i] -> (tensor, int), ``.labels`` (N,) int64 and ``.classes``. Sets in memory
        have ``.inputs``: uint8 images (N, C, H, W), float32 points (N, P, 3), int64 text. A :class:`Graph` for cora,
        citeseer and pubmed, with a mask for each split.

    Example:
        >>> ds = load("digits")
        >>> ds
        ArrayDataset(uint8 (1280, 1, 8, 8), 10 classes)
        >>> image, label = ds[4]
        >>> ds.classes[label]
        '4'
    """
    if not isinstance(name, str) or name not in DATASETS:
        near = nearest_few(name, DATASETS) if isinstance(name, str) else []
        raise ValueError(unknown_name("dataset", name, near, f"must be one of {', '.join(names())}"))
    loader = DATASETS[name].loader
    check_options(name, options, list(inspect.signature(loader).parameters.values())[2:])
    return loader(_resolve_root(root), split, **options)


def load_pairs(name: str, root: Root = None, split: str = "test") -> Pairs:
    """Load the dataset's own list of pairs for verification, such as LFW's pairsDevTest.txt.

    Args:
        name: of a dataset that has one; lfw.
        root, split: as in :func:`load`.
    """
    reader = DATASETS[name].pairs if has_pairs(name) else None
    if reader is None:
        raise ValueError(f"{name} has no list of pairs; these have one: {', '.join(filter(has_pairs, names()))}")
    return reader(_resolve_root(root), split)


def has_pairs(name: str) -> bool:
    """Return whether the dataset has a list of pairs of its own, for :func:`load_pairs`."""
    return name in DATASETS and DATASETS[name].pairs is not None


def _resolve_root(root: Root) -> Path | None:
    """Return `root`, else HYPERSPHERE_DATA, else None."""
    if root is not None and not isinstance(root, str | os.PathLike):
        raise TypeError(f"root must be a path, got {root!r}")
    folder = os.environ.get("HYPERSPHERE_DATA") if root is None else root
    return Path(folder).expanduser() if folder else None
