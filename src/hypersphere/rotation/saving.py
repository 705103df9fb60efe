"""Rotations in a file of their own: safetensors with a header that says how to put them back."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from .. import _checks
from .._files import write_bytes
from ..orthogonal import ORTHOGONALIZERS
from ..selection import Neurons, select
from .parametrization import NONE, Plan, Rotated, Rotation, TaskRotation, rotated, rotated_strictly
from .plans import dimension
from .tasks import activate
from .verbs import attach, check_layer, is_sharded

FORMAT = 1
M = TypeVar("M", bound=nn.Module)


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
        "hashes": {key: _hash(value) for key, value in tensors.items()},
    }
    write_bytes(path, save(tensors, metadata={"hypersphere.rotations": json.dumps(header)}))


def load_rotations(model: M, path: str | os.PathLike[str]) -> M:
    """Puts rotations that :func:`save_rotations` wrote onto a model, rotating it if it is plain; returns the model.

    The model's neurons must be those of the model that was saved: another hash is an error. A task that a rotated
    model does not have yet is added. The task of the file is the one in use afterwards. All is checked before
    anything changes.
    """
    _checks.module("model", model)
    entries, tensors = _read(path)
    there = {(each.name, each.tensor_name): each for each in rotated(model)}
    plain = {(_module_name(name, n), n.tensor_name): n for name, n in select(model).items()}
    for where in there:
        if where not in {entry.where for entry in entries}:
            raise ValueError(f"{path}: layer {where[0] or '(root)'!r} is rotated in the model, but not in the file")
    ready: list[tuple[Entry, Rotated | Neurons, TaskRotation]] = []
    for entry in entries:
        found = there.get(entry.where) or plain.get(entry.where)
        if found is None:
            raise ValueError(f"{path}: the model has no {entry.layer} with neurons in {entry.tensor}")
        ready.append((entry, found, _checked(path, model, entry, found, tensors)))
    _check_rest(path, model, entries, tensors)

    for entry, found, task in ready:
        if isinstance(found, Neurons):
            weight = found.stored
            assert isinstance(weight, nn.Parameter)
            rotation = Rotation(entry.plan, weight, list(found.module._parameters), entry.seed, entry.task)
            attach(found, rotation)
        elif entry.task not in found.rotation.tasks:
            found.rotation.add_module(entry.task, task)
            activate(found, entry.task)
        else:
            activate(found, entry.task)
    model.load_state_dict(tensors, strict=False)
    return model


@dataclass(frozen=True)
class Entry:
    """One rotated layer of a file."""

    name: str
    tensor: str
    task: str
    seed: int
    shape: list[int]
    hash: str | None
    plan: Plan

    @property
    def where(self) -> tuple[str, str]:
        return self.name, self.tensor

    @property
    def layer(self) -> str:
        return f"layer {self.name or '(root)'!r}"

    @property
    def key(self) -> str:
        return f"{self.name}.parametrizations.{self.tensor}." if self.name else f"parametrizations.{self.tensor}."


def _kept(model: nn.Module, found: list[Rotated], task: str | None) -> dict[str, Tensor]:
    """What is saved, by its key in the state_dict."""
    kept: dict[str, Tensor] = {}
    frozen = {name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}
    once = {name for name, _ in model.named_modules()}
    again = [f"{name}." for name, _ in model.named_modules(remove_duplicate=False) if name not in once]
    for key, value in model.state_dict().items():
        each = next((each for each in found if key.startswith(each.key)), None)
        if any(key.startswith(prefix) for prefix in again):  # a module that stands in two places is saved once
            wanted = False
        elif each is None:
            wanted = key not in frozen
        elif key == each.key + "original":
            wanted = _changes(each.rotation.plan)
        else:
            wanted = key.startswith(f"{each.key}0.{task or each.rotation.active}.")
        if wanted:
            kept[key] = value
    return kept


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
        "hash": None if _changes(each.rotation.plan) else _hash(each.neurons),
        "plan": asdict(each.rotation.plan),
    }


def _hash(tensor: Tensor) -> str:
    """Of the numbers, their type and shape."""
    value = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{value.dtype}{list(value.shape)}".encode())
    digest.update(value.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read(path: str | os.PathLike[str]) -> tuple[list[Entry], dict[str, Tensor]]:
    if not os.path.isfile(path):
        raise ValueError(f"path must be a file that save_rotations wrote, got {os.fspath(path)!r}")
    wrong = f"{path} is not a file that save_rotations wrote"
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            text = (file.metadata() or {}).get("hypersphere.rotations")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        header = json.loads(text) if text is not None else {}
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(f"{wrong}: {error}") from None
    if not isinstance(header, dict) or "format" not in header:
        raise ValueError(f"{wrong}: it has no such header")
    if header["format"] != FORMAT:
        raise ValueError(f"{path} has format {header['format']!r}; this version reads {FORMAT}")
    try:
        entries = [_parsed(layer) for layer in header["layers"]]
        damaged = [key for key, value in tensors.items() if header["hashes"][key] != _hash(value)]
        tensors |= {alias: tensors[key] for alias, key in header["aliases"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{wrong}: its header is malformed ({type(error).__name__}: {error})") from None
    if damaged:
        raise ValueError(f"{path} is damaged: the numbers of {damaged[0]!r} are not those that were saved")
    return entries, tensors


def _parsed(layer: dict[str, Any]) -> Entry:
    plan = Plan(**layer["plan"])
    texts = (layer["name"], layer["tensor"], layer["task"], plan.method, plan.init)
    numbers = (layer["seed"], plan.dimension, plan.blocks, plan.sample or 2, *layer["shape"])
    if not all(isinstance(text, str) for text in texts) or not all(type(number) is int for number in numbers):
        raise TypeError("names must be text and sizes whole numbers")
    return Entry(**layer | {"plan": plan})


def _checked(
    path: Any, model: nn.Module, entry: Entry, found: Rotated | Neurons, tensors: dict[str, Tensor]
) -> TaskRotation:
    """The numbers of the file's task at their start, if the layer can have them and the file holds all of them."""
    plan, layer = entry.plan, entry.layer
    if plan.method != NONE and plan.method not in ORTHOGONALIZERS:
        raise ValueError(f"{path}: method {plan.method!r} is not known; register its Orthogonalizer with rotate")
    if isinstance(found, Rotated):
        _check_same_plan(path, layer, found.rotation.plan, plan)
        neurons = found.neurons
    else:
        check_layer(model, entry.name, found)
        stored = found.stored
        assert isinstance(stored, nn.Parameter)
        neurons = stored
        if (plan.dimension, plan.transposed_groups) != (dimension(found), found.transposed_groups):
            raise ValueError(f"{path}: {layer} was of another kind: its neurons had {plan.dimension} dimensions")
    if list(neurons.shape) != entry.shape:
        raise ValueError(f"{path}: {layer} must have neurons {entry.shape}, got {list(neurons.shape)}")
    whole = plan.sample is None and plan.blocks >= 1 and plan.dimension % plan.blocks == 0
    if not whole and not (plan.blocks == 1 and 2 <= (plan.sample or 0) <= plan.dimension):
        raise ValueError(f"{path}: {layer} cannot be rotated so ({plan})")
    if not _changes(plan) and entry.hash != _hash(neurons):
        raise ValueError(
            f"{path}: the neurons of {layer} are not those that were rotated (another hash): start from the same "
            "seed or checkpoint"
        )
    task = TaskRotation(plan, entry.seed, neurons)
    wanted = {f"{entry.key}0.{entry.task}.{key}": value.shape for key, value in task.state_dict().items()}
    if _changes(plan):
        wanted[entry.key + "original"] = neurons.shape
    held = {key: value.shape for key, value in tensors.items() if key.startswith(entry.key)}
    for key in wanted.keys() | held.keys():
        if wanted.get(key) != held.get(key):
            have, want = (None if shape is None else tuple(shape) for shape in (held.get(key), wanted.get(key)))
            raise ValueError(f"{path}: {key!r} must have shape {want}, got {have}")
    return task


def _check_same_plan(path: Any, layer: str, have: Plan, want: Plan) -> None:
    different = [
        f"{key}={value!r} (the model: {getattr(have, key)!r})"
        for key, value in asdict(want).items()
        if value != getattr(have, key) and key != "init"
    ]
    if different:
        raise ValueError(f"{path}: {layer} is rotated otherwise in the file: {', '.join(different)}")


def _check_rest(path: Any, model: nn.Module, entries: list[Entry], tensors: dict[str, Tensor]) -> None:
    """All that is no rotation's has its place in the model, of the same shape."""
    state = model.state_dict()
    for key, value in tensors.items():
        if any(key.startswith(entry.key) for entry in entries):
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
