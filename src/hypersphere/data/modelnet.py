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
from . import _files
from ._dataset import ArrayDataset
from ._registry import register

SOURCE = _files.Source(
    "modelnet",
    ("modelnet40_ply_hdf5_2048", "modelnet10_ply_hdf5_2048"),
    "train_files.txt, test_files.txt and the ply_data_*.h5 they name",
    "https://shapenet.cs.stanford.edu/media/modelnet40_ply_hdf5_2048.zip",
)
CLASSES = {
    10: "bathtub bed chair desk dresser monitor night_stand sofa table toilet",
    40: "airplane bathtub bed bench bookshelf bottle bowl car chair cone cup curtain desk door dresser flower_pot "
    "glass_box guitar keyboard lamp laptop mantel monitor night_stand person piano plant radio range_hood sink sofa "
    "stairs stool table tent toilet tv_stand vase wardrobe xbox",
}
# Coordinates hardly compress; a file that promises more than this many times its size has none to give.
GROWTH = 16


def modelnet(root: Path | None, split: str, classes: int | None = None, points: int = 2048) -> ArrayDataset:
    """Points float32 (N, points, 3); split: train | test, the files of train_files.txt and test_files.txt.

    Args:
        classes: 40 | 10: which ModelNet; None: the one that is there, 40 before 10.
        points: of each shape, the first so many of 2048; no more are kept.
    """
    checks.choice("split", split, ("train", "test"))
    checks.choice("classes", classes, (None, 10, 40))
    points = checks.integer("points", points, low=1)
    listing = f"{split}_files.txt"
    source = SOURCE
    if classes is not None:
        folders = (f"modelnet{classes}_ply_hdf5_2048",)
        source = _files.Source(SOURCE.name, folders, SOURCE.files, SOURCE.origin)
    folder = source.find(root, listing)
    there = 10 if folder.name.lower().startswith("modelnet10") else 40
    if classes is not None and classes != there and folder.name.lower().startswith("modelnet"):
        raise ValueError(f"classes must be {there} for {folder}, got {classes}")
    classes = classes or there
    h5py = _files.extra("h5py", "h5py", "modelnet")
    # The lists name the files with a path of their authors' machine.
    names = [line.rsplit("/", 1)[-1] for line in _files.read_text(folder / listing).split()]
    if not names or len(set(names)) < len(names):
        wrong = "it names one twice" if names else "it is empty"
        raise ValueError(f"{folder / listing} must name the files of the split, one a line; {wrong}")
    paths = [source.file(folder, name) for name in names]
    sizes = [_shape(h5py, path, points) for path in paths]
    inputs = np.empty((sum(sizes), points, 3), np.float32)
    labels = np.empty(len(inputs), np.int64)
    start = 0
    for path, size in zip(paths, sizes, strict=True):
        rows = slice(start, start + size)
        try:
            with h5py.File(path, "r") as file:
                _read(file["data"], inputs[rows], path)
                label = np.empty(file["label"].shape, np.int64)
                _read(file["label"], label, path)
                labels[rows] = label.reshape(-1)
        except (OSError, RuntimeError) as error:
            raise ValueError(f"{path} is damaged: {_line(error)}") from None
        _files.check_labels(path, labels[rows], classes)
        start += size
    if not np.isfinite(inputs).all():
        raise ValueError(f"modelnet in {folder} must have finite coordinates, got NaN or infinity")
    return ArrayDataset(torch.from_numpy(inputs), torch.from_numpy(labels), CLASSES[classes].split())


def _shape(h5py: Any, path: Path, points: int) -> int:
    """The number of shapes in a file, once it is sure that it can hold them."""
    size = _files.size_of(path)
    try:
        with h5py.File(path, "r") as file:
            data, label = (_member(h5py, file, path, name) for name in ("data", "label"))
            if data.dtype.kind != "f" or len(data.shape) != 3 or data.shape[1] < points or data.shape[2] != 3:
                expected = f"floats (N, {points} or more, 3)"
                raise ValueError(f"{path} must have under 'data' {expected}, got {data.shape} of {data.dtype}")
            count = int(data.shape[0])
            if not count:
                raise ValueError(f"{path} must hold shapes, got none")
            if label.dtype.kind not in "iu" or label.shape not in ((count, 1), (count,)):
                expected = f"whole numbers ({count}, 1)"
                raise ValueError(f"{path} must have under 'label' {expected}, got {label.shape} of {label.dtype}")
            if max(_bytes(data), _bytes(label)) > size * GROWTH:
                raise ValueError(f"{path} promises {data.shape} numbers and cannot hold them in {size} bytes")
            return count
    except (OSError, RuntimeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no HDF5 file that can be read: {_line(error)}") from None


def _member(h5py: Any, file: Any, path: Path, name: str) -> Any:
    """A data set that stands in this very file: a link or a virtual data set may read any other."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"{path} must have a data set {name!r} of its own")
    member = file[name]
    if not isinstance(member, h5py.Dataset) or member.is_virtual or member.external or member.shape is None:
        raise ValueError(f"{path} must have a data set {name!r} of its own")
    filters = member.id.get_create_plist()
    kinds = [filters.get_filter(i)[0] for i in range(filters.get_nfilters())]
    if kinds not in ([], [h5py.h5z.FILTER_DEFLATE], [h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE]):
        raise ValueError(f"{path} must have {name!r} stored plain or with gzip, got HDF5's filters {kinds}")
    return member


def _read(member: Any, out: npt.NDArray[Any], path: Path) -> None:
    """The first rows of a data set, as many as `out` has in each dimension, into `out`.

    Chunks that lie outside are not read. HDF5 would unpack a chunk to whatever length it has; here it ends where it
    should.
    """
    if member.chunks is None:
        member.read_direct(out, tuple(slice(size) for size in out.shape))
        return
    size, length = _files.size_of(path), math.prod(member.chunks) * member.dtype.itemsize
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
                raise OSError(f"the chunk at {start} cannot be unpacked: {error}") from None
        if len(raw) != length or mask:
            raise OSError(f"the chunk at {start} must have {length} bytes, got {len(raw)}")
        block = np.frombuffer(raw, np.uint8)
        if shuffled:  # all first bytes, all second bytes, ...
            block = np.ascontiguousarray(block.reshape(member.dtype.itemsize, -1).T)
        target = out[tuple(slice(at, at + step) for at, step in zip(start, member.chunks, strict=True))]
        target[...] = block.reshape(-1).view(member.dtype).reshape(member.chunks)[tuple(map(slice, target.shape))]


def _bytes(member: Any) -> int:
    """What reading it takes: itself, or one of its chunks if that is larger."""
    return int(max(member.size, math.prod(member.chunks or ())) * member.dtype.itemsize)


def _line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:200]


register("modelnet", modelnet, kind="points", folders=SOURCE.folders)
