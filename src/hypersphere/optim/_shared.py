"""What the optimizers of this package share: Adam for the other groups, and states in their own precision."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adam import adam

from .._internal import checks
from ..neurons import Layout, neuron_rows

ParamGroup = dict[str, Any]  # of torch.optim


def adam_step(
    state: MutableMapping[Tensor, dict[str, Any]], group: ParamGroup, decoupled_weight_decay: bool = False
) -> None:
    """Step a group exactly as torch.optim.Adam, or as AdamW."""
    params = [p for p in group["params"] if p.grad is not None]
    for p in params:
        if not state[p]:
            state[p]["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
            state[p]["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state[p]["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
    averages, squares, steps = ([state[p][k] for p in params] for k in ("exp_avg", "exp_avg_sq", "step"))
    beta1, beta2 = group["betas"]
    adam(
        params,
        [p.grad for p in params],
        averages,
        squares,
        [],
        steps,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=1e-8,
        maximize=False,
        decoupled_weight_decay=decoupled_weight_decay,
    )


def check_betas(betas: Any) -> None:
    if not (isinstance(betas, tuple | list) and len(betas) == 2):
        raise TypeError(f"betas must be two numbers, got {betas!r}")
    for beta in betas:
        if checks.number("betas", beta, low=0.0) >= 1.0:
            raise ValueError(f"betas must be >= 0 and < 1, got {betas!r}")


def place_of(i: int, parameter: Tensor, group: ParamGroup, number: int | str = "") -> str:
    """Name a parameter by its place in its group, by the group's number if that has no name."""
    return f"parameter {i} of group {group.get('name', number)!r}, {tuple(parameter.shape)}"


def check_matrix(parameter: Tensor, group: ParamGroup, kind: str, place: str) -> Tensor:
    """Return a parameter as the matrices (blocks, m, n) of its group's layout; refuse what has none."""
    layout = group["layout"]
    if layout is not None and not (isinstance(layout, dict) and layout.keys() <= asdict(Layout()).keys()):
        raise ValueError(f"layout must be a dict with keys of {', '.join(asdict(Layout()))}, got {layout!r}")
    if not parameter.is_floating_point():
        raise TypeError(f"{kind} must hold real floating point matrices, got {parameter.dtype} in {place}")
    if parameter.dim() < 2 or not parameter.numel():
        raise ValueError(f"{kind} must hold matrices of at least two dimensions, got {place}")
    try:
        return neuron_rows(parameter.detach(), Layout(**(layout or {})))
    except (RuntimeError, TypeError, IndexError) as error:
        raise ValueError(f"layout {layout!r} does not fit {place}") from error


def check_same_marks(optimizer: Optimizer, state_dict: dict[str, Any], mark: str) -> None:
    """Raise if other groups have this mark in a state: their parameters would be stepped in another way, silently."""
    ours, theirs = (
        [bool(group.get(mark)) for group in groups] for groups in (optimizer.param_groups, state_dict["param_groups"])
    )
    if len(ours) == len(theirs) and ours != theirs:  # torch refuses another number of groups
        raise ValueError(
            f"state_dict must be of an optimizer with the same {mark} groups, {ours}; got {theirs} (True: {mark})"
        )


def keep_precision(optimizer: Optimizer, state_dict: dict[str, Any], keys: tuple[str, ...]) -> None:
    """Put these states back as they were saved: torch casts what it loads to the dtype of the parameter."""
    numbers = [i for group in state_dict["param_groups"] for i in group["params"]]
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for i, p in zip(numbers, params, strict=True):
        for key in keys:
            if key in state_dict["state"].get(i, {}):
                optimizer.state[p][key] = state_dict["state"][i][key].to(p.device, copy=True)
