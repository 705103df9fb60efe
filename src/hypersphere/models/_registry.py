"""All networks by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .._internal.nearest import nearest_few
from .cnn import CNN
from .gan import Discriminator, Generator
from .gcn import GCN
from .mlp import MLP
from .pointnet import PointNet
from .resnet import ResNet
from .sphereface import SphereFace
from .transformer import Transformer


@dataclass(frozen=True)
class Preset:
    """A network that :func:`create` knows."""

    name: str
    build: Callable[..., nn.Module]
    options: dict[str, Any] = field(default_factory=dict)
    paper: str = ""
    table: str = ""

    def accepted(self) -> dict[str, inspect.Parameter]:
        """What it can be built with, by name."""
        return dict(inspect.signature(self.build).parameters)


PRESETS: dict[str, Preset] = {}


def register(name: str, build: Callable[..., nn.Module], *, paper: str = "", table: str = "", **options: Any) -> None:
    """Makes a network of your own known by name; `options` are what it is built with unless told otherwise.

    Args:
        build: gives the network; what it can be told are its own arguments, `num_classes` among them if it has classes.
        paper, table: where it comes from.

    Example:
        >>> register("tiny", lambda num_classes=10, width=4: nn.Linear(width, num_classes), width=8)
        >>> create("tiny", num_classes=3)
        Linear(in_features=8, out_features=3, bias=True)
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be a str, got {name!r}")
    if not callable(build):
        raise TypeError(f"build must be a class or function that gives a network, got {build!r}")
    PRESETS[name] = Preset(name, build, options, paper, table)


def names() -> list[str]:
    """Every name that :func:`create` takes."""
    return list(PRESETS)


def preset(name: str) -> Preset:
    """What is known of a name."""
    if not isinstance(name, str) or name not in PRESETS:
        near = nearest_few(str(name), PRESETS)
        hint = f"; the nearest are {', '.join(near)}" if near else ""
        raise ValueError(f"name must be a network of hypersphere.models.names(), got {name!r}{hint}")
    return PRESETS[name]


