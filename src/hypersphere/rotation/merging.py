"""Merge rotations into the weights of a model, or of a state_dict without the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .._internal import fsdp
from .._internal.global_hooks import record_change
from .._internal.sharding import gather, reshard, shard_like, write
from ..orthogonal import ORTHOGONALIZERS, Orthogonalizer
from .block_rotation import BlockRotation, rotate_weight
from .parametrization import (
    BUFFERS,
    RotatedWeight,
    layout_from_buffers,
    require_rotated,
    scale_numbers,
)
from .plan import OUTPUT
from .rotated_class import class_without

M = TypeVar("M", bound=nn.Module)
_NEURONS = re.compile(r"(?P<layer>(?:.*\.)?)parametrizations\.(?P<tensor>[^.]+)\.original")
_ROTATION = re.compile(r"(?P<prefix>(?:.*\.)?parametrizations\.[^.]+\.)0\.(?P<task>[^.]+)\.(?P<name>[^.]+)")


def merge(model: M) -> M:
    """Fold every rotation into its layer's weight and remove it, in place; return the model.

    The result is the plain network, with the module types, keys, order of parameters and requires_grad from before
    :func:`rotate`, and the same output. Of several tasks the active one is merged. To continue training, rotate again
    (progressive training, App. H) and make a new optimizer.

    Weights that are sharded (FSDP2, tensor parallelism) are gathered layer by layer and stay sharded as they are: call
    it in all processes.

    Example:
        >>> import hypersphere as hs
        >>> net = hs.rotate(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
        >>> merge(net)[0]
        Linear(in_features=8, out_features=16, bias=True)
    """
    layers = require_rotated("merge", model)
    reshard(model)
    for layer in layers:
        _check_mergeable(layer)
    gone = [numbers for layer in layers for numbers in layer.rotation.parameters()]
    for layer in layers:
        neurons = layer.neurons
        _remove_rotation(layer)
        fsdp.move_parameter(model, neurons, layer.module, layer.tensor_name)
    fsdp.drop_parameters(model, gone)
    record_change("merge", [(numbers, ()) for numbers in gone])
    return model


def _check_mergeable(layer: RotatedWeight) -> None:
    if layer.is_frozen:
        raise ValueError(
            f"merge: the weight of {layer.label} is quantized or tied and cannot be changed: keep the rotation, which "
            "costs one small product; or save_rotations, load_rotations into a model with a plain weight, then merge"
        )
    if len(layer.parametrizations) > 1:
        last = type(layer.parametrizations[-1]).__name__
        raise ValueError(
            f"merge: {layer.label} has another parametrization after its rotation ({last}): remove it first"
        )


def _remove_rotation(layer: RotatedWeight) -> None:
    module, name, rotation, neurons = layer.module, layer.tensor_name, layer.rotation, layer.neurons
    with torch.no_grad():
        write(neurons, layer.merged())
    del module.parametrizations[name]  # type: ignore[operator, union-attr]
    # Deepcopies share the class that parametrize made, so it must not change: the layer gets its plain class back, or
    # a new class without this property.
    last = len(module.parametrizations) == 0  # type: ignore[arg-type]
    if last:
        del module.parametrizations
    module.__class__ = class_without(type(module), name, last=last)
    module.register_parameter(name, neurons)
    neurons.requires_grad_(rotation.required_grad)
    parameters = module._parameters
    for key in [key for key in rotation.order if key in parameters]:
        parameters[key] = parameters.pop(key)  # move to the end, one by one: restores the order


def merge_state_dict(state_dict: Mapping[str, Any], *, task: str | None = None) -> dict[str, Any]:
    """Return the state_dict of the merged network from that of a rotated one, without a model.

    Other keys stay as they are, but a foreign parametrization without tensors of its own is taken for
    ``method="none"``, which has none either. A weight comes before the other tensors of its layer, as in plain layers.

    Weights that FSDP2 sharded are gathered one at a time, and the merged ones are sharded the same way.

    Args:
        task: whose rotations to merge; may be None if there is only one task.

    Example:
        >>> import hypersphere as hs
        >>> net = hs.rotate(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
        >>> list(merge_state_dict(net.state_dict()))
        ['0.weight', '0.bias', '2.weight', '2.bias']
    """
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"state_dict must be a mapping of names to tensors, got {type(state_dict).__name__}")
    rotations = {key: found for key in state_dict if (found := _rotation_tensors(state_dict, key)) is not None}
    neurons = {key: match for key in rotations if (match := _NEURONS.fullmatch(key))}
    _check_neurons(state_dict)
    if not neurons:
        raise ValueError("state_dict has no rotated layer (no key ends with parametrizations.<tensor>.original)")
    tasks = list(dict.fromkeys(name for of_layer in rotations.values() for name in of_layer))
    if task is None and len(tasks) > 1:
        raise ValueError(f"task must be one of {', '.join(tasks)}, got None")
    if task is not None and task not in tasks:
        raise ValueError(f"task must be one of {', '.join(tasks) or 'none'}, got {task!r}")
    wanted = task if task is not None else next(iter(tasks), None)

    merged: dict[str, dict[str, Tensor]] = {}  # by layer
    for key, match in neurons.items():
        if rotations[key] and wanted not in rotations[key]:
            raise ValueError(f"task must be one of {', '.join(rotations[key])} for {key!r}, got {wanted!r}")
        weight = _merge_weight(key, state_dict[key], rotations[key].get(wanted or "", {}))
        merged.setdefault(match["layer"], {})[match["layer"] + match["tensor"]] = weight
    dropped = [key.removesuffix("original") for key in neurons]
    out: dict[str, Any] = {}
    for key, value in state_dict.items():
        for layer in [layer for layer in merged if str(key).startswith(layer)]:
            out |= merged.pop(layer)
        if not any(str(key).startswith(prefix) for prefix in dropped):
            out[key] = value
    return out


def holds_rotations(state_dict: Mapping[Any, Any]) -> bool:
    """Return whether the state_dict has a rotated layer."""
    keys = [key for key in state_dict if isinstance(key, str)]
    known = (match for key in keys if (match := _ROTATION.fullmatch(key)))
    if any(_method_of(match["name"]) for match in known):
        return True
    neurons = [key for key in keys if _NEURONS.fullmatch(key) and isinstance(state_dict[key], Tensor)]
    prefixes = [key.removesuffix("original") for key in neurons]
    return any(sum(key.startswith(prefix) for key in keys) == 1 for prefix in prefixes)  # method="none"


def rotation_methods(state_dict: Mapping[str, Any]) -> dict[str, Orthogonalizer]:
    """Return the keys of the rotations' parameters P, with their methods."""
    matches = {key: match for key in state_dict if (match := _ROTATION.fullmatch(key))}
    return {key: method for key, match in matches.items() if (method := _method_of(match["name"])) is not None}


def _method_of(name: str) -> Orthogonalizer | None:
    """Return the method of a rotation's parameters by their name, of the inputs or of the outputs."""
    return ORTHOGONALIZERS.get(name.removeprefix(OUTPUT))


def _check_neurons(state_dict: Mapping[str, Any]) -> None:
    """Require the neurons of every rotation."""
    for key in state_dict:
        match = _ROTATION.fullmatch(key) if isinstance(key, str) else None
        if match and _method_of(match["name"]) and match["prefix"] + "original" not in state_dict:
            raise ValueError(
                f"state_dict: {match['prefix'] + 'original'!r}, the neurons of {key!r}, is missing (the rotation of a "
                "quantized or tied weight cannot be merged)"
            )


def _rotation_tensors(state_dict: Mapping[str, Any], key: Any) -> dict[str, dict[str, Tensor]] | None:
    """Return the tensors of the rotation of the neurons at `key`, by task and name; None if it is not rotated."""
    neurons = state_dict[key]
    if not isinstance(key, str) or not _NEURONS.fullmatch(key) or not isinstance(neurons, Tensor) or neurons.dim() < 2:
        return None
    prefix = key.removesuffix("original")
    others = [other for other in state_dict if other.startswith(prefix) and other != key]
    matches = [_ROTATION.fullmatch(other) for other in others]
    if others and not any(matches):
        return None  # a foreign parametrization
    tensors: dict[str, dict[str, Tensor]] = {}
    for other, match in zip(others, matches, strict=True):
        if match is None or not (_method_of(match["name"]) or match["name"] in (*BUFFERS, "magnitude")):
            methods = ", ".join(ORTHOGONALIZERS)
            raise ValueError(f"state_dict: unknown rotation {other!r}; the methods are {methods}")
        tensors.setdefault(match["task"], {})[match["name"]] = state_dict[other]
    return tensors


def _merge_weight(key: str, neurons: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    tensors = {name: gather(value) for name, value in tensors.items()}
    layout, block_rotations = layout_from_buffers(tensors), []
    inputs = layout.dimension(neurons.shape)
    for prefix, dimension in (("", inputs), (OUTPUT, neurons.numel() // inputs)):
        dims, method = tensors.get(prefix + "dims"), _method_of_side(tensors, prefix)
        if method is not None:
            numbers = tensors[prefix + method.name]
            size = _block_size(key, method, numbers, dimension if dims is None else len(dims))
            numbers = scale_numbers(numbers, size, "scaled" in tensors)
            block_rotations.append(BlockRotation(method, numbers, size, dims, of_outputs=prefix == OUTPUT))
    if not block_rotations:
        return neurons  # fixed, not rotated
    with torch.no_grad():
        return shard_like(neurons, rotate_weight(gather(neurons), block_rotations, layout, tensors.get("magnitude")))


def _method_of_side(tensors: dict[str, Tensor], prefix: str) -> Orthogonalizer | None:
    names = [name.removeprefix(prefix) for name in tensors if name.startswith(prefix)]
    return next((ORTHOGONALIZERS[name] for name in names if name in ORTHOGONALIZERS), None)


def _block_size(key: str, method: Orthogonalizer, numbers: Tensor, dimension: int) -> int:
    """Return m of a block: d divided by the number of blocks, or by what fits if they share one."""
    for blocks in [len(numbers)] if len(numbers) > 1 else range(1, dimension + 1):
        if dimension % blocks == 0 and tuple(numbers.shape[1:]) == tuple(method.shape(dimension // blocks)):
            return dimension // blocks
    raise ValueError(f"state_dict: the rotation of shape {tuple(numbers.shape)} does not fit {key!r} ({dimension})")
