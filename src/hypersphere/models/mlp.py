"""The multilayer perceptron of OPT (App. D): 784-256-256-classes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from .._internal import checks
from ..layers.sphere import Scale, SimilarityLike
from ._parts import Network, Style, check_ints, check_size, flatten_features
from ._registry import register


class MLP(Network):
    """Linear layers with ReLU on flattened images (B, C, H, W) or vectors."""

    def __init__(
        self,
        num_classes: int = 10,
        *,
        widths: Sequence[int] = (256, 256),
        in_channels: int = 1,
        input_size: int | tuple[int, int] = 28,
        similarity: SimilarityLike | None = None,
        scale: Scale = None,
        batch_norm: bool = False,
        relu: bool = True,
        init: str = "xavier",
    ) -> None:
        super().__init__()
        style = Style(similarity, scale, batch_norm, relu)
        height, width = self.input_size = check_size("input_size", input_size)
        self.in_channels = checks.integer("in_channels", in_channels, low=1)
        features = self._flat = in_channels * height * width
        layers: list[nn.Module] = []
        for neurons in check_ints("widths", widths, least=0):
            layers += [style.linear(features, neurons, bias=True), *style.norm(neurons, 1), *style.activation()]
            features = neurons
        self.layers = nn.Sequential(*layers)
        self.set_classifier(features, num_classes)
        self._initialize(init)

    def forward_features(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(flatten_features(x, self._flat, self.input_size))
        return features


register("mlp", MLP)
register("mlp.opt", MLP, paper="OPT", table="App. D")
