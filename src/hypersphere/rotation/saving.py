"""Rotations in a file of their own: safetensors with a header that says how to put them back."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from .. import _checks
from .._files import write_bytes
from ..orthogonal import ORTHOGONALIZERS
from ..selection import Neurons, select
from .parametrization import NONE, Plan, Rotated, Rotation, TaskRotation, rotated, rotated_strictly
from .tasks import activate
from .verbs import attach, check_layer, is_sharded

FORMAT = 1


def save_rotations(model: nn.Module, path: str | os.PathLike[str], *, task: str | None = None) -> None:
    """Writes a rotated model's rotations, with every other trainable parameter and every buffer, to `path`.

    The neurons are not in it, but a hash of them is, so that they are put over the same neurons only; neurons that
    training changes (``sample``, ``neurons="learned"``) are. The file is safetensors.

    Args:
        task: whose rotations; None: those in use.

    Example:
        >>> import hypersphere as hs, tempfile
        >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> fresh = __import__("copy").deepcopy(net)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     hs.save_rotations(hs.rotate(net), folder + "/rotations.safetensors")
        ...     _ = hs.load_rotations(fresh, folder + "/rotations.safetensors")
        >>> torch.equal(fresh[0].weight, net[0].weight)
        True
    """
    _checks.module("model", model)
    found = rotated_strictly("save_rotations", model)
    for each in found:
        if is_sharded(each.neurons):
            raise ValueError(f"save_rotations: layer {each.name!r} is sharded: save from a model that is not")
        if task is not None and task not in each.rotation.tasks:
            raise ValueError(f"task must be one of {', '.join(each.rotation.tasks)}, got {task!r}")
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    places: dict[tuple[Any, ...], str] = {}
    for key, value in _kept(model, found, task).items():
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() and place in places:
            aliases[key] = places[place]
        else:
            places[place] = key
            tensors[key] = value.detach().cpu().contiguous()
    header = {
        "format": FORMAT,
        "layers": [_entry(each, task) for each in found],
        "aliases": aliases,
    }
    write_bytes(path, save(tensors, metadata={"hypersphere.rotations": json.dumps(header)}))


def load_rotations(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Puts rotations that :func:`save_rotations` wrote onto a model, rotating it if it is plain; returns the model.

    The model's neurons must be those of the model that was saved: another hash is an error. A task that a rotated
    model does not have yet is added. The task of the file is the one in use afterwards. All is checked before
    anything changes.
    """
    _checks.module("model", model)
    header, tensors = _read(path)
    there = {(each.name, each.tensor_name): each for each in rotated(model)}
    plain = {(_module_name(name, n), n.tensor_name): n for name, n in select(model).items()}
    missing: list[tuple[Neurons, Rotation]] = []
    for entry in header["layers"]:
        where = (entry["name"], entry["tensor"])
        plan, task = Plan(**entry["plan"]), entry["task"]
        layer = f"layer {entry['name'] or '(root)'!r}"
        if plan.method != NONE and plan.method not in ORTHOGONALIZERS:
            raise ValueError(f"{path}: method {plan.method!r} is not known; register its Orthogonalizer with rotate")
        if where in there:
            _check_same_plan(path, layer, there[where].rotation.plan, plan)
            neurons = there[where].neurons
        elif where in plain:
            check_layer(model, entry["name"], plain[where])
            stored = plain[where].tensor
            assert isinstance(stored, nn.Parameter)
            neurons, order = stored, list(plain[where].module._parameters)
            missing.append((plain[where], Rotation(plan, stored, order, entry["seed"], task)))
        else:
            raise ValueError(f"{path}: the model has no {layer} with neurons in {entry['tensor']}")
        if list(neurons.shape) != entry["shape"]:
            raise ValueError(f"{path}: {layer} must have neurons {entry['shape']}, got {list(neurons.shape)}")
        if entry["hash"] is not None and entry["hash"] != _hash(neurons):
            raise ValueError(
                f"{path}: the neurons of {layer} are not those that were rotated (another hash): start from the same "
                "seed or checkpoint"
            )
    extra = [where for where in there if where not in {(e["name"], e["tensor"]) for e in header["layers"]}]
    if extra:
        raise ValueError(f"{path}: layer {extra[0][0]!r} is rotated in the model, but not in the file")
    _check_fit(path, model, header, tensors)

    for neurons_of, rotation in missing:
        attach(neurons_of, rotation)
    for each in rotated(model):
        task = next(e["task"] for e in header["layers"] if (e["name"], e["tensor"]) == (each.name, each.tensor_name))
        _use(each, task)
    model.load_state_dict(tensors, strict=False)
    return model


