"""Small files in the official formats, as their authors' programs write them, and the real ones where they are."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_unpacked: dict[str, str] = {}  # name -> what went wrong
SHARED = Path(__file__).parents[2] / "shared" / "data"


class Sparse:
    """A sparse matrix as scipy of 2016 pickled it."""

    def __init__(self, dense: np.ndarray) -> None:
        rows, columns = np.nonzero(dense)
        self.parts = {
            b"format": b"csr",
            b"_shape": dense.shape,
            b"indptr": np.searchsorted(rows, np.arange(len(dense) + 1)).astype("<i4"),
            b"_cs_matrix__has_sorted_indices": True,
            b"indices": columns.astype("<i4"),
            b"maxprint": 50,
            b"data": dense[rows, columns].astype("<f4"),
        }


class Adjacency(dict):
    """A collections.defaultdict(list)."""


class Raw(bytes):
    """Instructions as they are."""


def dumps(value: Any) -> bytes:
    """A pickle of protocol 2 as Python 2 writes it."""
    return b"\x80\x02" + _encode(value) + b"."


def _encode(value: Any) -> bytes:
    if isinstance(value, Raw):
        return bytes(value)
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        if 0 <= value < 256:
            return b"K" + bytes([value])
        return b"M" + struct.pack("<H", value) if 0 <= value < 65536 else b"J" + struct.pack("<i", value)
    if isinstance(value, bytes):
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_encode, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(_encode, value)) + b"e"
    if isinstance(value, dict):
        start = b"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R" if isinstance(value, Adjacency) else b"}"
        return start + b"(" + b"".join(_encode(key) + _encode(item) for key, item in value.items()) + b"u"
    if isinstance(value, Sparse):
        return b"cscipy.sparse.csr\ncsr_matrix\n)\x81" + _encode(value.parts) + b"b"
    kind = value.dtype.str
    state = (3, kind[0].encode(), None, None, None, -1, -1, 0)
    dtype = b"cnumpy\ndtype\n" + _encode((kind[1:].encode(), 0, 1)) + b"R" + _encode(state) + b"b"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    return empty + _encode((1, value.shape, Raw(dtype), False, value.tobytes())) + b"b"


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_mnist(folder: Path, train: int = 20, test: int = 10, *, zipped: bool = False, dotted: bool = False) -> None:
    rng = np.random.default_rng(0)
    for stem, count in (("train", train), ("t10k", test)):
        for what, array in (
            ("images-idx3", rng.integers(0, 256, (count, 28, 28), np.uint8)),
            ("labels-idx1", (np.arange(count) % 10).astype(np.uint8)),
        ):
            name = f"{stem}-{what.replace('-', '.') if dotted else what}-ubyte"
            write(folder / (name + ".gz" if zipped else name), gzip.compress(idx(array), 1) if zipped else idx(array))


def cifar_images(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)


def write_cifar10(root: Path, count: int = 20) -> None:
    """Both versions: label i mod 10."""
    labels = np.arange(count) % 10
    for seed, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        images = cifar_images(seed, count)
        records = np.concatenate([labels[:, None].astype(np.uint8), images], 1)
        write(root / "cifar-10-batches-bin" / f"{name}.bin", records.tobytes())
        names = [b"image_%05d.png" % i for i in range(count)]
        content = {b"batch_label": b"batch", b"labels": labels.tolist(), b"data": images, b"filenames": names}
        write(root / "cifar-10-batches-py" / name, dumps(content))


def write_cifar100(root: Path, train: int, test: int, coarse: Callable[[int], int]) -> None:
    """Both versions: fine label i mod 100."""
    for seed, (name, count) in enumerate((("train", train), ("test", test))):
        images, fine = cifar_images(seed, count), [i % 100 for i in range(count)]
        groups = [coarse(label) for label in fine]
        records = np.concatenate([np.array([groups, fine], np.uint8).T, images], 1)
        write(root / "cifar-100-binary" / f"{name}.bin", records.tobytes())
        content = {b"fine_labels": fine, b"coarse_labels": groups, b"data": images}
        write(root / "cifar-100-python" / name, dumps(content))


def write_orl(folder: Path) -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (40, 10, 112, 92), np.uint8)
    for person in range(40):
        for number in range(10):
            content = b"P5\n92 112\n255\n" + images[person, number].tobytes()
            write(folder / f"s{person + 1}" / f"{number + 1}.pgm", content)
    return images


def planetoid_files() -> dict[str, Any]:
    """A graph of 540 nodes with 6 features and 3 classes: 4 train, 500 val, and test nodes 530 to 539 but for 533."""
    rng = np.random.default_rng(0)
    labels = np.eye(3, dtype="<i4")[np.arange(540) % 3]
    labels[520] = 0  # a node without a label, in no split
    features = (rng.random((540, 6)) < 0.4) * rng.random((540, 6)).astype("<f4")
    test = np.array([537, 530, 539, 532, 531, 538, 534, 536, 535])
    # 0 and 1 name each other twice; 2 names itself; 3 is named by 4 alone; 5 stands there without neighbours.
    graph = Adjacency({0: [1, 1, 539], 1: [0], 2: [2, 7], 4: [3, 530], 5: []})
    return {
        "allx": Sparse(features[:530]),
        "ally": labels[:530],
        "tx": Sparse(features[test]),
        "ty": labels[test],
        "x": Sparse(features[:4]),
        "y": labels[:4],
        "graph": graph,
        "test.index": test,
        "features": features,
    }


def write_planetoid(folder: Path, files: dict[str, Any], name: str = "cora") -> None:
    for part, content in files.items():
        if part == "test.index":
            write(folder / f"ind.{name}.{part}", "".join(f"{place}\n" for place in content))
        elif part != "features":
            write(folder / f"ind.{name}.{part}", dumps(content))


def write_modelnet(folder: Path, counts: dict[str, tuple[int, ...]], classes: int) -> dict[str, Any]:
    import h5py

    rng = np.random.default_rng(0)
    written = {}
    folder.mkdir(parents=True)
    for split, parts in counts.items():
        clouds = [rng.standard_normal((count, 2048, 3)).astype(np.float32) for count in parts]
        for i, cloud in enumerate(clouds):
            with h5py.File(folder / f"ply_data_{split}{i}.h5", "w") as file:
                file.create_dataset("data", data=cloud, compression="gzip")
                file.create_dataset("label", data=(np.arange(len(cloud)) % classes).astype(np.uint8)[:, None])
                file.create_dataset("normal", data=np.zeros(3))
        lines = [f"data/modelnet/ply_data_{split}{i}.h5\n" for i in range(len(parts))]
        write(folder / f"{split}_files.txt", "".join(lines))
        written[split] = np.concatenate(clouds)
    return written


def real(name: str, folder: str, factory: pytest.TempPathFactory | None = None) -> Path:
    """The root of a real set: HYPERSPHERE_DATA's, else unpacked from what developers share, else skip.

    Without a factory it is not unpacked: CIFAR-100 and ModelNet10 take long.
    """
    own = os.environ.get("HYPERSPHERE_DATA")
    if own and (Path(own) / folder).is_dir():
        return Path(own)
    if factory is None or not (SHARED / "unpack").is_file():
        pytest.skip(f"no real {name} here")
    root = factory.getbasetemp() / "real" / name
    if name not in _unpacked:
        done = subprocess.run([sys.executable, SHARED / "unpack", root, name], capture_output=True, text=True)
        _unpacked[name] = done.stderr.strip().splitlines()[-1] if done.returncode else ""
    if _unpacked[name]:
        pytest.skip(f"{name} cannot be unpacked: {_unpacked[name]}")
    return root


def lfw_names(root: Path) -> Path:
    """The root of LFW's real lists with an empty file for each image of its people, else skip: decoding takes long."""
    if not (SHARED / "lfw64").is_dir():
        pytest.skip("no real lists of LFW here")
    for path in (SHARED / "lfw64").glob("p*.txt"):
        write(root / "lfw64" / path.name, path.read_bytes())
    for part in ("Train", "Test"):
        for line in (SHARED / "lfw64" / f"peopleDev{part}.txt").read_text().splitlines()[1:]:
            person, images = line.split()
            for i in range(int(images)):
                write(root / "lfw64" / person / f"{person}_{i + 1:04d}.jpg", "")
    return root
