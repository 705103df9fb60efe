"""Damaged and hostile files: a clear error that names the file, nothing executed, no memory for empty promises."""

import gzip
import os
import pickle
import re
import signal
import struct
import sys
import tracemalloc
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

import hypersphere as hs
import hypersphere.data as data
from hypersphere._internal.modules import install_command
from hypersphere.data import _pickles, cifar, planetoid
from hypersphere.data.planetoid import _read_rows
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


def array_of(content):
    return official._encode(content)


HOSTILE = {
    "os.system": pickle.dumps(Shell(), 2),
    "eval": pickle.dumps(Evaluate(), 2),
    "eval, protocol 4": pickle.dumps(Evaluate(), 4),
    "eval in a dict": official.dumps({b"data": official.Raw(pickle.dumps(Evaluate(), 2)[2:-1])}),
    "instance": b"(S'touch executed'\nios\nsystem\n.",
    "object": b"\x80\x02(cos\nsystem\nU\x0etouch executedo.",
    "persistent id": b"\x80\x02Pexecuted\n.",
    "extension": b"\x80\x02\x82\x01.",
    "attribute of numpy": b"\x80\x02cnumpy.core.multiarray\nfromfile\n.",
    "an ndarray made by hand": b"\x80\x02cnumpy\nndarray\nK\x09\x85R.",
    "an array of objects": b"\x80\x02cnumpy\ndtype\n(U\x02O8K\x00K\x01tR.",
    "state of a global": b"\x80\x02cnumpy\nndarray\n}(U\x01aK\x01ub.",
    "slots of a sparse matrix": b"\x80\x02cscipy.sparse.csr\ncsr_matrix\n)\x81N}U\x01aK\x01s\x86b.",
    "a key that is a list": b"\x80\x02}]K\x01s.",
    "an unknown memo": b"\x80\x02h\x07.",
    "an empty stack": b"\x80\x02.",
    "not a pickle": b"hello, world",
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
    for name in ("os.system", "eval", "eval in a dict", "instance", "object"):
        pickle.loads(HOSTILE[name])
        os.remove("executed")


LONG = 2**31 - 1
BOMBS = {
    "memo": b"\x80\x02Nr" + struct.pack("<I", 2**32 - 1) + b"(" * 3 + b".",
    "string": b"\x80\x02T" + struct.pack("<i", LONG) + b"short.",
    "negative string": b"\x80\x02T" + struct.pack("<i", -5) + b"short.",
    "array": b"\x80\x02" + array_of(np.arange(3)).replace(b"(K\x03t", b"(J\xff\xff\xff\x7fJ\xff\xff\xff\x7ft") + b".",
}


@pytest.mark.parametrize("name", BOMBS)
def test_promises_take_no_memory(name, tmp_path):
    path = official.write(tmp_path / "file", BOMBS[name])
    with memory_below(MEGA), refused(path, "declares" if name == "string" else None):
        _pickles.load(path)


def test_arrays_by_columns(tmp_path):
    numbers = np.arange(6, dtype="<i4")
    content = official.dumps(numbers.reshape(3, 2)).replace(b"\x89U", b"\x88U")
    path = official.write(tmp_path / "file", content)
    assert (_pickles.load(path).values == numbers.reshape(2, 3).T).all()


def test_arrays_of_any_byte_order(tmp_path):
    path = official.write(tmp_path / "file", official.dumps({b"x": np.arange(1000.0), b"y": np.eye(3, dtype=">i2")}))
    content = _pickles.load(path)
    assert (content[b"x"].values == np.arange(1000.0)).all()
    assert (content[b"y"].values == np.eye(3)).all()
    assert content[b"y"].values.dtype == np.dtype(">i2")


def test_every_truncation_of_a_pickle(tmp_path):
    content = official.dumps([official.Sparse(np.eye(4)), np.arange(4), official.Adjacency({1: [2, 300]})])
    for end in range(len(content)):
        path = official.write(tmp_path / "file", content[:end])
        with refused(path):
            _pickles.load(path)


def test_flipped_bytes_of_a_pickle(tmp_path):
    """Anything goes but another exception, or an object that no official file has."""
    content = official.dumps([official.Sparse(np.eye(4)), np.arange(4), official.Adjacency({1: [2, 300], 7: []})])
    allowed = {type(None), bool, int, bytes, tuple, list, dict, _pickles.Array, _pickles.Matrix, _pickles.DType}
    rng = np.random.default_rng(0)
    loaded = 0
    for _ in range(1000):
        damaged = bytearray(content)
        for at in rng.integers(2, len(content), rng.integers(1, 4)):
            damaged[at] = rng.integers(256)
        path = official.write(tmp_path / "file", bytes(damaged))
        try:
            value = _pickles.load(path)
        except ValueError:
            continue
        loaded += 1
        assert type(value) in allowed or value in _pickles.GLOBALS.values()
    assert 0 < loaded < 1000


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


def test_cifar_with_a_file_missing(small_cifar):
    path = small_cifar / "cifar-10-batches-bin" / "data_batch_2.bin"
    path.unlink()
    with refused(path, "is missing"):
        data.load("cifar10", small_cifar)
    path.mkdir()
    with refused(path, "is missing"):
        data.load("cifar10", small_cifar)


def cifar_batch(**changes):
    content = {b"labels": [0, 1, 2, 3], b"data": official.cifar_images(0, 4)}
    return official.dumps(content | {key.encode(): value for key, value in changes.items()})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (cifar_batch(labels=[0, 1, 2]), "list of 4 labels"),
        (cifar_batch(labels=[0, 1, 2, -1]), "got -1 at record 3"),
        (cifar_batch(labels=[0, 1, 2, b"3"]), "list of 4 labels"),
        (cifar_batch(labels=b"abcd"), "list of 4 labels"),
        (cifar_batch(data=official.cifar_images(0, 3)), r"array \(4, 3072\)"),
        (cifar_batch(data=official.cifar_images(0, 4).astype("<i4")), r"array \(4, 3072\)"),
        (cifar_batch(data=b"x" * 4 * 3072), r"array \(4, 3072\)"),
        (official.dumps([1, 2]), r"array \(4, 3072\)"),
        (cifar_batch()[:-2000], "truncated|declares"),
        (cifar_batch(extra=official.Raw(pickle.dumps(Shell(), 2)[2:-1])), "refers to '(posix|nt).system'"),
    ],
    ids=["few", "low", "text", "string", "images", "ints", "bytes", "list", "truncated", "shell"],
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


