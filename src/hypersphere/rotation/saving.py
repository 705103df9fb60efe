"""Rotations in a file of their own."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .._internal import checks
from .._internal.tensors import hash_of
from ..orthogonal import ORTHOGONALIZERS
from ..selection import Neurons, select, unwrapped
from ._file import Entry, File, read, write
from .parametrization import NONE, Plan, Rotated, Rotation, drawn, rotated, rotated_strictly, shown
from .plans import dimension
from .tasks import activate
from .verbs import attach, check_layer, is_sharded, order

M = TypeVar("M", bound=nn.Module)


def save_rotations(model: nn.Module, path: str | os.PathLike[str], *, task: str | None = None) -> None:
    """Writes a rotated model's rotations, with every other trainable parameter and every buffer, to `path`.

    The neurons are not in it, but a hash of them is, so that they are put over the same neurons only; neurons that
    training changes (``sample``, ``neurons="learned"``) are. Parameters that are frozen are not in it either, and have
    a hash as well. The file is safetensors.

    Args:
        task: whose rotations; None: those in use.

    Example:
        >>> import copy, tempfile, hypersphere as hs
        >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> fresh = copy.deepcopy(net)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     hs.save_rotations(hs.rotate(net), folder + "/rotations.safetensors")
        ...     _ = hs.load_rotations(fresh, folder + "/rotations.safetensors")
        >>> torch.equal(fresh[0].weight, net[0].weight)
        True
    """
    checks.module("model", model)
    model = unwrapped(model)
    found = rotated_strictly("save_rotations", model)
    for each in found:
        if is_sharded(each.neurons):
            raise ValueError(f"save_rotations: layer {shown(each.name)!r} is sharded: save from a model that is not")
        if task is not None and task not in each.rotation.tasks:
            raise ValueError(f"task must be one of {', '.join(each.rotation.tasks)}, got {task!r}")
    kept, frozen = _kept(model, found, task)
    write(path, [_entry(each, task) for each in found], kept, {key: hash_of(value) for key, value in frozen.items()})


def load_rotations(model: M, path: str | os.PathLike[str]) -> M:
    """Puts rotations that :func:`save_rotations` wrote onto a model, rotating it if it is plain; returns the model.

    All is checked before anything changes.

    Args:
        model: plain, or rotated the same way. Its neurons, and what was frozen, must be those of the model that was
            saved: another hash is an error. A task that it does not have yet is added. The file's task is in use
            afterwards.
        path: the file.
    """
    checks.module("model", model)
    whole, file = unwrapped(model), read(path)
    there = {(each.name, each.tensor_name): each for each in rotated(whole)}
    plain = {(_module_name(name, n), n.tensor_name): n for name, n in select(whole).items()}
    for where in there:
        if where not in {entry.where for entry in file.entries}:
            raise ValueError(f"{path}: layer {shown(where[0])!r} is rotated in the model, but not in the file")
    ready: list[tuple[Entry, Rotated | Neurons, Rotation]] = []
    with torch.random.fork_rng(devices=[]):  # a start is made only to be overwritten
        for entry in file.entries:
            found = there.get(entry.where) or plain.get(entry.where)
            if found is None:
                raise ValueError(f"{path}: the model has no {entry.layer} with neurons in {entry.tensor}")
            ready.append((entry, found, _checked(path, whole, entry, found, file.tensors)))
    _check_rest(path, whole, file)

    attach("load_rotations", [(found, rotation) for _, found, rotation in ready if isinstance(found, Neurons)])
    for entry, found, rotation in ready:
        if isinstance(found, Rotated):
            if entry.task not in found.rotation.tasks:
                found.rotation.add_module(entry.task, rotation.task)
            activate(found, entry.task)
    whole.load_state_dict(file.tensors, strict=False)
    return model


def _kept(model: nn.Module, found: list[Rotated], task: str | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What is saved, by its key in the state_dict, and what is not because it is frozen."""
    kept: dict[str, Tensor] = {}
    frozen: dict[str, Tensor] = {}
    no_grad = {name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}
    once = {name for name, _ in model.named_modules()}
    again = [f"{name}." for name, _ in model.named_modules(remove_duplicate=False) if name not in once]
    for key, value in model.state_dict().items():
        each = next((each for each in found if key.startswith(each.key)), None)
        if any(key.startswith(prefix) for prefix in again):  # a module that stands in two places is saved once
            continue
        if each is None:
            (frozen if key in no_grad else kept)[key] = value
        elif key == each.key + "original":
            kept |= {key: value} if _changes(each.rotation.plan) else {}
        elif key.startswith(f"{each.key}0.{task or each.rotation.active}."):
            kept[key] = value
    return kept, frozen


