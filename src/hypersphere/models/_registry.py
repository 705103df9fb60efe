"""Networks by name. Each module of the package registers its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .._internal.nearest import check_options, nearest_few, unknown_name
from . import _timm


@dataclass(frozen=True)
class Preset:
    """A registered network."""

    name: str
    build: Callable[..., nn.Module]
    options: dict[str, Any] = field(default_factory=dict)
    paper: str = ""
    table: str = ""

    @property
    def data_kind(self) -> str | None:
        """The input: images, points, text or graph; None if the network does not declare it."""
        return getattr(self.build, "data_kind", None)

    def accepted(self) -> dict[str, inspect.Parameter]:
        """Return the parameters of `build` by name."""
        return dict(inspect.signature(self.build).parameters)


PRESETS: dict[str, Preset] = {}
#: networks of the catalog that are registered when a module outside this package is imported
ELSEWHERE = {"generator.mhe": "hypersphere.papers.gan", "discriminator.mhe": "hypersphere.papers.gan"}


def register(name: str, build: Callable[..., nn.Module], *, paper: str = "", table: str = "", **options: Any) -> None:
    """Register a network under a name, for :func:`create`.

    Args:
        build: returns the network; its arguments are the options, with `num_classes` if the network has classes.
        paper, table: where it comes from.
        options: defaults of the options.

    Example:
        >>> register("tiny", lambda num_classes=10, width=4: nn.Linear(width, num_classes), width=8)
        >>> create("tiny", num_classes=3)
        Linear(in_features=8, out_features=3, bias=True)
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be a str, got {name!r}")
    if not callable(build):
        raise TypeError(f"build must be a class or function that returns a network, got {build!r}")
    PRESETS[name] = Preset(name, build, options, paper, table)


def names() -> list[str]:
    """Return all names for :func:`create`."""
    return list(PRESETS)


def preset(name: str) -> Preset:
    """Return the preset of a name, one of :func:`names` or ``timm/NAME``."""
    if isinstance(name, str) and name.startswith(_timm.PREFIX):
        return Preset(name, _timm.builder(name))
    if isinstance(name, str) and name in ELSEWHERE and name not in PRESETS:
        raise ValueError(f"network {name!r} is registered by {ELSEWHERE[name]}: import that first")
    if not isinstance(name, str) or name not in PRESETS:
        near = nearest_few(name, PRESETS) if isinstance(name, str) else []
        raise ValueError(unknown_name("network", name, near, "see hypersphere.models.names()"))
    return PRESETS[name]


def create(name: str, num_classes: int | None = None, **options: Any) -> nn.Module:
    """Create a network by name.

    Args:
        name: one of :func:`names`, or ``timm/NAME`` for a network of timm, if that is installed.
        num_classes: of the classifier; 0: no classifier, the network returns embeddings for a loss head; None: the
            default of the paper or the family.
        options: of the family (widths=, fc=, in_channels=, input_size=, similarity=, batch_norm=, relu=, ...).

    Example:
        >>> net = create("cnn9.mhe", num_classes=100)
        >>> net.num_features, net.get_classifier()
        (256, Linear(in_features=256, out_features=100, bias=True))
        >>> create("cnn9", num_classes=0, widths=(16, 32, 48), similarity="cosine").num_features
        256
    """
    network = preset(name)
    if num_classes is not None:
        options["num_classes"] = num_classes
    check_options(name, options, network.accepted().values())
    return network.build(**network.options | options)
