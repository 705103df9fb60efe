"""Each loader on its official format: synthetic files always, the real ones where they are."""

import hashlib
import json
import pickle
import re
import zlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hypersphere.data as data
from hypersphere.data import ArrayDataset, LazyDataset, cifar, planetoid
from tests import official_files as official

OFFICIAL = ["digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "cifar_fs", "fc100", "image_folder"]
OFFICIAL += ["modelnet", "orl", "lfw", "text", "cora", "citeseer", "pubmed", "casia_webface", "imdb_face", "ms_celeb"]
OFFICIAL += ["imagenet", "mini_imagenet", "modelnet10", "modelnet40"]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch, request):
    if "real" not in request.node.name:
        monkeypatch.delenv("HYPERSPHERE_DATA", raising=False)


def crc(tensor):
    return zlib.crc32(tensor.contiguous().numpy().tobytes())


def counts(dataset):
    return torch.bincount(dataset.labels, minlength=len(dataset.classes)).tolist()


# --- what a dataset is


def test_array_dataset():
    ds = ArrayDataset(torch.arange(6).view(3, 2), np.array([1, 0, 1], np.uint8), ["a", "b"])
    assert len(ds) == 3
    assert ds.labels.dtype == torch.int64
    inputs, label = ds[-1]
    assert inputs.tolist() == [4, 5]
    assert label == 1
    assert type(label) is int
    assert [label for _, label in ds] == [1, 0, 1]  # iteration ends
    part = ds.subset(torch.tensor([2, 0]))
    assert part.inputs.tolist() == [[4, 5], [0, 1]]
    assert part.labels.tolist() == [1, 1]
    assert part.classes == ds.classes
    assert len(ds.subset([])) == 0
    with pytest.raises(IndexError, match="-3 to 2"):
        ds[3]
    with pytest.raises(IndexError):
        ds.subset([3])
    with pytest.raises(ValueError, match="integers"):
        ds.subset(torch.tensor([True, False, True]))


@pytest.mark.parametrize(("labels", "message"), [([0, 2], "got 2"), ([-1, 0], "got -1"), ([0.0, 1.0], "integers")])
def test_labels_outside_the_classes(labels, message):
    with pytest.raises(ValueError, match=message):
        ArrayDataset(torch.zeros(2), labels, ["a", "b"])


def test_as_many_inputs_as_labels():
    with pytest.raises(ValueError, match="2 samples"):
        ArrayDataset(torch.zeros(3, 2), [0, 0], ["a"])
    with pytest.raises(ValueError, match="paths must have 2"):
        LazyDataset(["x"], [0, 0], ["a"], decode=torch.tensor)


# --- by name


def test_unknown_names_and_options(tmp_path):
    with pytest.raises(ValueError, match=r"'cifar', did you mean 'cifar10' or 'cifar100' or 'cifar_fs'"):
        data.load("cifar")
    with pytest.raises(ValueError, match=r"unknown dataset \['mnist'\]"):
        data.load(["mnist"])
    with pytest.raises(ValueError, match=r"unknown dataset 'zzz', must be one of casia_webface, cifar10, cifar100, "):
        data.load("zzz")
    with pytest.raises(ValueError, match=r"unknown cifar100 option 'label', did you mean 'labels'\?"):
        data.load("cifar100", tmp_path, label="fine")
    with pytest.raises(ValueError, match=r"cora has no options, got 'labels'"):
        data.load("cora", tmp_path, labels="fine")
    with pytest.raises(ValueError, match=r"labels must be one of fine, coarse; got 'medium'"):
        data.load("cifar100", tmp_path, labels="medium")
    with pytest.raises(TypeError, match="root must be a path"):
        data.load("mnist", 3)
    for name in OFFICIAL:
        with pytest.raises(ValueError, match=r"unknown split 'training', did you mean 'train'\?"):
            data.load(name, tmp_path, split="training")


@pytest.mark.parametrize("name", OFFICIAL[1:])
def test_a_missing_set_is_named_in_one_line(name, tmp_path, monkeypatch):
    for root in (None, tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match=rf"^{name}\b") as caught:
            data.load(name, root)
        text = str(caught.value)
        assert "\n" not in text
        assert "expected" in text or "holds" in text or "HYPERSPHERE_DATA" in text
        if root is None:
            assert re.search("https?://", text)
        else:
            assert str(root) in text
            assert "download" in text or name == "image_folder"  # images of the user's own