def _changes(plan: Plan) -> bool:
    """Whether training changes the neurons."""
    return plan.learned or plan.sample is not None


def _entry(each: Rotated, task: str | None) -> dict[str, Any]:
    return {
        "name": each.name,
        "tensor": each.tensor_name,
        "task": task or each.rotation.active,
        "seed": each.rotation.seed,
        "shape": list(each.neurons.shape),
        "hash": None if _changes(each.rotation.plan) else hash_of(each.neurons),
        "plan": asdict(each.rotation.plan),
    }


def _checked(
    path: Any, model: nn.Module, entry: Entry, found: Rotated | Neurons, tensors: dict[str, Tensor]
) -> Rotation:
    """The file's rotation at its start, if the layer can have it and the file holds all of it."""
    plan, layer = entry.plan, entry.layer
    if plan.method != NONE and plan.method not in ORTHOGONALIZERS:
        raise ValueError(f"{path}: method {plan.method!r} is not known; register its Orthogonalizer with rotate")
    if isinstance(found, Rotated):
        _check_same_plan(path, layer, found.rotation.plan, plan)
        neurons, names = found.neurons, found.rotation.order
    else:
        check_layer(model, entry.name, found)
        stored = found.stored
        assert isinstance(stored, nn.Parameter)
        neurons, names = stored, order(found)
        if (plan.dimension, plan.transposed_groups) != (dimension(found), found.transposed_groups):
            raise ValueError(f"{path}: {layer} was of another kind: its neurons had {plan.dimension} dimensions")
    if list(neurons.shape) != entry.shape:
        raise ValueError(f"{path}: {layer} must have neurons {entry.shape}, got {list(neurons.shape)}")
    if not _changes(plan) and entry.hash != hash_of(neurons):
        raise ValueError(
            f"{path}: the neurons of {layer} are not those that were rotated (another hash): start from the same "
            "seed or checkpoint"
        )
    rotation = Rotation(plan, neurons, names, entry.seed, entry.task)
    prefix = f"{entry.key}0.{entry.task}."
    wanted = {prefix + key: value for key, value in rotation.task.state_dict().items()}
    if _changes(plan):
        wanted[entry.key + "original"] = neurons
    held = {key: value for key, value in tensors.items() if key.startswith(entry.key)}
    for key in sorted(wanted.keys() | held.keys()):
        want, have = (_kind(of.get(key)) for of in (wanted, held))
        if want != have:
            raise ValueError(f"{path}: {key!r} must be {want}, got {have}")
        if held[key].is_floating_point() and not bool(torch.isfinite(held[key]).all()):
            raise ValueError(f"{path}: {key!r} must be finite")
    if plan.sample is not None:
        seed, draw, dims = (held[prefix + name] for name in ("seed", "draw", "dims"))
        if not torch.equal(dims, drawn(int(seed), int(draw), plan.dimension, plan.sample)):
            raise ValueError(f"{path}: {prefix + 'dims'!r} are not the dimensions of that draw")
    return rotation


def _kind(tensor: Tensor | None) -> str:
    if tensor is None:
        return "nothing"
    return f"{'floating point' if tensor.is_floating_point() else tensor.dtype} {tuple(tensor.shape)}"


def _check_same_plan(path: Any, layer: str, have: Plan, want: Plan) -> None:
    different = [
        f"{key}={value!r} (the model: {getattr(have, key)!r})"
        for key, value in asdict(want).items()
        if value != getattr(have, key) and key != "init"
    ]
    if different:
        raise ValueError(f"{path}: {layer} is rotated otherwise in the file: {', '.join(different)}")


def _check_rest(path: Any, model: nn.Module, file: File) -> None:
    """All that is no rotation's has its place in the model; what was frozen is in the model as it was."""
    state = model.state_dict()
    for key, value in file.tensors.items():
        if any(key.startswith(entry.key) for entry in file.entries):
            continue
        if key not in state:
            raise ValueError(f"{path} holds {key!r}, which the model does not have")
        if _kind(state[key]) != _kind(value):
            raise ValueError(f"{path}: {key!r} must be {_kind(state[key])}, got {_kind(value)}")
    for key, hashed in file.frozen.items():
        if key not in state or hash_of(state[key]) != hashed:
            raise ValueError(
                f"{path}: {key!r} was frozen when it was saved and is not in the file; the model's is another one"
            )


def _module_name(name: str, neurons: Neurons) -> str:
    """select's names of an attention's single projections end with the tensor's."""
    if isinstance(neurons.module, nn.MultiheadAttention) and neurons.tensor_name != "in_proj_weight":
        return name.removesuffix(neurons.tensor_name).removesuffix(".")
    return name
