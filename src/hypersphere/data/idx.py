"""MNIST and Fashion-MNIST: idx files, plain or gzipped.

An idx file: two zero bytes, the dtype (8: unsigned bytes), the number of dimensions, the shape as big-endian 32-bit
numbers, then the data.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch

from .._internal import checks
from . import _files
from ._dataset import ArrayDataset
from ._registry import register

MNIST = _files.Source(
    "mnist",
    ("MNIST/raw", "mnist", "MNIST"),
    "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte (or .gz)",
    "http://yann.lecun.com/exdb/mnist/",
)
FASHION = _files.Source(
    "fashion_mnist",
    ("FashionMNIST/raw", "fashion-mnist", "fashion_mnist", "FashionMNIST"),
    MNIST.files,
    "https://github.com/zalandoresearch/fashion-mnist",
)
DIGITS = [str(digit) for digit in range(10)]
CLOTHES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
PARTS = ("images-idx3", "labels-idx1")
# The shape of the official files; larger ones are refused.
MAX_SHAPE = (60_000, 28, 28)


def mnist(root: Path | None, split: str) -> ArrayDataset:
    """Load images uint8 (N, 1, 28, 28); split: train (60,000) | test (10,000)."""
    return _load(MNIST, root, split, DIGITS)


def fashion_mnist(root: Path | None, split: str) -> ArrayDataset:
    """Load images uint8 (N, 1, 28, 28); split: train (60,000) | test (10,000)."""
    return _load(FASHION, root, split, CLOTHES)


def _load(source: _files.Source, root: Path | None, split: str, classes: list[str]) -> ArrayDataset:
    checks.choice("split", split, ("train", "test"))
    stem = {"train": "train", "test": "t10k"}[split]
    names = [[f"{stem}-{part}-ubyte", f"{stem}-{part.replace('-', '.', 1)}-ubyte"] for part in PARTS]
    names = [[*plain, *(name + ".gz" for name in plain)] for plain in names]
    folder = source.find(root, *names[0], *names[1])
    images_path, labels_path = (source.file(folder, *options) for options in names)
    images, labels = read_idx(images_path, MAX_SHAPE), read_idx(labels_path, MAX_SHAPE[:1])
    if len(images) != len(labels):
        raise ValueError(
            f"{labels_path} must have {len(images)} labels, one per image of {images_path}, got {len(labels)}"
        )
    _files.check_labels(labels_path, labels, len(classes))
    return ArrayDataset(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels), classes)


def read_idx(path: Path, max_shape: tuple[int, ...]) -> _files.Bytes:
    """Read an idx file of shape `max_shape`, or with a smaller first dimension."""
    dimensions = len(max_shape)
    length = 4 + 4 * dimensions  # of the header
    zipped = path.suffix == ".gz"
    with gzip.open(path, "rb") if zipped else open(path, "rb") as file:
        try:
            header, expected = file.read(length), bytes((0, 0, 8, dimensions))
            if len(header) < length:
                raise ValueError(f"{path} is truncated: expected {length} bytes or more, got {len(header)}")
            if header[:4] != expected:
                raise ValueError(f"{path} is not an idx file: expected the bytes {expected!r}, got {header[:4]!r}")
            shape = struct.unpack(f">{dimensions}I", header[4:])
            if not 0 < shape[0] <= max_shape[0] or shape[1:] != max_shape[1:]:
                raise ValueError(f"{path} must have the shape {max_shape} or a smaller first dimension, got {shape}")
            count = math.prod(shape)
            if not zipped:
                _files.check_size(path, length + count)
            content = file.read(count + 1)  # reading beyond the end compares the checksum of a gzip file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is a damaged gzip file: {error}") from None
    if len(content) != count:
        wrong = "truncated" if len(content) < count else "too long"
        raise ValueError(f"{path} is {wrong}: expected {length + count} bytes")
    return np.frombuffer(content, np.uint8).reshape(shape).copy()


register("mnist", mnist, kind="images", folders=MNIST.folders)
register("fashion_mnist", fashion_mnist, kind="images", folders=FASHION.folders)
