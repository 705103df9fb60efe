"""What the papers do to images and points before a network sees them, for whole batches at once.

An augmentation is a callable(inputs, generator): inputs (B, ...) as they are stored, a
:class:`~hypersphere.data._random.SampleGenerator` with a row of random numbers for each sample. The classes below are
its parts, ``Compose`` chains them, ``AUGMENTATIONS`` has the papers' own by name. They leave the inputs they are given
as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from .._internal import checks
from .._internal.nearest import unknown
from ._random import SampleGenerator

Augmentation = Callable[[Tensor, SampleGenerator], Tensor]
AugmentationLike = str | Augmentation | None

PADDINGS = ("symmetric", "zeros")


class Compose:
    """One after the other.

    Example:
        >>> generator = SampleGenerator(0, 0, [0, 1])
        >>> Compose(Crop(32, padding=4, mode="zeros"), Flip(), Normalize())(
        ...     torch.zeros(2, 3, 32, 32).byte(), generator
        ... ).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(self, *steps: Augmentation) -> None:
        for step in steps:
            if not callable(step):
                raise TypeError(f"steps must be callables(inputs, generator), got {step!r}")
        self.steps = steps

    def __call__(self, inputs: Tensor, generator: SampleGenerator) -> Tensor:
        for step in self.steps:
            inputs = step(inputs, generator)
        return inputs

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.steps))})"


@dataclass(frozen=True)
class Normalize:
    """Pixels of 0…255 as float32 (x−127.5)/128, within ±1 (the released code of all three papers); exact in float32."""

    def __call__(self, inputs: Tensor, generator: SampleGenerator | None = None) -> Tensor:
        if inputs.dtype != torch.uint8:
            raise TypeError(f"inputs must be uint8 pixels of 0 to 255, got {inputs.dtype}")
        return inputs.to(torch.float32).sub_(127.5).mul_(1 / 128)


@dataclass(frozen=True)
class Flip:
    """Each image mirrored left-right with this probability, or upside down with `vertical`."""

    probability: float = 0.5
    vertical: bool = False

    def __post_init__(self) -> None:
        checks.number("probability", self.probability, low=0, high=1)

    def __call__(self, inputs: Tensor, generator: SampleGenerator) -> Tensor:
        images(inputs)
        chosen = (generator.uniform() < self.probability).numpy()
        x = inputs.numpy()
        out = x.copy()
        out[chosen] = x[chosen][:, :, ::-1] if self.vertical else x[chosen][..., ::-1]
        return torch.from_numpy(out)


@dataclass(frozen=True)
class Crop:
    """A window of size×size out of each image, every place equally likely.

    Args:
        size: of the window, pixels.
        padding: pixels added on every side first.
        mode: "symmetric", the image mirrored at its border, border pixels twice (…cba|abc…), or "zeros", black.
    """

    size: int
    padding: int = 0
    mode: str = "symmetric"

    def __post_init__(self) -> None:
        checks.integer("size", self.size, low=1)
        checks.integer("padding", self.padding, low=0)
        checks.choice("mode", self.mode, PADDINGS)

    def __call__(self, inputs: Tensor, generator: SampleGenerator) -> Tensor:
        height, width = (pixels + 2 * self.padding - self.size for pixels in window(inputs, self.size, self.padding))
        x = padded(inputs.numpy(), self.padding, self.mode)
        top, left = generator.integers(0, height + 1).numpy(), generator.integers(0, width + 1).numpy()
        # all windows of all images as a view, (B, tops, lefts, C, size, size), of which one an image is copied
        every = np.lib.stride_tricks.sliding_window_view(x, (self.size, self.size), axis=(2, 3)).transpose(
            0, 2, 3, 1, 4, 5
        )
        return torch.from_numpy(every[np.arange(len(x)), top, left])


def padded(x: npt.NDArray[Any], padding: int, mode: str) -> npt.NDArray[Any]:
    """Images (B, C, H, W) with `padding` pixels on every side, as np.pad makes them, in half its time."""
    if not padding:
        return x
    height, width = x.shape[2:]
    out = np.zeros((*x.shape[:2], height + 2 * padding, width + 2 * padding), x.dtype)
    middle = slice(padding, padding + width)
    if mode == "zeros":
        out[:, :, padding : padding + height, middle] = x
        return out
    rows, columns = (np.pad(np.arange(pixels), padding, mode="symmetric") for pixels in (height, width))
    x = x.take(rows, axis=2)
    out[..., middle] = x
    for j in (*range(padding), *range(padding + width, width + 2 * padding)):
        out[..., j] = x[..., columns[j]]
    return out


