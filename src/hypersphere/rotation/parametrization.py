"""The parametrization that rotates a layer's neurons, and its keys in a state_dict.

``<layer>.parametrizations.weight.original`` holds the neurons, ``<layer>.parametrizations.weight.0.<task>.<method>``
the parameters of the rotation, (blocks, *shape of the method): one block if it is shared. With ``sample`` there are
int64 buffers too: ``dims`` (the dimensions that are rotated), ``draw`` (how often they were drawn), ``inner`` (steps
since the last draw), ``seed`` (hashed with the layer's name). Layers whose weight has inputs before outputs (transposed
convolutions, transformers' Conv1D) store their ``groups``, stacked experts their number as ``stacked``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from .._internal import checks
from .._internal.draws import stable_hash, unwrapped_name
from .._internal.precision import accumulation_dtype
from .._internal.sharding import copy_to, gather
from .._internal.sharding import is_sharded as is_sharded
from ..neurons import Layout
from ..orthogonal import BUILT_IN, ORTHOGONALIZERS
from .block_rotation import BlockRotation, rotate_weight
from .plan import OUTPUT, Plan, RotatedSide
from .split_weight import rotate_split_weight

BUFFERS = ("dims", "output_dims", "draw", "inner", "seed", "groups", "stacked", "scaled")


class TaskRotation(nn.Module):
    """The parameters of one rotation, named after the method."""

    draw: Tensor
    inner: Tensor
    seed: Tensor

    def __init__(self, plan: Plan, seed: int, like: Tensor) -> None:
        super().__init__()
        self.method = plan.orthogonalizer
        self.trainable = True  # requires_grad while the task is active
        self.strength = 1.0  # the numbers are multiplied by it
        with torch.device("meta" if like.is_meta else "cpu"):
            starts = plan.starts()
        dtype = accumulation_dtype(like.dtype)
        if plan.magnitude:
            starts["magnitude"] = torch.ones(plan.outputs)
        for name, start in starts.items():
            numbers = start.to(like.device, dtype)
            # a split layer's are the same in all processes
            numbers = copy_to(like.device_mesh, numbers) if is_sharded(like) else numbers  # type: ignore[attr-defined]
            self.register_parameter(name, nn.Parameter(numbers))
        buffers: dict[str, Any] = dict(plan.draw_dims(seed, 0))
        if plan.redrawn:
            buffers |= {"draw": 0, "inner": 0, "seed": seed}
        buffers |= layout_buffers(plan.layout, like.shape) | ({"scaled": 1} if plan.scaled else {})
        for name, value in buffers.items():
            self.register_buffer(name, torch.as_tensor(value, dtype=torch.int64).to(like.device))

    @property
    def rotations(self) -> dict[str, nn.Parameter]:
        """The parameters of the rotations, by name: one for each side."""
        return {name: p for name, p in self._parameters.items() if p is not None and name != "magnitude"}

    @property
    def magnitudes(self) -> Tensor | None:
        """The learned factor of each neuron; None without ``magnitude``."""
        return self._parameters.get("magnitude")

    def block_rotations(self, plan: Plan, *, dropout: bool) -> list[BlockRotation]:
        """Return the rotations of this task, with or without dropout."""
        if self.method is None:
            return []
        return [
            BlockRotation(
                self.method,
                scale_numbers(self._rotation_of(side), side.size, plan.scaled, self.strength),
                side.size,
                self._buffers.get(side.prefix + "dims"),
                of_outputs=side.prefix == OUTPUT,
                kept=self._draw_kept(side, plan.dropout) if dropout and plan.dropout else None,
            )
            for side in plan.sides
        ]

    def _rotation_of(self, side: RotatedSide) -> nn.Parameter:
        assert self.method is not None
        numbers = self._parameters[side.prefix + self.method.name]
        assert numbers is not None
        return numbers

    def _draw_kept(self, side: RotatedSide, dropout: float) -> Tensor:
        """Draw the blocks that dropout keeps, from torch's global generator as nn.Dropout does."""
        device = next(iter(self.rotations.values())).device
        return torch.rand(side.blocks, device=device) >= dropout

    def __getstate__(self) -> dict[str, Any]:
        """Name a built-in method, whose functions cannot be pickled; a user's own is pickled whole."""
        method = self.method
        return self.__dict__ | {"method": method.name if method is not None and method.name in BUILT_IN else method}

    def __setstate__(self, state: dict[str, Any]) -> None:
        method = state["method"]
        if isinstance(method, str):
            method = ORTHOGONALIZERS[method]
        elif method is not None:
            method = ORTHOGONALIZERS.setdefault(method.name, method)
        super().__setstate__(state | {"method": method})

    def extra_repr(self) -> str:
        shapes = [f"{name}: {tuple(p.shape)}" for name, p in self._parameters.items() if p is not None]
        return ", ".join(shapes) or "nothing to learn"


