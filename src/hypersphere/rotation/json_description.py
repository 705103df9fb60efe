"""Describe the rotations of a model as JSON, and rotate a plain model by such a description."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..neurons import select
from ..orthogonal import ORTHOGONALIZERS
from ._file import parse_entry
from .parametrization import NeuronRotation, TaskRotation, find_rotated
from .rotating import attach, check_layer, parameter_order
from .rules import NONE
from .saving import describe_layer, find_unknown, module_name
from .tasks import activate, check_new_name


def describe_rotations(model: nn.Module) -> list[dict[str, Any]]:
    """Return one entry per rotated weight: name, tensor, plan, tasks and the active one; not its numbers."""
    return [
        describe_layer(each, None) | {"hash": None, "tasks": list(each.rotation.tasks)} for each in find_rotated(model)
    ]


def rotate_as_described(model: nn.Module, layers: list[dict[str, Any]]) -> None:
    """Rotate a plain model by the result of :func:`describe_rotations`; ValueError if it does not fit."""
    plain = {(module_name(name, n), n.tensor_name): n for name, n in select(model, output=None).items()}
    made = []
    active = {}
    for layer in layers:
        try:
            first, *others = tasks = list(layer["tasks"])
            entry = parse_entry({key: value for key, value in layer.items() if key != "tasks"})
            for task in tasks:
                if task != "default":
                    check_new_name(task)
            if entry.task not in tasks:
                raise ValueError(f"task {entry.task!r} is not one of {tasks}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"malformed rotation ({type(error).__name__}: {error}): {layer!r}") from None
        found, plan = plain.get(entry.where) or find_unknown(model, entry), entry.plan
        if found is None:
            raise ValueError(f"the model has no {entry.layer} with neurons in {entry.tensor}")
        if plan.method != NONE and plan.method not in ORTHOGONALIZERS:
            raise ValueError(
                f"unknown method {plan.method!r} of {entry.layer}; register its Orthogonalizer with rotate"
            )
        plan = replace(plan, frozen=check_layer(model, entry.name, found, by_activation=plan.frozen))
        got = (found.dimension, found.layout.for_rotation, list(found.stored.shape))
        if got != (plan.dimension, plan.layout, entry.shape):
            raise ValueError(f"{entry.layer} must have neurons {entry.shape}, got {list(found.stored.shape)}")
        stored = found.stored
        with torch.random.fork_rng(devices=[]):  # the start is overwritten
            rotation = NeuronRotation(plan, stored, parameter_order(found), entry.seed, first)
            for name in others:
                task = TaskRotation(plan, entry.seed, stored)
                task.requires_grad_(False)
                rotation.add_module(name, task)
        made.append((found, rotation))
        active[rotation] = entry.task
    attach("from_pretrained", made)
    for each in find_rotated(model):
        if each.rotation in active:
            activate(each, active[each.rotation])
