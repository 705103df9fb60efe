"""Save and load rotations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .._internal import checks
from .._internal.adapters import refuse_adapters
from .._internal.global_hooks import refuse_new_parameters
from .._internal.sharding import gather_for_writer, refuse_sharded, run_in_writer, writer_mesh
from .._internal.tensors import hash_of
from ..neurons import Neurons, select, unknown_weights, unwrapped
from ..orthogonal import ORTHOGONALIZERS
from ._file import RotationFile, SavedRotation, describe, parse_rotation, read, write
from .adapter_files import is_adapter, read_adapter
from .parametrization import NeuronRotation, RotatedWeight, TaskRotation, find_rotated, layer_label, require_rotated
from .peft_files import write_peft
from .plan import Plan
from .quantized_or_tied import frozen_neurons, is_quantized
from .rotating import attach, check_layer, parameter_order
from .rules import NONE
from .tasks import activate, check_new_name

M = TypeVar("M", bound=nn.Module)
_RUNTIME = ("init", "apply", "dropout", "frozen")  # of a plan: they do not change what the numbers mean
FORMATS = ("hypersphere", "peft")


def save_rotations(
    model: nn.Module, path: str | os.PathLike[str], *, task: str | None = None, format: str = "hypersphere"
) -> None:
    """Save the rotations of a model, all other trainable parameters and all buffers to `path`, as safetensors.

    Fixed neurons and frozen parameters are not saved, only their hashes: loading requires the same ones. Neurons that
    training changes (``sample``, ``neurons="learned"``) are saved.

    A model that is sharded (FSDP2, tensor parallelism) is gathered tensor by tensor, and the first process writes: call
    it in all of them. The file is that of the unsharded model.

    Args:
        task: whose rotations; None: the active task's. They are saved at strength 1 (see :func:`use_task`).
        format: "hypersphere", or "peft": `path` is a folder that PEFT (0.18 or newer) loads as an OFT adapter. PEFT has
            Linear layers rotated by "cayley" at the inputs, in blocks of one size or one number of blocks everywhere;
            others are an error. It does not compare neurons and frozen parameters when it loads.

    Example:
        >>> import copy, tempfile, hypersphere as hs
        >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> fresh = copy.deepcopy(net)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     hs.rotation.save_rotations(hs.rotate(net), folder + "/rotations.safetensors")
        ...     _ = hs.rotation.load_rotations(fresh, folder + "/rotations.safetensors")
        >>> torch.equal(fresh[0].weight, net[0].weight)
        True
    """
    checks.module("model", model)
    checks.choice("format", format, FORMATS)
    model = unwrapped(model)
    rotated = require_rotated("save_rotations", model)
    for weight in rotated:
        if task is not None and task not in weight.rotation.tasks:
            raise ValueError(f"task must be one of {', '.join(weight.rotation.tasks)}, got {task!r}")
    if any(weight.rotation.tasks[task or weight.rotation.active].strength != 1 for weight in rotated):
        checks.warn("save_rotations writes the task at strength 1: combine_tasks makes a strength a task of its own")
    mesh = writer_mesh(model)
    state = model.state_dict()
    saved, frozen = _split_state(model, state, rotated, task)
    if format == "peft":
        neurons = tuple(weight.key + "original" for weight in rotated)
        state = _gather_all(model, {key: value for key, value in state.items() if key not in neurons}, mesh)
        run_in_writer(lambda: write_peft(path, model, rotated, task, state, set(saved)), mesh)
        return
    saved = _gather_all(model, saved, mesh)
    hashes = {key: hash_of(gather_for_writer(value, mesh)) for key, value in frozen.items()}
    entries = [SavedRotation.of(weight, task, _hash(weight, mesh)) for weight in rotated]
    run_in_writer(lambda: write(path, RotationFile(entries, saved, hashes)), mesh)


def load_rotations(model: M, path: str | os.PathLike[str], *, task: str | None = None) -> M:
    """Load rotations that :func:`save_rotations` wrote, rotating the model if it is plain; return the model.

    Adapters of other tools are loaded too: PEFT's OFT (its folder), and OFT of OneTrainer, LyCORIS and kohya (a
    safetensors file). They do not tell which neurons they belong to: only names and shapes are compared.

    The model changes only after all checks have passed.

    Args:
        model: plain, or rotated the same way. Its fixed neurons and frozen parameters must be those of the saved model:
            other hashes are an error. A task that it does not have is added. The file's task is active afterwards.
        path: the file, or the folder of PEFT.
        task: the name of the task; None: the one in the file, "default" for other tools. Tasks share all that is not a
            rotation, such as biases: a file that changes them is warned of.
    """
    checks.module("model", model)
    if task is not None:
        check_new_name(task, "task")
    unwrapped_model, own = unwrapped(model), None if is_adapter(path) else read(path)
    refuse_adapters("load_rotations", unwrapped_model)
    refuse_sharded("load_rotations", unwrapped_model, "load before fully_shard (and merge before parallelize_module)")
    rotated = {(weight.name, weight.tensor_name): weight for weight in find_rotated(unwrapped_model)}
    plain = _plain_layers(unwrapped_model)
    plain |= {(name, "weight"): frozen_neurons(m) for name, m in unwrapped_model.named_modules() if is_quantized(m)}
    weights: dict[str, RotatedWeight | Neurons] = {name: n for (name, tensor), n in plain.items() if tensor == "weight"}
    weights |= {name: weight for (name, tensor), weight in rotated.items() if tensor == "weight"}
    file = own or read_adapter(path, weights)
    file = file if task is None else _rename_task(file, task)
    checked: list[tuple[SavedRotation, RotatedWeight | Neurons, NeuronRotation]] = []
    try:
        for where in rotated:
            if where not in {entry.where for entry in file.entries}:
                raise ValueError(f"layer {layer_label(where[0])!r} is rotated in the model, but not in the file")
        with torch.random.fork_rng(devices=[]):  # the start is overwritten
            for entry in file.entries:
                target = rotated.get(entry.where) or plain.get(entry.where) or _find_unknown(unwrapped_model, entry)
                checked.append((entry, target, _check_entry(unwrapped_model, entry, target, file.tensors)))
        _check_other_tensors(unwrapped_model, file)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if task is not None:
        _warn_of_shared(path, unwrapped_model, file, rotated)
    refuse_new_parameters(
        "load_rotations",
        model,
        [
            target.module
            for entry, target, _ in checked
            if isinstance(target, Neurons) or entry.task not in target.rotation.tasks
        ],
    )
    attach("load_rotations", [(target, rotation) for _, target, rotation in checked if isinstance(target, Neurons)])
    for entry, target, rotation in checked:
        if isinstance(target, RotatedWeight):
            if entry.task not in target.rotation.tasks:
                target.rotation.add_module(entry.task, rotation.task)
            activate(target, entry.task)
    # not load_state_dict: quantized layers refuse a part of their state
    targets: dict[str, Tensor] = dict(unwrapped_model.named_parameters(remove_duplicate=False))
    targets |= dict(unwrapped_model.named_buffers(remove_duplicate=False))
    # a weight that was tied where it was saved stands here under the key of its neurons
    targets |= {
        f"{weight.name}.{weight.tensor_name}": weight.neurons
        for weight in find_rotated(unwrapped_model)
        if not weight.is_frozen
    }
    with torch.no_grad():
        for key, value in file.tensors.items():
            targets[key].copy_(value)
    return model


def _warn_of_shared(path: Any, model: nn.Module, file: RotationFile, rotated: Mapping[Any, RotatedWeight]) -> None:
    """Warn if the file changes what other tasks of the model use too."""
    state, own = model.state_dict(), tuple(entry.key for entry in file.entries)
    tasks = {name for weight in rotated.values() for name in weight.rotation.tasks} - {
        entry.task for entry in file.entries
    }
    shared = [key for key, value in file.tensors.items() if not key.startswith(own)]
    changed = [key for key in shared if not torch.equal(state[key], file.tensors[key].to(state[key]))]
    if tasks and changed:
        checks.warn(
            f"{os.fspath(path)} changes {changed[0]!r}{' and others' if len(changed) > 1 else ''}, which the tasks "
            f"{', '.join(sorted(tasks))} share: train and save adapters with these frozen"
        )


def _rename_task(file: RotationFile, task: str) -> RotationFile:
    """Return the file as if the rotations of all its layers had been saved from this task."""
    keys = {f"{entry.key}0.{entry.task}.": f"{entry.key}0.{task}." for entry in file.entries}

    def renamed(key: str) -> str:
        old = next((old for old in keys if key.startswith(old)), None)
        return key if old is None else keys[old] + key.removeprefix(old)

    entries = [replace(entry, task=task) for entry in file.entries]
    return RotationFile(entries, {renamed(key): value for key, value in file.tensors.items()}, file.frozen)


def _split_state(
    model: nn.Module, state: Mapping[str, Tensor], rotated: list[RotatedWeight], task: str | None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return what is saved, by key in the state_dict, and what is frozen and not saved."""
    saved: dict[str, Tensor] = {}
    frozen: dict[str, Tensor] = {}
    no_grad = {name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}
    once = {name for name, _ in model.named_modules()}
    again = [f"{name}." for name, _ in model.named_modules(remove_duplicate=False) if name not in once]
    quantized = tuple(f"{name}." for name, module in model.named_modules() if is_quantized(module))
    for key, value in state.items():
        weight = next((weight for weight in rotated if key.startswith(weight.key)), None)
        if any(key.startswith(prefix) for prefix in again):  # a module with two names is saved once
            continue
        if weight is None and key.startswith(quantized):
            continue
        if weight is None:
            (frozen if key in no_grad else saved)[key] = value
        elif key == weight.key + "original":
            saved |= {key: value} if _neurons_change(weight.rotation.plan) else {}
        elif key.startswith(f"{weight.key}0.{task or weight.rotation.active}."):
            saved[key] = value
    return saved, frozen


