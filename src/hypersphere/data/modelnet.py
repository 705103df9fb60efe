"""ModelNet10 and ModelNet40 as point clouds, in the HDF5 files of PointNet's authors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .._internal import checks
from .._internal.modules import import_extra
from . import _files
from ._dataset import ArrayDataset
from ._registry import register

SOURCE = _files.Source(
    "modelnet",
    ("modelnet40_ply_hdf5_2048", "modelnet10_ply_hdf5_2048"),
    "train_files.txt, test_files.txt and the ply_data_*.h5 they name",
    "https://shapenet.cs.stanford.edu/media/modelnet40_ply_hdf5_2048.zip",
)
ORIGIN_10 = "https://modelnet.cs.princeton.edu (meshes: sample 2048 points of each into files of PointNet's form)"
CLASSES = {
    10: "bathtub bed chair desk dresser monitor night_stand sofa table toilet",
    40: "airplane bathtub bed bench bookshelf bottle bowl car chair cone cup curtain desk door dresser flower_pot "
    "glass_box guitar keyboard lamp laptop mantel monitor night_stand person piano plant radio range_hood sink sofa "
    "stairs stool table tent toilet tv_stand vase wardrobe xbox",
}
# Coordinates hardly compress: a file that declares more than this many times its size is damaged.
GROWTH = 16


def modelnet(root: Path | None, split: str, classes: int | None = None, points: int = 2048) -> ArrayDataset:
    """Load points float32 (N, points, 3); split: train | test, the files of train_files.txt and test_files.txt.

    Args:
        classes: 40 | 10: which ModelNet; None: the one that exists, 40 before 10.
        points: how many of the 2048 points of each shape to load, the first ones.
    """
    checks.choice("split", split, ("train", "test"))
    checks.choice("classes", classes, (None, 10, 40))
    points = checks.integer("points", points, low=1)
    source = SOURCE
    if classes is not None:
        name, origin = f"modelnet{classes}", SOURCE.origin if classes == 40 else ORIGIN_10
        source = replace(SOURCE, name=name, folders=(f"{name}_ply_hdf5_2048",), origin=origin)
    listing = source.find(root, f"{split}_files.txt") / f"{split}_files.txt"
    folder = listing.parent
    number = 10 if folder.name.lower().startswith("modelnet10") else 40
    if classes is not None and classes != number and folder.name.lower().startswith("modelnet"):
        raise ValueError(f"root must hold ModelNet{classes}, got {folder}, which is ModelNet{number}")
    names = CLASSES[classes or number].split()
    h5py = import_extra("h5py", "h5py", "modelnet", "data")
    # The lists have paths of the authors' machine.
    files = [line.rsplit("/", 1)[-1] for line in _files.read_text(listing).split()]
    if not files or len(set(files)) < len(files):
        wrong = "a duplicate" if files else "an empty file"
        raise ValueError(f"{listing} must list the files of the split, one per line, got {wrong}")
    shapes = [_read_shapes(h5py, source.file(folder, file), points, len(names)) for file in files]
    inputs, labels = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*shapes, strict=True))
    return ArrayDataset(inputs, labels, names)


def _read_shapes(
    h5py: Any, path: Path, points: int, classes: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Read the first points (n, points, 3) of the shapes of a file, and their labels (n,)."""
    size = path.stat().st_size
    try:
        with h5py.File(path, "r") as file:
            data, label = (_get_dataset(h5py, file, path, name) for name in ("data", "label"))
            if data.dtype.kind != "f" or len(data.shape) != 3 or data.shape[1] < points or data.shape[2] != 3:
                expected = f"floats (N, {points} or more, 3)"
                raise ValueError(f"{path}: 'data' must be {expected}, got {data.shape} of {data.dtype}")
            count = int(data.shape[0])
            if not count:
                raise ValueError(f"{path} must have at least one shape, got none")
            if label.dtype.kind not in "iu" or label.shape not in ((count, 1), (count,)):
                expected = f"integers ({count}, 1)"
                raise ValueError(f"{path}: 'label' must be {expected}, got {label.shape} of {label.dtype}")
            if max(data.nbytes, label.nbytes) > size * GROWTH:
                raise ValueError(f"{path} declares {data.shape} elements, too many for its {size} bytes")
            inputs, labels = data[:, :points].astype(np.float32), label[:].reshape(-1).astype(np.int64)
    except (OSError, RuntimeError, KeyError, TypeError) as error:
        reason = str(error).split("\n", 1)[0][:200]
        raise ValueError(f"{path} is not a readable HDF5 file: {reason}") from None
    _files.check_labels(path, labels, classes)
    if not np.isfinite(inputs).all():
        raise ValueError(f"{path} must have finite coordinates, got NaN or infinity")
    return inputs, labels


def _get_dataset(h5py: Any, file: Any, path: Path, name: str) -> Any:
    """Return a dataset stored in this file: links and virtual datasets could read other files."""
    member = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(member, h5py.Dataset) or member.is_virtual or member.external or member.shape is None:
        raise ValueError(f"{path} must have a dataset {name!r} of its own")
    return member


def modelnet40(root: Path | None, split: str, points: int = 2048) -> ArrayDataset:
    """Load ModelNet40; see :func:`modelnet`."""
    return modelnet(root, split, 40, points)


def modelnet10(root: Path | None, split: str, points: int = 2048) -> ArrayDataset:
    """Load ModelNet10, in files of the same form; see :func:`modelnet`."""
    return modelnet(root, split, 10, points)


register("modelnet", modelnet, kind="points", folders=SOURCE.folders)
register("modelnet40", modelnet40, kind="points", folders=SOURCE.folders[:1])
register("modelnet10", modelnet10, kind="points", folders=SOURCE.folders[1:])