HUGE = bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1)
IDX = {
    "empty": (lambda content: b"", "truncated"),
    "head": (lambda content: content[:10], "truncated"),
    "truncated": (lambda content: content[:-1], "truncated"),
    "long": (lambda content: content + b"\0", "too long"),
    "magic": (lambda content: b"\0\0\x0d\x03" + content[4:], "not an idx file"),
    "labels": (lambda content: official.idx(np.zeros(20, np.uint8)), "not an idx file"),
    "sizes": (lambda content: official.idx(np.zeros((20, 32, 32), np.uint8)), r"\(60000, 28, 28\).*got \(20, 32, 32\)"),
    "huge": (lambda content: HUGE + content[16:], "4294967295"),
    "promise": (lambda content: content[:4] + struct.pack(">3I", 60_000, 28, 28) + content[16:], "truncated"),
    "many": (lambda content: content[:4] + struct.pack(">3I", 60_001, 28, 28) + content[16:], r"got \(60001, 28, 28\)"),
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
    with memory_below(MEGA), refused(path, message):
        data.load("mnist", small_mnist)


def test_labels_of_mnist(small_mnist):
    path = official.write(small_mnist / "train-labels-idx1-ubyte", official.idx(np.full(20, 10, np.uint8)))
    with refused(path, "0 to 9, got 10 at record 0"):
        data.load("mnist", small_mnist)


def test_a_gzip_bomb(small_mnist):
    """A file of a few KB that would unpack to 512 MB: it is left as soon as it is longer than it says."""
    (small_mnist / "train-images-idx3-ubyte").unlink()
    path = small_mnist / "train-images-idx3-ubyte.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(official.idx(np.zeros((20, 28, 28), np.uint8)))
        for _ in range(32):
            file.write(bytes(4 * MEGA))
    with memory_below(2 * MEGA), refused(path, "too long"):
        data.load("mnist", small_mnist)


@pytest.mark.parametrize("at", [0, 40, -6])
def test_damaged_gzip(small_mnist, at):
    plain = small_mnist / "train-images-idx3-ubyte"
    content = bytearray(gzip.compress(plain.read_bytes()))
    content[at] ^= 0xFF
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


# One list of 1000 neighbours under 1000 names: a million ends in a file of 9 KB.
SHARED_NEIGHBOURS = (
    b"\x80\x02}(K\x00]("
    + b"K\x01" * 1000
    + b"eq\x01"
    + b"".join(b"M" + struct.pack("<H", i) + b"h\x01" for i in range(1, 1000))
    + b"u."
)
GRAPH = {
    "allx shape": ("allx", sparse(529), r"\(530, 6\)"),
    "allx dense": ("allx", np.eye(530, 6), "sparse matrix"),
    "allx end": ("allx", sparse(indptr=np.arange(531, dtype="<i4")), "must have 530 values, got 6"),
    "allx falls": ("allx", sparse(indptr=np.r_[0, 9, np.full(529, 6)].astype("<i4")), "nondecreasing"),
    "allx below": ("allx", sparse(indptr=np.r_[-1, np.full(530, 6)].astype("<i4")), "nondecreasing"),
    "allx floats": ("allx", sparse(indptr=np.zeros(531)), "integers"),
    "allx column": ("allx", sparse(indices=np.array([0, 1, 2, 3, 4, 6], "<i4")), "columns must be 0 to 5"),
    "allx nan": ("allx", sparse(data=np.full(6, np.nan)), "finite"),
    "allx missing": ("allx", sparse(data=None), "vector 'data'"),
    "ally classes": ("ally", np.zeros((530, 4), "<i4"), r"array \(530, 3\)"),
    "ally two": ("ally", np.ones((530, 3), "<i4"), "at most one 1"),
    "ally list": ("ally", [1, 2], r"array \(530, 3\)"),
    "y": ("y", np.zeros((31, 3), "<i4"), "leave 500 of 530"),
    "graph ends": ("graph", {0: 1}, "dict of lists"),
    "graph high": ("graph", {0: [540]}, "0 to 539"),
    "graph name": ("graph", {b"a": [1]}, "integers"),
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
        ("", "without duplicates"),
        ("539\n539", "without duplicates"),
        ("540", "from 0 to 539"),
        ("-1", "integers"),
        ("5 a", "integers"),
        ("538", "end at node 539"),
        ("٣", "integers"),
        ("9" * 20_000, "too long"),
    ],
    ids=["empty", "twice", "high", "negative", "word", "short", "arabic", "long"],
)
def test_places_of_test_nodes(small_graph, text, message):
    path = official.write(small_graph / "ind.cora.test.index", text)
    with refused(path, message):
        data.load("cora", small_graph)