@dataclass(frozen=True)
class CenterCrop:
    """The middle size×size pixels."""

    size: int

    def __post_init__(self) -> None:
        checks.integer("size", self.size, low=1)

    def __call__(self, inputs: Tensor, generator: SampleGenerator | None = None) -> Tensor:
        top, left = ((pixels - self.size) // 2 for pixels in window(inputs, self.size))
        return inputs[:, :, top : top + self.size, left : left + self.size]


@dataclass(frozen=True)
class Resize:
    """To size×size pixels whatever the shape was, bilinear and antialiased."""

    size: int

    def __post_init__(self) -> None:
        checks.integer("size", self.size, low=1)

    def __call__(self, inputs: Tensor, generator: SampleGenerator | None = None) -> Tensor:
        size = (self.size, self.size)
        if images(inputs) == size:
            return inputs
        return F.interpolate(inputs.contiguous(), size, mode="bilinear", antialias=True, align_corners=False)


@dataclass(frozen=True)
class TakePoints:
    """`count` points of each cloud (B, P, 3): the first, as the official code of PointNet does (the files hold them in
    random order), or a fresh draw without repetition with `random`."""

    count: int = 1024
    random: bool = False

    def __post_init__(self) -> None:
        checks.integer("count", self.count, low=1)

    def __call__(self, inputs: Tensor, generator: SampleGenerator) -> Tensor:
        there = points(inputs)
        if there < self.count:
            raise ValueError(f"inputs must have at least {self.count} points, got {there}")
        if not self.random:
            return inputs[:, : self.count]
        drawn = torch.from_numpy(np.argsort(generator.words(there), axis=1, kind="stable")[:, : self.count])
        return inputs.gather(1, drawn.unsqueeze(2).expand(-1, -1, 3))


@dataclass(frozen=True)
class RotateUp:
    """Each cloud turned about the up axis (y in ModelNet's files) by an angle from [0, 2π)."""

    axis: int = 1

    def __post_init__(self) -> None:
        checks.choice("axis", self.axis, (0, 1, 2))

    def __call__(self, inputs: Tensor, generator: SampleGenerator) -> Tensor:
        points(inputs)
        angle = generator.uniform().double().mul_(math.tau).unsqueeze(1).numpy()
        cos, sin = (torch.from_numpy(f(angle)).to(inputs.dtype) for f in (np.cos, np.sin))
        first, second = (axis for axis in range(3) if axis != self.axis)
        a, b = inputs[..., first], inputs[..., second]
        out = inputs.clone()
        # products and sums one by one: a matrix product may round by the size of the batch
        out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
        return out


@dataclass(frozen=True)
class Jitter:
    """Every coordinate moved by N(0, sigma), at most by `clip`."""

    sigma: float = 0.01
    clip: float = 0.05

    def __post_init__(self) -> None:
        checks.number("sigma", self.sigma, low=0)
        checks.number("clip", self.clip, low=0)

    def __call__(self, inputs: Tensor, generator: SampleGenerator) -> Tensor:
        count = points(inputs)
        return inputs + generator.normal(count, 3).mul_(self.sigma).clamp_(-self.clip, self.clip).to(inputs.dtype)


def images(inputs: Any) -> tuple[int, int]:
    """Height and width of (B, C, H, W)."""
    if not isinstance(inputs, Tensor) or inputs.dim() != 4:
        raise ValueError(f"inputs must be images (B, C, H, W), got {_what(inputs)}")
    return inputs.shape[2], inputs.shape[3]


def window(inputs: Any, size: int, padding: int = 0) -> tuple[int, int]:
    """Height and width of images (B, C, H, W) that have room for a window, padded on every side."""
    height, width = images(inputs)
    if min(height, width) + 2 * padding < size:
        raise ValueError(f"inputs must be images of at least {size - 2 * padding} pixels a side, got {height}×{width}")
    return height, width


def points(inputs: Any) -> int:
    """P of (B, P, 3)."""
    if not isinstance(inputs, Tensor) or inputs.dim() != 3 or inputs.shape[2] != 3 or not inputs.is_floating_point():
        raise ValueError(f"inputs must be points (B, P, 3) of floating point numbers, got {_what(inputs)}")
    return inputs.shape[1]


def _what(inputs: Any) -> str:
    return f"{tuple(inputs.shape)} {inputs.dtype}" if isinstance(inputs, Tensor) else type(inputs).__name__


def as_stored(inputs: Tensor, generator: SampleGenerator | None = None) -> Tensor:
    """What ``augment=None`` does: uint8 images are normalized as every name of the tables does it, the rest is left."""
    return Normalize()(inputs) if inputs.dtype == torch.uint8 else inputs


_PAD_CROP_FLIP = Compose(Crop(32, padding=4), Flip(), Normalize())

#: The papers' own by name; ``<name>.eval`` is what the same network sees when it is tested, without chance.
AUGMENTATIONS: dict[str, Augmentation] = {
    # 001, 4: "CIFAR10 (only with random left-right flipping)"; CIFAR-10+ and CIFAR-100 with the full augmentation,
    # padded symmetrically in the released code. 4.5 also names vertical flips, which the released code leaves out.
    "cifar10.spherenet": Compose(Flip(), Normalize()),
    "cifar10+.spherenet": _PAD_CROP_FLIP,
    "cifar10+.spherenet.vertical": Compose(Crop(32, padding=4), Flip(), Flip(vertical=True), Normalize()),
    # 003, 5.1: "moderate data augmentation"; 002 does the same
    "cifar.mhe": _PAD_CROP_FLIP,
    # 000, Appendix B; 003 tests on the center crop
    "imagenet": Compose(Resize(256), Crop(224), Flip(), Normalize()),
    # 002, Appendix D, after the official code of PointNet: rotation, then jitter
    "modelnet.opt": Compose(TakePoints(1024), RotateUp(), Jitter()),
}
AUGMENTATIONS |= {f"{name}.eval": Normalize() for name in AUGMENTATIONS if name.startswith("cifar")}
AUGMENTATIONS |= {
    "imagenet.eval": Compose(Resize(256), CenterCrop(224), Normalize()),
    "modelnet.opt.eval": Compose(TakePoints(1024)),
}


def resolve(augment: AugmentationLike) -> Augmentation:
    """The callable that `augment` stands for."""
    if augment is None:
        return as_stored
    if isinstance(augment, str) and augment in AUGMENTATIONS:
        return AUGMENTATIONS[augment]
    if isinstance(augment, str) or not callable(augment):
        error = ValueError if isinstance(augment, str) else TypeError
        raise error(unknown("augment", augment, AUGMENTATIONS, ", a callable(inputs, generator) or None"))
    return augment
