"""Shared by all networks: timm's conventions, plain or sphere layers, the papers' initializations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._internal import checks
from .._internal.nearest import unknown
from ..layers.sphere import Scale, SimilarityLike, SphereConv1d, SphereConv2d, SphereLinear
from ..neurons import select

INITS = ("kaiming", "kaiming(mean)", "xavier", "normal", "normal(mean, std)")


class Network(nn.Module):
    """A network with a classifier at its end, following timm.

    ``forward_features`` returns the input of the classifier, (B, num_features). With ``num_classes=0`` it is
    nn.Identity and the network returns embeddings, for a loss head.
    """

    num_features: int
    num_classes: int
    classifier: nn.Module
    data_kind = "images"  # the input: images, points, text or graph
    init: str | None = None  # of the layers; None: torch's default
    not_rotated: tuple[str, ...] = ()  # layers that rotate skips unless they are named, as in the papers
    _bias = True

    def forward_features(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward_head(self, features: Tensor) -> Tensor:
        """Apply the classifier to the features."""
        logits: Tensor = self.classifier(features)
        return logits

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def get_classifier(self) -> nn.Module:
        return self.classifier

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the classifier by one with this number of classes; 0: none."""
        like = next(self.parameters(), None)
        self.set_classifier(self.num_features, num_classes, self._bias)
        if num_classes and self.init is not None:
            initialize(self.classifier, self.init)
        if like is not None:
            self.classifier.to(like)

    def set_classifier(self, num_features: int, num_classes: int, bias: bool = True) -> None:
        """Make the classifier, in the constructor of a network."""
        self.num_features, self._bias = num_features, bias
        self.num_classes = checks.integer("num_classes", num_classes, low=0)
        self.classifier = nn.Linear(num_features, num_classes, bias=bias) if num_classes else nn.Identity()

    def _initialize(self, init: str) -> None:
        initialize(self, init)
        self.init = init


