"""Augmentation against loops over images and pixels, and random numbers against the hash in Python's own integers."""

import hashlib
import math
import pickle

import numpy as np
import pytest
import torch

from hypersphere._internal.draws import stable_hash
from hypersphere.data import _random, augment
from hypersphere.data._random import SampleGenerator
from hypersphere.data.augment import (
    AUGMENTATIONS,
    CenterCrop,
    Compose,
    Crop,
    Flip,
    Jitter,
    Normalize,
    Resize,
    RotateUp,
    TakePoints,
)

MASK, GAMMA = 2**64 - 1, 0x9E3779B97F4A7C15
POINTS = [name for name in AUGMENTATIONS if name.startswith("modelnet")]
IMAGES = [name for name in AUGMENTATIONS if name not in POINTS]


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


class Numbers:
    """The numbers of one sample, one at a time."""

    def __init__(self, seed, epoch, index):
        digest = hashlib.blake2b(f"{seed}/{epoch}/augment".encode(), digest_size=8).digest()
        self.state, self.drawn = mix((int.from_bytes(digest, "little") + (index + 1) * GAMMA) & MASK), 0

    def word(self):
        self.drawn += 1
        return mix((self.state + self.drawn * GAMMA) & MASK)

    def uniform(self):
        return (self.word() >> 40) / 2**24

    def integer(self, values):
        return (self.word() >> 32) * values >> 32

    def normal(self):
        bits = self.word()
        return math.sqrt(-2 * math.log(((bits >> 32) + 1) / 2**32)) * math.cos(math.tau * (bits % 2**32) / 2**32)


def pixel(image, y, x, mode):
    """Of an image (C, H, W) without borders."""
    h, w = image.shape[1:]
    if mode == "zeros":
        return image[:, y, x] if 0 <= y < h and 0 <= x < w else np.zeros(len(image), image.dtype)
    y = -1 - y if y < 0 else 2 * h - 1 - y if y >= h else y
    x = -1 - x if x < 0 else 2 * w - 1 - x if x >= w else x
    return image[:, y, x]


def literal(image, numbers, size, padding, mode, flips=("horizontal",), crop=True):
    """One image (C, H, W), pixel by pixel: pad, crop, flip, normalize."""
    top = left = 0
    if crop:
        room = [pixels + 2 * padding - size + 1 for pixels in image.shape[1:]]
        top, left = numbers.integer(room[0]) - padding, numbers.integer(room[1]) - padding
    out = np.empty((len(image), size, size), np.float32)
    for y in range(size):
        for x in range(size):
            out[:, y, x] = (pixel(image, top + y, left + x, mode) - np.float32(127.5)) / 128
    for flip in flips:
        if numbers.uniform() < 0.5:
            out = out[:, ::-1] if flip == "vertical" else out[:, :, ::-1]
    return out


def random_images(n, height=32, width=None, channels=3):
    return torch.randint(256, (n, channels, height, width or height), dtype=torch.uint8)


def example(name, n=4):
    return torch.randn(n, 1100, 3) if name in POINTS else random_images(n, 40 if name.startswith("imagenet") else 32)


def test_random_numbers_are_the_hash():
    generator = SampleGenerator(3, 5, [0, 41])
    uniform, integers, normal = generator.uniform(2), generator.integers(-2, 9), generator.normal(2, 3)
    for row, index in enumerate([0, 41]):
        numbers = Numbers(3, 5, index)
        assert uniform[row].tolist() == [numbers.uniform() for _ in range(2)]
        assert int(integers[row]) == numbers.integer(11) - 2
        expected = torch.tensor([numbers.normal() for _ in range(6)], dtype=torch.float32)
        torch.testing.assert_close(normal[row].flatten(), expected, rtol=1e-6, atol=1e-7)


def test_random_numbers_by_value():
    """Written down once: what a checkpoint resumes must not change with a release."""
    words = _random.random_bits(stable_hash(0, 0, "order"), [0, 1])
    assert words.tolist() == [1740827241258054275, 4771869751480827356]
    assert _random.shuffle(0, 0, "order", range(8)).tolist() == [0, 4, 5, 1, 7, 3, 6, 2]


PIPELINES = {
    "cifar10.spherenet": {"size": 32, "padding": 0, "mode": "zeros", "crop": False},
    "cifar10+.spherenet": {"size": 32, "padding": 4, "mode": "symmetric"},
    "cifar10+.spherenet.vertical": {"size": 32, "padding": 4, "mode": "symmetric", "flips": ("horizontal", "vertical")},
    "cifar.mhe": {"size": 32, "padding": 4, "mode": "symmetric"},
}


