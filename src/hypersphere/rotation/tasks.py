"""Several tasks, each with its own rotations over the same neurons (OPT, App. H)."""

from __future__ import annotations

from torch import nn

from .parametrization import Rotated, Rotation, TaskRotation, rotated_strictly, shown


def add_task(model: nn.Module, name: str) -> None:
    """Adds a set of rotations called `name`, at the start the first set had; :func:`use_task` switches to it.

    Only the active task learns: the others have requires_grad False. What is not rotated (biases, norms, the output
    layer) is shared by all tasks; :func:`save_rotations` saves it with each.

    Example:
        >>> import hypersphere as hs
        >>> net = hs.rotate(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
        >>> hs.add_task(net, "birds")
        >>> hs.use_task(net, "birds")
        >>> [name for name, p in net[0].named_parameters() if p.requires_grad]
        ['bias', 'parametrizations.weight.0.birds.cayley']
    """
    found = rotated_strictly("add_task", model)
    check_new_name(name)
    missing = [each for each in found if name not in each.rotation.tasks]
    if not missing:
        raise ValueError(f"name must be new, got {name!r}; there are {', '.join(found[0].rotation.tasks)}")
    for each in missing:
        rotation, layer = each.rotation, f"layer {shown(each.name)!r}"
        if rotation.plan.sample is not None:
            raise ValueError(f"add_task: {layer} is rotated with sample, whose neurons change: it has one task")
        if rotation.learned:
            raise ValueError(f"add_task: {layer} learns its neurons: tasks need fixed ones to share")
    for each in missing:
        task = TaskRotation(each.rotation.plan, each.rotation.seed, each.neurons)
        task.train(each.rotation.training)
        if task.parameter is not None:
            task.parameter.requires_grad_(False)
        each.rotation.add_module(name, task)


def use_task(model: nn.Module, name: str) -> None:
    """Switches every rotated layer to the task `name` ("default" is the first); the others stop learning.

    Example:
        >>> import hypersphere as hs
        >>> net = hs.rotate(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
        >>> hs.use_task(net, "birds")
        Traceback (most recent call last):
        ValueError: name must be a task of the model, got 'birds'; there are default
    """
    found = rotated_strictly("use_task", model)
    _check_name(name)
    for each in found:
        if name not in each.rotation.tasks:
            there = ", ".join(each.rotation.tasks)
            lacking = f" of layer {each.name!r}" if len(found) > 1 else ""
            raise ValueError(f"name must be a task of the model, got {name!r}; there are {there}{lacking}")
    for each in found:
        activate(each, name)


def activate(each: Rotated, name: str) -> None:
    """Makes a task of one layer the one in use."""
    rotation = each.rotation
    if rotation.active == name:
        return
    old = rotation.task
    if old.parameter is not None:
        old.trainable = old.parameter.requires_grad  # a task that was frozen is frozen when it comes back
        old.parameter.requires_grad_(False)
    rotation.active = name
    if rotation.task.parameter is not None:
        rotation.task.parameter.requires_grad_(rotation.task.trainable)


def check_new_name(name: object) -> None:
    """A task may be called so: its name becomes a part of keys and an attribute of the rotation."""
    _check_name(name)
    assert isinstance(name, str)
    taken = {
        *dir(nn.Module()),
        *dir(Rotation),
        "plan",
        "learned",
        "order",
        "required_grad",
        "active",
        "seed",
        "resampled",
    }
    if not name or "." in name or name in taken:
        raise ValueError(f"name must be without dots and no attribute of nn.Module, got {name!r}")


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {name!r}")
