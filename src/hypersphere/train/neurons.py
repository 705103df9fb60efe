"""Apply a config to the neurons of a network: spread and rotate them, build the energy term, measure energies.

`body` is the network, `head` the loss head with the classes, or None.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from .._internal import catalog
from ..energy import EnergyRegularizer, normalize_neurons, spread
from ..energy.hyperspherical import at_least_float32, point_energies
from ..energy.repulsion import Law
from ..layers.cosine import unit
from ..neurons import from_neuron_rows, neuron_rows, select
from ..rotation import rotate
from ..rotation.parametrization import find_rotated
from ..rotation.rules import RotationOptions
from .config import Energy, Rotation
from .config.groups import LAYERS

HEAD = "head"  # a loss head's name among the layers


def prepare(body: nn.Module, head: nn.Module | None, settings: Rotation | None, seed: int) -> None:
    """Initialize the neurons and rotate them, in place (OPT)."""
    if settings is None:
        return
    requested, exclude = as_tuple(settings.layers), as_tuple(settings.exclude)
    named = [name for name in requested if name not in LAYERS]
    check_layers(body, head, {"rotation.layers": named, "rotation.exclude": exclude})
    if settings.spread:
        _spread(body, settings, seed)
    if settings.normalize:
        normalize_neurons(body)
    if settings.freeze:
        body.requires_grad_(False)
        for neurons in select(body).values():
            neurons.module.requires_grad_(neurons.is_output and head is None)
    options: dict[str, Any] = asdict(RotationOptions.of(settings))
    options |= {"seed": seed, "exclude": [name for name in exclude if select(body, name)]}
    if not {"hidden", "all"}.isdisjoint(requested):
        rotate(body, **options)
    if not {"output", "all"}.isdisjoint(requested):
        outputs = [name for name, neurons in select(body).items() if neurons.is_output]
        if head is None and not outputs:
            raise ValueError(f"rotation.layers={','.join(requested)}: this network has no output layer")
        named += [HEAD] if head is not None else outputs
    if head is not None and _matches(named, HEAD) and not _matches(exclude, HEAD):
        rotate(head, **options | {"exclude": ()})
    done = {layer.name for layer in find_rotated(body)}
    if rest := [name for name in select(body, named, exclude) if name not in done]:
        rotate(body, layers=rest, **options)


def _spread(body: nn.Module, settings: Rotation, seed: int) -> None:
    """Spread the hidden neurons. Half space by default: in full space neurons may end in opposite pairs."""
    measure, half_space = settings.spread_measure or "energy", settings.spread_half_space
    if half_space is None:
        half_space = "half_space" in catalog.MEASURES.get(measure, ())
    steps: dict[str, Any] = {} if settings.spread_steps is None else {"steps": settings.spread_steps}
    spread(body, measure=measure, half_space=half_space, seed=seed, **steps)


def as_tuple(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _matches(names: Iterable[str], layer: str) -> bool:
    return any(fnmatchcase(layer, name) for name in names)


def check_layers(body: nn.Module, head: nn.Module | None, names: dict[str, Iterable[str]]) -> None:
    """Raise ValueError if a config names a layer that the network does not have."""
    layers = [*select(body), *([] if head is None else [HEAD])]
    for key, name in ((key, name) for key, listed in names.items() for name in listed):
        if not any(_matches([name], layer) for layer in layers):
            also = f"{', '.join(LAYERS)} or " if key == "rotation.layers" else ""
            raise ValueError(f"{key} must be {also}layers of the network, {', '.join(layers)}; got {name!r}")


@torch.no_grad()
def renormalize(module: nn.Module, *_: Any) -> None:
    """Scale the neurons under all rotations to norm one; a hook of an optimizer's step."""
    for layer in find_rotated(module):
        weight, layout = layer.neurons, layer.rotation.plan.layout
        weight.copy_(from_neuron_rows(unit(neuron_rows(weight, layout)), weight.shape, layout))


def build_regularizer(body: nn.Module, head: nn.Module | None, settings: Energy, seed: int) -> EnergyRegularizer:
    """Build the regularizer that a config adds to the loss."""
    head, exclude, options = _with_neurons(head), as_tuple(settings.exclude), dict(vars(settings))
    check_layers(body, head, {"energy.exclude": exclude})
    options["exclude"] = [name for name in exclude if select(body, name)]
    if head is not None and _matches(exclude, HEAD):
        options["output_weight"] = 0.0
    return EnergyRegularizer(body, head=head, seed=seed, **options)


def energies(body: nn.Module, head: nn.Module | None, settings: Energy | None) -> dict[str, float]:
    """Return the hyperspherical energy of every layer, for the logs; with the config's options if it has energy."""
    head = _with_neurons(head)
    if head is None and not select(body):
        return {}
    kind = {} if settings is None else {name: getattr(settings, name) for name in ("s", "half_space", "angular")}
    return EnergyRegularizer(body, head=head, **kind).per_layer()


@torch.no_grad()
def pair_energies(body: nn.Module, head: nn.Module | None, settings: Energy | None) -> dict[str, float]:
    """Return Σ_i Σ_{j≠i} ‖ŵ_i − ŵ_j‖⁻¹ of the rotated or regularized layers, without the output (OPT, App. K).

    Of a network with neither: of every hidden layer.
    """
    if not select(body):
        return {}
    names = () if settings is None else as_tuple(settings.exclude)
    exclude = [name for name in names if select(body, name)]
    regularizer = EnergyRegularizer(body, head=_with_neurons(head), exclude=exclude)
    hidden = {name: neurons for name, neurons in regularizer.neurons.items() if not neurons.is_output}
    rotated = {layer.module for layer in find_rotated(body)}
    law = Law(1.0, False, False)
    return {
        name: float(point_energies(unit(at_least_float32(neurons.matrix())), law).sum())
        for name, neurons in hidden.items()
        if not rotated or neurons.module in rotated
    }


def _with_neurons(head: nn.Module | None) -> nn.Module | None:
    """Return the head if its class weights are rows that have an energy; those of pytorch-metric-learning are not."""
    return head if head is not None and select(head, output=None) else None
