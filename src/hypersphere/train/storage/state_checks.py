"""Load the state of an optimizer from a checkpoint that may not fit it."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from ...optim import RowSGD
from ..config.values import shown


def load_optimizer(optimizer: Optimizer, tree: Mapping[str, Any]) -> None:
    """Load the state of a checkpoint into an optimizer and try a step with it; its settings are those of the config.

    Whatever does not fit raises one of the usual errors.
    """
    groups = optimizer.state_dict()["param_groups"]
    for group, stored in zip(groups, tree["param_groups"], strict=True):
        group["lr"] = stored["lr"]
    if unknown := set(tree["state"]) - {number for group in groups for number in group["params"]}:
        raise ValueError(f"an optimizer has no parameter {shown(unknown.pop())}")
    optimizer.load_state_dict({"state": tree["state"], "param_groups": groups})
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if optimizer.state.get(parameter):
                _try_out(optimizer, group, parameter)


def _try_out(optimizer: Optimizer, group: Mapping[str, Any], parameter: torch.Tensor) -> None:
    """Step with a copy of one parameter: only the optimizer knows what its state must be."""
    twin = parameter.detach().clone().requires_grad_()
    twin.grad = torch.zeros_like(twin)
    if isinstance(optimizer, RowSGD) and "step" in optimizer.state[parameter]:  # of each row, if gradients are sparse
        twin.grad = twin.grad.to_sparse(1)
    state: defaultdict[Any, Any] = defaultdict(dict)
    state[twin] = copy.deepcopy(optimizer.state[parameter])
    trial = type(optimizer).__new__(type(optimizer))
    trial.__setstate__({"defaults": optimizer.defaults, "state": state, "param_groups": [{**group, "params": [twin]}]})
    trial.step()
