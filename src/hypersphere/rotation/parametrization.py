"""The parametrization that rotates a layer's neurons, and its keys in a state_dict.

``<layer>.parametrizations.weight.original`` holds the neurons, ``<layer>.parametrizations.weight.0.<task>.<method>``
the parameters of the rotation, (blocks, *shape of the method): one block if it is shared. With ``sample`` there are
int64 buffers too: ``dims`` (the dimensions that are rotated), ``draw`` (how often they were drawn), ``inner`` (steps
since the last draw), ``seed`` (hashed with the layer's name). Layers whose weight has inputs before outputs (transposed
convolutions, transformers' Conv1D) store their ``groups``, stacked experts their number as ``stacked``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._internal import checks
from .._internal.draws import generator, stable_hash, unwrapped_name
from .._internal.other_tools import warn_of_save_pretrained
from .._internal.overflow import saturating_cast
from .._internal.sharding import is_sharded as is_sharded
from ..cosine import accumulation_dtype, without_autocast
from ..orthogonal import BUILT_IN, ORTHOGONALIZERS, Orthogonalizer
from ..selection import Layout, from_neuron_rows, neuron_rows

NONE = "none"  # fixed neurons without rotation
LAYOUT = ("groups", "stacked")  # buffers that tell the layout
_ROWS = Layout()


@dataclass(frozen=True)
class Plan:
    """How the neurons of one weight are rotated."""

    method: str
    dimension: int
    blocks: int = 1
    shared: bool = False
    sample: int | None = None
    init: str = "identity"
    learned: bool = False
    layout: Layout = _ROWS
    """Without groups along the outputs, which share one rotation."""

    @property
    def size(self) -> int:
        """The dimensions of one block."""
        return self.sample or self.dimension // self.blocks

    @property
    def orthogonalizer(self) -> Orthogonalizer | None:
        return None if self.method == NONE else ORTHOGONALIZERS[self.method]

    @property
    def keeps_angles(self) -> bool:
        return not self.learned and (self.orthogonalizer is None or self.orthogonalizer.orthogonal)

    def start(self) -> Tensor | None:
        """Return the initial parameters (blocks, *shape); None if the method has none."""
        method = self.orthogonalizer
        if method is None:
            return None
        blocks = [method.start(self.size, self.init) for _ in range(1 if self.shared else self.blocks)]
        for block in blocks:
            if tuple(block.shape) != tuple(method.shape(self.size)):
                wanted, got = tuple(method.shape(self.size)), tuple(block.shape)
                raise ValueError(f"start of method {method.name!r} must return shape {wanted}, got {got}")
        return torch.stack(blocks)


class TaskRotation(nn.Module):
    """The parameters of one rotation, named after the method."""

    dims: Tensor
    draw: Tensor
    inner: Tensor
    seed: Tensor

    def __init__(self, plan: Plan, seed: int, like: Tensor) -> None:
        super().__init__()
        self.method = plan.orthogonalizer
        self.trainable = True  # requires_grad while the task is active
        with torch.device("meta" if like.is_meta else "cpu"):
            numbers = plan.start()
        if self.method is not None and numbers is not None:
            dtype = accumulation_dtype(like.dtype)
            self.register_parameter(self.method.name, nn.Parameter(numbers.to(like.device, dtype)))
        if plan.sample is not None:
            buffers = {"dims": draw_dims(seed, 0, plan.dimension, plan.sample), "draw": 0, "inner": 0, "seed": seed}
            for name, value in buffers.items():
                self.register_buffer(name, torch.as_tensor(value, dtype=torch.int64).to(like.device))
        stored = layout_buffers(plan.layout, like.shape)
        for name, value in stored.items():
            self.register_buffer(name, torch.tensor(value).to(like.device))

    @property
    def parameter(self) -> nn.Parameter | None:
        return None if self.method is None else self._parameters[self.method.name]

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
        if self.parameter is None or self.method is None:
            return "nothing to learn"
        return f"{self.method.name}: {tuple(self.parameter.shape)}"


# names that a method cannot have, because its parameters are an attribute of TaskRotation
RESERVED = frozenset({*dir(TaskRotation), "method", "trainable", "training", "dims", "draw", "inner", "seed", *LAYOUT})


class Rotation(nn.Module):
    """w = R v for the neurons of a weight (OPT, Eq. 1), one child per task; fixed neurons get no gradient."""

    def __init__(self, plan: Plan, like: nn.Parameter, order: list[str], seed: int, task: str = "default") -> None:
        super().__init__()
        self.plan = plan
        self.learned = plan.learned
        self.order = order  # of the layer's parameters; merge restores it and requires_grad
        self.required_grad = like.requires_grad
        self.active = task
        self.seed = seed
        self.resampled = False  # whether there is a Resampler
        self.add_module(task, TaskRotation(plan, seed, like))

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

    def _save_to_state_dict(self, *args: Any) -> None:
        warn_of_save_pretrained()
        super()._save_to_state_dict(*args)

    def forward(self, weight: Tensor) -> Tensor:
        neurons = weight if self.learned else weight.detach()
        task = self.task
        if task.method is None:
            return neurons
        dims = task.dims if self.plan.sample is not None else None
        assert task.parameter is not None
        return rotate_weight(task.method, task.parameter, neurons, self.plan.size, dims, self.plan.layout)

    def extra_repr(self) -> str:
        plan = self.plan
        parts = [plan.method, f"{plan.dimension} dimensions"]
        if plan.sample is not None:
            parts.append(f"{plan.sample} at a time")
        if plan.blocks > 1:
            parts.append(f"{plan.blocks} {'shared ' if plan.shared else ''}blocks")
        parts.append(f"neurons {'learned' if plan.learned else 'fixed'}")
        return ", ".join(parts) + (f", task {self.active!r}" if len(self.tasks) > 1 else "")


def rotate_weight(
    method: Orthogonalizer,
    numbers: Tensor,
    weight: Tensor,
    size: int,
    dims: Tensor | None = None,
    layout: Layout = _ROWS,
) -> Tensor:
    """Replace every neuron v of a weight by R v, in blocks of `size` dimensions or in the dimensions `dims` only."""
    rows = neuron_rows(weight, layout)
    exact = rows.flatten(0, 1).to(accumulation_dtype(weight.dtype))
    with without_autocast(weight):
        out = _rotate_rows(method, numbers.to(accumulation_dtype(numbers.dtype)), exact, size, dims)
    return from_neuron_rows(saturating_cast(out.view_as(rows), weight.dtype), weight.shape, layout)


def _rotate_rows(method: Orthogonalizer, numbers: Tensor, rows: Tensor, size: int, dims: Tensor | None) -> Tensor:
    """Rotate rows (n, d); numbers (blocks, ...)."""
    if dims is not None:
        return rows.index_copy(1, dims, method.apply(numbers.squeeze(0), rows.index_select(1, dims)))
    if len(numbers) == 1:  # one block, or a shared one
        return method.apply(numbers.squeeze(0), rows.reshape(-1, size)).view_as(rows)
    blocks = rows.unflatten(1, (-1, size)).transpose(0, 1)
    return method.apply(numbers, blocks).transpose(0, 1).flatten(1)


def layout_buffers(layout: Layout, shape: torch.Size) -> dict[str, int]:
    """Return what a state_dict stores of a layout, for a merge without the model; nothing for plain rows."""
    stored = {} if layout.transposed_groups is None else {"groups": layout.transposed_groups}
    return stored | ({"stacked": shape[0]} if layout.stacked else {})


def layout_from_buffers(parts: Mapping[str, Tensor]) -> Layout:
    """Return the layout that :func:`layout_buffers` stored."""
    groups = int(parts["groups"]) if "groups" in parts else 1
    return Layout(groups=groups, transposed="groups" in parts, stacked="stacked" in parts)


def layer_seed(seed: int, name: str) -> int:
    """Hash a seed for the layer of this name: the same in every process and under any wrapper."""
    return stable_hash(seed, unwrapped_name(name)) >> 1  # fits int64


def draw_dims(seed: int, draw: int, dimension: int, sample: int) -> Tensor:
    """Draw `sample` dimensions for draw number `draw`, sorted."""
    return torch.randperm(dimension, generator=generator(seed, "", draw), device="cpu")[:sample].sort().values


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
    rotation: Rotation

    @property
    def parametrizations(self) -> parametrize.ParametrizationList:
        found = self.module.parametrizations[self.tensor_name]  # type: ignore[index]
        assert isinstance(found, parametrize.ParametrizationList)
        return found

    @property
    def neurons(self) -> nn.Parameter:
        neurons = self.parametrizations.original
        assert isinstance(neurons, nn.Parameter)
        return neurons

    @property
    def key(self) -> str:
        """The prefix of its keys in the model's state_dict."""
        return key_prefix(self.name, self.tensor_name)


def find_rotated(model: nn.Module) -> Iterator[RotatedWeight]:
    """Yield every rotated weight of the model, in the model's order."""
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module):
            for tensor_name, parametrizations in module.parametrizations.items():
                if isinstance(parametrizations[0], Rotation):
                    yield RotatedWeight(name, module, tensor_name, parametrizations[0])


def require_rotated(verb: str, model: nn.Module) -> list[RotatedWeight]:
    """Return :func:`find_rotated` as a list; raise if it is empty."""
    checks.module("model", model)
    found = list(find_rotated(model))
    if not found:
        raise ValueError(f"{verb}: no layer of the model is rotated; call hypersphere.rotate first")
    return found