# names that a method cannot have, because its parameters are an attribute of TaskRotation
RESERVED = frozenset(
    {*dir(TaskRotation), "method", "trainable", "strength", "training", "magnitude", *BUFFERS}
    | {OUTPUT + name for name in BUILT_IN}
)


class NeuronRotation(nn.Module):
    """w = R v for the neurons of a weight (OPT, Eq. 1), one child per task; fixed neurons get no gradient."""

    gradient_checked = False  # whether it is known that a quantized layer passes gradients

    def __init__(self, plan: Plan, like: Tensor, order: list[str], seed: int, task: str = "default") -> None:
        super().__init__()
        self.plan = plan
        self.learned = plan.learned
        self.order = order  # of the layer's parameters; merge restores it and requires_grad
        self.required_grad = like.requires_grad
        self.shape = tuple(like.shape)
        self.active = task
        self.seed = seed
        self.resampled = False  # whether there is a Resampler
        self.add_module(task, TaskRotation(plan, seed, like))

    def new_task(self) -> TaskRotation:
        """Return another rotation of the same plan, at its start."""
        return TaskRotation(self.plan, self.seed, self.stand_in)

    @property
    def stand_in(self) -> Tensor:
        """A tensor of the weight's shape and device that takes no memory."""
        return next(self.task.parameters(), torch.empty(0)).new_empty(1).expand(self.shape)

    @property
    def keeps_angles(self) -> bool:
        """Return whether the energy of the neurons is constant."""
        return self.plan.keeps_angles

    @property
    def tasks(self) -> dict[str, TaskRotation]:
        return {name: child for name, child in self._modules.items() if isinstance(child, TaskRotation)}

    @property
    def task(self) -> TaskRotation:
        """The active task."""
        child = self._modules[self.active]
        assert isinstance(child, TaskRotation)
        return child

    def forward(self, weight: Tensor, *, merging: bool = False, magnitude: bool = True) -> Tensor:
        """Return the rotated weight; `merging`: without dropout."""
        neurons, task = self.detached(weight), self.task
        if task.method is None:
            return neurons
        rotations = task.block_rotations(self.plan, dropout=self.training and not merging)
        if is_sharded(neurons):
            return rotate_split_weight(neurons, rotations, task.magnitudes if magnitude else None)
        return rotate_weight(neurons, rotations, self.plan.layout, task.magnitudes if magnitude else None)

    def detached(self, weight: Tensor) -> Tensor:
        """Return the neurons, without a gradient if they are fixed."""
        return weight if self.learned else weight.detach()

    def extra_repr(self) -> str:
        plan = self.plan
        words = [plan.method, f"{plan.dimension} dimensions"]
        if plan.sample is not None:
            words.append(f"{plan.sample} at a time")
        if plan.blocks > 1:
            words.append(f"{plan.blocks} {'shared ' if plan.shared else ''}blocks")
        if plan.side != "input":
            blocks = f" in {plan.output_blocks} blocks" if plan.output_blocks > 1 else ""
            words.append(f"{plan.side} side{'s' if plan.side == 'both' else ''}, {plan.outputs} outputs{blocks}")
        words += [name for name in ("shuffle", "scaled", "magnitude") if getattr(plan, name)]
        words += [f"dropout {plan.dropout}"] if plan.dropout else []
        words += ["applied to activations"] if plan.apply == "activation" else []
        words.append(f"neurons {'learned' if plan.learned else 'fixed'}")
        return ", ".join(words) + (f", task {self.active!r}" if len(self.tasks) > 1 else "")


