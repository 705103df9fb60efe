"""The papers' augmentations of images and points, for whole batches.

An augmentation is a callable(inputs, generator): stored inputs (B, ...), and a
:class:`~hypersphere.data._random.SampleGenerator` with a row of random numbers for each sample. ``Compose`` chains the
classes below, ``AUGMENTATIONS`` has the papers' ones by name. They do not change their inputs.
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
    """Apply augmentations one after the other.

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
    """Map pixels 0…255 to float32 (x−127.5)/128, within ±1, as the released code of all three papers does."""

    def __call__(self, inputs: Tensor, generator: SampleGenerator | None = None) -> Tensor:
        if inputs.dtype != torch.uint8:
            raise TypeError(f"inputs must be uint8 pixels of 0 to 255, got {inputs.dtype}")
        return inputs.to(torch.float32).sub_(127.5).mul_(1 / 128)


@dataclass(frozen=True)
class Flip:
    """Flip each image left-right with this probability, or upside down with `vertical`."""

    probability: float = 0.5
    vertical: bool = False

    def __post_init__(self) -> None:
        checks.number("probability", self.probability, low=0, high=1)

    def __call__(self, inputs: Tensor, generator: SampleGenerator) -> Tensor:
        check_images(inputs)
        chosen = (generator.uniform() < self.probability).numpy()
        x = inputs.numpy()
        out = x.copy()
        out[chosen] = x[chosen][:, :, ::-1] if self.vertical else x[chosen][..., ::-1]
        return torch.from_numpy(out)


@dataclass(frozen=True)
class Crop:
    """Crop a random window of size×size pixels from each image.

    Args:
        size: of the window, pixels.
        padding: pixels added on every side first.
        mode: of the padding: "symmetric" (…cba|abc…) or "zeros".
    """

    size: int
    padding: int = 0
    mode: str = "symmetric"

    def __post_init__(self) -> None:
        checks.integer("size", self.size, low=1)
        checks.integer("padding", self.padding, low=0)
        checks.choice("mode", self.mode, PADDINGS)

    def __call__(self, inputs: Tensor, generator: SampleGenerator) -> Tensor:
        check_window(inputs, self.size, self.padding)
        return _random_window(inputs, (self.size, self.size), self.padding, self.mode, generator)


@dataclass(frozen=True)
class Shift:
    """Shift each image by up to this share of its shorter side; the border is mirrored."""

    share: float = 1 / 8

    def __post_init__(self) -> None:
        checks.number("share", self.share, low=0, high=1)

    def __call__(self, inputs: Tensor, generator: SampleGenerator) -> Tensor:
        size = check_images(inputs)
        return _random_window(inputs, size, int(self.share * min(size)), "symmetric", generator)


def _random_window(
    inputs: Tensor, size: tuple[int, int], padding: int, mode: str, generator: SampleGenerator
) -> Tensor:
    """Cut a random window of this height and width from each padded image."""
    x = pad_images(inputs.numpy(), padding, mode)
    height, width = x.shape[2] - size[0], x.shape[3] - size[1]
    top, left = generator.integers(0, height + 1).numpy(), generator.integers(0, width + 1).numpy()
    # a view of all windows of all images, (B, tops, lefts, C, height, width); one per image is copied
    windows = np.lib.stride_tricks.sliding_window_view(x, size, axis=(2, 3)).transpose(0, 2, 3, 1, 4, 5)
    return torch.from_numpy(windows[np.arange(len(x)), top, left])


