"""What a training decides by itself: "auto" in a config is replaced when the data are known, what is given stays."""

import math
from dataclasses import replace

import pytest
import torch
from PIL import Image

from hypersphere import data, models
from hypersphere.data import image_folder
from hypersphere.data._registry import DATASETS
from hypersphere.models._registry import PRESETS
from hypersphere.train import Config, Data, Model, Optimizer, derive, fit, recipes
from hypersphere.train.config import load_file, to_tree
from hypersphere.train.config.convert import flags, flatten
from hypersphere.train.distributed import World
from hypersphere.train.training import Training
from tests.runs import one_line, quiet

AUTOMATIC = [flag.key for flag in flags() if flag.field.metadata.get("auto")]


@pytest.fixture(autouse=True)
def _tables(monkeypatch):
    monkeypatch.setattr("hypersphere.data._registry.DATASETS", dict(DATASETS))
    monkeypatch.setattr("hypersphere.models._registry.PRESETS", dict(PRESETS))


def resolved(config):
    """The config as the training of it has it, without a step."""
    return Training(config, World(torch.device("cpu"))).config


def photos(root, split):
    """Four classes of stripes: two directions, two widths, in any colour, with noise; flips and shifts keep them."""
    g = torch.Generator().manual_seed({"train": 1, "test": 2}[split])
    labels = torch.arange({"train": 160, "test": 80}[split]) % 4
    place = torch.stack(torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij"))
    phase, colour = torch.rand(len(labels), 1, 1, generator=g), torch.rand(len(labels), 3, 1, 1, generator=g) * 2 - 1
    wave = torch.sin(place[labels % 2] * (0.6 + 0.4 * (labels // 2))[:, None, None] + math.tau * phase)
    noise = torch.randn(len(labels), 3, 32, 32, generator=g)
    pixels = 128 + 35 * wave[:, None] * colour.sign() + 40 * colour + 30 * noise
    return data.ArrayDataset(pixels.clamp(0, 255).byte(), labels, list("abcd"))


def folder(root, sizes, *, mode="RGB", count=5, classes=("cat", "dog")):
    """Images of random pixels, `count` a class, whose sizes take turns."""
    g = torch.Generator().manual_seed(0)
    for name in classes:
        (root / name).mkdir(parents=True)
        for i in range(count):
            width, height = sizes[i % len(sizes)]
            shape = (height, width, 3) if mode == "RGB" else (height, width)
            pixels = torch.randint(256, shape, dtype=torch.uint8, generator=g).numpy()
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return Config(data=Data("image_folder", root=str(root)))


# ------------------------------------------------------------------------------------------------------- photos


@pytest.mark.slow
def test_photos_are_learned_without_a_recipe():
    """The default network had a wide linear layer that diverged: 24 to 30 % here, where one in four is a guess."""
    data.register("photos", photos, kind="images")
    result = quiet(Config(epochs=4, data=Data("photos", batch_size=16)))
    assert result.summary.accuracy > 0.8
    assert not result.summary.diverged
    assert (result.config.optimizer.name, result.config.optimizer.lr) == ("adamw", 0.003)


def test_a_folder_of_few_large_and_small_images_needs_no_settings(tmp_path):
    config = folder(tmp_path, [(40, 30), (300, 260), (50, 70)], count=10)
    result = quiet(derive(config, steps=2))
    assert result.config.data == replace(config.data, batch_size=8, size=50, augment="photo", validation=0.2)
    assert (result.summary.split, result.summary.step) == ("validation", 2)


# ------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("sizes", "mode", "size", "augment"),
    [
        ([(32, 32)], "RGB", 32, "photo"),
        ([(32, 32)], "L", 32, "shift"),  # a flipped 3 is no digit
        ([(40, 30)], "RGB", None, "photo"),
        ([(300, 300)], "RGB", 128, "photo"),
        ([(60, 40), (50, 70), (300, 20)], "RGB", 40, "photo"),
    ],
)
def test_size_and_augmentation_of_a_folder(sizes, mode, size, augment, tmp_path):
    chosen = resolved(folder(tmp_path, sizes, mode=mode, count=6)).data
    assert (chosen.size, chosen.augment) == (size, augment)


@pytest.mark.parametrize(("samples", "batch"), [(12, 8), (319, 8), (320, 16), (1280, 64), (90_000, 64)])
def test_small_sets_have_small_batches_and_rates(samples, batch):
    from hypersphere.train import automatic

    chosen = automatic.resolve_batch_size(Data("cifar10"), samples, is_photo=True)
    assert chosen.batch_size == batch
    assert automatic.resolve_batch_size(Data("digits"), samples, is_photo=False).batch_size == 64
    assert automatic.learning_rate(Config(data=chosen)) == 0.1 * batch / 64
    assert automatic.learning_rate(Config(data=chosen, optimizer=Optimizer("adam"))) == 1e-3


@pytest.mark.parametrize(("given", "batch"), [("auto", 66), (64, 64)])
def test_batches_are_divided_among_the_processes(given, batch):
    from hypersphere.train import automatic

    chosen = automatic.fit_to_processes(Data("digits", batch_size=given), Data("digits", batch_size=64), processes=3)
    assert chosen.batch_size == batch


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({}, ("adamw", 0.003, "auto")),
        ({"optimizer.lr": 0.2}, ("sgd", 0.2, "auto")),  # whoever gives a rate means that of SGD
        ({"optimizer.momentum": 0.8}, ("sgd", 0.0125, 1.0)),
        ({"rotation.method": "cayley"}, ("sgd", 0.0125, 1.0)),
        ({"optimizer.name": "sgd"}, ("sgd", 0.0125, 1.0)),
        ({"optimizer.name": "adamw"}, ("adamw", 0.001, 1.0)),
    ],
)
def test_optimizer_of_a_folder(given, chosen, tmp_path):
    config = resolved(derive(folder(tmp_path, [(16, 16)], count=10), given))
    assert (config.optimizer.name, config.optimizer.lr, config.clip) == chosen


def test_length_and_warm_up_of_a_folder(tmp_path):
    config = folder(tmp_path, [(16, 16)], count=10)
    chosen = resolved(config)  # 16 images to learn from, two steps an epoch
    assert (chosen.epochs, chosen.schedule.name, chosen.schedule.warmup) == (120, "cosine", 12)
    assert resolved(derive(config, epochs=30)).schedule.warmup == 3
    assert resolved(derive(config, steps=1000)).schedule.warmup == 50
    assert resolved(derive(config, {"schedule.name": "constant"})).schedule.warmup == 0
    assert resolved(derive(config, {"data.validation": 4, "data.batch_size": 1})).epochs == 30


def test_a_split_of_its_own_is_not_replaced(tmp_path):
    config = folder(tmp_path / "train", [(16, 16)])
    config = derive(config, {"data.root": str(tmp_path)})
    assert resolved(config).data.validation == 0.2
    folder(tmp_path / "val", [(16, 16)])
    assert resolved(config).data.validation is None
    assert resolved(derive(config, {"data.fold": "1/2"})).data.validation is None


@pytest.mark.parametrize("name", [name for name in recipes.names() if not name.startswith("text_")])
def test_the_digits_are_trained_as_ever(name):
    """plain is what is trained without a recipe, and no recipe warms up, augments or has other batches than before."""
    assert recipes.load("plain") == Config()
    config = resolved(recipes.load(name))
    chosen = {key: value for key, value in flatten(to_tree(config)).items() if key in AUTOMATIC}
    assert chosen == {
        "epochs": 12,
        "data.batch_size": 64,
        "data.size": None,
        "data.augment": None,
        "data.validation": None,
        "optimizer.name": "sgd",
        "optimizer.lr": 0.1,
        "schedule.warmup": 0,
    }
    net = models.create("cnn", in_channels=1, input_size=8)
    before = models.create("cnn3", widths=(32, 32, 128), fc=None, in_channels=1, input_size=8)
    assert {k: v.shape for k, v in net.state_dict().items()} == {k: v.shape for k, v in before.state_dict().items()}


def test_what_is_given_stays(tmp_path):
    given = {
        "epochs": 3,
        "data.batch_size": 5,
        "data.size": 20,
        "data.augment": "cifar10.spherenet",
        "data.validation": 3,
        "optimizer.lr": 0.3,
        "schedule.warmup": 2,
        "schedule.name": "constant",
        "model.name": "resnet20",
        "model.batch_norm": False,
        "optimizer.name": "adam",
    }
    assert given.keys() >= {*AUTOMATIC}
    config = folder(tmp_path, [(40, 30), (20, 20)])
    chosen = flatten(to_tree(resolved(derive(config, given))))
    assert {key: chosen[key] for key in given} == given
    off = {"data.augment": None, "data.validation": 3, "data.size": 24}
    chosen = flatten(to_tree(resolved(derive(config, off))))
    assert {key: chosen[key] for key in off} == off


def test_an_augmentation_that_auto_chooses_may_be_given(tmp_path):
    """Of images of several sizes it needs one size."""
    config = derive(folder(tmp_path, [(40, 30), (40, 34)], count=4), {"data.augment": "photo"})
    assert resolved(config).data.size == 32


def test_a_named_augmentation_gets_the_images_as_they_are(tmp_path):
    config = derive(folder(tmp_path, [(230, 260), (300, 224)], count=2), {"data.augment": "imagenet"})
    assert resolved(config).data.size is None


def test_a_generator_learns_no_augmentation():
    data.register("photos", photos, kind="images")
    config = Config(steps=1, model=Model("generator.mhe"), data=Data("photos", size=32))
    assert resolved(config).data.augment is None


# ------------------------------------------------------------------------------------------------------- resuming


@pytest.mark.slow
def test_a_resumed_run_keeps_what_was_chosen(tmp_path):
    """Also when its images have another size by then, for which it would choose otherwise."""
    config = derive(folder(tmp_path / "pets", [(16, 16)]), out=str(tmp_path / "run"), steps=30, eval_every=10)

    def stop(model, step, line):
        if step == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(derive(config, log_every=12), callbacks=[stop], progress=False)
    begun = load_file(tmp_path / "run" / "config.json")
    assert "auto" not in [flatten(to_tree(begun))[key] for key in AUTOMATIC]
    again = derive(config, resume=True, log_every=12)
    assert "there optimizer.lr is 0.003, here it is 0.3" in one_line(derive(again, {"optimizer.lr": 0.3}))
    assert 'there data.augment is "photo", here it is null' in one_line(derive(again, {"data.augment": None}))
    for file in (tmp_path / "pets").glob("*/*.png"):
        Image.open(file).resize((20, 20)).save(file)
    result = quiet(again)
    assert result.summary.step == 30
    assert replace(result.config, resume=False) == begun
    assert quiet(again).summary == result.summary  # a finished run is read


# ------------------------------------------------------------------------------------------------------- parts


def test_images_are_decoded_once_and_as_many_kept_as_fit(monkeypatch):
    decoded = []

    def decode(path):
        decoded.append(path)
        return torch.zeros(3, 8, 6, dtype=torch.uint8)

    monkeypatch.setattr(image_folder, "KEPT", 2 * 3 * 4 * 4)
    read = image_folder.ResizedOnce(decode, 4)
    assert [read(path).shape for path in "abcabc"] == [(3, 4, 4)] * 6
    assert decoded == ["a", "b", "c", "c"]


@pytest.mark.parametrize("size", [8, 33, 224, (20, 300)])
def test_the_network_leaves_few_pixels_of_images_of_any_size(size):
    net = models.create("cnn", 3, input_size=size).eval()
    height, width = size if isinstance(size, tuple) else (size, size)
    noise = torch.randn(1, 3, height, width)
    maps = net.stages(net.stem(noise))
    assert 1 <= max(maps.shape[2:]) <= 4
    torch.testing.assert_close(net.forward_features(noise), maps.mean((2, 3)))
    assert net(noise).shape == (1, 3)
    assert (len(net.stem) > 0) == (max(height, width) > 64)
    assert len(models.create("cnn", 3, input_size=size, widths=(4, 5)).stages) == 2


def test_no_batch_of_one_sample():
    """BatchNorm cannot train on one value for each channel."""
    sizes = [[len(labels) for _, labels in data.batches(photos(None, "train").subset(range(n)), 8)] for n in (17, 9, 1)]
    assert sizes == [[8, 7, 2], [7, 2], [1]]
    small = photos(None, "train").subset(range(9))
    data.register("nine", lambda root, split: small, kind="images")
    network = Model("resnet18", widths=(4, 4, 4, 4))
    assert quiet(Config(epochs=1, model=network, data=Data("nine", batch_size=8))).summary.step == 2
