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
    found = require_rotated("add_task", model)
    check_new_name(name)
    missing = [each for each in found if name not in each.rotation.tasks]
    if not missing:
        raise ValueError(f"name must be new, got {name!r}; the tasks are {', '.join(found[0].rotation.tasks)}")
    _check_addable("add_task", model, missing)
    _add(missing, name)
    return model


def _check_addable(verb: str, model: nn.Module, found: list[RotatedWeight]) -> None:
    """Require fixed neurons, which several tasks can share, in a model that is not wrapped yet."""
    refuse_new_parameters(verb, model, [each.module for each in found])
    for each in found:
        rotation, layer = each.rotation, f"layer {layer_label(each.name)!r}"
        if rotation.plan.redrawn:
            kind = "shuffle" if rotation.plan.shuffle else "sample"
            raise ValueError(
                f"{verb}: {layer} is rotated with {kind}, which changes the neurons: tasks need fixed neurons"
            )
        if rotation.learned:
            raise ValueError(f"{verb}: {layer} learns its neurons: tasks need fixed neurons")


def _add(found: list[RotatedWeight], name: str) -> None:
    for each in found:
        task = each.rotation.new_task()
        task.train(each.rotation.training)
        task.requires_grad_(False)
        each.rotation.add_module(name, task)


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
    found = require_rotated("combine_tasks", model)
    if not isinstance(weights, Mapping) or not weights:
        raise ValueError(f"weights must be a dict of weights by task with at least one entry, got {weights!r}")
    weights = {name: checks.number(f"weights[{name!r}]", weight) for name, weight in weights.items()}
    check_new_name(into)
    for each in found:
        for name in weights:
            _check_has_task(found, each, name)
        if into in each.rotation.tasks:
            raise ValueError(f"into must be new, got {into!r}; the tasks are {', '.join(each.rotation.tasks)}")
    _check_addable("combine_tasks", model, found)
    _require_triangles("combine_tasks", found)
    combined, opposed = [], []
    for each in found:
        parts = [each.rotation.tasks[name].rotations for name in weights]
        for name in parts[0]:
            value, capped = _combine([part[name].detach() for part in parts], list(weights.values()))
            combined.append((each, name, value))
            opposed += [layer_label(each.name)] if capped else []
    _add(found, into)
    with torch.no_grad():
        for each, name, value in combined:
            each.rotation.tasks[into].rotations[name].copy_(value)
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
    parts = [weight * each.double() for each, weight in zip(numbers, weights, strict=True)]
    total = torch.stack(parts).sum(0)
    lengths, length = sum(float(each.norm()) for each in parts), float(total.norm())
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
    found = require_rotated("use_task", model)
    _check_name(name)
    strength = checks.number("strength", strength)
    for each in found:
        _check_has_task(found, each, name)
    if strength != 1:
        _require_triangles("strength", found)
    for each in found:
        activate(each, name, strength)
    return model


def _check_has_task(found: list[RotatedWeight], each: RotatedWeight, name: str) -> None:
    if name not in each.rotation.tasks:
        there = ", ".join(each.rotation.tasks)
        lacking = f" of layer {each.name!r}" if len(found) > 1 else ""
        raise ValueError(f"name must be a task of the model ({there}{lacking}), got {name!r}")


def _require_triangles(what: str, found: list[RotatedWeight]) -> None:
    """Require rotations by a skew-symmetric matrix and nothing else, over neurons that do not change."""
    for each in found:
        plan, layer = each.rotation.plan, f"layer {layer_label(each.name)!r}"
        method = plan.orthogonalizer
        if method is not None and method.name not in TRIANGLES:
            needed = " or ".join(repr(name) for name in TRIANGLES)
            raise ValueError(f"{what} needs the method {needed}, got {plan.method!r} of {layer}")
        for name in ("magnitude", "sample", "shuffle"):
            if getattr(plan, name):
                raise ValueError(f"{what} needs rotations only, got {layer} with {name}")


def scaled_by_strength(model: nn.Module) -> dict[str, Tensor]:
    """Return the numbers of the active tasks times their strengths, by key, where a strength is not 1."""
    return {
        f"{each.key}0.{each.rotation.active}.{name}": numbers.detach() * each.rotation.task.strength
        for each in find_rotated(model)
        for name, numbers in each.rotation.task.rotations.items()
        if each.rotation.task.strength != 1
    }


def activate(each: RotatedWeight, name: str, strength: float = 1.0) -> None:
    """Make a task of one layer active."""
    rotation = each.rotation
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
