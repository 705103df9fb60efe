"""Load the state of an optimizer from a checkpoint that may not fit it."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from ..config.values import shown
from .records import is_number


def require(what: str, is_right: bool, allowed: str, value: Any) -> None:
    if not is_right:
        raise ValueError(f"{what} must be {allowed}, got {shown(value)}")


def check_mapping(what: str, value: Any, keys: set[str] | None = None) -> Mapping[Any, Any]:
    """Check that `value` is a mapping, with these keys if they are given."""
    is_right = isinstance(value, Mapping) and (keys is None or set(value) == keys)
    require(what, is_right, "a mapping" if keys is None else f"a mapping of {', '.join(sorted(keys))}", value)
    return dict(value)


def load_optimizer(optimizer: Optimizer, tree: Any) -> None:
    """Load the state of a checkpoint into an optimizer with the same groups, and try a step with it."""
    tree = check_mapping("an optimizer", tree, {"state", "param_groups"})
    own, groups = optimizer.state_dict()["param_groups"], tree["param_groups"]
    require("param_groups", isinstance(groups, list) and len(groups) == len(own), f"a list of {len(own)}", groups)
    for mine, theirs in zip(own, groups, strict=True):
        theirs = check_mapping("a group of an optimizer", theirs)
        rate: Any = theirs.get("lr")
        require("lr", is_number(rate) and rate >= 0, "a number >= 0", rate)
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


def _try_out(optimizer: Optimizer, group: Mapping[str, Any], parameter: torch.Tensor) -> None:
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
