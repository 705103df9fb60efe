"""Muon for matrices and AdamW for everything else in one optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz
from torch.optim.optimizer import ParamsT

from .._internal import checks
from .._internal.nearest import explain_keywords
from .._internal.owners import parts_of, whole
from .._internal.sharding import local_part, with_local_part
from ..neurons import from_neuron_rows, neuron_rows
from ._shared import (
    MarkedOptimizer,
    ParamGroup,
    adam_step,
    check_matrix,
    check_rates,
    layout_of,
    matrix_shape,
    place_of,
    refuse_sparse,
)

_CONSTANTS: Any = ((3.4445, -4.7750, 2.0315), 5, 1e-7)  # coefficients, iterations and ε of torch.optim.Muon


class MuonAdamW(MarkedOptimizer):
    """Step groups with ``muon=True`` exactly as torch.optim.Muon, all other groups exactly as torch.optim.AdamW.

    torch.optim.Muon takes parameters of two dimensions only. Here dimensions behind the first are flattened, as in
    convolutions, and the fused queries, keys and values of :func:`hypersphere.param_groups` are orthogonalized apart.

    ``hs.Hyperball(MuonAdamW(hs.param_groups(model, muon=True), lr=0.02))`` is MuonH: the matrices keep their norms, and
    `lr` is the angle of their step.

    Args:
        params: groups, best those of :func:`hypersphere.param_groups` with ``muon=True``. A group may have ``layout``,
            as in :class:`hypersphere.Pion`, and every other option here as its own.
        lr: the learning rate. AdamW mostly needs a smaller one: give its groups their own.
        momentum: of Muon.
        weight_decay: decoupled, w ← (1 − lr·λ)w, in all groups that have no other.
        betas: of AdamW.
        nesterov: of Muon.
        adjust_lr_fn: None or "original": Muon's lr times √max(1, m/n); "match_rms_adamw": times 0.2·√max(m, n), for
            which AdamW's learning rate fits; for a matrix of m neurons with n numbers.

    Example:
        >>> import hypersphere as hs
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        >>> groups = hs.param_groups(net, muon=True)
        >>> for group in groups:
        ...     group["lr"] = 0.02 if group["name"] == "matrices" else 0.003
        >>> optimizer = hs.optim.MuonAdamW(groups, lr=0.02)
        >>> [(group["name"], group["muon"]) for group in optimizer.param_groups]
        [('weights', False), ('no_decay', False), ('matrices', True)]
    """

    mark = "muon"

    @explain_keywords
    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.95),
        nesterov: bool = True,
        adjust_lr_fn: str | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "betas": betas,
            "nesterov": nesterov,
            "adjust_lr_fn": adjust_lr_fn,
            "muon": False,
            "layout": None,
        }
        _check_options(defaults)
        super().__init__(params, defaults)
        self._warn_if_unmarked()

    def _check(self, group: ParamGroup, number: int) -> None:
        _check_options(group)
        for i, parameter in enumerate(group["params"] if group["muon"] else ()):
            check_matrix(parameter, group, "a group with muon=True", place_of(i, parameter, group, number))

    def _step(self) -> None:
        for number, group in enumerate(self.param_groups):
            refuse_sparse(self, number)
            if not group["muon"]:
                adam_step(self.state, group, decoupled_weight_decay=True)
        self._step_matrices()

    def _step_matrices(self) -> None:
        """Step matrices; those that are sharded are orthogonalized by one process each."""
        stepped, splits = self._marked(), self._splits()
        params = [p for p, _ in stepped]
        updates = whole(params, (self._update(p, group) for p, group in stepped), splits)
        for i, (p, group) in enumerate(stepped):
            update, layout = updates[i], layout_of(group)
            if update is not None:
                rows = torch.stack([_zeropower_via_newtonschulz(x, *_CONSTANTS) for x in neuron_rows(update, layout)])
                updates[i] = from_neuron_rows(rows.to(p.dtype), p.shape, layout)
        for (p, group), part in zip(stepped, parts_of(params, updates, splits), strict=True):
            shape, lr = torch.Size(matrix_shape(p, group)[1:]), group["lr"]
            local_part(p).mul_(1 - lr * group["weight_decay"])
            local_part(p).add_(part, alpha=-_adjust_lr(lr, group["adjust_lr_fn"], shape))

    def _update(self, parameter: Tensor, group: ParamGroup) -> Tensor:
        """Return the step before it is orthogonalized, and update the momentum in place."""
        state, grad = self.state[parameter], local_part(parameter.grad)  # type: ignore[arg-type]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        buffer = local_part(state["momentum_buffer"]).lerp_(grad, 1 - group["momentum"])
        return with_local_part(parameter, grad.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer)


def _check_options(options: ParamGroup) -> None:
    check_rates(options)
    for name in ("nesterov", "muon"):
        checks.flag(name, options[name])
    if options["adjust_lr_fn"] is not None:
        checks.choice("adjust_lr_fn", options["adjust_lr_fn"], ("original", "match_rms_adamw"))
