"""Bound the gradient of a regularization term relative to the length of each neuron.

The force between close neurons grows as 1/(distance³·‖w‖). Without a bound, the first steps of SGD made the weights of
two classes that started close together 10¹² times as long, and the network diverged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._internal.functions import apply, save
from .._internal.overflow import StatelessFunction, can_read_for_free

MAX_GRADIENT_RATIO = 1.0
"""c in λ·‖gradient‖ ≤ c·‖w‖: at learning rate 0.1 one gradient moves a neuron by at most a tenth of its length;
with momentum 0.9 by at most its length in all."""


def bound_gradient(measure: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Return measure(rows); clip the gradient of each row w to a length of MAX_GRADIENT_RATIO·‖w‖.

    The value and the gradient's direction do not change. Second derivatives treat the clipping factor as constant.
    Factors that are applied to the result later (a GradScaler, 1/number of accumulated batches) scale the bound too.

    Args:
        measure: a weighted term of the loss, of the rows.
        rows: (..., d), at least float32.
    """
    if not (torch.is_grad_enabled() and rows.requires_grad):
        return measure(rows)
    inner, scale = apply(_ClipGradient, rows)
    value: Tensor = apply(_SendScale, measure(inner), scale)
    return value


class _ClipGradient(Function):
    """Return the rows, and a zero whose gradient is the scale that :class:`_SendScale` sends."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows.view_as(rows), rows.new_zeros(())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        save(ctx, *inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, scale: Tensor | None) -> Tensor | None:
        if grad is None or scale is None:  # only the gradient is differentiated, not the value
            return grad
        (rows,) = ctx.saved_tensors
        limit = MAX_GRADIENT_RATIO * scale * torch.linalg.vector_norm(rows.detach(), dim=-1, keepdim=True)
        length = torch.linalg.vector_norm(grad.detach(), dim=-1, keepdim=True)
        if can_read_for_free(grad) and not (length > limit).any():  # usually nothing is clipped: no copy
            return grad
        return grad * _clip_factor(grad.detach(), length, limit)

    @staticmethod
    def tangents(ctx: Any, d_rows: Tensor) -> tuple[Tensor, Tensor]:
        return d_rows.view_as(d_rows), d_rows.new_zeros(())


class _SendScale(StatelessFunction):
    """Return the value; send Σ|gradient| to `scale`."""

    @staticmethod
    def forward(value: Tensor, scale: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad.detach().abs().sum()

    @staticmethod
    def tangents(ctx: Any, d_value: Tensor | None, _: Any) -> Tensor | None:
        return None if d_value is None else d_value.view_as(d_value)


def _clip_factor(grad: Tensor, length: Tensor, limit: Tensor) -> Tensor:
    """Return the factor (..., 1) that clips rows of `grad`, of this length, to the limit; at most 1."""
    largest = torch.linalg.vector_norm(grad, torch.inf, dim=-1, keepdim=True)
    length = torch.where(length.isinf(), largest * grad.shape[-1] ** 0.5, length)  # the squares may overflow
    return torch.where(length > limit, limit / length, 1.0)
