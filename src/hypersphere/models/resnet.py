"""The residual networks of the three papers, for small images and for ImageNet."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from .._internal import checks
from ..layers import Scale, SimilarityLike
from ._parts import Network, Style, images, pair, stages_of


class Pad(nn.Module):
    """A shortcut without parameters: every stride-th pixel, and zeros for the channels that are new."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.new, self.stride = filters - channels, stride

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.new // 2, self.new - self.new // 2))


class Unit(nn.Module):
    """Convolution, BatchNorm, ReLU, convolution, BatchNorm; add; ReLU."""

    def __init__(self, style: Style, channels: int, filters: int, stride: int, shortcut: str) -> None:
        super().__init__()
        second = [style.conv(filters, filters), *style.norm(filters)]
        self.layers = nn.Sequential(*style.unit(channels, filters, 3, stride), *second)
        self.shortcut: nn.Module = nn.Identity()
        if (channels, stride) != (filters, 1):
            if shortcut == "pad":
                self.shortcut = Pad(channels, filters, stride)
            else:
                convolution = style.conv(channels, filters, 1, stride, plain=shortcut == "plain")
                self.shortcut = nn.Sequential(convolution, *style.norm(filters))
        self.last = nn.Sequential(*style.activation())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.layers(x) + self.shortcut(x))
        return out


class ResNet(Network):
    """One root convolution, stages of residual units, the mean over all pixels, a plain classifier.

    Args:
        depth: units in each stage; the first unit of every stage but the first has stride 2.
        widths: filters of each stage.
        stem: "cifar": the root is 3×3; "imagenet": 7×7 of stride 2 and a 3×3 pool of stride 2.
        shortcut: where the shape changes: "conv" (a 1×1 convolution like all others, SphereResNet v1), "plain" (a
            1×1 convolution without angles, v2) or "pad" (zeros, no parameters; OPT's networks for CIFAR).
    """

    def __init__(
        self,
        num_classes: int = 10,
        *,
        depth: Sequence[int] = (5, 5, 5),
        widths: Sequence[int] = (64, 128, 256),
        stem: str = "cifar",
        shortcut: str = "conv",
        in_channels: int = 3,
        input_size: int | tuple[int, int] = 32,
        similarity: SimilarityLike | None = None,
        scale: Scale = None,
        batch_norm: bool = True,
        relu: bool = True,
        init: str = "kaiming",
    ) -> None:
        super().__init__()
        checks.choice("stem", stem, ("cifar", "imagenet"))
        checks.choice("shortcut", shortcut, ("conv", "plain", "pad"))
        self.input_size = pair("input_size", input_size)  # any will do: the mean is over what is left
        style = Style(similarity, scale, batch_norm, relu)
        plan = stages_of(depth, widths)
        channels = plan[0][1]
        kernel, stride = (3, 1) if stem == "cifar" else (7, 2)
        self.in_channels = checks.integer("in_channels", in_channels, low=1)
        root = style.unit(in_channels, channels, kernel, stride)
        self.stem = nn.Sequential(*root, *([] if stem == "cifar" else [nn.MaxPool2d(3, 2, padding=1)]))
        stages: list[nn.Module] = []
        for i, (count, width) in enumerate(plan):
            units: list[nn.Module] = []
            for j in range(count):
                units.append(Unit(style, channels, width, 2 if i and not j else 1, shortcut))
                channels = width
            stages.append(nn.Sequential(*units))
        self.stages = nn.Sequential(*stages)
        self.set_classifier(channels, num_classes)
        self._initialize(init)

    def forward_features(self, x: Tensor) -> Tensor:
        features: Tensor = self.stages(self.stem(images(x, self.in_channels))).mean((2, 3))
        return features
