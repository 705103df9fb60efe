"""SGD that touches only the rows with a gradient, for classifiers with very many classes.

Letters: w a row of a parameter (C, ...), g its gradient, v its momentum, n the steps since its last gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from .._internal import checks
from .._internal.nearest import explain_keywords
from ._shared import evaluate

_PIECE = 2**17  # numbers of rows that are updated at once


class RowSGD(Optimizer):
    """SGD with momentum whose step costs as much as the rows that have a gradient, not as the parameter.

        w ← (1 − lr·λ)ⁿ⁻¹·w,   v ← μⁿ·v + g + λ·w,   w ← w − lr·v

    for the rows of a sparse gradient (``sparse=True`` of a head or of nn.Embedding), with n the number of steps since a
    row's last gradient. Other rows do not move: neither momentum nor weight decay reads or writes them. With
    a gradient in every row it is torch.optim.SGD; so it is for parameters with dense gradients. If a row has none for
    some steps, then at its next gradient

    - v is torch.optim.SGD's, which goes on decaying momentum (without weight decay);
    - w is torch.optim.SGD's if momentum is 0, weight decay included, as long as lr is constant in between.

    The one difference is that torch.optim.SGD also moves w by its old momentum in these steps.

    Args:
        params: parameters or groups.
        lr: the learning rate.
        momentum: μ in [0, 1).
        weight_decay: λ; heads do not need it, see :func:`hypersphere.param_groups`.

    Example:
        >>> from torch import nn
        >>> head = nn.Embedding(1000, 8, sparse=True)
        >>> optimizer = RowSGD(head.parameters(), lr=0.1, momentum=0.9)
        >>> before = head.weight.detach().clone()
        >>> head(torch.tensor([3, 5])).sum().backward()
        >>> optimizer.step()
        >>> (head.weight != before).any(1).nonzero().flatten()
        tensor([3, 5])
    """

    @explain_keywords
    def __init__(self, params: ParamsT, lr: float, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            checks.number(name, value, low=0.0)
        if checks.number("momentum", momentum, low=0.0) >= 1.0:
            raise ValueError(f"momentum must be >= 0 and < 1, got {momentum!r}")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step; `closure` evaluates the model again and returns the loss."""
        loss = evaluate(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group)
        return loss

    def _step(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state, momentum = self.state[parameter], group["momentum"]
        state["steps"] = count = state.get("steps", 0) + 1
        index, pauses = None, None  # n, (rows, 1, ...)
        if grad.is_sparse:
            index, grad = _rows(grad)
        if index is not None and (momentum or group["weight_decay"]):
            if "step" not in state:  # of each row; torch keeps the dtype of this name alone when it loads a state
                state["step"] = torch.full((len(parameter),), count - 1, device=parameter.device)
            pauses = (count - state["step"][index]).view(-1, *[1] * (parameter.dim() - 1)).double()
            state["step"][index] = count
        elif "step" in state:
            raise ValueError("a parameter of RowSGD must have sparse gradients in all steps or in none")
        if momentum and "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer = state["momentum_buffer"] if momentum else None
        if index is None:
            w, v = _update(parameter, grad, buffer, None, **group)
            parameter.copy_(w)
            if buffer is not None:
                buffer.copy_(v)
            return
        for piece in _pieces(parameter, len(index)):
            rows = index[piece]
            before = None if buffer is None else buffer.index_select(0, rows)
            pause = None if pauses is None else pauses[piece]
            w, v = _update(parameter.index_select(0, rows), grad[piece], before, pause, **group)
            parameter.index_copy_(0, rows, w)
            if buffer is not None:
                buffer.index_copy_(0, rows, v)


def _update(
    w: Tensor,
    g: Tensor,
    v: Tensor | None,
    pause: Tensor | None,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """Return w and v after a step; pause: n, None for 1; v: None without momentum."""
    if weight_decay:
        w = w if pause is None else w * ((1 - lr * weight_decay) ** (pause - 1)).to(w.dtype)
        g = g.add(w, alpha=weight_decay)
    v = g if v is None else g + v * (momentum if pause is None else (momentum**pause).to(v.dtype))
    return w.sub(v, alpha=lr), v


def _pieces(parameter: Tensor, count: int) -> list[slice]:
    """Return slices of `count` rows: on the CPU of as many as fit in the cache."""
    size = count if parameter.device.type != "cpu" else max(_PIECE // max(math.prod(parameter.shape[1:]), 1), 1)
    return [slice(start, min(start + size, count)) for start in range(0, count, max(size, 1))]


def _rows(grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of a sparse gradient and their values; without the copy of coalesce() if none is there twice."""
    if grad.sparse_dim() != 1:
        raise ValueError(f"RowSGD needs sparse gradients of rows, got one with {grad.sparse_dim()} sparse dimensions")
    if not bool((grad._indices()[0].diff() > 0).all()):
        grad = grad.coalesce()
    return grad._indices()[0], grad._values()