def test_one_list_for_many_nodes(small_graph):
    path = official.write(small_graph / "ind.cora.graph", SHARED_NEIGHBOURS)
    with memory_below(2 * MEGA), refused(path, "declares 1000000 neighbours"):
        data.load("cora", small_graph)


@pytest.mark.parametrize("part", ["allx", "y", "graph", "test.index"])
def test_planetoid_with_a_damaged_file(small_graph, part):
    path = small_graph / f"ind.cora.{part}"
    content = path.read_bytes()
    if part != "test.index":
        official.write(path, content[: len(content) // 2])
        with refused(path):
            data.load("cora", small_graph)
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
        lambda content: b"not an image",
        lambda content: content[:60] + bytes(200) + content[260:],
        lambda content: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(executed) (w) file\n",
        lambda content: bomb(),
    ],
    ids=["empty", "truncated", "text", "zeros", "postscript", "bomb"],
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
    "empty": (b"", "not a readable image"),
    "short": (b"P5\n92 112\n255\n" + PIXELS[1:], "not a readable image"),
    "turned": (b"P5\n112 92\n255\n" + PIXELS, "92×112 pixels"),
    "wide": (b"P5\n92 112\n65535\n" + PIXELS * 2, "8 bits per channel"),
    "huge": (b"P5\n999999999 999999999\n255\n" + PIXELS, "not a readable image"),
}


@pytest.mark.parametrize("name", PGM)
def test_orl(tmp_path, name):
    official.write_orl(tmp_path)
    content, message = PGM[name]
    path = official.write(tmp_path / "s7" / "3.pgm", content)
    with memory_below(8 * MEGA), refused(path, message):
        data.load("orl", tmp_path)


def test_orl_with_an_image_missing(tmp_path):
    official.write_orl(tmp_path)
    path = tmp_path / "s40" / "10.pgm"
    path.unlink()
    with refused(path, "is missing"):
        data.load("orl", tmp_path, "all")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must begin"),
        ("a\n", "integers"),
        ("1 1\nA 1 2\n", "2 pairs .see its first line., got 1"),
        ("1 1\nA 1 B 2\nA 1 B 1\n", "pair 1 must be 'name i j'"),
        ("1 1\nA 1 2\nA 1 2\n", "pair 2 must be 'name i name j'"),
        ("1 1\nA 0 2\nA 1 B 1\n", "from 1"),
        ("1 1\nA 1 2\nA/../../A 1 B 1\n", "names of people"),
        ("1 1\nA 1 2\n.. 1 B 1\n", "names of people"),
        ("2147483647 2147483647\nA 1 2\n", "pairs .see its first line."),
        (b"1 1\nA 1 2\n\xff 1 B 1\n", "utf-8"),
    ],
)
def test_pairs(tmp_path, text, message):
    path = official.write(tmp_path / "pairs.txt", text)
    with memory_below(MEGA), refused(path, message):
        data.read_pairs(path)


