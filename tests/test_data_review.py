"""What a review of the loaders found: each once wrong, now kept right."""

import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.data.planetoid import _read_rows


def sparse(path, ends, monkeypatch):
    """A pickle of a csr matrix with three values, by a stand-in for the unpickler."""
    from hypersphere.data import _pickles, planetoid

    class Vector:
        def __init__(self, values):
            self.values, self.shape = values, values.shape

        def numpy(self):
            return self.values

    class Matrix:
        def __init__(self):
            vectors = ends, np.array([0, 1, 2], np.int32), np.ones(3, np.float32)
            self.parts = dict(zip((b"indptr", b"indices", b"data"), map(Vector, vectors), strict=True))
            self.parts[b"_shape"] = (len(ends) - 1, 4)

    monkeypatch.setattr(planetoid._pickles, "load", lambda path: Matrix())
    monkeypatch.setattr(_pickles, "Matrix", Matrix)
    monkeypatch.setattr(_pickles, "Array", Vector)
    features = np.zeros((len(ends) - 1, 4), np.float32)
    _read_rows(path, features, np.arange(len(features)))
    return features


@pytest.mark.parametrize(
    "ends",
    [
        np.array([0, 2**63 - 1, -2, 3, 3], np.int64),
        np.array([0, 2**31 - 1, -(2**31), 3, 3], np.int32),
        np.array([0, 3, 1, 3], np.uint8),
        np.array([0, 2**64 - 1, 3, 3], np.uint64),
    ],
    ids=["int64", "int32", "uint8", "uint64"],
)
def test_ends_of_rows_that_wrap_around(ends, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="must be whole numbers from 0 on that do not fall"):
        sparse(tmp_path / "allx", ends, monkeypatch)


def test_ends_of_rows_of_small_numbers(tmp_path, monkeypatch):
    features = sparse(tmp_path / "allx", np.array([0, 2, 3, 3], np.uint8), monkeypatch)
    assert features.tolist() == [[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]


@pytest.fixture
def folder(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        image.fromarray(np.full((4, 5, 3), 7, np.uint8)).save(tmp_path / name / "1.png")
    return tmp_path


def test_pipes_links_and_folders_are_no_images(folder):
    os.mkfifo(folder / "a" / "pipe.jpg")
    (folder / "a" / "folder.jpg").mkdir()
    (folder / "a" / "broken.jpg").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    signal.alarm(20)
    try:
        data = hs.data.load("image_folder", folder)
        assert data.classes == ["a", "b"]
        assert [tuple(data[i][0].shape) for i in range(len(data))] == [(3, 4, 5)] * 2
    finally:
        signal.alarm(0)


def test_a_class_may_be_called_train(folder):
    (folder / "a").rename(folder / "train")
    assert hs.data.load("image_folder", folder).classes == ["b", "train"]


def test_images_of_sixteen_bits_are_refused(folder):
    image = pytest.importorskip("PIL.Image")
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    image.fromarray(ramp).save(folder / "a" / "2.png")
    with pytest.raises(ValueError, match=r"2\.png.*8 bits a colour"):
        hs.data.load("image_folder", folder)[1]


def test_colours_stay_in_their_places(folder):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    image.fromarray(pixels).save(folder / "a" / "1.png")
    assert torch.equal(hs.data.load("image_folder", folder)[0][0], torch.from_numpy(pixels).permute(2, 0, 1))


def test_an_empty_idx_file_is_refused(tmp_path):
    from hypersphere.data.idx import MOST, read_idx

    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(bytes((0, 0, 8, 3)) + b"".join(n.to_bytes(4, "big") for n in (0, 28, 28)))
    with pytest.raises(ValueError, match="must have the shape"):
        read_idx(path, MOST)


@pytest.mark.parametrize("option", [{"batch_norm": "no"}, {"relu": 5}])
def test_flags_must_be_flags(option):
    with pytest.raises(TypeError, match=f"{next(iter(option))} must be True or False"):
        hs.models.create("cnn6", **option)


def test_a_name_must_be_a_name():
    with pytest.raises(ValueError, match=r"hypersphere\.models\.names"):
        hs.models.create(["cnn6"])
    assert isinstance(hs.models.create("mlp"), nn.Module)
