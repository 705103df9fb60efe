"""Images in one folder per class, decoded on access: your own, ImageNet and mini-ImageNet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._internal import checks
from .._internal.modules import import_extra
from . import _files
from ._dataset import LazyDataset, MissingSplit
from ._registry import register
from .augment import Resize

IMAGENET = _files.Source(
    "imagenet",
    ("imagenet", "ImageNet", "ILSVRC2012"),
    "train/<class>/*.JPEG and val/<class>/*.JPEG",
    "https://image-net.org",
)
MINI_IMAGENET = _files.Source(
    "mini_imagenet",
    ("mini_imagenet", "mini-imagenet", "miniImageNet"),
    "train/<class>/*.jpg, val/<class>/*.jpg and test/<class>/*.jpg, of 64, 16 and 20 classes",
    "https://image-net.org, divided by the lists of https://arxiv.org/abs/1606.04080",
)
#: of each source: split → folder; the labels of ImageNet's own test images are not public
PARTS = {
    IMAGENET: {"train": "train", "test": "val"},
    MINI_IMAGENET: {"train": "train", "val": "val", "test": "test"},
}
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm")
# Formats whose decoders run no other program (Pillow's EPS calls Ghostscript).
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM")
_IMAGE = f"*{{{','.join(SUFFIXES)}}}"  # shell notation
SPLITS = ("train", "val", "test")
# The largest image: a small file can declare billions of pixels.
PIXELS = 1 << 25
STRIP = 1 << 18  # pixels that are converted at once: a copy of a whole large image would take much memory
KEPT = 1 << 30  # bytes of resized images kept in memory


def image_folder(root: Path | None, split: str) -> LazyDataset:
    """Load images uint8 (3, H, W) of any size from root/split/class/*.png; classes are sorted by name.

    Without folders train, val or test, the split train is root/class/*.png. All :data:`SUFFIXES` are read. Damaged
    images raise on access.
    """
    checks.choice("split", split, SPLITS)
    if root is None:
        raise ValueError(
            "image_folder needs root (--data.root), or the environment variable HYPERSPHERE_DATA: a folder of yours, "
            f"or ImageNet from https://image-net.org, with root/<class>/{_IMAGE} or root/train/<class>/{_IMAGE}"
        )
    if not root.is_dir():
        raise ValueError(f"image_folder: {root} is not a folder; expected {root}/<class>/{_IMAGE}")
    folder = root / split
    has_splits = any(_files.list_folders(root / part) for part in SPLITS)
    if not has_splits or not folder.is_dir():
        if has_splits or split != "train":
            raise MissingSplit(f"image_folder: {folder} is missing; expected {folder}/<class>/{_IMAGE}")
        folder = root
    classes = _files.list_folders(folder)
    if not classes:
        raise ValueError(f"image_folder: {folder} has no folders; expected {folder}/<class>/{_IMAGE}")
    return list_images(folder, classes)


def load_parts(source: _files.Source, root: Path | None, split: str) -> LazyDataset:
    """Load images uint8 (3, H, W) of any size; classes are sorted by name. Damaged images raise on access."""
    checks.choice("split", split, tuple(PARTS[source]))
    home = source.find_where(root, lambda folder: bool(_files.list_folders(folder / "train")))
    folder = home / PARTS[source][split]
    classes = _files.list_folders(folder)
    if not classes:
        raise ValueError(f"{source.name}: {folder} has no folders of classes; expected {source.files} in {home}")
    return list_images(folder, classes)


def list_images(folder: Path, classes: list[str]) -> LazyDataset:
    """List the images in folder/class for every class."""
    paths: list[str] = []
    counts = []
    for name in classes:
        images = [
            entry.path
            for entry in _files.list_entries(folder / name)
            if entry.name.lower().endswith(SUFFIXES) and entry.is_file()
        ]
        if not images:
            raise ValueError(
                f"{folder / name} has no images; root must have one folder of images per class, ending in "
                f"{' '.join(SUFFIXES)}"
            )
        paths += images
        counts.append(len(images))
    labels = torch.arange(len(classes)).repeat_interleave(torch.tensor(counts))
    return LazyDataset(paths, labels, classes, decode)


def decode(path: str) -> Tensor:
    """Decode an image file as uint8 (3, H, W)."""
    with _opened(path) as image:
        width, height = image.size
        pixels = np.empty((3, height, width), np.uint8)
        rows = max(1, STRIP // width)
        for top in range(0, height, rows):
            bottom = min(top + rows, height)
            for i, part in enumerate(image.crop((0, top, width, bottom)).convert("RGB").split()):
                pixels[i, top:bottom] = part
    return torch.from_numpy(pixels)


def read_size(path: str) -> tuple[int, int]:
    """Return the height and width of an image file without decoding it."""
    with _opened(path) as image:
        return image.height, image.width


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    Image = import_extra("PIL.Image", "Pillow", "reading images", "data")
    try:
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            if width * height > PIXELS:
                raise ValueError(f"expected at most {PIXELS} pixels, got {width}×{height}")
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"expected 8 bits per channel, got Pillow's mode {image.mode}")
            yield image
    except Exception as error:  # decoders may raise anything for damaged files
        raise ValueError(f"{path} is not a readable image: {error}") from error


class ResizedOnce:
    """Decode and resize images once: results are kept in memory up to :data:`KEPT` bytes, the rest is decoded again."""

    def __init__(self, decode: Callable[[str], Tensor], size: int) -> None:
        self.decode, self.resize = decode, Resize(size)
        self.cache: dict[str, Tensor] = {}

    def __call__(self, path: str) -> Tensor:
        if path in self.cache:
            return self.cache[path]
        image = self.resize(self.decode(path).unsqueeze(0))[0]
        if (len(self.cache) + 1) * image.nbytes <= KEPT:
            self.cache[path] = image
        return image


register("image_folder", image_folder, kind="images")
for _source in PARTS:
    register(_source.name, partial(load_parts, _source), kind="images")
