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


def load_optimizer(optimizer: Optimizer, tree: Mapping[str, Any]) -> None:
    """Load the state of a checkpoint into an optimizer with the same groups, and try a step with it.

    Whatever does not fit raises one of the usual errors.
    """
    own, states = optimizer.state_dict()["param_groups"], tree["state"]
    for mine, theirs in zip(own, tree["param_groups"], strict=True):
        if not is_number(theirs["lr"]) or theirs["lr"] < 0:
            raise ValueError(f"lr must be a number >= 0, got {shown(theirs['lr'])}")
        for name, value in mine.items():
            # Another torch version may have more or fewer settings; common ones must equal the config's.
            if name != "lr" and name in theirs and not (type(theirs[name]) is type(value) and theirs[name] == value):
                raise ValueError(f"{name} of an optimizer must be {shown(value)}, got {shown(theirs[name])}")
        mine["lr"] = theirs["lr"]
    if unknown := set(states) - {number for group in own for number in group["params"]}:
        raise ValueError(f"an optimizer has no parameter {shown(unknown.pop())}")
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
    trial.step()
