"""Several tasks, each with its own rotations over the same neurons (OPT, App. H)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from .._internal import checks
from .._internal.global_hooks import refuse_new_parameters
from .parametrization import NeuronRotation, RotatedWeight, find_rotated, layer_label, require_rotated
from .rules import TRIANGLES

M = TypeVar("M", bound=nn.Module)


def add_task(model: M, name: str) -> M:
    """Add a set of rotations called `name`, initialized like the first; return the model.

    Only the active task (see :func:`use_task`) is trained: the others have requires_grad False. What is not rotated
    (biases, norms, the output layer) is shared by all tasks; :func:`save_rotations` saves it with each.

    Example:
        >>> import hypersphere as hs
        >>> net = hs.rotate(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
        >>> _ = hs.rotation.add_task(net, "birds")
        >>> _ = hs.rotation.use_task(net, "birds")
        >>> [name for name, p in net[0].named_parameters() if p.requires_grad]
        ['bias', 'parametrizations.weight.0.birds.cayley']
    """
    layers = require_rotated("add_task", model)
    check_new_name(name)
    missing = [layer for layer in layers if name not in layer.rotation.tasks]
    if not missing:
        raise ValueError(f"name must be new, got {name!r}; the tasks are {', '.join(layers[0].rotation.tasks)}")
    _check_addable("add_task", model, missing)
    _add(missing, name)
    return model


def _check_addable(verb: str, model: nn.Module, layers: list[RotatedWeight]) -> None:
    """Require fixed neurons, which several tasks can share, in a model that is not wrapped yet."""
    refuse_new_parameters(verb, model, [layer.module for layer in layers])
    for layer in layers:
        rotation = layer.rotation
        if rotation.plan.redrawn:
            kind = "shuffle" if rotation.plan.shuffle else "sample"
            raise ValueError(
                f"{verb}: {layer.label} is rotated with {kind}, which changes the neurons: tasks need fixed neurons"
            )
        if rotation.learned:
            raise ValueError(f"{verb}: {layer.label} learns its neurons: tasks need fixed neurons")


def _add(layers: list[RotatedWeight], name: str) -> None:
    for layer in layers:
        task = layer.rotation.new_task()
        task.train(layer.rotation.training)
        task.requires_grad_(False)
        layer.rotation.add_module(name, task)


def combine_tasks(model: M, weights: Mapping[str, float], into: str) -> M:
    """Add a task `into` whose rotations are a weighted mean of those of other tasks; return the model.

    In each layer the skew-symmetric matrices Qᵢ, times their weights, are averaged, and the mean is lengthened to the
    mean length of the Qᵢ: Q = (1/n)·f·ΣQᵢ with f = Σ‖Qᵢ‖/‖ΣQᵢ‖ for n tasks. Tasks that oppose each other would make f
    large without bound; it is at most n, which makes Q the sum, and there is a warning if that limits it. Needs the
    method "cayley" or "exponential". The strengths of :func:`use_task` are not used: weights are.

    Args:
        weights: of the tasks, by name, such as {"birds": 1, "fish": 0.5}; one task alone is multiplied by its weight.
        into: the name of the new task.

    Example:
        >>> import hypersphere as hs
        >>> net = hs.rotate(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
        >>> _ = hs.rotation.add_task(net, "birds")
        >>> _ = combine_tasks(net, {"default": 1, "birds": 1}, into="both")
        >>> _ = hs.rotation.use_task(net, "both")
    """
    layers = require_rotated("combine_tasks", model)
    if not isinstance(weights, Mapping) or not weights:
        raise ValueError(f"weights must be a dict of weights by task with at least one entry, got {weights!r}")
    weights = {name: checks.number(f"weights[{name!r}]", weight) for name, weight in weights.items()}
    check_new_name(into)
    for layer in layers:
        for name in weights:
            _check_has_task(layers, layer, name)
        if into in layer.rotation.tasks:
            raise ValueError(f"into must be new, got {into!r}; the tasks are {', '.join(layer.rotation.tasks)}")
    _check_addable("combine_tasks", model, layers)
    _require_triangles("combine_tasks", layers)
    combined, opposed = [], []
    for layer in layers:
        rotations = [layer.rotation.tasks[name].rotations for name in weights]
        for name in rotations[0]:
            value, capped = _combine([numbers[name].detach() for numbers in rotations], list(weights.values()))
            combined.append((layer, name, value))
            opposed += [layer_label(layer.name)] if capped else []
    _add(layers, into)
    with torch.no_grad():
        for layer, name, value in combined:
            layer.rotation.tasks[into].rotations[name].copy_(value)
    if opposed:
        more = f" and {len(opposed) - 3} more" if len(opposed) > 3 else ""
        checks.warn(
            f"combine_tasks: {', '.join(weights)} oppose each other in {', '.join(opposed[:3])}{more}: they cancel out "
            "there, and their mean was not rescaled to their own size"
        )
    return model


def _combine(numbers: list[Tensor], weights: list[float]) -> tuple[Tensor, bool]:
    """Return the packed Q of :func:`combine_tasks`, and whether its factor f was limited."""
    n = len(numbers)
    weighted = [weight * q.double() for q, weight in zip(numbers, weights, strict=True)]
    total = torch.stack(weighted).sum(0)
    lengths, length = sum(float(q.norm()) for q in weighted), float(total.norm())
    capped = lengths > n * length
    return total * (1.0 if capped or length == 0 else lengths / length / n), capped


def use_task(model: M, name: str, *, strength: float = 1.0) -> M:
    """Switch every rotated layer to the task `name` ("default" is the first) and freeze the others; return the model.

    Args:
        strength: multiplies the skew-symmetric matrix Q of each rotation, so that R is orthogonal at every strength:
            0 is the network without the task, 1 the task as trained, −1 its inverse. Another strength than 1 needs the
            method "cayley" or "exponential". It lasts until the next call: forward passes, training and :func:`merge`
            use it; a state_dict, :func:`merge_state_dict` and files have the task at strength 1
            (:func:`combine_tasks` with one task makes a strength a task of its own).

    Example:
        >>> import hypersphere as hs
        >>> net = hs.rotate(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
        >>> hs.rotation.use_task(net, "birds")
        Traceback (most recent call last):
        ValueError: name must be a task of the model (default), got 'birds'
    """
    layers = require_rotated("use_task", model)
    _check_name(name)
    strength = checks.number("strength", strength)
    for layer in layers:
        _check_has_task(layers, layer, name)
    if strength != 1:
        _require_triangles("strength", layers)
    for layer in layers:
        activate(layer, name, strength)
    return model


def _check_has_task(layers: list[RotatedWeight], layer: RotatedWeight, name: str) -> None:
    if name not in layer.rotation.tasks:
        tasks = ", ".join(layer.rotation.tasks)
        lacking = f" of layer {layer.name!r}" if len(layers) > 1 else ""
        raise ValueError(f"name must be a task of the model ({tasks}{lacking}), got {name!r}")


def _require_triangles(what: str, layers: list[RotatedWeight]) -> None:
    """Require rotations by a skew-symmetric matrix and nothing else, over neurons that do not change."""
    for layer in layers:
        plan = layer.rotation.plan
        method = plan.orthogonalizer
        if method is not None and method.name not in TRIANGLES:
            needed = " or ".join(repr(name) for name in TRIANGLES)
            raise ValueError(f"{what} needs the method {needed}, got {plan.method!r} of {layer.label}")
        for name in ("magnitude", "sample", "shuffle"):
            if getattr(plan, name):
                raise ValueError(f"{what} needs rotations only, got {layer.label} with {name}")


def scaled_by_strength(model: nn.Module) -> dict[str, Tensor]:
    """Return the numbers of the active tasks times their strengths, by key, where a strength is not 1."""
    return {
        f"{layer.key}0.{layer.rotation.active}.{name}": numbers.detach() * layer.rotation.task.strength
        for layer in find_rotated(model)
        for name, numbers in layer.rotation.task.rotations.items()
        if layer.rotation.task.strength != 1
    }


def activate(layer: RotatedWeight, name: str, strength: float = 1.0) -> None:
    """Make a task of one layer active."""
    rotation = layer.rotation
    rotation.task.strength = 1.0  # of the task that was active
    rotation.tasks[name].strength = strength
    if rotation.active == name:
        return
    old = rotation.task
    old.trainable = any(p.requires_grad for p in old.parameters())  # a frozen task stays frozen when it is used again
    old.requires_grad_(False)
    rotation.active = name
    rotation.task.requires_grad_(rotation.task.trainable)


def check_new_name(name: object, argument: str = "name") -> None:
    """Require a valid task name: it becomes a part of keys and an attribute of the rotation."""
    _check_name(name, argument)
    assert isinstance(name, str)
    own = ("plan", "learned", "order", "required_grad", "shape", "active", "seed", "resampled")
    if not name or "." in name or name in (*dir(nn.Module()), *dir(NeuronRotation), *own):
        raise ValueError(f"{argument} must not have dots or be an attribute of nn.Module, got {name!r}")


def _check_name(name: object, argument: str = "name") -> None:
    if not isinstance(name, str):
        raise TypeError(f"{argument} must be a str, got {name!r}")