def create(name: str, num_classes: int | None = None, **options: Any) -> nn.Module:
    """A network by name.

    Args:
        name: one of :func:`names`.
        num_classes: of the classifier; 0: no classifier, the network gives embeddings for a loss head; None: what the
            paper has, or the family.
        options: of the family (widths=, fc=, in_channels=, input_size=, similarity=, batch_norm=, relu=, ...).

    Example:
        >>> net = create("cnn9.mhe", num_classes=100)
        >>> net.num_features, net.get_classifier()
        (256, Linear(in_features=256, out_features=100, bias=True))
        >>> create("cnn9", num_classes=0, widths=(16, 32, 48), similarity="cosine").num_features
        256
    """
    found = preset(name)
    accepted = found.accepted()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
        if num_classes is not None and "num_classes" not in accepted:
            raise ValueError(f"{name} has no classes, got num_classes={num_classes!r}")
        allowed = [option for option in accepted if option != "num_classes"]
        for option in options:
            if option not in allowed:
                near = nearest_few(option, allowed, 1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                raise ValueError(f"{name} has no option {option!r}{hint}; it has {', '.join(allowed) or 'none'}")
    if num_classes is not None:
        options["num_classes"] = num_classes
    return found.build(**found.options | options)


def _plain(count: int, **options: Any) -> dict[str, Any]:
    return {"depth": (count // 3,) * 3, **options}


register("mlp", MLP)
register("mlp.opt", MLP, paper="OPT", table="App. D")
for _layers in (3, 6, 9, 15, 18, 45, 60, 69):
    register(f"cnn{_layers}", CNN, **_plain(_layers))
for _layers in (3, 9, 18, 45, 60, 69):
    register(f"cnn{_layers}.spherenet", CNN, paper="SphereNet", table="5", **_plain(_layers, widths=(64, 96, 128)))
for _layers in (6, 9, 15):
    register(f"cnn{_layers}.mhe", CNN, paper="MHE", table="11", **_plain(_layers, widths=(64, 128, 256)))
_cifar100: dict[str, Any] = {"num_classes": 100}
for _layers in (6, 9):
    _options = _plain(_layers, widths=(64, 64, 64), fc=64)
    register(f"cnn{_layers}.opt", CNN, paper="OPT", table="14", **_cifar100, **_options)
register("wide_cnn9.opt", CNN, paper="OPT", table="17", **_cifar100, **_plain(9, widths=(64, 128, 256)))
_imagenet: dict[str, Any] = {"num_classes": 1000, "input_size": 224}
register("cnn10.opt", CNN, paper="OPT", table="14", stem=True, **_imagenet, **_plain(9, widths=(64, 128, 256)))
_four: dict[str, Any] = {"depth": (1, 1, 1, 1), "widths": (64,) * 4, "fc": None, "input_size": 84, "round_up": False}
register("cnn4.opt", CNN, paper="OPT", table="16", num_classes=64, **_four)  # mini-ImageNet trains on 64 classes
_mnist: dict[str, Any] = {"depth": (2, 2, 2), "widths": (32, 64, 128), "fc": 3, "in_channels": 1, "input_size": 28}
register("cnn_mnist.opt", CNN, paper="OPT", table="18", pool=3, **_mnist)

_standard: dict[str, Any] = {"depth": (2, 2, 2, 2), "widths": (64, 128, 256, 512), "stem": "imagenet", **_imagenet}
_deeper = _standard | {"depth": (3, 4, 6, 3)}
_small = {20: (3, 3, 3), 32: (5, 5, 5)}
for _layers, _depth in _small.items():
    register(f"resnet{_layers}", ResNet, depth=_depth, widths=(16, 32, 64))
register("resnet18", ResNet, **_standard)
register("resnet34", ResNet, **_deeper)
register("resnet32.spherenet", ResNet, paper="SphereNet", table="6", widths=(64, 96, 128))
register("resnet32w.spherenet", ResNet, paper="SphereNet", table="6", widths=(96, 192, 384))
_wide = _standard | {"widths": (256, 512, 768, 1024)}
register("resnet18.spherenet", ResNet, paper="SphereNet", table="6 (v1)", **_wide)
register("resnet18v2.spherenet", ResNet, paper="SphereNet", table="6 (v2)", shortcut="plain", **_wide)
register("resnet32.mhe", ResNet, paper="MHE", table="12", widths=(64, 128, 256))
register("resnet18.mhe", ResNet, paper="MHE", table="12", **_standard)
register("resnet34.mhe", ResNet, paper="MHE", table="12", **_deeper)
for _layers, _depth in _small.items():
    _options = {"depth": _depth, "widths": (16, 32, 64), "shortcut": "pad"}
    register(f"resnet{_layers}.opt", ResNet, paper="OPT", table="15", **_cifar100, **_options)
register("resnet18.opt", ResNet, paper="OPT", table="17", **_standard)
register("resnet18a.opt", ResNet, paper="OPT", table="18", **_standard | {"widths": (64, 128, 128, 128)})
register("resnet18b.opt", ResNet, paper="OPT", table="18", **_standard)
register("sphereface20", SphereFace, paper="SphereFace", table="2")
register("sphereface64", SphereFace, paper="SphereFace", table="2", depth=(3, 8, 16, 3))
register("cnn20.opt", SphereFace, paper="OPT", table="18")
register("gcn", GCN)
register("gcn.opt", GCN, paper="OPT", table="App. D")
register("pointnet", PointNet)
register("pointnet.opt", PointNet, paper="OPT", table="App. D")
register("generator.mhe", Generator, paper="MHE", table="15")
register("discriminator.mhe", Discriminator, paper="MHE", table="15")
register("transformer", Transformer)
SHIPPED = tuple(PRESETS)  # those of the docs' table, whatever is registered later