def _gather_all(model: nn.Module, tensors: dict[str, Tensor], mesh: Any) -> dict[str, Tensor]:
    """Gather tensors of the model's state_dict for the process that writes; a tied parameter once."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    gathered: dict[int, Tensor] = {}
    for key, value in tensors.items():
        own = id(parameters.get(key, value))
        gathered[own] = gathered[own] if own in gathered else gather_for_writer(value, mesh)
    return {key: gathered[id(parameters.get(key, value))] for key, value in tensors.items()}


def _neurons_change(plan: Plan) -> bool:
    """Return whether training changes the neurons."""
    return plan.learned or plan.redrawn


def _hash(weight: RotatedWeight, mesh: Any) -> str | None:
    """Return the hash of neurons that the file does not hold."""
    if _neurons_change(weight.rotation.plan) or weight.is_frozen:
        return None
    return hash_of(gather_for_writer(weight.neurons, mesh))


def _check_entry(
    model: nn.Module, entry: SavedRotation, target: RotatedWeight | Neurons, tensors: dict[str, Tensor]
) -> NeuronRotation:
    """Return the initial rotation of an entry; ValueError if the layer or the file's tensors do not fit."""
    if isinstance(target, RotatedWeight):
        plan, names = entry.plan, target.rotation.order
        _check_same_plan(entry.layer, target.rotation.plan, plan)
        neurons = target.rotation.stand_in if target.is_frozen else target.neurons
        _check_shape(entry, neurons)
    else:
        plan, neurons, names = _fitting_plan(model, entry, target), target.stored, parameter_order(target)
    if not _neurons_change(plan) and not entry.plan.frozen and entry.hash != hash_of(neurons):
        raise ValueError(
            f"the neurons of {entry.layer} are not those that were saved (the hashes differ): start from the same seed "
            "or checkpoint"
        )
    rotation = NeuronRotation(plan, neurons, names, entry.seed, entry.task)
    prefix = f"{entry.key}0.{entry.task}."
    wanted = {prefix + key: value for key, value in rotation.task.state_dict().items()}
    if _neurons_change(plan):
        wanted[entry.key + "original"] = neurons
    held = {key: value for key, value in tensors.items() if key.startswith(entry.key)}
    for key in sorted(wanted.keys() | held.keys()):
        want, have = (_describe_tensor(of.get(key)) for of in (wanted, held))
        if want != have:
            raise ValueError(f"{key!r} must be {want}, got {have}")
        if held[key].is_floating_point() and not bool(torch.isfinite(held[key]).all()):
            raise ValueError(f"{key!r} must be finite")
    if plan.redrawn:
        for name, dims in plan.draw_dims(int(held[prefix + "seed"]), int(held[prefix + "draw"])).items():
            if not torch.equal(held[prefix + name], dims):
                raise ValueError(f"{prefix + name!r} does not match seed and draw")
    return rotation


