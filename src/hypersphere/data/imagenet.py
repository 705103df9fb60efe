"""ImageNet and mini-ImageNet: images in one folder per class, in folders of their own below root."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from .._internal import checks
from . import _files
from ._dataset import LazyDataset
from ._registry import register
from .image_folder import list_images

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


def load_parts(source: _files.Source, root: Path | None, split: str) -> LazyDataset:
    """Load images uint8 (3, H, W) of any size; classes are sorted by name. Damaged images raise on access."""
    checks.choice("split", split, tuple(PARTS[source]))
    home = source.find_where(root, lambda folder: bool(_files.list_folders(folder / "train")))
    folder = home / PARTS[source][split]
    classes = _files.list_folders(folder)
    if not classes:
        raise ValueError(f"{source.name}: {folder} has no folders of classes; expected {source.files} in {home}")
    return list_images(folder, classes)


for _source in PARTS:
    register(_source.name, partial(load_parts, _source), kind="images")