@pytest.mark.parametrize("name", PIPELINES)
def test_cifar_equals_the_loop_over_pixels(name):
    images = random_images(12)
    out = AUGMENTATIONS[name](images, SampleGenerator(1, 2, np.arange(5, 17)))
    assert out.dtype == torch.float32
    for i, image in enumerate(images.numpy()):
        np.testing.assert_array_equal(out[i].numpy(), literal(image, Numbers(1, 2, 5 + i), **PIPELINES[name]))


@pytest.mark.parametrize("mode", ["symmetric", "zeros"])
@pytest.mark.parametrize(("size", "padding", "shape"), [(5, 2, (6, 9)), (4, 0, (4, 7)), (6, 5, (5, 5))])
def test_crops_of_any_size(mode, size, padding, shape):
    images = random_images(20, *shape, channels=1)
    out = Compose(Crop(size, padding, mode), Flip(), Normalize())(images, SampleGenerator(0, 0, np.arange(20)))
    for i, image in enumerate(images.numpy()):
        np.testing.assert_array_equal(out[i].numpy(), literal(image, Numbers(0, 0, i), size, padding, mode))


@pytest.mark.parametrize("mode", ["symmetric", "zeros"])
@pytest.mark.parametrize("padding", [0, 4, 11])  # 11: more than the image is wide
def test_padding_is_that_of_numpy(mode, padding):
    images = random_images(3, 5, 7).numpy()
    sides = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    expected = np.pad(images, sides, mode="symmetric" if mode == "symmetric" else "constant")
    np.testing.assert_array_equal(augment.pad_images(images, padding, mode), expected)


def test_flips_are_as_frequent_as_they_should_be():
    n = 8100
    corners = torch.zeros(n, 1, 2, 2, dtype=torch.uint8)
    corners[:, :, 0, 0] = 1
    generator = SampleGenerator(0, 0, np.arange(n))
    out = Compose(Flip(), Flip(vertical=True))(corners, generator).flatten(1)
    assert (out.sum(0) / n - 0.25).abs().max() < 4 * math.sqrt(0.25 * 0.75 / n)
    rare = Flip(0.1)(corners, generator)
    assert abs((rare != corners).any(3).any(2).float().mean().item() - 0.1) < 4 * math.sqrt(0.09 / n)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_sample_is_the_same_in_every_batch_and_inputs_do_not_change(name):
    inputs = example(name, 37)
    before = inputs.clone()
    whole = AUGMENTATIONS[name](inputs, SampleGenerator(0, 3, np.arange(37)))
    assert torch.equal(inputs, before)
    assert whole.dtype == torch.float32
    sent = pickle.loads(pickle.dumps(AUGMENTATIONS[name]))  # as to a worker process
    for part in ([36], [11, 3, 30], list(range(13, 30))):
        assert torch.equal(sent(inputs[part], SampleGenerator(0, 3, part)), whole[part])


@pytest.mark.parametrize("name", [name for name in AUGMENTATIONS if name.endswith(".eval")])
def test_evaluation_is_deterministic(name):
    inputs = example(name)
    a, b = (AUGMENTATIONS[name](inputs, SampleGenerator(seed, 0, range(4))) for seed in (0, 1))
    assert torch.equal(a, b)
    assert name.removesuffix(".eval") in AUGMENTATIONS
    trained = AUGMENTATIONS[name.removesuffix(".eval")](inputs, SampleGenerator(0, 0, range(4)))
    assert trained.shape == a.shape
    assert not torch.equal(trained, a)


def test_normalization_is_exact():
    x = torch.arange(256, dtype=torch.uint8)
    assert Normalize()(x).double().tolist() == [(value - 127.5) / 128 for value in range(256)]


def test_imagenet():
    images = random_images(6, 300, 410)
    small = torch.nn.functional.interpolate(images.float(), (256, 256), mode="bilinear", antialias=True)
    generator = SampleGenerator(0, 0, range(6))
    out = AUGMENTATIONS["imagenet"](images, generator)
    for i in range(6):
        numbers = Numbers(0, 0, i)
        top, left, flipped = numbers.integer(33), numbers.integer(33), numbers.uniform() < 0.5
        expected = small[i, :, top : top + 224, left : left + 224]
        expected = expected.flip(-1) if flipped else expected
        # resized uint8 images are rounded
        torch.testing.assert_close(out[i] * 128 + 127.5, expected, rtol=0, atol=1.01)
    tested = AUGMENTATIONS["imagenet.eval"](images, generator)
    torch.testing.assert_close(tested * 128 + 127.5, small[:, :, 16:240, 16:240], rtol=0, atol=1.01)


def test_resize_leaves_what_has_the_size():
    images = random_images(2, 8)
    assert Resize(8)(images) is images
    assert Resize(4)(torch.full((1, 3, 9, 5), 200, dtype=torch.uint8)).unique().tolist() == [200]