def _fitting_plan(model: nn.Module, entry: SavedRotation, target: Neurons) -> Plan:
    """Return the plan of an entry for a plain layer; ValueError if it does not fit."""
    plan = entry.plan
    if plan.method != NONE and plan.method not in ORTHOGONALIZERS:
        raise ValueError(f"unknown method {plan.method!r} of {entry.layer}; register its Orthogonalizer with rotate")
    # a plain weight takes the rotation of a quantized or tied one
    plan = replace(plan, frozen=check_layer(model, entry.name, target, by_activation=plan.frozen))
    if (plan.dimension, plan.layout) != (target.dimension, target.layout.for_rotation):
        raise ValueError(f"the neurons of {entry.layer} must have {plan.dimension} dimensions, got {target.dimension}")
    _check_shape(entry, target.stored)
    return plan


def _check_shape(entry: SavedRotation, neurons: Tensor) -> None:
    if list(neurons.shape) != entry.shape:
        raise ValueError(f"{entry.layer} must have neurons {entry.shape}, got {list(neurons.shape)}")


def _describe_tensor(tensor: Tensor | None) -> str:
    if tensor is None:
        return "nothing"
    return f"{'floating point' if tensor.is_floating_point() else tensor.dtype} {tuple(tensor.shape)}"


def _check_same_plan(layer: str, have: Plan, want: Plan) -> None:
    different = [
        f"{field.name}={getattr(want, field.name)!r} (the model: {getattr(have, field.name)!r})"
        for field in fields(Plan)
        if field.name not in _RUNTIME and getattr(want, field.name) != getattr(have, field.name)
    ]
    if different:
        raise ValueError(f"{layer} is rotated differently in the file: {', '.join(different)}")


