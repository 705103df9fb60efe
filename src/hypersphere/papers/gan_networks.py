"""The generator and the discriminator of MHE's image generation (Table 15)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from .._internal import checks
from ..layers.sphere import Scale, SimilarityLike
from ..models import Network, Style, check_images, check_ints, check_size, flatten_features, initialize, register
from ..neurons import select


class Generator(nn.Module):
    """Noise (B, 128) → images (B, 3, 32, 32) in [−1, 1]: dense, three 4×4 deconvolutions of stride 2, one 3×3."""

    data_kind = "images"  # its output

    def __init__(
        self,
        *,
        latent: int = 128,
        widths: Sequence[int] = (512, 256, 128, 64),
        out_channels: int = 3,
        input_size: int | tuple[int, int] = 32,
        batch_norm: bool = True,
        init: str = "normal(0, 0.02)",
    ) -> None:
        super().__init__()
        style = Style(batch_norm=batch_norm)
        first, *rest = check_ints("widths", widths)
        factor = 2 ** len(rest)
        height, width = check_size("input_size", input_size)
        if height % factor or width % factor:
            raise ValueError(f"input_size must be a multiple of {factor}, got {input_size}")
        self.latent = checks.integer("latent", latent, low=1)
        self.start = (first, height // factor, width // factor)
        self.dense = nn.Linear(latent, first * self.start[1] * self.start[2])
        layers: list[nn.Module] = []
        channels = first
        for filters in rest:
            layers += [nn.ConvTranspose2d(channels, filters, 4, 2, padding=1), *style.norm(filters), nn.ReLU()]
            channels = filters
        last = nn.Conv2d(channels, checks.integer("out_channels", out_channels, low=1), 3, padding=1)
        self.layers = nn.Sequential(*layers, last, nn.Tanh())
        initialize(self, init)

    def get_classifier(self) -> nn.Module:
        """Return nn.Identity: a generator has no classifier, every layer is hidden."""
        return nn.Identity()

    def forward(self, z: Tensor) -> Tensor:
        if z.dim() != 2 or z.shape[1] != self.latent:
            raise ValueError(f"noise must be (B, {self.latent}), got {tuple(z.shape)}")
        images: Tensor = self.layers(self.dense(z).unflatten(1, self.start))
        return images


def _weight_norm(layer: nn.Module) -> None:
    """Give all neurons of a layer length one."""
    length = weight_norm(layer).parametrizations.weight.original0
    nn.init.ones_(length.requires_grad_(False))


# normalizations of the discriminator, none with a learned scale
_LAYER_NORMS: dict[str, Callable[[int], list[nn.Module]]] = {
    "batch": lambda filters: [nn.BatchNorm2d(filters, affine=False)],
    "layer": lambda filters: [nn.GroupNorm(1, filters, affine=False)],
}
_WEIGHT_NORMS: dict[str, Callable[[nn.Module], object]] = {"weight": _weight_norm, "spectral": spectral_norm}


class Discriminator(Network):
    """Images → one number: seven convolutions, 3×3 of stride 1 and 4×4 of stride 2 in turn, then dense.

    `norm` is "batch" or "layer" (of the layers' outputs), "weight" (neurons of length one) or "spectral" (weights
    divided by their largest singular value); none has a learned scale.
    """

    def __init__(
        self,
        num_classes: int = 1,
        *,
        widths: Sequence[int] = (64, 128, 256, 512),
        in_channels: int = 3,
        input_size: int | tuple[int, int] = 32,
        similarity: SimilarityLike | None = None,
        scale: Scale = None,
        batch_norm: bool = False,
        norm: str | None = None,
        slope: float = 0.1,
        init: str = "normal(0, 0.02)",
    ) -> None:
        super().__init__()
        style = Style(similarity, scale, batch_norm)
        if norm is not None:
            checks.choice("norm", norm, (*_LAYER_NORMS, *_WEIGHT_NORMS))
            if norm in _WEIGHT_NORMS and similarity is not None:
                raise ValueError(f"norm={norm!r} changes the length of weights, which does not matter to a similarity")
        between = _LAYER_NORMS.get(norm or "", lambda filters: [])
        *first, last = check_ints("widths", widths)
        height, width = self.input_size = check_size("input_size", input_size)
        factor = 2 ** len(first)
        if height % factor or width % factor:
            raise ValueError(f"input_size must be a multiple of {factor}, got {input_size}")
        plan = [(filters, kernel, stride) for filters in first for kernel, stride in ((3, 1), (4, 2))]
        channels = self.in_channels = checks.integer("in_channels", in_channels, low=1)
        layers: list[nn.Module] = []
        for filters, kernel, stride in [*plan, (last, 3, 1)]:
            convolution = style.conv(channels, filters, kernel, stride, bias=True)
            layers += [
                convolution,
                *style.norm(filters),
                *between(filters),
                nn.LeakyReLU(checks.number("slope", slope)),
            ]
            channels = filters
        self.layers = nn.Sequential(*layers)
        self.set_classifier(last * (height // factor) * (width // factor), num_classes)
        self._initialize(init)
        if norm in _WEIGHT_NORMS:
            for neurons in select(self).values():
                _WEIGHT_NORMS[norm](neurons.module)

    def forward_features(self, x: Tensor) -> Tensor:
        return flatten_features(self.layers(check_images(x, self.in_channels)), self.num_features, self.input_size)


register("generator.mhe", Generator, paper="MHE", table="15")
register("discriminator.mhe", Discriminator, paper="MHE", table="15")
