"""Validate the training state in a checkpoint: types, ranges and sizes."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from ..config.values import shown
from .summary import is_count, is_number

#: fields of Progress that every checkpoint has
_PROGRESS = {
    *("step", "evaluated", "lines", "samples", "waited", "seconds"),
    *("loss", "round", "figures", "best"),
}


def require(what: str, is_right: bool, allowed: str, value: Any) -> None:
    if not is_right:
        raise ValueError(f"{what} must be {allowed}, got {shown(value)}")


def check_mapping(what: str, value: Any, keys: set[str] | None = None) -> Mapping[str, Any]:
    """Check that `value` is a mapping, with these keys if they are given."""
    require(what, isinstance(value, Mapping), "a mapping", value)
    if keys is not None and set(value) != keys:
        got = ", ".join(map(str, value))[:100] or "nothing"
        raise ValueError(f"{what} must hold {', '.join(sorted(keys))}, got {got}")
    return dict(value)


def check_progress(tree: Any, known: set[str]) -> dict[str, Any]:
    """Check the fields of :class:`Progress`."""
    tree = check_mapping("progress", tree)
    odd = [*(_PROGRESS - set(tree)), *(set(tree) - known)]
    if odd:
        raise ValueError(f"progress has {'no ' if odd[0] in _PROGRESS else ''}{odd[0]!s:.40}")
    for name in set(tree) - _PROGRESS:  # added by later versions
        require(f"progress.{name}", tree[name] is None or is_number(tree[name]), "null or a number", tree[name])
    for name in ("step", "evaluated", "lines", "samples", "waited"):
        require(f"progress.{name}", is_count(tree[name]), "an integer >= 0", tree[name])
    require("progress.seconds", is_number(tree["seconds"], 0, 1e12), "a number >= 0", tree["seconds"])
    for name in ("loss", "round"):
        pair = tree[name]
        right = isinstance(pair, list) and len(pair) == 2 and is_number(pair[0]) and is_number(pair[1], 0)
        require(f"progress.{name}", right, "a sum of losses and a number of steps", pair)
    require("progress.figures", _are_figures(tree["figures"]), "numbers by name", tree["figures"])
    best = tree["best"]
    right = best is None or (_are_figures(best) and is_count(best.get("step")) and {"accuracy", "loss"} <= set(best))
    require("progress.best", right, "null, or step, accuracy and loss", best)
    return dict(tree)


def _are_figures(value: Any) -> bool:
    """Return whether `value` holds figures of an evaluation; a loss may be infinite."""
    return isinstance(value, dict) and all(
        isinstance(name, str) and (is_number(each) or isinstance(each, float)) for name, each in value.items()
    )


def check_schedule(tree: Any) -> tuple[float, int, float]:
    """Check and return best loss, rounds waited and factor of a :class:`Schedule`."""
    tree = check_mapping("schedule", tree, {"best", "waited", "factor"})
    best, waited, factor = tree["best"], tree["waited"], tree["factor"]
    require("schedule.best", is_number(best) or best == math.inf, "a number", best)
    require("schedule.waited", is_count(waited), "an integer >= 0", waited)
    require("schedule.factor", is_number(factor, 0, 1), "a number in [0, 1]", factor)
    return best, waited, factor


def check_scaler(tree: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """Check the state of a GradScaler."""
    tree = check_mapping("precision", tree, set(own))
    for name, value in tree.items():
        if isinstance(own[name], int):
            require(f"precision.{name}", is_count(value) and value < 2**31, "an integer >= 0", value)
        else:
            require(f"precision.{name}", is_number(value, 0, 1e30) and value > 0, "a number > 0", value)
    return dict(tree)


def load_optimizer(optimizer: Optimizer, tree: Any) -> None:
    """Load the state of a checkpoint into an optimizer with the same groups, and try a step with it."""
    tree = check_mapping("an optimizer", tree, {"state", "param_groups"})
    own, groups = optimizer.state_dict()["param_groups"], tree["param_groups"]
    require("param_groups", isinstance(groups, list) and len(groups) == len(own), f"a list of {len(own)}", groups)
    for mine, theirs in zip(own, groups, strict=True):
        theirs = check_mapping("a group of an optimizer", theirs)
        require("lr", is_number(theirs.get("lr"), 0), "a number >= 0", theirs.get("lr"))
        for name, value in mine.items():
            # Another torch version may have more or fewer settings; common ones must equal the config's.
            if name != "lr" and name in theirs and not (type(theirs[name]) is type(value) and theirs[name] == value):
                raise ValueError(f"{name} of an optimizer must be {shown(value)}, got {shown(theirs[name])}")
        mine["lr"] = theirs["lr"]
    states = check_mapping("the state of an optimizer", tree["state"])
    numbers = {number for group in own for number in group["params"]}
    for number, state in states.items():
        require("the state of an optimizer", number in numbers, "of its parameters", number)
        check_mapping("the state of a parameter", state)
    optimizer.load_state_dict({"state": states, "param_groups": own})
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if optimizer.state.get(parameter):
                _try_out(optimizer, group, parameter)


def _try_out(optimizer: Optimizer, group: dict[str, Any], parameter: torch.Tensor) -> None:
    """Step with a copy of one parameter: only the optimizer knows what its state must be."""
    twin = parameter.detach().clone().requires_grad_()
    twin.grad = torch.zeros_like(twin)
    state: defaultdict[Any, Any] = defaultdict(dict)
    state[twin] = copy.deepcopy(optimizer.state[parameter])
    trial = type(optimizer).__new__(type(optimizer))
    trial.__setstate__({"defaults": optimizer.defaults, "state": state, "param_groups": [{**group, "params": [twin]}]})
    try:
        trial.step()
    except Exception as error:  # a wrong number or shape may raise anything
        what = " ".join(str(error).split())
        raise ValueError(f"the optimizer cannot step with its state: {type(error).__name__}: {what}") from None
