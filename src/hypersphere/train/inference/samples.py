"""Read samples of files in batches: images, folders of images, and rows of .npy arrays."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np

from ...data.image_folder import PIXELS, SUFFIXES
from .run import Run

BATCH = 64  # samples of a batch, at most
LIGHT_ON_DARK = ("digits", "mnist", "fashion_mnist")  # photos and scans are mostly the other way round


@dataclass(frozen=True)
class FileBatch:
    """Samples of files by name; `load` returns what :meth:`Run.predict` takes.

    A label is the folder that an image is in, below the folder that was given; "" without one.
    """

    names: list[str]
    labels: list[str]
    load: Callable[[], Any]


def batches_of_files(run: Run, files: Sequence[str]) -> Iterator[FileBatch]:
    """Yield the samples of files in batches that fit in memory; ValueError for what the run does not take."""
    images: list[tuple[str, str]] = []  # path, label
    for file in files:
        if file.lower().endswith(".npy") and not os.path.isdir(file):
            yield from _image_batches(images)
            images = []
            yield from _array_batches(run, file)
            continue
        if run.spec.kind != "images":
            raise ValueError(f"{file}: this run takes {run.spec.kind}: pass .npy arrays")
        if os.path.isdir(file):
            images += _images_in(file)
        elif os.path.isfile(file):
            images.append((file, ""))
        else:
            raise ValueError(f"no such file: {file!r}")
    yield from _image_batches(images)


def find_inverted(run: Run, images: list[str]) -> list[str]:
    """Return the images with a light border, if the run's training images have a dark one."""
    if run.config.data.name not in LIGHT_ON_DARK:
        return []
    grey = run.preprocess(images).mean(1)
    border = (grey.sum((1, 2)) - grey[:, 1:-1, 1:-1].sum((1, 2))) > 0  # normalized: 0 is the middle
    return [image for image, is_light in zip(images, border.tolist(), strict=True) if is_light]


def _image_batches(images: list[tuple[str, str]]) -> Iterator[FileBatch]:
    for begin in range(0, len(images), BATCH):
        names, labels = map(list, zip(*images[begin : begin + BATCH], strict=True))
        yield FileBatch(names, labels, names.copy)  # paths, which predict decodes


def _images_in(folder: str) -> list[tuple[str, str]]:
    images = [
        os.path.join(place, name)
        for place, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(SUFFIXES) and not name.startswith(".") and os.path.isfile(os.path.join(place, name))
    ]
    if not images:
        raise ValueError(f"{folder!r} contains no image ending in {' '.join(SUFFIXES)}")
    return [(image, PurePath(os.path.relpath(image, folder)).parent.name) for image in sorted(images)]


def _map_array(file: str) -> Any:
    """Map an .npy file into memory: only the rows that are used are read."""
    if not os.path.isfile(file):  # a pipe would wait for ever
        raise ValueError(f"no such file: {file!r}")
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it is an archive")
    except Exception as error:  # NumPy reads the header as Python, and what is wrong with it may raise anything
        raise ValueError(f"{file} cannot be read as an array: {error}") from None
    return array


def _array_batches(run: Run, file: str) -> Iterator[FileBatch]:
    array = _map_array(file)
    shape, sample = tuple(array.shape), run.spec.shape
    grey = run.spec.kind == "images" and array.dtype == np.uint8 and array.ndim == 3
    may_be_one = grey and (shape[2] in (1, 3) or shape[0] == sample[0] == 3)  # image, and not N grey ones
    if not (grey or array.ndim == len(sample) + 1) or may_be_one or not len(array):
        raise ValueError(f"{file} must hold samples (N, {', '.join(map(str, sample))}), got {shape}")
    numbers = math.prod(shape[1:])  # of a sample; the file is not read yet
    if numbers > 4 * PIXELS:
        raise ValueError(f"{file} must hold samples of at most {4 * PIXELS} numbers, got {shape}")
    step = max(1, min(BATCH, PIXELS // max(1, numbers)))
    for begin in range(0, len(array), step):
        rows = range(begin, min(begin + step, len(array)))
        yield FileBatch([f"{file}[{i}]" for i in rows], [""] * len(rows), partial(_load_rows, file, rows, grey))


def _load_rows(file: str, rows: range, is_grey: bool) -> Any:
    """Read rows of an .npy file; of grey images (N, H, W) the channel is added."""
    # Mapped again for each batch: a shared mapping would keep the pages of all batches in memory.
    samples = _map_array(file)[rows.start : rows.stop]
    return samples[:, None] if is_grey else samples
