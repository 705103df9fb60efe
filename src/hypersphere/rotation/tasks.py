"""Several tasks, each with its own rotations over the same neurons (OPT, App. H)."""

from __future__ import annotations

from torch import nn

from .parametrization import RotatedWeight, Rotation, layer_label, require_rotated


def add_task(model: nn.Module, name: str) -> None:
    """Add a set of rotations called `name`, initialized like the first; :func:`use_task` switches to it.

    Only the active task is trained: the others have requires_grad False. Parameters that are not rotated (biases,
    norms, the output layer) are shared by all tasks; :func:`save_rotations` saves them with each.

    Example:
        >>> import hypersphere as hs
        >>> net = hs.rotate(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
        >>> hs.add_task(net, "birds")
        >>> hs.use_task(net, "birds")
        >>> [name for name, p in net[0].named_parameters() if p.requires_grad]
        ['bias', 'parametrizations.weight.0.birds.cayley']
    """
    found = require_rotated("add_task", model)
    check_new_name(name)
    missing = [each for each in found if name not in each.rotation.tasks]
    if not missing:
        raise ValueError(f"name must be new, got {name!r}; the tasks are {', '.join(found[0].rotation.tasks)}")
    for each in missing:
        rotation, layer = each.rotation, f"layer {layer_label(each.name)!r}"
        if rotation.plan.redrawn:
            kind = "shuffle" if rotation.plan.shuffle else "sample"
            raise ValueError(
                f"add_task: {layer} is rotated with {kind}, which changes the neurons: tasks need fixed neurons"
            )
        if rotation.learned:
            raise ValueError(f"add_task: {layer} learns its neurons: tasks need fixed neurons")
    for each in missing:
        task = each.rotation.new_task()
        task.train(each.rotation.training)
        task.requires_grad_(False)
        each.rotation.add_module(name, task)


def use_task(model: nn.Module, name: str) -> None:
    """Switch every rotated layer to the task `name` ("default" is the first); the others are frozen.

    Example:
        >>> import hypersphere as hs
        >>> net = hs.rotate(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
        >>> hs.use_task(net, "birds")
        Traceback (most recent call last):
        ValueError: name must be a task of the model (default), got 'birds'
    """
    found = require_rotated("use_task", model)
    _check_name(name)
    for each in found:
        if name not in each.rotation.tasks:
            there = ", ".join(each.rotation.tasks)
            lacking = f" of layer {each.name!r}" if len(found) > 1 else ""
            raise ValueError(f"name must be a task of the model ({there}{lacking}), got {name!r}")
    for each in found:
        activate(each, name)


def activate(each: RotatedWeight, name: str) -> None:
    """Make a task of one layer active."""
    rotation = each.rotation
    if rotation.active == name:
        return
    old = rotation.task
    old.trainable = any(p.requires_grad for p in old.parameters())  # a frozen task stays frozen when it is used again
    old.requires_grad_(False)
    rotation.active = name
    rotation.task.requires_grad_(rotation.task.trainable)


def check_new_name(name: object) -> None:
    """Require a valid task name: it becomes a part of keys and an attribute of the rotation."""
    _check_name(name)
    assert isinstance(name, str)
    own = ("plan", "learned", "order", "required_grad", "shape", "active", "seed", "resampled")
    if not name or "." in name or name in (*dir(nn.Module()), *dir(Rotation), *own):
        raise ValueError(f"name must not have dots or be an attribute of nn.Module, got {name!r}")


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {name!r}")
