"""CIFAR-10 and CIFAR-100, binary and Python versions, and the few-shot sets made of CIFAR-100: CIFAR-FS and FC100."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .._internal import checks
from . import _files, _pickles
from ._dataset import ArrayDataset
from ._registry import register

PIXELS = 3 * 32 * 32
ORIGIN = "https://www.cs.toronto.edu/~kriz/cifar.html"

CIFAR10_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
# CIFAR-100 by coarse class; both kinds of labels are numbered in alphabetical order.
TREE = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
COARSE = list(TREE)
FINE = sorted(name for group in TREE.values() for name in group.split())
# CIFAR-FS (Bertinetto et al. 2019): classes of val and test, the other 64 are train.
CIFAR_FS = {
    "val": "beaver otter flatfish shark lamp television beetle butterfly sea camel cattle crab crocodile maple_tree "
    "motorcycle tractor",
    "test": "whale poppy rose sweet_pepper telephone bed table wardrobe leopard plain chimpanzee fox snail worm baby "
    "man woman bicycle pickup_truck rocket",
}
# FC100 (Oreshkin et al. 2018): coarse classes of val and test, the other 12 are train.
FC100 = {
    "val": "large_carnivores large_omnivores_and_herbivores non-insect_invertebrates small_mammals",
    "test": "aquatic_mammals insects medium_mammals people",
}


@dataclass(frozen=True)
class CifarFiles:
    """Names and content of the official files of a dataset."""

    source: _files.Source  # folders: binary, Python
    files: dict[str, tuple[str, ...]]
    images: dict[str, int]  # in each file
    labels: dict[str, tuple[bytes, list[str]]]  # in the order of a binary record: key in a pickle, classes


CIFAR10 = CifarFiles(
    _files.Source(
        "cifar10",
        ("cifar-10-batches-bin", "cifar-10-batches-py"),
        "data_batch_1.bin to data_batch_5.bin and test_batch.bin (or cifar-10-batches-py with the same without .bin)",
        ORIGIN,
    ),
    {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    {"train": 10_000, "test": 10_000},
    {"fine": (b"labels", CIFAR10_CLASSES)},
)
CIFAR100 = CifarFiles(
    _files.Source(
        "cifar100",
        ("cifar-100-binary", "cifar-100-python"),
        "train.bin and test.bin (or cifar-100-python with train and test)",
        ORIGIN,
    ),
    {"train": ("train",), "test": ("test",)},
    {"train": 50_000, "test": 10_000},
    {"coarse": (b"coarse_labels", COARSE), "fine": (b"fine_labels", FINE)},
)


def cifar10(root: Path | None, split: str) -> ArrayDataset:
    """Load images uint8 (N, 3, 32, 32); split: train (50,000) | test (10,000)."""
    checks.choice("split", split, ("train", "test"))
    return _load_split(CIFAR10, root, split, "fine")


def cifar100(root: Path | None, split: str, labels: str = "fine") -> ArrayDataset:
    """Load images uint8 (N, 3, 32, 32); split: train (50,000) | test (10,000); labels: fine (100) | coarse (20)."""
    checks.choice("split", split, ("train", "test"))
    checks.choice("labels", labels, ("fine", "coarse"))
    return _load_split(CIFAR100, root, split, labels)


def cifar_fs(root: Path | None, split: str) -> ArrayDataset:
    """Load CIFAR-FS: all images of 64 (train), 16 (val) or 20 (test) of CIFAR-100's classes, 600 of each."""
    return _load_classes("cifar_fs", root, _classes_of(CIFAR_FS, FINE, split))


def fc100(root: Path | None, split: str) -> ArrayDataset:
    """Load FC100: all images of 12 (train), 4 (val) or 4 (test) of CIFAR-100's coarse classes: 60, 20, 20 fine ones."""
    coarse = _classes_of(FC100, COARSE, split)
    return _load_classes("fc100", root, [name for group in coarse for name in TREE[group].split()])


def _classes_of(held_out: dict[str, str], classes: list[str], split: str) -> list[str]:
    checks.choice("split", split, ("train", "val", "test"))
    if split in held_out:
        return held_out[split].split()
    return [name for name in classes if name not in " ".join(held_out.values()).split()]