def test_root_from_the_environment(tmp_path, monkeypatch):
    official.write_mnist(tmp_path / "MNIST" / "raw")
    monkeypatch.setenv("HYPERSPHERE_DATA", str(tmp_path))
    assert len(data.load("mnist")) == 20
    monkeypatch.setenv("HYPERSPHERE_DATA", "")
    with pytest.raises(ValueError, match="HYPERSPHERE_DATA"):
        data.load("mnist")


def test_register(tmp_path, monkeypatch):
    from hypersphere.data import _registry

    monkeypatch.setattr(_registry, "DATASETS", dict(_registry.DATASETS))
    seen = []

    def loader(root, split, *, size=1):
        seen.append((root, split, size))
        return "mine"

    data.register("mine", loader)
    assert "mine" in data.names()
    assert data.load("mine", str(tmp_path), "val", size=4) == "mine"
    assert data.load("mine") == "mine"
    assert seen == [(tmp_path, "val", 4), (None, "train", 1)]
    with pytest.raises(ValueError, match="option 'sise', did you mean 'size'"):
        data.load("mine", sise=4)
    with pytest.raises(TypeError, match="name must be a str"):
        data.register(3, loader)
    with pytest.raises(TypeError, match="loader must be a function"):
        data.register("mine", "loader")


# --- digits


def test_digits_are_those_of_scikit_learn():
    theirs = pytest.importorskip("sklearn.datasets").load_digits()
    ours = [data.load("digits", split=split) for split in ("train", "test")]
    assert (torch.cat([ds.labels for ds in ours]).numpy() == theirs.target).all()
    images = torch.cat([ds.inputs for ds in ours]).squeeze(1).numpy()
    assert (np.rint(images * (16 / 255)) == theirs.images).all()


def test_digits():
    train, test = data.load("digits"), data.load("digits", split="test")
    assert train.inputs.shape == (1280, 1, 8, 8)
    assert test.inputs.shape == (517, 1, 8, 8)
    assert counts(train) == [126, 130, 127, 131, 128, 130, 129, 128, 124, 127]
    assert counts(test) == [52, 52, 50, 52, 53, 52, 52, 51, 50, 53]
    assert (crc(train.inputs), crc(train.labels)) == (4092898413, 3789782615)
    assert (crc(test.inputs), crc(test.labels)) == (272552987, 1359736923)
    assert (int(train.inputs.min()), int(train.inputs.max())) == (0, 255)


# --- MNIST


@pytest.mark.parametrize(
    ("name", "form", "where"),
    [("mnist", "plain", "official"), ("fashion_mnist", "zipped", "official"), ("mnist", "dotted", "itself")],
)
def test_idx(name, form, where, tmp_path):
    below = {"mnist": "MNIST/raw", "fashion_mnist": "FashionMNIST/raw"}[name] if where == "official" else "."
    official.write_mnist(tmp_path / below, zipped=form == "zipped", dotted=form == "dotted")
    rng = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 10)):
        ds = data.load(name, tmp_path, split)
        assert ds.inputs.dtype == torch.uint8
        assert (ds.inputs.numpy() == rng.integers(0, 256, (count, 1, 28, 28), np.uint8)).all()
        assert ds.labels.tolist() == [i % 10 for i in range(count)]
        assert len(ds.classes) == 10


@pytest.mark.slow
def test_real_mnist(tmp_path_factory):
    root = official.real("mnist", "MNIST/raw", tmp_path_factory)
    train, test = data.load("mnist", root), data.load("mnist", root, "test")
    assert counts(train) == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert counts(test) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    # The well-known checksums of the idx files, put together again from what was read.
    md5 = [
        hashlib.md5(official.idx(array)).hexdigest()[:8]
        for ds in (train, test)
        for array in (ds.inputs[:, 0].numpy(), ds.labels.numpy().astype(np.uint8))
    ]
    assert md5 == ["6bbc9ace", "a25bea73", "2646ac64", "27ae3e4e"]


# --- CIFAR


