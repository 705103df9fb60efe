"""Damaged and hostile files: a clear error that names the file, nothing executed, no memory for empty promises."""

import gzip
import os
import pickle
import re
import struct
import sys
import tracemalloc
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

import hypersphere.data as data
from hypersphere._internal.modules import install_command
from hypersphere.data import _pickles, cifar, planetoid
from tests import official_files as official

pytestmark = pytest.mark.slow

MEGA = 1 << 20


@contextmanager
def memory_below(limit):
    """What is allocated inside stays below `limit` bytes at every moment."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit, f"{peak} bytes"


@contextmanager
def refused(path, message=None):
    """One ValueError of one line that names the file."""
    with pytest.raises(ValueError) as caught:
        yield
    assert str(path) in str(caught.value)
    # pytest's folders are called after the tests: their names are no part of the message
    assert message is None or re.search(message, re.sub(r"/\S*/", "", str(caught.value))), caught.value
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


# --- pickles


class Shell:
    def __reduce__(self):
        return os.system, ("touch executed",)


class Evaluate:
    def __reduce__(self):
        return eval, ("open('executed', 'w')",)


HOSTILE = {
    "os.system": pickle.dumps(Shell(), 2),
    "eval": pickle.dumps(Evaluate(), 2),
    "eval in a dict": official.dumps({b"data": official.Raw(pickle.dumps(Evaluate(), 2)[2:-1])}),
    "instance": b"(S'touch executed'\nios\nsystem\n.",
    "persistent id": b"\x80\x02Pexecuted\n.",
    "attribute of numpy": b"\x80\x02cnumpy.core.multiarray\nfromfile\n.",
    "an array of objects": b"\x80\x02cnumpy\ndtype\n(U\x02O8K\x00K\x01tR.",
    "an empty stack": b"\x80\x02.",
    "empty": b"",
    "bytes after the end": b"\x80\x02N.N.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = official.write(tmp_path / "file", HOSTILE[name])
    with refused(path, "not an official pickle"):
        _pickles.load(path)
    assert os.listdir(tmp_path) == ["file"]


def test_hostile_pickles_are_hostile(tmp_path, monkeypatch):
    """What the shell and eval pickles do when they are loaded by pickle."""
    monkeypatch.chdir(tmp_path)
    for name in ("os.system", "eval", "eval in a dict", "instance"):
        pickle.loads(HOSTILE[name])
        os.remove("executed")


LENGTH = b"\xff\xff\xff\x7f"
BOMBS = {
    "memo": b"\x80\x02Nr" + struct.pack("<I", 2**32 - 1) + b"(" * 3 + b".",
    "string": b"\x80\x02T" + LENGTH + b"short.",
    "array": official.dumps(np.arange(3)).replace(b"(K\x03t", b"(J" + LENGTH + b"J" + LENGTH + b"t"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_promises_take_no_memory(name, tmp_path):
    path = official.write(tmp_path / "file", BOMBS[name])
    with memory_below(MEGA), refused(path, "declares" if name == "string" else None):
        _pickles.load(path)


def test_arrays_of_any_byte_order_and_layout(tmp_path):
    numbers = np.arange(6, dtype=">i2")
    content = official.dumps({b"x": np.arange(1000.0), b"y": numbers.reshape(3, 2)})
    for columns_first in (False, True):
        stored = content.replace(b"\x89U\x0c", b"\x88U\x0c") if columns_first else content
        loaded = _pickles.load(official.write(tmp_path / "file", stored))
        assert (loaded[b"x"].values == np.arange(1000.0)).all()
        assert (loaded[b"y"].values == (numbers.reshape(2, 3).T if columns_first else numbers.reshape(3, 2))).all()


def test_every_truncation_of_a_pickle(tmp_path):
    content = official.dumps([official.Sparse(np.eye(4)), np.arange(4), official.Adjacency({1: [2, 300]})])
    for end in range(len(content)):
        path = official.write(tmp_path / "file", content[:end])
        with refused(path):
            _pickles.load(path)


# --- CIFAR


@pytest.fixture
def small_cifar(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "CIFAR10", replace(cifar.CIFAR10, images={"train": 4, "test": 4}))
    official.write_cifar10(tmp_path, 4)
    return tmp_path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: b"", "is empty: expected 12292 bytes, got 0"),
        (lambda content: content[:-1], "is truncated: expected 12292 bytes, got 12291"),
        (lambda content: content + b"\0" * 3073, "is too long"),
        (lambda content: content[: 3 * 3073] + b"\x0a" + content[3 * 3073 + 1 :], "0 to 9, got 10 at record 3"),
    ],
    ids=["empty", "byte", "long", "label"],
)
def test_cifar_binary(small_cifar, change, message):
    path = small_cifar / "cifar-10-batches-bin" / "data_batch_4.bin"
    path.write_bytes(change(path.read_bytes()))
    with refused(path, message):
        data.load("cifar10", small_cifar)
    assert len(data.load("cifar10", small_cifar, "test")) == 4
    path.unlink()
    with refused(path, "is missing"):
        data.load("cifar10", small_cifar)


def cifar_batch(**changes):
    content = {b"labels": [0, 1, 2, 3], b"data": official.cifar_images(0, 4)}
    return official.dumps(content | {key.encode(): value for key, value in changes.items()})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (cifar_batch(labels=[0, 1, 2, -1]), "got -1 at record 3"),
        (cifar_batch(labels=[0, 1, 2, b"3"]), "list of 4 labels"),
        (cifar_batch(data=official.cifar_images(0, 3)), r"array \(4, 3072\)"),
        (official.dumps([1, 2]), r"array \(4, 3072\)"),
        (cifar_batch()[:-2000], "truncated|declares"),
        (cifar_batch(extra=official.Raw(pickle.dumps(Shell(), 2)[2:-1])), "refers to '(posix|nt).system'"),
    ],
    ids=["low", "text", "images", "list", "truncated", "shell"],
)
def test_cifar_python(small_cifar, content, message):
    path = official.write(small_cifar / "cifar-10-batches-py" / "data_batch_5", content)
    with refused(path, message):
        data.load("cifar10", small_cifar / "cifar-10-batches-py")


# --- idx


@pytest.fixture
def small_mnist(tmp_path):
    official.write_mnist(tmp_path)
    return tmp_path


IDX = {
    "head": (lambda content: content[:10], "truncated"),
    "truncated": (lambda content: content[:-1], "truncated"),
    "long": (lambda content: content + b"\0", "too long"),
    "magic": (lambda content: b"\0\0\x0d\x03" + content[4:], "not an idx file"),
    "sizes": (lambda content: official.idx(np.zeros((20, 32, 32), np.uint8)), r"\(60000, 28, 28\).*got \(20, 32, 32\)"),
    "promise": (lambda content: content[:4] + struct.pack(">3I", 60_000, 28, 28) + content[16:], "truncated"),
    "none": (lambda content: content[:4] + struct.pack(">3I", 0, 28, 28), "must have the shape"),
    "more": (lambda content: official.idx(np.zeros((21, 28, 28), np.uint8)), "21 labels.*got 20"),
}


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("name", IDX)
def test_idx(small_mnist, name, zipped):
    change, message = IDX[name]
    path = small_mnist / "train-images-idx3-ubyte"
    content = change(path.read_bytes())
    if zipped:
        path.unlink()
        path, content = path.with_suffix(".gz"), gzip.compress(content)
    path.write_bytes(content)
    with refused(path, message):
        data.load("mnist", small_mnist)


def test_labels_of_mnist(small_mnist):
    path = official.write(small_mnist / "train-labels-idx1-ubyte", official.idx(np.full(20, 10, np.uint8)))
    with refused(path, "0 to 9, got 10 at record 0"):
        data.load("mnist", small_mnist)


def test_damaged_gzip(small_mnist):
    plain = small_mnist / "train-images-idx3-ubyte"
    content = bytearray(gzip.compress(plain.read_bytes()))
    content[-6] ^= 0xFF  # of the checksum
    plain.unlink()
    path = official.write(plain.with_suffix(".gz"), bytes(content))
    with refused(path):
        data.load("mnist", small_mnist)
    path = official.write(path, bytes(content[:-20]))
    with refused(path):
        data.load("mnist", small_mnist)


# --- graphs


@pytest.fixture
def small_graph(tmp_path, monkeypatch):
    monkeypatch.setitem(planetoid.GRAPHS, "cora", planetoid.GraphSpec(540, 6, ("a", "b", "c")))
    official.write_planetoid(tmp_path, official.planetoid_files())
    return tmp_path


def sparse(rows=530, **changes):
    matrix = official.Sparse(np.eye(rows, 6))
    for key, value in changes.items():
        matrix.parts[key.encode()] = value
    return matrix


GRAPH = {
    "allx shape": ("allx", sparse(529), r"\(530, 6\)"),
    "allx dense": ("allx", np.eye(530, 6), "sparse matrix"),
    "allx end": ("allx", sparse(indptr=np.arange(531, dtype="<i4")), "must have 530 values, got 6"),
    "allx falls": ("allx", sparse(indptr=np.r_[0, 9, np.full(529, 6)].astype("<i4")), "nondecreasing"),
    "allx column": ("allx", sparse(indices=np.array([0, 1, 2, 3, 4, 6], "<i4")), "columns must be 0 to 5"),
    "allx nan": ("allx", sparse(data=np.full(6, np.nan)), "finite"),
    "ally classes": ("ally", np.zeros((530, 4), "<i4"), r"array \(530, 3\)"),
    "ally two": ("ally", np.ones((530, 3), "<i4"), "at most one 1"),
    "y": ("y", np.zeros((31, 3), "<i4"), "leave 500 of 530"),
    "graph ends": ("graph", {0: 1}, "dict of lists"),
    "graph high": ("graph", {0: [540]}, "0 to 539"),
}


@pytest.mark.parametrize("name", GRAPH)
def test_planetoid(small_graph, name):
    part, content, message = GRAPH[name]
    path = official.write(small_graph / f"ind.cora.{part}", official.dumps(content))
    with refused(path, message):
        data.load("cora", small_graph)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("539\n539", "without duplicates"),
        ("540", "from 0 to 539"),
        ("5 a", "integers"),
        ("538", "end at node 539"),
        ("9" * 20_000, "integers"),
    ],
    ids=["twice", "high", "word", "short", "long"],
)
def test_places_of_test_nodes(small_graph, text, message):
    path = official.write(small_graph / "ind.cora.test.index", text)
    with refused(path, message):
        data.load("cora", small_graph)


def test_planetoid_with_a_damaged_file(small_graph):
    path = small_graph / "ind.cora.allx"
    official.write(path, HOSTILE["eval"])
    with refused(path, "refers to"):
        data.load("cora", small_graph)
    path.unlink()
    with refused(path, "missing"):
        data.load("cora", small_graph)


# --- images and faces


@pytest.fixture
def image(tmp_path):
    pytest.importorskip("PIL.Image")
    from PIL import Image

    path = tmp_path / "a" / "1.png"
    path.parent.mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)).save(path)
    return path


def bomb():
    """A PNG that promises 50,000 × 50,000 pixels."""
    import zlib

    head = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    body = b"".join(struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(executed) (w) file\n",
        lambda content: bomb(),
    ],
    ids=["empty", "truncated", "postscript", "bomb"],
)
def test_damaged_images_are_named(image, change):
    image.write_bytes(change(image.read_bytes()))
    ds = data.load("image_folder", image.parents[1])
    with memory_below(8 * MEGA), refused(image, "not a readable image"):
        ds[0]


def test_an_image_just_too_large(image, monkeypatch):
    from hypersphere.data import image_folder

    monkeypatch.setattr(image_folder, "PIXELS", 1600)
    assert data.load("image_folder", image.parents[1])[0][0].shape == (3, 40, 40)
    monkeypatch.setattr(image_folder, "PIXELS", 1599)
    with refused(image, "at most 1599 pixels, got 40×40"):
        data.load("image_folder", image.parents[1])[0]


PIXELS = bytes(112 * 92)
PGM = {
    "short": (b"P5\n92 112\n255\n" + PIXELS[1:], "not a readable image"),
    "turned": (b"P5\n112 92\n255\n" + PIXELS, "92×112 pixels"),
    "wide": (b"P5\n92 112\n65535\n" + PIXELS * 2, "8 bits per channel"),
}


@pytest.mark.parametrize("name", PGM)
def test_orl(tmp_path, name):
    official.write_orl(tmp_path)
    content, message = PGM[name]
    path = official.write(tmp_path / "s7" / "3.pgm", content)
    with refused(path, message):
        data.load("orl", tmp_path)
    path.unlink()
    with refused(path, "is missing"):
        data.load("orl", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must begin"),
        ("1 1\nA 1 2\n", "2 pairs .see its first line., got 1"),
        ("1 1\nA 1 B 2\nA 1 B 1\n", "pair 1 must be 'name i j'"),
        ("1 1\nA 0 2\nA 1 B 1\n", "from 1"),
        ("1 1\nA 1 2\nA/../../A 1 B 1\n", "names of people"),
        ("1 1\nA 1 2\n.. 1 B 1\n", "names of people"),
        (b"1 1\nA 1 2\n\xff 1 B 1\n", "utf-8"),
    ],
)
def test_pairs(tmp_path, text, message):
    path = official.write(tmp_path / "pairs.txt", text)
    with refused(path, message):
        data.read_pairs(path)


# --- text


@pytest.mark.parametrize(("content", "message"), [(b"a", "too short"), (b"abc\xff\xfe" * 20, "at byte 3")])
def test_text(tmp_path, content, message):
    path = official.write(tmp_path / "input.txt", content)
    with refused(path, message):
        data.load("text", tmp_path)


# --- ModelNet


@pytest.fixture
def clouds(tmp_path):
    pytest.importorskip("h5py")
    folder = tmp_path / "modelnet40_ply_hdf5_2048"
    official.write_modelnet(folder, {"train": (3,)}, 40)
    return folder / "ply_data_train0.h5"


def rewrite(path, **members):
    import h5py

    with h5py.File(path, "a") as file:
        for name, content in members.items():
            del file[name]
            if isinstance(content, dict):
                file.create_dataset(name, **content)
            elif content is not None:
                file[name] = content


PROMISE = {"shape": (10**7, 2048, 3), "dtype": "f4", "chunks": (1, 2048, 3), "compression": "gzip"}


def h5_members(outside):
    import h5py

    foreign = "dataset 'data' of its own"
    elsewhere = {"shape": (3, 2048, 3), "dtype": "f4", "external": [(str(outside), 0, 73728)]}
    many = {"shape": (10**7, 1), "dtype": "u1", "chunks": (1, 1)}
    return {
        "missing": ({"data": None}, foreign),
        "group": ({"data": h5py.SoftLink("/")}, foreign),
        "external link": ({"data": h5py.ExternalLink(str(outside), "data")}, foreign),
        "external file": ({"data": elsewhere}, foreign),
        "promise": ({"data": PROMISE, "label": many}, "too many for"),
        "integers": ({"data": np.zeros((3, 2048, 3), np.int32)}, "'data' must be floats"),
        "few labels": ({"label": np.zeros((2, 1), np.uint8)}, r"integers \(3, 1\)"),
        "label": ({"label": np.full((3, 1), 40, np.uint8)}, "0 to 39, got 40"),
        "not a number": ({"data": np.full((3, 2048, 3), np.nan, np.float32)}, "finite"),
    }


H5 = "missing, group, external link, external file, promise, integers, few labels, label, not a number"


@pytest.mark.parametrize("name", H5.split(", "))
def test_modelnet(clouds, name):
    import shutil

    outside = clouds.with_name("outside.h5")
    shutil.copy(clouds, outside)
    members, message = h5_members(outside)[name]
    rewrite(clouds, **members)
    with memory_below(8 * MEGA), refused(clouds, message):
        data.load("modelnet", clouds.parent)


def test_modelnet_that_reads_another_file(clouds):
    import h5py

    outside = clouds.rename(clouds.with_name("outside.h5"))
    layout = h5py.VirtualLayout((3, 2048, 3), "f4")
    layout[:] = h5py.VirtualSource(str(outside), "data", (3, 2048, 3))
    with h5py.File(clouds, "w") as file:
        file.create_virtual_dataset("data", layout)
        file["label"] = np.zeros((3, 1), np.uint8)
    with refused(clouds, "dataset 'data' of its own"):
        data.load("modelnet", clouds.parent)


def test_modelnet_with_a_damaged_file(clouds):
    clouds.write_bytes(clouds.read_bytes()[:5000])
    with refused(clouds, "not a readable HDF5 file"):
        data.load("modelnet", clouds.parent)


def test_modelnet_lists(clouds):
    listing = clouds.with_name("train_files.txt")
    official.write(listing, "")
    with refused(listing, "an empty file"):
        data.load("modelnet", clouds.parent)
    official.write(listing, f"{clouds.name}\ndata/{clouds.name}\n")
    with refused(listing, "a duplicate"):
        data.load("modelnet", clouds.parent)
    official.write(listing, "../../../etc/passwd\n")  # the last part counts
    with refused(clouds.parent / "passwd", "is missing"):
        data.load("modelnet", clouds.parent)


# --- what is not installed


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("h5py", lambda root: data.load("modelnet", root)),
        ("PIL.Image", lambda root: data.load("image_folder", root)[0]),
    ],
    ids=["h5py", "Pillow"],
)
def test_packages_that_are_missing(module, call, tmp_path, monkeypatch):
    official.write(tmp_path / "train_files.txt", "x.h5")
    official.write(tmp_path / "class" / "x.png", b"")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=re.escape(install_command("data"))):
        call(tmp_path)
    assert len(data.load("digits")) == 1280  # needs none of them


def test_pipes_and_folders_are_no_images(image):
    os.mkfifo(image.with_name("pipe.jpg"))
    image.with_name("folder.jpg").mkdir()
    image.with_name("broken.jpg").symlink_to("nowhere")
    assert data.load("image_folder", image.parents[1]).paths == [str(image)]


def test_images_of_sixteen_bits_are_refused(image):
    from PIL import Image

    Image.fromarray(np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)).save(image)
    with refused(image, "8 bits per channel"):
        data.load("image_folder", image.parents[1])[0]