def pad_images(x: npt.NDArray[Any], padding: int, mode: str) -> npt.NDArray[Any]:
    """Pad images (B, C, H, W) on every side like np.pad, in half its time."""
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
    """Crop the middle size×size pixels."""

    size: int

    def __post_init__(self) -> None:
        checks.integer("size", self.size, low=1)

    def __call__(self, inputs: Tensor, generator: SampleGenerator | None = None) -> Tensor:
        top, left = ((pixels - self.size) // 2 for pixels in check_window(inputs, self.size))
        return inputs[:, :, top : top + self.size, left : left + self.size]


@dataclass(frozen=True)
class Resize:
    """Resize to size×size pixels, bilinear and antialiased; the aspect ratio may change."""

    size: int

    def __post_init__(self) -> None:
        checks.integer("size", self.size, low=1)

    def __call__(self, inputs: Tensor, generator: SampleGenerator | None = None) -> Tensor:
        size = (self.size, self.size)
        if check_images(inputs) == size:
            return inputs
        return F.interpolate(inputs.contiguous(), size, mode="bilinear", antialias=True, align_corners=False)


@dataclass(frozen=True)
class TakePoints:
    """Take `count` points of each cloud (B, P, 3): the first, as PointNet's official code does (the files are in random
    order), or with `random` a draw without replacement."""

    count: int = 1024
    random: bool = False

    def __post_init__(self) -> None:
        checks.integer("count", self.count, low=1)

    def __call__(self, inputs: Tensor, generator: SampleGenerator) -> Tensor:
        available = check_points(inputs)
        if available < self.count:
            raise ValueError(f"inputs must have at least {self.count} points, got {available}")
        if not self.random:
            return inputs[:, : self.count]
        drawn = torch.from_numpy(np.argsort(generator.words(available), axis=1, kind="stable")[:, : self.count])
        return inputs.gather(1, drawn.unsqueeze(2).expand(-1, -1, 3))


@dataclass(frozen=True)
class RotateUp:
    """Rotate each cloud about the up axis (y in ModelNet's files) by an angle from [0, 2π)."""

    axis: int = 1

    def __post_init__(self) -> None:
        checks.choice("axis", self.axis, (0, 1, 2))

    def __call__(self, inputs: Tensor, generator: SampleGenerator) -> Tensor:
        check_points(inputs)
        angle = generator.uniform().double().mul_(math.tau).unsqueeze(1).numpy()
        cos, sin = (torch.from_numpy(f(angle)).to(inputs.dtype) for f in (np.cos, np.sin))
        first, second = (axis for axis in range(3) if axis != self.axis)
        a, b = inputs[..., first], inputs[..., second]
        out = inputs.clone()
        # elementwise, because the rounding of a matrix product may depend on the batch size
        out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
        return out


@dataclass(frozen=True)
class Jitter:
    """Add noise from N(0, sigma), clipped to ±`clip`, to every coordinate."""

    sigma: float = 0.01
    clip: float = 0.05

    def __post_init__(self) -> None:
        checks.number("sigma", self.sigma, low=0)
        checks.number("clip", self.clip, low=0)

    def __call__(self, inputs: Tensor, generator: SampleGenerator) -> Tensor:
        count = check_points(inputs)
        return inputs + generator.normal(count, 3).mul_(self.sigma).clamp_(-self.clip, self.clip).to(inputs.dtype)


def check_images(inputs: Any) -> tuple[int, int]:
    """Check images (B, C, H, W); return height and width."""
    if not isinstance(inputs, Tensor) or inputs.dim() != 4:
        raise ValueError(f"inputs must be images (B, C, H, W), got {_describe(inputs)}")
    return inputs.shape[2], inputs.shape[3]


def check_window(inputs: Any, size: int, padding: int = 0) -> tuple[int, int]:
    """Check that padded images (B, C, H, W) are at least as large as a window; return height and width."""
    height, width = check_images(inputs)
    if min(height, width) + 2 * padding < size:
        raise ValueError(
            f"inputs must be images of at least {size - 2 * padding} pixels per side, got {height}×{width}"
        )
    return height, width


def check_points(inputs: Any) -> int:
    """Check points (B, P, 3); return P."""
    if not isinstance(inputs, Tensor) or inputs.dim() != 3 or inputs.shape[2] != 3 or not inputs.is_floating_point():
        raise ValueError(f"inputs must be floating point points (B, P, 3), got {_describe(inputs)}")
    return inputs.shape[1]


def _describe(inputs: Any) -> str:
    return f"{tuple(inputs.shape)} {inputs.dtype}" if isinstance(inputs, Tensor) else type(inputs).__name__


def as_stored(inputs: Tensor, generator: SampleGenerator | None = None) -> Tensor:
    """Apply ``augment=None``: normalize uint8 images as all named augmentations do; return other inputs unchanged."""
    return Normalize()(inputs) if inputs.dtype == torch.uint8 else inputs


_PAD_CROP_FLIP = Compose(Crop(32, padding=4), Flip(), Normalize())

#: Augmentations by name, most of them the papers'; ``<name>.eval`` is the deterministic one for evaluation.
AUGMENTATIONS: dict[str, Augmentation] = {
    # the defaults of a training for images of any size, with colours and grey: a flipped 3 is no digit
    "photo": Compose(Shift(), Flip(), Normalize()),
    "shift": Compose(Shift(), Normalize()),
    # 001, 4: "CIFAR10 (only with random left-right flipping)"; CIFAR-10+ and CIFAR-100 with crops and, by 4.5, both
    # flips. The released code pads symmetrically and has no vertical flips.
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
AUGMENTATIONS |= {f"{name}.eval": Normalize() for name in AUGMENTATIONS if name.startswith(("cifar", "photo", "shift"))}
AUGMENTATIONS |= {
    "imagenet.eval": Compose(Resize(256), CenterCrop(224), Normalize()),
    "modelnet.opt.eval": Compose(TakePoints(1024)),
}


def resolve(augment: AugmentationLike) -> Augmentation:
    """Return the augmentation for a name, a callable or None."""
    if augment is None:
        return as_stored
    if isinstance(augment, str) and augment in AUGMENTATIONS:
        return AUGMENTATIONS[augment]
    if isinstance(augment, str) or not callable(augment):
        error = ValueError if isinstance(augment, str) else TypeError
        raise error(unknown("augment", augment, AUGMENTATIONS, ", a callable(inputs, generator) or None"))
    return augment
