"""The plain CNNs: stages of 3×3 convolutions with a pool after each, then one linear layer. Most are of the papers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from .._internal import checks
from ..layers.sphere import Scale, SimilarityLike
from ._parts import Network, Style, check_images, check_ints, check_size, check_stages, flatten_features
from ._registry import register

LARGE = 64  # pixels; larger images are reduced by a stem


class CNN(Network):
    """Convolutions without bias, each with BatchNorm and ReLU; the "fully connected" layer has neither (released code).

    Args:
        depth: convolutions in each stage.
        widths: filters of each stage.
        fc: neurons of the linear layer after the last stage, a hidden layer without bias; None: no such layer.
        stem: begin with a 7×7 convolution of stride 2 and a 3×3 pool of stride 2, as wide as the first stage. For large
            images; then `fc` has so many inputs (12,544 at 224×224) that rotate skips it.
        pool: the size of the pools, of stride 2.
        round_up: True: pools round odd sizes up (28×28 becomes 4×4 after three). False: pools without padding.
        mean: average the last maps over all pixels. Without it the next layer has an input for every pixel, and large
            gradients: with 2,048 of them and lr 0.1 the loss rises instead of falling.
    """

    def __init__(
        self,
        num_classes: int = 10,
        *,
        depth: Sequence[int] = (3, 3, 3),
        widths: Sequence[int] = (64, 128, 256),
        fc: int | None = 256,
        in_channels: int = 3,
        input_size: int | tuple[int, int] = 32,
        stem: bool = False,
        pool: int = 2,
        round_up: bool = True,
        mean: bool = False,
        similarity: SimilarityLike | None = None,
        scale: Scale = None,
        batch_norm: bool = True,
        relu: bool = True,
        init: str = "kaiming",
    ) -> None:
        super().__init__()
        style = Style(similarity, scale, batch_norm, relu)
        plan = check_stages(depth, widths)
        checks.integer("pool", pool, low=1)
        channels = self.in_channels = checks.integer("in_channels", in_channels, low=1)
        height, width = self.input_size = check_size("input_size", input_size)
        first: list[nn.Module] = []
        if stem:
            filters = plan[0][1]
            first = [*style.unit(channels, filters, 7, 2), nn.MaxPool2d(3, 2, padding=1)]
            channels, height, width = filters, (height + 3) // 4, (width + 3) // 4
        self.stem = nn.Sequential(*first)
        stages: list[nn.Module] = []
        for count, filters in plan:
            layers: list[nn.Module] = []
            for _ in range(count):
                layers += style.unit(channels, filters)
                channels = filters
            if round_up:  # even pools need ceil_mode for that, odd ones padding
                layers.append(nn.MaxPool2d(pool, 2, padding=(pool - 1) // 2, ceil_mode=pool % 2 == 0))
                height, width = (height + 1) // 2, (width + 1) // 2
            else:
                layers.append(nn.MaxPool2d(pool, 2))
                height, width = (height - pool) // 2 + 1, (width - pool) // 2 + 1
            if height < 1 or width < 1:
                raise ValueError(f"input_size must be larger for {len(plan)} pools of size {pool}, got {input_size}")
            stages.append(nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.mean = mean
        features = self._flat = channels if mean else channels * height * width
        self.fc: nn.Module = nn.Identity()
        if fc is not None:
            self.fc = style.linear(features, checks.integer("fc", fc, low=1))
            self.not_rotated = ("fc",) if stem else ()
            features = fc
        self.set_classifier(features, num_classes)
        self._initialize(init)

    def forward_features(self, x: Tensor) -> Tensor:
        maps = self.stages(self.stem(check_images(x, self.in_channels)))
        maps = maps.mean((2, 3)) if self.mean else maps
        features: Tensor = self.fc(flatten_features(maps, self._flat, self.input_size))
        return features


class FittedCNN(CNN):
    """The default network: one convolution in each stage, and the mean over all pixels at the end.

    It fits the size of its images: those above 64 pixels are reduced to a quarter by the stem, and at least three
    stages halve them until at most 4 pixels are left (32 pixels: three stages; 64: four; 224: the stem and four).

    Args:
        widths: filters of each stage; None: 32 in the first two, 128 in the last, 64 between them.

    Example:
        >>> net = FittedCNN(5, input_size=224)
        >>> len(net.stem) > 0, len(net.stages), net.num_features
        (True, 4, 128)
    """

    def __init__(
        self,
        num_classes: int = 10,
        *,
        widths: Sequence[int] | None = None,
        fc: int | None = None,
        in_channels: int = 3,
        input_size: int | tuple[int, int] = 32,
        similarity: SimilarityLike | None = None,
        scale: Scale = None,
        batch_norm: bool = True,
        relu: bool = True,
        init: str = "kaiming",
    ) -> None:
        side = max(check_size("input_size", input_size))
        stem = side > LARGE
        if widths is None:
            side = -(-side // 4) if stem else side
            widths = (32, 32, *(64,) * max(0, (side - 1).bit_length() - 5), 128)
        widths = check_ints("widths", widths)
        super().__init__(
            num_classes,
            depth=(1,) * len(widths),
            widths=widths,
            fc=fc,
            in_channels=in_channels,
            input_size=input_size,
            stem=stem,
            mean=True,
            similarity=similarity,
            scale=scale,
            batch_norm=batch_norm,
            relu=relu,
            init=init,
        )


def _three(layers: int) -> tuple[int, ...]:
    """Return the depth of three stages with so many layers in total."""
    return (layers // 3,) * 3


_SPHERENET, _MHE, _OPT = (64, 96, 128), (64, 128, 256), (64, 64, 64)  # widths
register("cnn", FittedCNN)
for _layers in (3, 6, 9, 15, 18, 45, 60, 69):
    register(f"cnn{_layers}", CNN, depth=_three(_layers))
for _layers in (3, 9, 18, 45, 60, 69):
    register(f"cnn{_layers}.spherenet", CNN, paper="SphereNet", table="5", depth=_three(_layers), widths=_SPHERENET)
for _layers in (6, 9, 15):
    register(f"cnn{_layers}.mhe", CNN, paper="MHE", table="11", depth=_three(_layers), widths=_MHE)
_opt = partial(register, paper="OPT")
for _layers in (6, 9):
    _opt(f"cnn{_layers}.opt", CNN, table="14", num_classes=100, depth=_three(_layers), widths=_OPT, fc=64)
_opt("wide_cnn9.opt", CNN, table="17", num_classes=100, depth=_three(9), widths=_MHE)
_opt("cnn10.opt", CNN, table="14", stem=True, num_classes=1000, input_size=224, depth=_three(9), widths=_MHE)
# mini-ImageNet trains on 64 classes
_four = partial(_opt, depth=(1,) * 4, widths=(64,) * 4, fc=None)
_four("cnn4.opt", CNN, table="16", num_classes=64, input_size=84, round_up=False)
_grey = partial(_opt, in_channels=1, input_size=28)
_grey("cnn_mnist.opt", CNN, table="18", pool=3, depth=(2, 2, 2), widths=(32, 64, 128), fc=3)