@dataclass(frozen=True)
class Style:
    """The layers of a network: plain or sphere layers, with or without BatchNorm and ReLU.

    Sphere layers with a learned scale β learn SphereNorm's γ too, their bias, unless a BatchNorm shifts their output.
    """

    similarity: SimilarityLike | None = None
    scale: Scale = None
    batch_norm: bool = True
    relu: bool = True

    def __post_init__(self) -> None:
        for name in ("batch_norm", "relu"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if self.similarity is None and self.scale is not None:
            raise ValueError(f"scale needs a similarity, got similarity=None and scale={self.scale!r}")

    def _sphere(self, bias: bool) -> dict[str, Any]:
        """Return the options of a sphere layer."""
        learns_shift = self.scale is True and not self.batch_norm
        return {"bias": bias or learns_shift, "similarity": self.similarity, "scale": self.scale}

    def conv(
        self, channels: int, filters: int, kernel: int = 3, stride: int = 1, *, bias: bool = False, plain: bool = False
    ) -> nn.Module:
        """Make a convolution that divides the size by its stride, rounding up if its kernel is odd."""
        padding = (kernel - 1) // 2
        if self.similarity is None or plain:
            return nn.Conv2d(channels, filters, kernel, stride, padding, bias=bias)
        return SphereConv2d(channels, filters, kernel, stride, padding, **self._sphere(bias))

    def pointwise(self, channels: int, filters: int) -> nn.Module:
        """Make a convolution of size 1 over a sequence."""
        if self.similarity is None:
            return nn.Conv1d(channels, filters, 1, bias=False)
        return SphereConv1d(channels, filters, 1, **self._sphere(False))

    def linear(self, features: int, neurons: int, *, bias: bool = False) -> nn.Module:
        if self.similarity is None:
            return nn.Linear(features, neurons, bias=bias)
        return SphereLinear(features, neurons, **self._sphere(bias))

    def norm(self, channels: int, dims: int = 2) -> list[nn.Module]:
        return [(nn.BatchNorm1d, nn.BatchNorm2d)[dims - 1](channels)] if self.batch_norm else []

    def activation(self) -> list[nn.Module]:
        return [nn.ReLU()] if self.relu else []

    def unit(self, channels: int, filters: int, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
        """Make a convolution, BatchNorm and ReLU."""
        return [self.conv(channels, filters, kernel, stride), *self.norm(filters), *self.activation()]


def initialize(model: nn.Module, init: str, *, output: bool = True) -> None:
    """Initialize the weights of all layers; biases become 0.

    Args:
        init: "kaiming" (normal with variance 2/fan_in), "kaiming(mean)", "xavier" (uniform), or "normal(mean, std)";
            "normal" is "normal(0, 1)".
        output: whether to initialize the classifier too.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Flatten(), nn.Linear(64, 10))
        >>> initialize(net, "normal(1, 0)")
        >>> net[0].weight.unique(), net[0].bias.unique()
        (tensor([1.], grad_fn=...), tensor([0.], grad_fn=...))
    """
    form = r"(kaiming)(?:\(([^,()]+)\))?|(xavier)|(normal)(?:\(([^,()]+),([^,()]+)\))?"
    match = re.fullmatch(form, init) if isinstance(init, str) else None
    try:
        if match is None:
            raise ValueError
        mean = checks.number("the mean of init", float(match[2] or match[5] or 0))
        std = checks.number("the deviation of init", float(match[6] or 1), low=0.0)
    except ValueError:
        raise ValueError(unknown("init", init, INITS)) from None
    for name, neurons in select(model).items():
        if neurons.is_output and not output:
            continue
        if parametrize.is_parametrized(neurons.module, neurons.tensor_name):
            raise ValueError(f"layer {name!r} is parametrized: initialize before rotate")
        if neurons.tensor.is_meta:  # has no values, and the first call would take a second
            continue
        if match[3]:
            nn.init.xavier_uniform_(neurons.tensor)
        else:
            nn.init.normal_(neurons.tensor, mean, math.sqrt(2 / neurons.matrix().shape[2]) if match[1] else std)
        if getattr(neurons.module, "bias", None) is not None:
            nn.init.zeros_(neurons.module.bias)  # type: ignore[arg-type]


def check_ints(name: str, values: Any, *, least: int = 1, low: int = 1) -> tuple[int, ...]:
    """Return `values` as a tuple of at least `least` ints, each at least `low`: units or filters of every stage."""
    if not isinstance(values, Iterable) or isinstance(values, str) or len(items := tuple(values)) < least:
        raise ValueError(f"{name} must be a sequence of {least} or more ints, got {values!r}")
    return tuple(checks.integer(name, value, low=low) for value in items)


def check_stages(depth: Any, widths: Any, *, low: int = 1) -> list[tuple[int, int]]:
    """Return (units, filters) of every stage."""
    units, filters = check_ints("depth", depth, low=low), check_ints("widths", widths)
    if len(units) != len(filters):
        example, got = (",".join(map(str, numbers)) for numbers in ([32 * 2**i for i in range(len(units))], filters))
        raise ValueError(f"widths must have {len(units)} numbers, one per stage, such as {example}; got {got}")
    return list(zip(units, filters, strict=True))


def check_size(name: str, size: Any) -> tuple[int, int]:
    """Return (height, width) of an image size: one int or a pair."""
    height, width = size if isinstance(size, tuple | list) and len(size) == 2 else (size, size)
    return checks.integer(name, height, low=1), checks.integer(name, width, low=1)


def check_images(x: Tensor, channels: int) -> Tensor:
    """Return x; raise if it is not images with this number of channels."""
    if x.dim() != 4 or x.shape[1] != channels:
        raise ValueError(f"images must be (B, {channels}, H, W), got {tuple(x.shape)}")
    return x


def flatten_features(x: Tensor, features: int, size: tuple[int, int]) -> Tensor:
    """Flatten x (B, ...) to (B, features) for a linear layer that was built for images of this size."""
    x = x.flatten(1)
    if x.shape[1] != features:
        raise ValueError(
            f"images must be {size[0]}×{size[1]} (set input_size for other sizes): the linear layer needs "
            f"{features} features, got {x.shape[1]}"
        )
    return x
