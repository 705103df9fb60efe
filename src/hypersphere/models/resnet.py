"""The residual networks of the three papers, for small images and for ImageNet."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from .._internal import checks
from ..layers.sphere import Scale, SimilarityLike
from ._parts import Network, Style, check_images, check_size, check_stages
from ._registry import register


class Pad(nn.Module):
    """A shortcut without parameters: every stride-th pixel, and zeros for new channels."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.new, self.stride = filters - channels, stride

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.new // 2, self.new - self.new // 2))


class ResNetUnit(nn.Module):
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
        self.input_size = check_size("input_size", input_size)  # any size works
        style = Style(similarity, scale, batch_norm, relu)
        plan = check_stages(depth, widths)
        channels = plan[0][1]
        kernel, stride = (3, 1) if stem == "cifar" else (7, 2)
        self.in_channels = checks.integer("in_channels", in_channels, low=1)
        root = style.unit(in_channels, channels, kernel, stride)
        self.stem = nn.Sequential(*root, *([] if stem == "cifar" else [nn.MaxPool2d(3, 2, padding=1)]))
        stages: list[nn.Module] = []
        for i, (count, width) in enumerate(plan):
            units: list[nn.Module] = []
            for j in range(count):
                units.append(ResNetUnit(style, channels, width, 2 if i and not j else 1, shortcut))
                channels = width
            stages.append(nn.Sequential(*units))
        self.stages = nn.Sequential(*stages)
        self.set_classifier(channels, num_classes)
        self._initialize(init)

    def forward_features(self, x: Tensor) -> Tensor:
        features: Tensor = self.stages(self.stem(check_images(x, self.in_channels))).mean((2, 3))
        return features


_for_imagenet = partial(register, build=ResNet, num_classes=1000, input_size=224, stem="imagenet")
_STANDARD, _WIDE = (64, 128, 256, 512), (256, 512, 768, 1024)
_resnet18, _resnet34 = partial(_for_imagenet, depth=(2, 2, 2, 2)), partial(_for_imagenet, depth=(3, 4, 6, 3))
_SMALL = {20: (3, 3, 3), 32: (5, 5, 5)}
for _layers, _depth in _SMALL.items():
    register(f"resnet{_layers}", ResNet, depth=_depth, widths=(16, 32, 64))
_resnet18("resnet18", widths=_STANDARD)
_resnet34("resnet34", widths=_STANDARD)
register("resnet32.spherenet", ResNet, paper="SphereNet", table="6", widths=(64, 96, 128))
register("resnet32w.spherenet", ResNet, paper="SphereNet", table="6", widths=(96, 192, 384))
_resnet18("resnet18.spherenet", widths=_WIDE, paper="SphereNet", table="6 (v1)")
_resnet18("resnet18v2.spherenet", widths=_WIDE, paper="SphereNet", table="6 (v2)", shortcut="plain")
register("resnet32.mhe", ResNet, paper="MHE", table="12", widths=(64, 128, 256))
_resnet18("resnet18.mhe", widths=_STANDARD, paper="MHE", table="12")
_resnet34("resnet34.mhe", widths=_STANDARD, paper="MHE", table="12")
for _layers, _depth in _SMALL.items():
    _name, _widths = f"resnet{_layers}.opt", (16, 32, 64)
    register(_name, ResNet, paper="OPT", table="15", depth=_depth, widths=_widths, shortcut="pad", num_classes=100)
_resnet18("resnet18.opt", widths=_STANDARD, paper="OPT", table="17")
_resnet18("resnet18a.opt", widths=(64, 128, 128, 128), paper="OPT", table="18")
_resnet18("resnet18b.opt", widths=_STANDARD, paper="OPT", table="18")
