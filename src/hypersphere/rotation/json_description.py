"""Describe the rotations of a model as JSON, and rotate a plain model by such a description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ._file import SavedRotation, describe, parse_rotation
from .parametrization import NeuronRotation, TaskRotation, find_rotated
from .rotating import attach, parameter_order
from .saving import find_unknown, fitting_plan, plain_layers
from .tasks import activate, check_new_name


def describe_rotations(model: nn.Module) -> list[dict[str, object]]:
    """Return one entry per rotated weight: name, tensor, plan, tasks and the active one; not its numbers."""
    return [
        describe(SavedRotation.of(weight)) | {"tasks": list(weight.rotation.tasks)} for weight in find_rotated(model)
    ]


def rotate_as_described(model: nn.Module, layers: Sequence[Mapping[str, Any]]) -> None:
    """Rotate a plain model by the result of :func:`describe_rotations`; ValueError if it does not fit."""
    plain = plain_layers(model)
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
        target = plain.get(entry.where) or find_unknown(model, entry)
        plan = fitting_plan(model, entry, target)
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
