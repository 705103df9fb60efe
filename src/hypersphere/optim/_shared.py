"""What the optimizers of this package share: Adam for the other groups, and states in their own precision."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adam import adam
from torch.optim.optimizer import ParamsT

from .._internal import checks
from .._internal.checks import warn_once
from .._internal.owners import Splits, assign, collect, spread
from .._internal.sharding import is_sharded, local_part
from ..neurons import Layout, neuron_rows

ParamGroup = dict[str, Any]  # of torch.optim

#: the mark of a group → the optimizer that it is for, and the option of param_groups that makes it
_MARKS = {"orthogonal": ("OGD", "ogd"), "rotated": ("Pion", "pion"), "muon": ("optim.MuonAdamW", "muon")}


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


def check_rates(options: ParamGroup) -> None:
    """Check those of lr, weight_decay, momentum and betas that there are; the learning rate may be a tensor."""
    for name in options.keys() & {"lr", "weight_decay", "momentum"}:
        value = options[name]
        value = checks.number(name, float(value) if isinstance(value, Tensor) else value, low=0.0)
        if name == "momentum" and value >= 1.0:
            raise ValueError(f"momentum must be >= 0 and < 1, got {value!r}")
    if "betas" in options:
        check_betas(options["betas"])


def place_of(i: int, parameter: Tensor, group: ParamGroup, number: int) -> str:
    """Name a parameter by its name, if torch was given it, or its place in its group, and a group by name or number."""
    names = group.get("param_names", ())  # of an optimizer of named_parameters()
    which = repr(names[i]) if i < len(names) else i
    return f"parameter {which} of group {group.get('name', number)!r}, {tuple(parameter.shape)}"


def refuse_sparse(optimizer: Optimizer, number: int) -> None:
    """Raise if a gradient of a group is sparse."""
    group = optimizer.param_groups[number]
    for i, p in enumerate(group["params"]):
        if p.grad is not None and p.grad.is_sparse:
            place = place_of(i, p, group, number)
            raise ValueError(f"{type(optimizer).__name__} needs dense gradients, got a sparse one for {place}")


def layout_of(group: ParamGroup) -> Layout:
    return Layout(**(group["layout"] or {}))


def matrix_shape(parameter: Tensor, group: ParamGroup) -> tuple[int, ...]:
    """Return (blocks, m, n) of the matrices of a parameter in its group's layout."""
    return tuple(neuron_rows(torch.empty(parameter.shape, device="meta"), layout_of(group)).shape)


def check_matrix(parameter: Tensor, group: ParamGroup, kind: str, place: str) -> None:
    """Refuse a parameter that is no matrices in its group's layout."""
    layout = group["layout"]
    if layout is not None and not (isinstance(layout, dict) and layout.keys() <= asdict(Layout()).keys()):
        raise ValueError(f"layout must be a dict with keys of {', '.join(asdict(Layout()))}, got {layout!r}")
    if not parameter.is_floating_point():
        raise TypeError(f"{kind} must hold real floating point matrices, got {parameter.dtype} in {place}")
    if parameter.dim() < 2 or not parameter.numel():
        raise ValueError(f"{kind} must hold matrices of at least two dimensions, got {place}")
    try:
        matrix_shape(parameter, group)
    except (RuntimeError, TypeError, IndexError) as error:
        raise ValueError(f"layout {layout!r} does not fit {place}") from error


def keep_options(groups: list[ParamGroup], before: list[ParamGroup]) -> None:
    """Keep the options of groups that a loaded state lacks, as that of torch's own optimizers does."""
    for group, own in zip(groups, before, strict=True):
        group.update({key: value for key, value in own.items() if key not in group})


def keep_precision(optimizer: Optimizer, state_dict: dict[str, Any], keys: tuple[str, ...]) -> None:
    """Put these states back as they were saved: torch casts what it loads to the dtype of the parameter."""
    numbers = [i for group in state_dict["param_groups"] for i in group["params"]]
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for i, p in zip(numbers, params, strict=True):
        for key in keys:
            if key in state_dict["state"].get(i, {}):
                optimizer.state[p][key] = state_dict["state"][i][key].to(p.device, copy=True)