def _load_split(layout: CifarFiles, root: Path | None, split: str, kind: str) -> ArrayDataset:
    count, files = layout.images[split], len(layout.files[split])
    images, labels = np.empty((files * count, PIXELS), np.uint8), np.empty(files * count, np.int64)
    for i, (pixels, targets) in enumerate(_read_files(layout, root, split, kind)):
        images[i * count : (i + 1) * count], labels[i * count : (i + 1) * count] = pixels, targets
    return _make_dataset(images, labels, layout.labels[kind][1])


def _load_classes(name: str, root: Path | None, wanted: list[str]) -> ArrayDataset:
    """Load all images of some of CIFAR-100's classes; labels are renumbered in alphabetical order."""
    layout = replace(CIFAR100, source=replace(CIFAR100.source, name=name))
    classes = sorted(wanted)
    number = np.full(len(FINE), -1)
    number[[FINE.index(label) for label in classes]] = range(len(classes))
    images, labels = [], []
    for split in ("train", "test"):
        for pixels, targets in _read_files(layout, root, split, "fine"):
            rows = np.flatnonzero(number[targets] >= 0)
            images.append(pixels[rows])
            labels.append(number[targets[rows]])
    per_class = sum(layout.images.values()) // len(FINE)
    if (np.bincount(np.concatenate(labels), minlength=len(classes)) != per_class).any():
        raise ValueError(f"{name}: the files below {root} must have {per_class} images of every class")
    return _make_dataset(np.concatenate(images), np.concatenate(labels), classes)


def _make_dataset(images: _files.Bytes, labels: npt.NDArray[np.int64], classes: list[str]) -> ArrayDataset:
    return ArrayDataset(torch.from_numpy(images).view(-1, 3, 32, 32), torch.from_numpy(labels), classes)


def _read_files(
    layout: CifarFiles, root: Path | None, split: str, kind: str
) -> Iterator[tuple[_files.Bytes, npt.NDArray[Any]]]:
    """Yield the pixels (n, PIXELS) and the labels (n,) of each file of a split."""
    names = layout.files[split]
    folder = layout.source.find(root, *(name + ".bin" for name in names), *names)
    paths = [layout.source.file(folder, name + ".bin", name) for name in names]
    read = _read_binary if all(path.suffix == ".bin" for path in paths) else _read_pickle
    for path in paths:
        pixels, labels = read(layout, path, split, kind)
        _files.check_labels(path, labels, len(layout.labels[kind][1]))
        yield pixels, labels


def _read_binary(layout: CifarFiles, path: Path, split: str, kind: str) -> tuple[_files.Bytes, npt.NDArray[Any]]:
    """Read records of one byte for each kind of label, then red, green and blue."""
    count, skip = layout.images[split], len(layout.labels)
    _files.check_size(path, count * (skip + PIXELS))
    # Mapped, not read: the copy into the dataset would double the memory.
    records = np.asarray(np.memmap(path, np.uint8, mode="r")).reshape(count, skip + PIXELS)
    return records[:, skip:], records[:, list(layout.labels).index(kind)]


def _read_pickle(layout: CifarFiles, path: Path, split: str, kind: str) -> tuple[_files.Bytes, npt.NDArray[Any]]:
    """Read a pickled dict: data, an array (images, PIXELS) of bytes, and a list for each kind of label."""
    count, key = layout.images[split], layout.labels[kind][0]
    content = _pickles.load(path)
    data, labels = (content.get(b"data"), content.get(key)) if type(content) is dict else (None, None)
    pixels: npt.NDArray[Any] = data.values if type(data) is _pickles.Array else np.empty(0)
    if pixels.dtype != np.uint8 or pixels.shape != (count, PIXELS):
        raise ValueError(f"{path}: 'data' must be an array ({count}, {PIXELS}) of bytes")
    if type(labels) is not list or len(labels) != count or not all(type(label) is int for label in labels):
        raise ValueError(f"{path}: {key.decode()!r} must be a list of {count} labels")
    return pixels, np.array(labels)


register("cifar10", cifar10, kind="images", folders=CIFAR10.source.folders)
register("cifar100", cifar100, kind="images", folders=CIFAR100.source.folders)
register("cifar_fs", cifar_fs, kind="images")
register("fc100", fc100, kind="images")