def test_center_crop():
    images = random_images(2, 7, 6)
    assert torch.equal(CenterCrop(4)(images), images[:, :, 1:5, 1:5])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rotation_keeps_the_up_axis_and_norms(axis):
    points = torch.randn(50, 200, 3)
    turned = RotateUp(axis)(points, SampleGenerator(0, 0, range(50)))
    assert torch.equal(turned[..., axis], points[..., axis])
    torch.testing.assert_close(turned.norm(dim=2), points.norm(dim=2))
    torch.testing.assert_close(torch.pdist(turned[0]), torch.pdist(points[0]), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(turned, points)
    first, second = (i for i in range(3) if i != axis)
    handed = points[..., first] * turned[..., second] - points[..., second] * turned[..., first]
    for i in range(50):  # one angle a cloud, that of its number, and no reflection
        angle = math.tau * Numbers(0, 0, i).uniform()
        flat = points[i, :, [first, second]].square().sum(1)
        torch.testing.assert_close(handed[i], flat * math.sin(angle), rtol=1e-4, atol=1e-4)


def test_modelnet_equals_the_loop_over_points():
    clouds = torch.randn(3, 1030, 3)
    out = AUGMENTATIONS["modelnet.opt"](clouds, SampleGenerator(0, 1, [4, 5, 6]))
    assert out.shape == (3, 1024, 3)
    for i, cloud in enumerate(clouds.double()):
        numbers = Numbers(0, 1, 4 + i)
        angle = math.tau * numbers.uniform()
        turn = torch.tensor(
            [[math.cos(angle), 0, math.sin(angle)], [0, 1, 0], [-math.sin(angle), 0, math.cos(angle)]]
        ).double()
        for j in range(1024):
            moved = torch.tensor([min(0.05, max(-0.05, 0.01 * numbers.normal())) for _ in range(3)]).double()
            expected = cloud[j] @ turn + moved
            assert (out[i, j] - expected).abs().max() < 2e-6


def test_jitter_is_clipped():
    still = torch.zeros(20, 500, 3)
    moved = Jitter()(still, SampleGenerator(0, 0, range(20)))
    assert abs(moved.std().item() - 0.01) < 2e-4
    clipped = Jitter(0.04, 0.05)(still, SampleGenerator(0, 0, range(20)))
    assert clipped.abs().max() == torch.tensor(0.05)
    share = math.erfc(0.05 / 0.04 / math.sqrt(2))
    assert abs((clipped.abs() == torch.tensor(0.05)).float().mean().item() - share) < 0.01


def test_points_are_the_first_or_a_draw():
    clouds = torch.arange(30.0).reshape(1, 30, 1).expand(40, 30, 3) + 0
    generator = SampleGenerator(0, 0, range(40))
    assert torch.equal(TakePoints(10)(clouds, generator), clouds[:, :10])
    drawn = TakePoints(10, random=True)(clouds, generator)
    assert drawn.shape == (40, 10, 3)
    assert all(len(cloud[:, 0].unique()) == 10 for cloud in drawn)
    assert len(drawn[..., 0].unique()) == 30
    assert torch.equal(drawn[..., 0], drawn[..., 2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: Flip()(torch.zeros(3, 32, 32), g), r"inputs must be images \(B, C, H, W\), got \(3, 32, 32\)"),
        (lambda g: Normalize()(torch.zeros(1, 3, 4, 4), g), "uint8 pixels of 0 to 255, got torch.float32"),
        (lambda g: Crop(41, 4)(random_images(2), g), "at least 33 pixels per side, got 32×32"),
        (lambda g: CenterCrop(33)(random_images(2), g), "at least 33 pixels per side, got 32×32"),
        (lambda g: TakePoints(1024)(torch.zeros(2, 1000, 3), g), "at least 1024 points, got 1000"),
        (lambda g: RotateUp()(random_images(2), g), r"points \(B, P, 3\)"),
        (lambda g: Crop(4, -1), "padding must be >= 0, got -1"),
        (lambda g: Crop(4, 1, "reflect"), "mode must be one of symmetric, zeros; got 'reflect'"),
        (lambda g: Flip(1.5), "probability must be finite and >= 0 and <= 1"),
        (lambda g: RotateUp(3), "axis must be one of 0, 1, 2; got 3"),
        (lambda g: Compose(Flip(), "crop"), "steps must be callables"),
        (lambda g: g.integers(3, 3), "high must be >= 4, got 3"),
        (lambda g: g.integers(0, 2**33), r"high must be <= low \+ 2\*\*32"),
        (lambda g: SampleGenerator(-1, 0, [0]), "seed must be >= 0, got -1"),
        (lambda g: augment.resolve("cifar10.sphernet"), r"did you mean 'cifar10.spherenet'\?"),
        (lambda g: augment.resolve(3), r"a callable\(inputs, generator\) or None; got 3"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(SampleGenerator(0, 0, [0, 1]))