def _kept(model: nn.Module, found: list[Rotated], task: str | None) -> dict[str, Tensor]:
    """What is saved, by its key in the state_dict."""
    kept: dict[str, Tensor] = {}
    frozen = {name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}
    for key, value in model.state_dict().items():
        each = next((each for each in found if key.startswith(each.key)), None)
        if each is None:
            wanted = key not in frozen
        elif key == each.key + "original":
            wanted = _changes(each)
        else:
            wanted = key.startswith(f"{each.key}0.{task or each.rotation.active}.")
        if wanted:
            kept[key] = value
    return kept


def _changes(each: Rotated) -> bool:
    """Whether training changes the neurons."""
    return each.rotation.learned or each.rotation.plan.sample is not None


def _entry(each: Rotated, task: str | None) -> dict[str, Any]:
    return {
        "name": each.name,
        "tensor": each.tensor_name,
        "task": task or each.rotation.active,
        "seed": each.rotation.seed,
        "shape": list(each.neurons.shape),
        "hash": None if _changes(each) else _hash(each.neurons),
        "plan": asdict(each.rotation.plan),
    }


def _hash(neurons: Tensor) -> str:
    """Of the numbers, their type and shape."""
    value = neurons.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{value.dtype}{list(value.shape)}".encode())
    digest.update(value.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not os.path.isfile(path):
        raise ValueError(f"path must be a file that save_rotations wrote, got {os.fspath(path)!r}")
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            text = (file.metadata() or {}).get("hypersphere.rotations")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        header = json.loads(text) if text is not None else None
    except (SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a file that save_rotations wrote: {error}") from None
    if not isinstance(header, dict) or "format" not in header:
        raise ValueError(f"{path} is not a file that save_rotations wrote: it has no such header")
    if header["format"] != FORMAT:
        raise ValueError(f"{path} has format {header['format']!r}; this version reads {FORMAT}")
    for alias, key in header["aliases"].items():
        tensors[alias] = tensors[key]
    return header, tensors


def _check_same_plan(path: Any, layer: str, have: Plan, want: Plan) -> None:
    if have != want:
        parts = [
            f"{key}={value!r} (the model: {getattr(have, key)!r})"
            for key, value in asdict(want).items()
            if value != getattr(have, key) and key != "init"
        ]
        if parts:
            raise ValueError(f"{path}: {layer} is rotated otherwise in the file: {', '.join(parts)}")


def _check_fit(path: Any, model: nn.Module, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Every tensor of the file has its place, of the same shape; rotations are checked where they are made."""
    state = model.state_dict()
    of_layers = [(f"{e['name']}." if e["name"] else "") + f"parametrizations.{e['tensor']}." for e in header["layers"]]
    for key, value in tensors.items():
        if any(key.startswith(prefix) for prefix in of_layers):
            continue
        if key not in state:
            raise ValueError(f"{path} holds {key!r}, which the model does not have")
        if state[key].shape != value.shape:
            raise ValueError(f"{path}: {key!r} must have shape {tuple(state[key].shape)}, got {tuple(value.shape)}")


def _module_name(name: str, neurons: Neurons) -> str:
    """select's names of an attention's single projections end with the tensor's."""
    if isinstance(neurons.module, nn.MultiheadAttention) and neurons.tensor_name != "in_proj_weight":
        return name.removesuffix(neurons.tensor_name).removesuffix(".")
    return name


def _use(each: Rotated, task: str) -> None:
    if task not in each.rotation.tasks:
        each.rotation.add_module(task, TaskRotation(each.rotation.plan, each.rotation.seed, each.neurons))
    activate(each, task)
