"""SphereFace's residual networks with PReLU and without BatchNorm, for faces of 112×96."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from .._internal import checks
from ..layers.sphere import Scale, SimilarityLike
from ._parts import Network, Style, check_images, check_size, check_stages, flatten_features, initialize
from ._registry import register


class SphereFaceUnit(nn.Module):
    """Two 3×3 convolutions with PReLU, added to the input."""

    def __init__(self, style: Style, width: int) -> None:
        super().__init__()
        convolutions = [style.conv(width, width) for _ in range(2)]
        self.layers = nn.Sequential(
            *(layer for conv in convolutions for layer in (conv, *_norm_and_prelu(style, width)))
        )
        initialize(self, "normal(0, 0.01)")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layers(x)
        return out


class SphereFace(Network):
    """Four stages, each opened by a 3×3 convolution of stride 2 with bias (Xavier), then residual units; FC-512.

    Args:
        depth: residual units of each stage: (1, 2, 4, 1) for 20 layers, (3, 8, 16, 3) for 64.
        widths: filters of each stage.
        fc: the size of the embedding; the layer has 21,504 inputs, so rotate skips it.
        relu: PReLU, a slope for every filter.
    """

    init = "xavier"  # of a new classifier
    not_rotated = ("fc",)

    def __init__(
        self,
        num_classes: int = 0,
        *,
        depth: Sequence[int] = (1, 2, 4, 1),
        widths: Sequence[int] = (64, 128, 256, 512),
        fc: int = 512,
        in_channels: int = 3,
        input_size: int | tuple[int, int] = (112, 96),
        similarity: SimilarityLike | None = None,
        scale: Scale = None,
        batch_norm: bool = False,
        relu: bool = True,
    ) -> None:
        super().__init__()
        style = Style(similarity, scale, batch_norm, relu)
        channels = self.in_channels = checks.integer("in_channels", in_channels, low=1)
        height, width = self.input_size = check_size("input_size", input_size)
        stages: list[nn.Module] = []
        for count, filters in check_stages(depth, widths, low=0):
            first = style.conv(channels, filters, 3, 2, bias=True)
            initialize(first, "xavier")
            units = [SphereFaceUnit(style, filters) for _ in range(count)]
            stages.append(nn.Sequential(first, *_norm_and_prelu(style, filters), *units))
            channels, height, width = filters, (height + 1) // 2, (width + 1) // 2
        self.stages = nn.Sequential(*stages)
        self._flat = channels * height * width
        self.fc = style.linear(self._flat, checks.integer("fc", fc, low=1), bias=True)
        self.set_classifier(fc, num_classes)
        for layer in (self.fc, self.classifier):
            initialize(layer, "xavier")

    def forward_features(self, x: Tensor) -> Tensor:
        maps = self.stages(check_images(x, self.in_channels))
        features: Tensor = self.fc(flatten_features(maps, self._flat, self.input_size))
        return features


def _norm_and_prelu(style: Style, filters: int) -> list[nn.Module]:
    return [*style.norm(filters), *([nn.PReLU(filters)] if style.relu else [])]


register("sphereface20", SphereFace, paper="SphereFace", table="2")
register("sphereface64", SphereFace, paper="SphereFace", table="2", depth=(3, 8, 16, 3))
register("cnn20.opt", SphereFace, paper="OPT", table="18")