def scale_numbers(numbers: Tensor, size: int, scaled: bool, strength: float = 1.0) -> Tensor:
    """Return the numbers of a rotation in at least float32, divided by 2√(m−1) if they are scaled."""
    factor = strength / (2 * math.sqrt(max(1, size - 1)) if scaled else 1.0)
    exact = numbers.to(accumulation_dtype(numbers.dtype))
    return exact if factor == 1.0 else exact * factor


def layout_buffers(layout: Layout, shape: torch.Size) -> dict[str, int]:
    """Return what a state_dict stores of a layout, for a merge without the model; nothing for plain rows."""
    stored = {} if layout.transposed_groups is None else {"groups": layout.transposed_groups}
    return stored | ({"stacked": shape[0]} if layout.stacked else {})


def layout_from_buffers(buffers: Mapping[str, Tensor]) -> Layout:
    """Return the layout that :func:`layout_buffers` stored."""
    groups = int(buffers["groups"]) if "groups" in buffers else 1
    return Layout(groups=groups, transposed="groups" in buffers, stacked="stacked" in buffers)


def layer_seed(seed: int, name: str) -> int:
    """Hash a seed for the layer of this name: the same in every process and under any wrapper."""
    return stable_hash(seed, unwrapped_name(name)) >> 1  # fits int64


def key_prefix(layer: str, tensor: str) -> str:
    """Return the prefix of the keys of a rotated weight."""
    return f"{layer}.parametrizations.{tensor}." if layer else f"parametrizations.{tensor}."


def layer_label(layer: str) -> str:
    """Return a layer's name for messages."""
    return layer or "(root)"


@dataclass(frozen=True)
class RotatedWeight:
    """A rotated weight: its module, names and rotation."""

    name: str
    module: nn.Module
    tensor_name: str
    rotation: NeuronRotation

    @property
    def parametrizations(self) -> nn.ModuleList:
        parametrizations = self.module.parametrizations[self.tensor_name]  # type: ignore[index]
        assert isinstance(parametrizations, nn.ModuleList)
        return parametrizations

    @property
    def neurons(self) -> nn.Parameter:
        """The neurons; not of a weight that cannot be modified, because it is quantized or tied."""
        neurons = self.parametrizations.original
        assert isinstance(neurons, nn.Parameter)
        return neurons

    def merged(self, *, magnitude: bool = True) -> Tensor:
        """Return the rotated weight of the active task, without dropout; gathered if it is sharded."""
        rotation, active = self.rotation, self.rotation.active
        whole = {f"{active}.{name}": gather(p) for name, p in rotation.task.named_parameters()}
        weight: Tensor = functional_call(
            rotation, whole, gather(self.neurons), {"merging": True, "magnitude": magnitude}
        )
        return weight

    @property
    def label(self) -> str:
        """The layer's name for messages."""
        return f"layer {layer_label(self.name)!r}"

    @property
    def is_frozen(self) -> bool:
        """Whether the weight cannot be modified."""
        return self.rotation.plan.frozen

    @property
    def key(self) -> str:
        """The prefix of its keys in the model's state_dict."""
        return key_prefix(self.name, self.tensor_name)


def find_rotated(model: nn.Module) -> Iterator[RotatedWeight]:
    """Yield every rotated weight of the model, in the model's order."""
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module):
            for tensor_name, parametrizations in module.parametrizations.items():
                if isinstance(parametrizations[0], NeuronRotation):
                    yield RotatedWeight(name, module, tensor_name, parametrizations[0])


def require_rotated(verb: str, model: nn.Module) -> list[RotatedWeight]:
    """Return :func:`find_rotated` as a list; raise if it is empty."""
    checks.module("model", model)
    layers = list(find_rotated(model))
    if not layers:
        raise ValueError(f"{verb}: no layer of the model is rotated; call hypersphere.rotate first")
    return layers
