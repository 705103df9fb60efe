"""Images in folders by class, as ImageNet is laid out, decoded when they are asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .._internal import checks
from . import _files
from ._dataset import LazyDataset, MissingSplit
from ._registry import register

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm")
# Formats whose decoders read pixels and run nothing (Pillow's EPS, for one, calls Ghostscript).
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM")
_IMAGE = f"*{{{','.join(SUFFIXES)}}}"  # as in a shell
SPLITS = ("train", "val", "test")
# The largest image taken: a small file can promise billions of pixels.
PIXELS = 1 << 25


def image_folder(root: Path | None, split: str) -> LazyDataset:
    """Images uint8 (3, H, W), each of its own size, from root/split/class/*.png; classes are sorted by name.

    A root without folders train, val or test is taken as root/class/*.png, which is split train. All of
    :data:`SUFFIXES` are read. A damaged image is named when it is asked for.
    """
    checks.choice("split", split, SPLITS)
    if root is None:
        raise ValueError(
            "image_folder needs root, or the environment variable HYPERSPHERE_DATA: a folder of your own, or ImageNet "
            f"from https://image-net.org, with root/<class>/{_IMAGE} or root/train/<class>/{_IMAGE}"
        )
    if not root.is_dir():
        raise ValueError(f"image_folder: {root} is no folder; expected {root}/<class>/{_IMAGE}")
    folder = root / split
    divided = any(_files.folders(root / part) for part in SPLITS)
    if not divided or not folder.is_dir():
        if divided or split != "train" or not root.is_dir():
            raise MissingSplit(f"image_folder: {folder} is missing; expected {folder}/<class>/{_IMAGE}")
        folder = root
    classes = _files.folders(folder)
    if not classes:
        raise ValueError(f"image_folder: {folder} has no folders; expected {folder}/<class>/{_IMAGE}")
    return lazy(folder, classes)


def lazy(folder: Path, classes: list[str]) -> LazyDataset:
    """The images of folder/class for every class."""
    paths: list[str] = []
    counts = []
    for name in classes:
        found = [
            entry.path
            for entry in _files.entries(folder / name)
            if entry.name.lower().endswith(SUFFIXES) and _files.is_file(entry)
        ]
        if not found:
            raise ValueError(
                f"{folder / name} has no image; root must be a folder with one folder of images a class, ending in "
                f"{' '.join(SUFFIXES)}"
            )
        paths += found
        counts.append(len(found))
    labels = torch.arange(len(classes)).repeat_interleave(torch.tensor(counts))
    return LazyDataset(paths, labels, classes, decode)


def decode(path: str) -> Tensor:
    """An image file as uint8 (3, H, W)."""
    Image = _files.extra("PIL.Image", "Pillow", "reading images")
    try:
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            if width * height > PIXELS:
                raise ValueError(f"expected at most {PIXELS} pixels, got {width}×{height}")
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"expected 8 bits a colour, got Pillow's mode {image.mode}")
            pixels = np.empty((3, height, width), np.uint8)
            for i, part in enumerate(image.convert("RGB").split()):
                pixels[i] = part
    except Exception as error:  # a decoder may raise anything at damaged bytes
        raise ValueError(f"{path} is no image that can be read: {error}") from error
    return torch.from_numpy(pixels)


register("image_folder", image_folder, kind="images")