@pytest.fixture
def small_cifar(tmp_path, monkeypatch):
    """CIFAR-10 of 20 images a file; CIFAR-100 of 3 + 1 images a class, many chunks of it."""
    monkeypatch.setattr(cifar, "CIFAR10", replace(cifar.CIFAR10, images={"train": 20, "test": 20}))
    monkeypatch.setattr(cifar, "CIFAR100", replace(cifar.CIFAR100, images={"train": 300, "test": 100}))
    official.write_cifar10(tmp_path, 20)
    official.write_cifar100(tmp_path, 300, 100, lambda fine: fine // 5)
    return tmp_path


@pytest.mark.parametrize("version", ["cifar-10-batches-bin", "cifar-10-batches-py", "."])
def test_cifar10(version, small_cifar):
    for split, seeds in (("train", range(5)), ("test", [5])):
        ds = data.load("cifar10", small_cifar / version, split)
        expected = np.concatenate([official.cifar_images(seed, 20) for seed in seeds]).reshape(-1, 3, 32, 32)
        assert ds.inputs.dtype == torch.uint8
        assert (ds.inputs.numpy() == expected).all()
        assert ds.labels.tolist() == [i % 10 for i in range(20)] * len(seeds)
        assert ds.inputs.is_contiguous()
    assert ds.classes[3] == "cat"


@pytest.mark.parametrize("version", ["cifar-100-binary", "cifar-100-python"])
def test_cifar100(version, small_cifar):
    ds = data.load("cifar100", small_cifar / version)
    assert (ds.inputs.flatten(1).numpy() == official.cifar_images(0, 300)).all()
    assert ds.labels.tolist() == [i % 100 for i in range(300)]
    coarse = data.load("cifar100", small_cifar / version, "test", labels="coarse")
    assert (coarse.inputs.flatten(1).numpy() == official.cifar_images(1, 100)).all()
    assert coarse.labels.tolist() == [i // 5 for i in range(100)]
    assert (len(ds.classes), len(coarse.classes)) == (100, 20)


@pytest.mark.parametrize("version", ["cifar-100-binary", "cifar-100-python"])
@pytest.mark.parametrize("name", ["cifar_fs", "fc100"])
def test_few_shot(name, version, small_cifar):
    images = np.concatenate([official.cifar_images(0, 300), official.cifar_images(1, 100)])
    fine = np.array([i % 100 for i in range(300)] + list(range(100)))
    seen = []
    for split in ("train", "val", "test"):
        ds = data.load(name, small_cifar / version, split)
        wanted = [cifar.FINE.index(label) for label in ds.classes]
        rows = np.flatnonzero(np.isin(fine, wanted))
        assert (ds.inputs.flatten(1).numpy() == images[rows]).all()
        assert [ds.classes[i] for i in ds.labels] == [cifar.FINE[i] for i in fine[rows]]
        assert counts(ds) == [4] * len(ds.classes)
        seen += ds.classes
    assert sorted(seen) == cifar.FINE


def test_few_shot_classes():
    sizes = {"cifar_fs": (64, 16, 20), "fc100": (60, 20, 20)}
    assert [len(names.split()) for names in cifar.CIFAR_FS.values()] == list(sizes["cifar_fs"][1:])
    assert [5 * len(names.split()) for names in cifar.FC100.values()] == list(sizes["fc100"][1:])
    path = official.SHARED / "cifar100" / "few_shot_splits.json"
    if not path.is_file():
        pytest.skip("no lists to compare with")
    lists = json.loads(path.read_text())
    for split in ("val", "test"):
        assert sorted(cifar.CIFAR_FS[split].split()) == sorted(lists["cifar_fs"][split])
        assert sorted(cifar.FC100[split].split()) == sorted(lists["fc100_coarse"][split])
    assert (official.SHARED / "cifar100" / "fine_label_names.txt").read_text().split() == cifar.FINE
    assert (official.SHARED / "cifar100" / "coarse_label_names.txt").read_text().split() == cifar.COARSE


def test_few_shot_needs_as_many_of_each_class(small_cifar):
    path = small_cifar / "cifar-100-binary" / "train.bin"
    swapped = bytearray(path.read_bytes())
    swapped[1] = cifar.FINE.index("whale")  # was apple
    path.write_bytes(swapped)
    for split in ("train", "test"):  # too few apples, too many whales
        with pytest.raises(ValueError, match=r"cifar_fs: .* 4 images of every class"):
            data.load("cifar_fs", small_cifar, split)
    swapped[1] = cifar.FINE.index("bottle")  # as many as ever of CIFAR-FS's train classes
    path.write_bytes(swapped)
    with pytest.raises(ValueError, match=r"cifar_fs: .* 4 images of every class"):
        data.load("cifar_fs", small_cifar)


@pytest.mark.slow
def test_real_cifar10(tmp_path_factory):
    root = official.real("cifar10", "cifar-10-batches-bin", tmp_path_factory)
    train, test = data.load("cifar10", root), data.load("cifar10", root, "test")
    assert counts(train) == [5000] * 10
    assert counts(test) == [1000] * 10
    # The official files' checksums, put together again from what was read.
    records = torch.cat([train.labels.to(torch.uint8)[:, None], train.inputs.flatten(1)], 1).split(10_000)
    last = torch.cat([test.labels.to(torch.uint8)[:, None], test.inputs.flatten(1)], 1)
    sha1 = [hashlib.sha1(part.numpy().tobytes()).hexdigest()[:8] for part in (*records, last)]
    assert sha1 == ["aadd24ac", "c0ba65cc", "1dd00a74", "aab85764", "26e2849e", "67eb016d"]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["cifar-100-binary", "cifar-100-python"])
def test_real_cifar100(version):
    root = official.real("cifar100", version) / version
    fine, coarse = data.load("cifar100", root, "test"), data.load("cifar100", root, "test", labels="coarse")
    assert counts(fine) == [100] * 100
    assert counts(coarse) == [500] * 20
    labels = torch.stack([coarse.labels, fine.labels], 1).to(torch.uint8)
    sha1 = hashlib.sha1(torch.cat([labels, fine.inputs.flatten(1)], 1).numpy().tobytes()).hexdigest()
    assert sha1 == "8fb6623e830365ff53cf14adec797474f5478006"
    for group, name in zip(coarse.labels[:1000].tolist(), fine.labels[:1000].tolist(), strict=True):
        assert fine.classes[name] in cifar.TREE[coarse.classes[group]].split()


@pytest.mark.slow
def test_real_fashion_mnist():
    root = official.real("fashion_mnist", "FashionMNIST/raw")
    assert counts(data.load("fashion_mnist", root)) == [6000] * 10
    test = data.load("fashion_mnist", root, "test")
    assert counts(test) == [1000] * 10
    assert crc(test.inputs) == 309494841


# --- images in folders


@pytest.fixture
def images(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    pixels = {}
    for k, name in enumerate(("n02/a.png", "n02/b.PNG", "n01/c.bmp")):
        pixels[name] = rng.integers(0, 256, (4 + k, 7, 3), np.uint8)
        path = tmp_path / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[name]).save(path, format="BMP" if "bmp" in name else "PNG")
    official.write(tmp_path / "train" / "n01" / "notes.txt", "not an image")
    official.write(tmp_path / "train" / "list.txt", "not a class")
    return tmp_path, pixels


@pytest.mark.parametrize("below", ["", "train"])
def test_image_folder(images, below):
    root, pixels = images
    ds = data.load("image_folder", root / below)
    assert ds.classes == ["n01", "n02"]
    assert ds.labels.tolist() == [0, 1, 1]
    for i, name in enumerate(("n01/c.bmp", "n02/a.png", "n02/b.PNG")):
        image, label = ds[i]
        assert image.dtype == torch.uint8
        assert (image.numpy() == pixels[name].transpose(2, 0, 1)).all()
        assert label == ds.labels[i]
    assert not hasattr(ds, "inputs")
    again = pickle.loads(pickle.dumps(ds))  # worker processes get a copy
    assert (again[2][0] == ds[2][0]).all()
    part = ds.subset([2])
    assert (len(part), part.paths, part.classes) == (1, ds.paths[2:], ds.classes)
    with pytest.raises(ValueError, match=r"val.* is missing"):
        data.load("image_folder", root / below, "val")


def test_images_of_any_mode_become_rgb(images):
    from PIL import Image

    root, _ = images
    folder = root / "val" / "x"
    folder.mkdir(parents=True)
    Image.new("L", (3, 2), 7).save(folder / "1.png")
    Image.new("RGBA", (3, 2), (1, 2, 3, 4)).save(folder / "2.png")
    Image.new("CMYK", (3, 2), (0, 0, 0, 255)).save(folder / "3.jpeg")
    Image.new("1", (3, 2), 1).save(folder / "4.png")
    ds = data.load("image_folder", root, "val")
    assert [tuple(image.shape) for image, _ in ds] == [(3, 2, 3)] * 4
    assert [image[:, 0, 0].tolist() for image, _ in ds] == [[7, 7, 7], [1, 2, 3], [0, 0, 0], [255, 255, 255]]


def test_a_split_is_not_a_class(images):
    root, _ = images
    (root / "train").rename(root / "val")
    assert data.load("image_folder", root, "val").classes == ["n01", "n02"]
    with pytest.raises(ValueError, match=r"train is missing"):
        data.load("image_folder", root)


def test_a_class_may_be_called_train(images):
    root, _ = images
    (root / "train" / "n01").rename(root / "train" / "train")
    assert data.load("image_folder", root / "train").classes == ["n02", "train"]


def test_image_folder_without_images(tmp_path):
    with pytest.raises(ValueError, match=r"has no folders; expected .*<class>/\*\{\.jpg,\.jpeg,\.png,"):
        data.load("image_folder", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty has no image"):
        data.load("image_folder", tmp_path)


# --- ModelNet


def test_modelnet(tmp_path):
    pytest.importorskip("h5py")
    folder = tmp_path / "modelnet40_ply_hdf5_2048"
    written = official.write_modelnet(folder, {"train": (5, 3), "test": (4,)}, 40)
    for split in ("train", "test"):
        ds = data.load("modelnet", tmp_path, split)
        assert ds.inputs.dtype == torch.float32
        assert (ds.inputs.numpy() == written[split]).all()
    assert data.load("modelnet", folder).labels.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert (len(ds.classes), ds.classes[0], ds.classes[-1]) == (40, "airplane", "xbox")
    few = data.load("modelnet", tmp_path, points=16)
    assert (few.inputs.numpy() == written["train"][:, :16]).all()
    with pytest.raises(ValueError, match=r"modelnet10_ply_hdf5_2048"):
        data.load("modelnet", tmp_path, classes=10)
    with pytest.raises(ValueError, match="4096 or more"):
        data.load("modelnet", tmp_path, points=4096)
    official.write_modelnet(tmp_path / "modelnet10_ply_hdf5_2048", {"train": (2,)}, 10)
    assert len(data.load("modelnet", tmp_path)) == 8
    assert len(data.load("modelnet", tmp_path, classes=10)) == 2
    assert data.load("modelnet", tmp_path, classes=10).classes[-1] == "toilet"
    assert [len(data.load(name, tmp_path)) for name in ("modelnet10", "modelnet40")] == [2, 8]
    with pytest.raises(ValueError, match="modelnet10 option must be one of points; got 'classes'"):
        data.load("modelnet10", tmp_path, classes=40)


@pytest.mark.parametrize(
    "storage",
    [{}, {"dtype": ">f8", "chunks": (2, 1000, 2), "compression": "gzip", "shuffle": True}],
    ids=["whole", "gzip"],
)
def test_modelnet_however_it_is_stored(tmp_path, storage):
    h5py = pytest.importorskip("h5py")
    written = official.write_modelnet(tmp_path / "modelnet40_ply_hdf5_2048", {"train": (5,)}, 40)["train"]
    with h5py.File(tmp_path / "modelnet40_ply_hdf5_2048" / "ply_data_train0.h5", "a") as file:
        del file["data"]
        file.create_dataset("data", data=written, **storage)
    for points in (2048, 1001):
        ds = data.load("modelnet", tmp_path, points=points)
        assert (ds.inputs.numpy() == written[:, :points]).all()
        assert ds.labels.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_real_modelnet10():
    pytest.importorskip("h5py")
    root = official.real("modelnet10", "modelnet10_ply_hdf5_2048")
    train, test = (data.load("modelnet", root, split, classes=10, points=64) for split in ("train", "test"))
    # The official counts but for 27 and 7 grids that are empty.
    assert counts(train) == [94, 514, 889, 200, 200, 465, 200, 680, 379, 343]
    assert counts(test) == [50, 100, 100, 85, 86, 100, 86, 100, 94, 100]
    assert float(train.inputs.norm(dim=2).max()) <= 1.0001


# --- faces


@pytest.mark.slow
@pytest.mark.parametrize("name", ["att_faces", "orl_faces", "."])
def test_orl(name, tmp_path):
    images = official.write_orl(tmp_path / name)
    for split, wanted in (("train", slice(0, 5)), ("test", slice(5, 10)), ("all", slice(0, 10))):
        ds = data.load("orl", tmp_path, split)
        assert (ds.inputs.numpy() == images[:, wanted].reshape(-1, 1, 112, 92)).all()
        assert counts(ds) == [images[:, wanted].shape[1]] * 40
        assert ds.classes[:2] == ["s1", "s2"]


@pytest.mark.slow
def test_real_orl(tmp_path_factory):
    ds = data.load("orl", official.real("orl", "att_faces", tmp_path_factory), "all")
    assert counts(ds) == [10] * 40
    assert len({image.numpy().tobytes() for image in ds.inputs}) == 400
    assert crc(ds.inputs) == 4102523384


PEOPLE = {"Ann_Bo": 3, "Cy": 1, "Di-Di_E": 2}


@pytest.fixture
def lfw(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "lfw-deepfunneled"
    for k, (person, number) in enumerate(PEOPLE.items()):
        (folder / person).mkdir(parents=True)
        for i in range(number):
            Image.new("RGB", (5, 6), (k, i, 0)).save(folder / person / f"{person}_{i + 1:04d}.jpg", format="PNG")
    official.write(tmp_path / "peopleDevTrain.txt", "2\nCy\t1\nAnn_Bo\t3\n")
    official.write(folder / "peopleDevTest.txt", "1\nDi-Di_E\t2\n")
    pairs = "2\t1\nAnn_Bo\t1\t3\nCy\t1\tAnn_Bo\t2\nDi-Di_E\t1\t2\nDi-Di_E\t2\tCy\t1\n"
    official.write(tmp_path / "pairs.txt", pairs)
    return tmp_path


def test_lfw(lfw):
    everyone = data.load("lfw", lfw, "all")
    assert everyone.classes == list(PEOPLE)
    assert counts(everyone) == list(PEOPLE.values())
    assert everyone[2][0][:, 0, 0].tolist() == [0, 2, 0]
    assert everyone[2][0].shape == (3, 6, 5)
    train, test = data.load("lfw", lfw), data.load("lfw", lfw / "lfw-deepfunneled", "test")
    assert train.classes == ["Ann_Bo", "Cy"]
    assert counts(train) == [3, 1]
    assert test.classes == ["Di-Di_E"]


def test_imagenet_and_mini_imagenet_are_in_folders_of_their_own(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    (tmp_path / "MNIST").mkdir()
    for name in ("imagenet", "mini_imagenet"):
        with pytest.raises(ValueError, match=f"{name} not found in .*: expected train/<class>.*{name}; download"):
            data.load(name, tmp_path)
        with pytest.raises(ValueError, match=f"{name} needs root"):
            data.load(name)
    for part in ("ILSVRC2012/train/n1", "ILSVRC2012/val/n1", "miniImageNet/train/n2", "miniImageNet/test/n3"):
        (tmp_path / part).mkdir(parents=True)
        Image.new("RGB", (4, 3)).save(tmp_path / part / "a.JPEG")
    assert data.load("imagenet", tmp_path, "test").paths[0].endswith("ILSVRC2012/val/n1/a.JPEG")
    assert data.load("imagenet", tmp_path / "ILSVRC2012").classes == ["n1"]
    assert [data.load("mini_imagenet", tmp_path, split).classes for split in ("train", "test")] == [["n2"], ["n3"]]
    assert data.load("mini_imagenet", tmp_path)[0][0].shape == (3, 3, 4)
    with pytest.raises(ValueError, match=r"val has no folders of classes; expected train/<class>"):
        data.load("mini_imagenet", tmp_path, "val")
    with pytest.raises(ValueError, match="split must be one of train, test"):
        data.load("imagenet", tmp_path, "val")


@pytest.mark.parametrize("name", ["casia_webface", "imdb_face", "ms_celeb"])
def test_faces_to_train_on_are_tested_on_lfw(lfw, name):
    Image = pytest.importorskip("PIL.Image")
    folder = {"casia_webface": "CASIA-WebFace-112X96", "imdb_face": "IMDb-Face", "ms_celeb": "MS-Celeb-1M"}[name]
    with pytest.raises(ValueError, match=f"{name} not found.*112×96.*{folder.removesuffix('-112X96')}"):
        data.load(name, lfw)
    for person, number in {"0000045": 2, "0000099": 1}.items():
        (lfw / folder / person).mkdir(parents=True)
        for i in range(number):
            Image.new("RGB", (4, 4), (9, i, 0)).save(lfw / folder / person / f"{i + 1:03d}.jpg")
    train, test, pairs = data.load(name, lfw), data.load(name, lfw, "test"), data.load_pairs(name, lfw)
    assert (train.classes, counts(train)) == (["0000045", "0000099"], [2, 1])
    assert test.classes == list(PEOPLE)
    assert (len(pairs), pairs.folds) == (4, 2)  # pairs.txt, not those of View 1
    assert test[0][0].shape == (3, 6, 5)
    aligned = lfw / "lfw-112X96"
    for person in PEOPLE:
        (aligned / person).mkdir(parents=True)
        Image.new("RGB", (3, 3)).save(aligned / person / f"{person}_0001.jpg")
    assert data.load(name, lfw, "test")[0][0].shape == (3, 3, 3)  # aligned as the training set
    assert data.load_pairs(name, lfw).folds == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2\nCy\t1\n", "number of people"),
        ("1\nCy\t2\n", "must have 2 images"),
        ("1\nNobody\t1\n", "Nobody.*is missing"),
        ("1\n../Cy\t1\n", "names of people"),
        ("1\nCy\n", "a name and a number"),
        ("", "number of people"),
    ],
    ids=["short", "count", "nobody", "path", "words", "empty"],
)
def test_lfw_with_another_list(lfw, text, message):
    official.write(lfw / "peopleDevTrain.txt", text)
    with pytest.raises(ValueError, match=message):
        data.load("lfw", lfw)


def test_pairs(lfw):
    pairs = data.read_pairs(lfw / "pairs.txt")
    assert len(pairs) == 4
    assert pairs[0] == ("Ann_Bo_0001", "Ann_Bo_0003", True, 0)
    assert pairs[3] == ("Di-Di_E_0002", "Cy_0001", False, 1)
    assert pairs[-1] == pairs[2:][1]
    assert pairs.same.tolist() == [True, False, True, False]
    assert pairs.fold.tolist() == [0, 0, 1, 1]
    assert pairs.folds == 2
    everyone = data.load("lfw", lfw, "all")
    assert pairs.locate(everyone).tolist() == [[0, 2], [3, 1], [4, 5], [5, 3]]
    twice = SimpleNamespace(paths=[*everyone.paths, "elsewhere/Cy_0001.png"])
    with pytest.raises(ValueError, match="image Cy_0001 of the list of pairs once, got 2 files of this name"):
        pairs.locate(twice)
    official.write(lfw / "bom.txt", b"\xef\xbb\xbf" + (lfw / "pairs.txt").read_bytes())
    assert [*data.read_pairs(lfw / "bom.txt")] == [*pairs]
    with pytest.raises(ValueError, match="the image Di-Di_E_0001"):
        pairs.locate(data.load("lfw", lfw))


def test_pairs_without_folds(lfw):
    path = official.write(lfw / "dev.txt", "2\nCy\t1\t1\nCy\t1\t1\nCy\t1\tAnn_Bo\t1\nCy\t1\tAnn_Bo\t2\n\n")
    pairs = data.read_pairs(str(path))
    assert pairs.same.tolist() == [True, True, False, False]
    assert pairs.fold.tolist() == [0] * 4
    assert pairs.folds == 1


@pytest.mark.slow
def test_real_pairs():
    folder = official.SHARED / "lfw64"
    if not folder.is_dir():
        pytest.skip("no real pair lists here")
    pairs = data.read_pairs(folder / "pairs.txt")
    assert torch.stack([torch.bincount(pairs.fold[pairs.same == same]) for same in (True, False)]).eq(300).all()
    assert pairs.folds == 10
    assert pairs[0] == ("Abel_Pacheco_0001", "Abel_Pacheco_0004", True, 0)
    assert pairs[300] == ("Abdel_Madi_Shabneh_0001", "Dean_Barker_0001", False, 0)
    assert len({*pairs.first, *pairs.second}) == 7701
    assert [len(data.read_pairs(folder / f"pairsDev{part}.txt")) for part in ("Train", "Test")] == [2200, 1000]


# --- text


def test_text(tmp_path):
    content = "héllo wörld €😀\n" * 4  # 60 characters
    path = official.write(tmp_path / "tinyshakespeare" / "input.txt", content)
    kinds = sorted(set(content))
    train, test = data.load("text", tmp_path), data.load("text", path, "test")
    assert train.classes == test.classes == kinds
    assert train.inputs.dtype == torch.int64
    assert "".join(kinds[i] for i in train.inputs) == content[:53]
    assert "".join(kinds[i] for i in train.labels) == content[1:54]
    assert "".join(kinds[i] for i in test.inputs) == content[54:59]
    assert "".join(kinds[i] for i in test.labels) == content[55:]


@pytest.mark.parametrize("stride", [None, 3])
def test_text_in_windows(tmp_path, stride):
    content = "the quick brown fox jumps over the lazy dog"
    path = official.write(tmp_path / "input.txt", content)
    ds = data.load("text", path, context=5, stride=stride)
    part = content[: len(content) * 9 // 10]
    starts = range(0, len(part) - 5, stride or 5)
    assert ["".join(ds.classes[i] for i in window) for window in ds.inputs] == [part[i : i + 5] for i in starts]
    assert "".join(ds.classes[i] for i in ds.labels) == "".join(part[i + 5] for i in starts)
    with pytest.raises(ValueError, match="too short"):
        data.load("text", path, "test", context=5)
    with pytest.raises(ValueError, match="stride needs context"):
        data.load("text", path, stride=2)


@pytest.mark.slow
def test_real_shakespeare(tmp_path_factory):
    root = official.real("shakespeare", "tinyshakespeare", tmp_path_factory)
    train, test = data.load("text", root), data.load("text", root, "test")
    assert (len(train) + 1, len(test) + 1, len(train.classes)) == (1003854, 111540, 65)
    whole = [*train.inputs.tolist(), int(train.labels[-1]), *test.inputs.tolist(), int(test.labels[-1])]
    content = "".join(train.classes[i] for i in whole).encode()
    assert len(content) == 1115394
    assert hashlib.sha256(content).hexdigest().startswith("86c4e6aa")


# --- graphs


@pytest.fixture
def small_graph(tmp_path, monkeypatch):
    monkeypatch.setitem(planetoid.GRAPHS, "cora", planetoid.GraphSpec(540, 6, ("a", "b", "c")))
    files = official.planetoid_files()
    official.write_planetoid(tmp_path / "planetoid", files)
    return tmp_path, files


@pytest.mark.parametrize("below", [".", "planetoid"])
def test_planetoid(small_graph, below):
    root, files = small_graph
    graph = data.load("cora", root / below)
    features = files["features"].copy()
    features[533] = 0  # the gap in test.index: a node without features or label
    assert graph.features.dtype == torch.float32
    assert (graph.features.numpy() == features).all()
    labels = torch.arange(540) % 3
    labels[[520, 533]] = -1
    assert (graph.labels == labels).all()
    assert graph.train.nonzero().flatten().tolist() == list(range(4))
    assert graph.val.nonzero().flatten().tolist() == list(range(4, 504))
    assert graph.test.nonzero().flatten().tolist() == sorted(files["test.index"].tolist())
    dense = graph.adjacency.to_dense()
    pairs = {(0, 1), (0, 539), (2, 7), (3, 4), (4, 530)}
    assert {(i, j) for i, j in dense.nonzero().tolist() if i < j} == pairs
    assert (dense == dense.T).all()
    assert not dense.diagonal().any()
    assert dense.unique().tolist() == [0, 1]
    assert graph.adjacency.is_coalesced()
    assert graph.classes == ["a", "b", "c"]
    assert repr(graph) == "Graph(540 nodes, 5 edges, 6 features, 3 classes, 4/500/9 nodes)"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cora", "pubmed"])
def test_real_planetoid(name, tmp_path_factory):
    graph = data.load(name, official.real("planetoid", "planetoid", tmp_path_factory))
    nodes, features, edges, labels = {
        "cora": (2708, 1433, 5278, [351, 217, 418, 818, 426, 298, 180]),
        "pubmed": (19717, 500, 44324, [4103, 7739, 7875]),
    }[name]
    assert graph.features.shape == (nodes, features)
    assert graph.adjacency.shape == (nodes, nodes)
    assert graph.adjacency._nnz() == 2 * edges
    assert torch.bincount(graph.labels).tolist() == labels
    assert torch.bincount(graph.labels[graph.train]).tolist() == [20] * len(labels)
    assert (int(graph.val.sum()), int(graph.test.sum())) == (500, 1000)
    assert not (graph.train & graph.val | graph.train & graph.test | graph.val & graph.test).any()
    rows, columns = graph.adjacency.indices()
    assert (rows != columns).all()
    assert (torch.unique(rows * nodes + columns) == torch.unique(columns * nodes + rows)).all()
    expected = {"cora": (3470481095, 1976995303), "pubmed": (2537264974, 1170747391)}[name]
    assert (crc(graph.features), crc(graph.adjacency.indices())) == expected
    # Neighbours mostly share a class: rows, labels and edges belong to the same nodes.
    assert float((graph.labels[rows] == graph.labels[columns]).float().mean()) > 0.8