def _check_other_tensors(model: nn.Module, file: RotationFile) -> None:
    """Check all other tensors against the model, and frozen parameters against their hashes."""
    state = model.state_dict()
    for key, value in file.tensors.items():
        if any(key.startswith(entry.key) for entry in file.entries):
            continue
        if key not in state:
            raise ValueError(f"the model has no {key!r}")
        if _describe_tensor(state[key]) != _describe_tensor(value):
            raise ValueError(f"{key!r} must be {_describe_tensor(state[key])}, got {_describe_tensor(value)}")
    for key, hashed in file.frozen.items():
        if key not in state or hash_of(state[key]) != hashed:
            raise ValueError(
                f"{key!r} was frozen and is not in the file, and the model's is different (the hashes differ)"
            )


def _plain_layers(model: nn.Module) -> dict[tuple[str, str], Neurons]:
    """Return the neurons of a model by the names of module and tensor."""

    def module_name(name: str, neurons: Neurons) -> str:
        """Drop the tensor's name, with which select's names of separate projections end."""
        if neurons.tensor_name not in ("weight", "in_proj_weight"):
            return name.removesuffix(neurons.tensor_name).removesuffix(".")
        return name

    return {(module_name(name, n), n.tensor_name): n for name, n in select(model, output=None).items()}


def _find_unknown(model: nn.Module, entry: SavedRotation) -> Neurons:
    """Return the neurons of a module that only example inputs made a layer: the entry tells their layout."""
    module = unknown_weights(model, ()).get(entry.name) if entry.tensor == "weight" else None
    if module is None:
        raise ValueError(f"the model has no {entry.layer} with neurons in {entry.tensor}")
    return Neurons(module, "weight", False, entry.plan.layout)


def describe_rotations(model: nn.Module) -> list[dict[str, object]]:
    """Return one entry per rotated weight: name, tensor, plan, tasks and the active one; not its numbers."""
    return [
        describe(SavedRotation.of(weight)) | {"tasks": list(weight.rotation.tasks)} for weight in find_rotated(model)
    ]


def rotate_as_described(model: nn.Module, layers: Sequence[Mapping[str, Any]]) -> None:
    """Rotate a plain model by the result of :func:`describe_rotations`; ValueError if it does not fit."""
    plain = _plain_layers(model)
    rotations, active = [], {}
    for layer in layers:
        try:
            first, *others = tasks = list(layer["tasks"])
            entry = parse_rotation({key: value for key, value in layer.items() if key != "tasks"})
            for task in tasks:
                if task != "default":
                    check_new_name(task)
            if entry.task not in tasks:
                raise ValueError(f"task {entry.task!r} is not one of {tasks}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"malformed rotation ({type(error).__name__}: {error}): {layer!r}") from None
        target = plain.get(entry.where) or _find_unknown(model, entry)
        plan = _fitting_plan(model, entry, target)
        with torch.random.fork_rng(devices=[]):  # the start is overwritten
            rotation = NeuronRotation(plan, target.stored, parameter_order(target), entry.seed, first)
            for name in others:
                task = TaskRotation(plan, entry.seed, target.stored)
                task.requires_grad_(False)
                rotation.add_module(name, task)
        rotations.append((target, rotation))
        active[rotation] = entry.task
    attach("from_pretrained", rotations)
    for weight in find_rotated(model):
        if weight.rotation in active:
            activate(weight, active[weight.rotation])
