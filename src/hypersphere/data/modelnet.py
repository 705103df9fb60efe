"""ModelNet10 and ModelNet40 as point clouds, in the HDF5 files of PointNet's authors."""

from __future__ import annotations

import math
import zlib
from itertools import product
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
    listing = f"{split}_files.txt"
    source = SOURCE
    if classes is not None:
        folders = (f"modelnet{classes}_ply_hdf5_2048",)
        source = _files.Source(
            f"modelnet{classes}", folders, SOURCE.files, SOURCE.origin if classes == 40 else ORIGIN_10
        )
    folder = source.find(root, listing)
    found_classes = 10 if folder.name.lower().startswith("modelnet10") else 40
    if classes is not None and classes != found_classes and folder.name.lower().startswith("modelnet"):
        raise ValueError(f"root must hold ModelNet{classes}, got {folder}, which is ModelNet{found_classes}")
    classes = classes or found_classes
    h5py = import_extra("h5py", "h5py", "modelnet", "data")
    # The lists have paths of the authors' machine.
    names = [line.rsplit("/", 1)[-1] for line in _files.read_text(folder / listing).split()]
    if not names or len(set(names)) < len(names):
        wrong = "a duplicate" if names else "an empty file"
        raise ValueError(f"{folder / listing} must list the files of the split, one per line, got {wrong}")
    paths = [source.file(folder, name) for name in names]
    sizes = [_count_shapes(h5py, path, points) for path in paths]
    inputs = np.empty((sum(sizes), points, 3), np.float32)
    labels = np.empty(len(inputs), np.int64)
    start = 0
    for path, size in zip(paths, sizes, strict=True):
        rows = slice(start, start + size)
        try:
            with h5py.File(path, "r") as file:
                _read_into(file["data"], inputs[rows], path)
                label = np.empty(file["label"].shape, np.int64)
                _read_into(file["label"], label, path)
                labels[rows] = label.reshape(-1)
        except (OSError, RuntimeError) as error:
            raise ValueError(f"{path} is damaged: {_first_line(error)}") from None
        _files.check_labels(path, labels[rows], classes)
        start += size
    if not np.isfinite(inputs).all():
        raise ValueError(f"modelnet: {folder} must have finite coordinates, got NaN or infinity")
    return ArrayDataset(torch.from_numpy(inputs), torch.from_numpy(labels), CLASSES[classes].split())


def modelnet40(root: Path | None, split: str, points: int = 2048) -> ArrayDataset:
    """Load ModelNet40; see :func:`modelnet`."""
    return modelnet(root, split, 40, points)


def modelnet10(root: Path | None, split: str, points: int = 2048) -> ArrayDataset:
    """Load ModelNet10, in files of the same form; see :func:`modelnet`."""
    return modelnet(root, split, 10, points)


def _count_shapes(h5py: Any, path: Path, points: int) -> int:
    """Check a file; return the number of shapes."""
    size = _files.file_size(path)
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
            if max(_required_bytes(data), _required_bytes(label)) > size * GROWTH:
                raise ValueError(f"{path} declares {data.shape} elements, too many for its {size} bytes")
            return count
    except (OSError, RuntimeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a readable HDF5 file: {_first_line(error)}") from None


def _get_dataset(h5py: Any, file: Any, path: Path, name: str) -> Any:
    """Return a dataset stored in this file: links and virtual datasets could read other files."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"{path} must have a dataset {name!r} of its own")
    member = file[name]
    if not isinstance(member, h5py.Dataset) or member.is_virtual or member.external or member.shape is None:
        raise ValueError(f"{path} must have a dataset {name!r} of its own")
    filters = member.id.get_create_plist()
    kinds = [filters.get_filter(i)[0] for i in range(filters.get_nfilters())]
    if kinds not in ([], [h5py.h5z.FILTER_DEFLATE], [h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE]):
        raise ValueError(f"{path}: {name!r} must be stored plain or with gzip, got HDF5's filters {kinds}")
    return member


def _read_into(member: Any, out: npt.NDArray[Any], path: Path) -> None:
    """Read the beginning of a dataset, as much as fits in each dimension of `out`, into `out`.

    Other chunks are not read. HDF5 would decompress a chunk to any length; here the length is bounded.
    """
    if member.chunks is None:
        member.read_direct(out, tuple(slice(size) for size in out.shape))
        return
    size, length = _files.file_size(path), math.prod(member.chunks) * member.dtype.itemsize
    zipped, shuffled = bool(member.compression), member.shuffle
    for start in product(*(range(0, end, step) for end, step in zip(out.shape, member.chunks, strict=True))):
        stored = member.id.get_chunk_info_by_coord(start)
        if stored.byte_offset is None or stored.size > size:
            raise OSError(f"the chunk at {start} is missing")
        mask, raw = member.id.read_direct_chunk(start)
        if zipped and not mask:
            try:
                raw = zlib.decompressobj().decompress(raw, length + 1)
            except zlib.error as error:
                raise OSError(f"the chunk at {start} is damaged: {error}") from None
        if len(raw) != length or mask:
            raise OSError(f"the chunk at {start} must have {length} bytes, got {len(raw)}")
        block = np.frombuffer(raw, np.uint8)
        if shuffled:  # all first bytes, all second bytes, ...
            block = np.ascontiguousarray(block.reshape(member.dtype.itemsize, -1).T)
        target = out[tuple(slice(at, at + step) for at, step in zip(start, member.chunks, strict=True))]
        target[...] = block.reshape(-1).view(member.dtype).reshape(member.chunks)[tuple(map(slice, target.shape))]


def _required_bytes(member: Any) -> int:
    """Return the bytes that reading it takes: its size, or that of a chunk if larger."""
    return int(max(member.size, math.prod(member.chunks or ())) * member.dtype.itemsize)


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:200]


register("modelnet", modelnet, kind="points", folders=SOURCE.folders)
register("modelnet40", modelnet40, kind="points", folders=SOURCE.folders[:1])
register("modelnet10", modelnet10, kind="points", folders=SOURCE.folders[1:])
