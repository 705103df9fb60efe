"""PointNet without transformation networks (OPT, App. D): a shared MLP for all points, then the maximum."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from .._internal import checks
from ..layers.sphere import Scale, SimilarityLike
from ._parts import Network, Style, check_ints
from ._registry import register


class PointNet(Network):
    """Points (B, P, 3) → logits (B, classes).

    Args:
        widths: of the layers that all points share.
        fc: of the layers after the maximum.
        dropout: before the classifier.
    """

    data_kind = "points"

    def __init__(
        self,
        num_classes: int = 40,
        *,
        in_channels: int = 3,
        widths: Sequence[int] = (64, 64, 64, 128, 1024),
        fc: Sequence[int] = (512, 256),
        dropout: float = 0.3,
        similarity: SimilarityLike | None = None,
        scale: Scale = None,
        batch_norm: bool = True,
        relu: bool = True,
        init: str = "kaiming",
    ) -> None:
        super().__init__()
        style = Style(similarity, scale, batch_norm, relu)
        channels = self.in_channels = checks.integer("in_channels", in_channels, low=1)
        shared: list[nn.Module] = []
        for width in check_ints("widths", widths):
            shared += [style.pointwise(channels, width), *style.norm(width, 1), *style.activation()]
            channels = width
        self.shared = nn.Sequential(*shared)
        layers: list[nn.Module] = []
        for width in check_ints("fc", fc, least=0):
            layers += [style.linear(channels, width), *style.norm(width, 1), *style.activation()]
            channels = width
        self.layers = nn.Sequential(*layers, nn.Dropout(checks.number("dropout", dropout, low=0.0, high=1.0)))
        self.set_classifier(channels, num_classes)
        self._initialize(init)

    def forward_features(self, x: Tensor) -> Tensor:
        if x.dim() != 3 or x.shape[2] != self.in_channels:
            raise ValueError(f"points must be (B, P, {self.in_channels}), got {tuple(x.shape)}")
        features: Tensor = self.layers(self.shared(x.transpose(1, 2)).amax(2))
        return features


register("pointnet", PointNet)
register("pointnet.opt", PointNet, paper="OPT", table="App. D")