def evaluate(closure: Callable[[], float] | None) -> float | None:
    """Return the loss of a step's closure, which computes gradients; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class MarkedOptimizer(Optimizer):
    """Base of the optimizers that step groups with a mark in their own way, and all others as torch does.

    Attributes:
        mark: the option of a group that marks it.
    """

    mark: ClassVar[str]

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        if isinstance(params, nn.Module):
            raise TypeError(
                "params must be parameters or groups of them, such as hypersphere.param_groups(model), got the "
                f"{type(params).__name__} itself"
            )
        super().__init__(params, defaults)

    def _check(self, group: ParamGroup, number: int) -> None:
        """Raise if the options or parameters of a group cannot be stepped."""
        raise NotImplementedError

    def _step(self) -> None:
        """Take a step with the gradients that there are."""
        raise NotImplementedError

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a group; one that is refused is not added."""
        super().add_param_group(param_group)
        try:
            self._refuse_foreign(self.param_groups[-1], len(self.param_groups) - 1)
            self._check(self.param_groups[-1], len(self.param_groups) - 1)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step; `closure` evaluates the model again and returns the loss."""
        loss = evaluate(closure)
        self._step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; the same groups must have the mark, or they would be stepped in another way, silently."""
        ours, theirs = (
            [bool(group.get(self.mark)) for group in groups]
            for groups in (self.param_groups, state_dict["param_groups"])
        )
        if len(ours) == len(theirs) and ours != theirs:  # torch refuses another number of groups
            raise ValueError(
                f"state_dict must be of an optimizer with the same {self.mark} groups, {ours}; got {theirs} (True: "
                f"{self.mark})"
            )
        before = self.param_groups
        super().load_state_dict(state_dict)
        keep_options(self.param_groups, before)

    def _marked(self) -> list[tuple[Tensor, ParamGroup]]:
        """Return the parameters of marked groups that have a gradient, with their groups."""
        return [(p, g) for g in self.param_groups if g[self.mark] for p in g["params"] if p.grad is not None]

    def _splits(self) -> Splits:
        return assign(group["params"] for group in self.param_groups if group.get(self.mark))

    def _refuse_foreign(self, group: ParamGroup, number: int) -> None:
        """Raise if a group is marked for another optimizer."""
        for mark, (owner, _) in _MARKS.items():
            if mark != self.mark and group.get(mark):
                raise ValueError(
                    f"group {group.get('name', number)!r} has {mark}=True, which is for hypersphere.{owner}: make the "
                    f"groups of {type(self).__name__} with hypersphere.param_groups(model, {_MARKS[self.mark][1]}=True)"
                )

    def _warn_if_unmarked(self, rest: str = "Adam", hint: str = "") -> None:
        """Warn if no group is stepped as the optimizer is meant to."""
        if not any(group[self.mark] for group in self.param_groups):
            warn_once(
                f"{type(self).__name__} steps all parameters by {rest}, because no group has {self.mark}=True: make "
                f"its groups with hypersphere.param_groups(model, {_MARKS[self.mark][1]}=True){hint}"
            )


# States of sharded matrices: whole in the owner, and a tensor on the meta device of the same shape in other processes.


def shard_states(
    optimizer: Optimizer, state_dict: dict[str, Any], keys: tuple[str, ...], splits: Splits
) -> dict[str, Any]:
    """Make DTensors of these states in a state_dict, as torch.distributed.checkpoint saves and reshards them."""
    numbers = [i for group in state_dict["param_groups"] for i in group["params"]]
    params = [p for group in optimizer.param_groups for p in group["params"]]
    states = dict(state_dict["state"])
    places = [
        (i, p, k) for i, p in zip(numbers, params, strict=True) if p in splits for k in keys if k in states.get(i, ())
    ]
    own = [splits[p].of_state(states[i][key]) for i, p, key in places]
    wholes = [None if states[i][key].is_meta else states[i][key] for i, _, key in places]
    for (i, _, key), split, part in zip(places, own, spread(wholes, own), strict=True):
        states[i] = states[i] | {key: split.to_dtensor(part)}
    return state_dict | {"state": states}


def collect_states(optimizer: Optimizer, keys: tuple[str, ...], splits: Splits) -> None:
    """Invert :func:`shard_states` in a loaded state; plain tensors are taken to be whole in every process."""
    places = [(p, key) for p in splits for key in keys if key in optimizer.state.get(p, ())]
    sharded = [(p, key) for p, key in places if is_sharded(optimizer.state[p][key])]
    own = [splits[p].of_state(optimizer.state[p][key]) for p, key in sharded]
    wholes = collect([local_part(optimizer.state[p][key]) for p, key in sharded], own)
    found = dict(zip(sharded, wholes, strict=True))
    for p, key in places:
        state = optimizer.state[p][key]
        elsewhere = torch.empty(state.shape, dtype=state.dtype, device="meta")
        optimizer.state[p][key] = found.get((p, key), state) if splits[p].is_here else elsewhere