# --- text


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "too short"), (b"a", "too short"), (b"abc\xff\xfe" * 20, "at byte 3")]
)
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
    large_chunk = PROMISE | {"shape": (3, 2048, 3), "chunks": (10**5, 2048, 1), "maxshape": (None, 2048, 3)}
    return {
        "missing": ({"data": None}, foreign),
        "group": ({"data": h5py.SoftLink("/")}, foreign),
        "external link": ({"data": h5py.ExternalLink(str(outside), "data")}, foreign),
        "external file": ({"data": elsewhere}, foreign),
        "null": ({"data": h5py.Empty("f4")}, foreign),
        "promise": ({"data": PROMISE}, r"integers \(10000000, 1\)"),
        "promise of both": ({"data": PROMISE, "label": many}, "too many for"),
        "chunk": ({"data": large_chunk}, "too many for"),
        "integers": ({"data": np.zeros((3, 2048, 3), np.int32)}, "'data' must be floats"),
        "flat": ({"data": np.zeros((3, 2048), np.float32)}, "'data' must be floats"),
        "few labels": ({"label": np.zeros((2, 1), np.uint8)}, r"integers \(3, 1\)"),
        "label": ({"label": np.full((3, 1), 40, np.uint8)}, "0 to 39, got 40"),
    }


H5 = "missing, group, external link, external file, null, promise, promise of both, chunk, integers, flat, "
H5 += "few labels, label"


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


def test_modelnet_with_points_that_are_no_numbers(clouds):
    points = np.zeros((3, 2048, 3), np.float32)
    points[1, 5, 2] = np.nan
    rewrite(clouds, data=points)
    with refused(clouds, "finite"):
        data.load("modelnet", clouds.parent)


@pytest.mark.parametrize("keep", [0, 0.5])
def test_modelnet_with_a_damaged_file(clouds, keep):
    content = clouds.read_bytes()
    clouds.write_bytes(content[: int(keep * len(content))])
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
    official.write(listing, "..\n")
    with refused(clouds.parent, "is missing"):
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


@pytest.mark.parametrize(
    "ends",
    [np.array([0, 2**63 - 1, -2, 3, 3], np.int64), np.array([0, 3, 1, 3], np.uint8)],
    ids=["int64", "uint8"],
)
def test_ends_of_rows_that_wrap_around(ends, tmp_path, monkeypatch):
    """The differences of these ends are positive in their own type."""
    matrix = _pickles.Matrix()
    vectors = {b"indptr": ends, b"indices": np.array([0, 1, 2], np.int32), b"data": np.ones(3, np.float32)}
    for key, values in vectors.items():
        matrix.parts[key] = _pickles.Array()
        matrix.parts[key].values = values
    matrix.parts[b"_shape"] = (len(ends) - 1, 4)
    monkeypatch.setattr(_pickles, "load", lambda path: matrix)
    with pytest.raises(ValueError, match="nondecreasing integers from 0 on"):
        _read_rows(tmp_path / "allx", np.zeros((len(ends) - 1, 4), np.float32), np.arange(len(ends) - 1))


@pytest.fixture
def two_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        image.fromarray(np.full((4, 5, 3), 7, np.uint8)).save(tmp_path / name / "1.png")
    return tmp_path


def test_pipes_links_and_folders_are_no_images(two_images):
    os.mkfifo(two_images / "a" / "pipe.jpg")
    (two_images / "a" / "folder.jpg").mkdir()
    (two_images / "a" / "broken.jpg").symlink_to("nowhere")
    (two_images / "loop").symlink_to("loop")
    signal.alarm(20)
    try:
        data = hs.data.load("image_folder", two_images)
        assert data.classes == ["a", "b"]
        assert [tuple(data[i][0].shape) for i in range(len(data))] == [(3, 4, 5)] * 2
    finally:
        signal.alarm(0)


def test_images_of_sixteen_bits_are_refused(two_images):
    image = pytest.importorskip("PIL.Image")
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    image.fromarray(ramp).save(two_images / "a" / "2.png")
    with pytest.raises(ValueError, match=r"2\.png.*8 bits per channel"):
        hs.data.load("image_folder", two_images)[1]
