"""Networks of timm, named ``timm/NAME``. timm is imported when one is built; nothing is fetched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn

PREFIX = "timm/"  # of the names of these networks
BLACK, WHITE = -127.5 / 128, 127.5 / 128  # pixels 0 and 255 as hypersphere.data normalizes them; timm has 0 and 1


class _Normalized:
    """Mixin of a network of timm: takes pixels as this package normalizes them, gives embeddings."""

    def forward_features(self: Any, inputs: Tensor, *args: Any, **options: Any) -> Tensor:
        scaled = inputs * self.input_factor + self.input_shift
        return cast(Tensor, super().forward_features(scaled, *args, **options))  # type: ignore[misc]

    def embed(self: Any, inputs: Tensor) -> Tensor:
        """Return what the output layer takes, (B, d)."""
        return cast(Tensor, self.forward_head(self.forward_features(inputs), pre_logits=True))


def builder(name: str) -> Callable[..., nn.Module]:
    """Return the function that builds ``timm/NAME``."""
    network = partial(build, name.removeprefix(PREFIX))
    network.data_kind = "images"  # type: ignore[attr-defined]
    return network


def build(name: str, *, num_classes: int = 1000, in_channels: int = 3, **options: Any) -> nn.Module:
    """Build a network of timm with random weights, under timm's own names of tensors.

    Its inputs are pixels as :mod:`hypersphere.data` normalizes them; the mean and the deviation that timm has for the
    network's weights are applied inside.
    """
    try:
        timm: Any = import_module("timm")
    except ImportError as error:
        raise ValueError(f"{PREFIX}{name} needs timm, which cannot be imported ({error}): pip install timm") from None
    if not timm.is_model(name):
        raise ValueError(f"timm has no network {name!r}; timm.list_models() lists them")
    try:
        network = timm.create_model(name, pretrained=False, num_classes=num_classes, in_chans=in_channels, **options)
    except (TypeError, RuntimeError, AttributeError) as error:
        raise ValueError(f"timm cannot build {name!r}: {error}") from None
    if not hasattr(network, "forward_features") or not hasattr(network, "forward_head"):
        raise ValueError(f"{PREFIX}{name} is no classifier with forward_features and forward_head")
    configured = network.pretrained_cfg
    mean, deviation = (torch.tensor(configured.get(key, (0.5,) * 3)) for key in ("mean", "std"))
    if len(mean) != in_channels:
        mean, deviation = mean.mean().expand(in_channels), deviation.mean().expand(in_channels)
    factor, shift = 1 / (WHITE - BLACK) / deviation, (-BLACK / (WHITE - BLACK) - mean) / deviation
    network.register_buffer("input_factor", factor[:, None, None], persistent=False)
    network.register_buffer("input_shift", shift[:, None, None], persistent=False)
    kind = type(network)
    network.__class__ = type(kind.__name__, (_Normalized, kind), {"__module__": kind.__module__})
    return cast(nn.Module, network)
