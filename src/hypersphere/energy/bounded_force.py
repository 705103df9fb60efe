"""Bound the gradient of a regularization term relative to the length of each neuron.

The force between close neurons goes as 1/(distance³·‖w‖). Without a bound, two classes that start close together with
short weights were thrown to 10¹² times their length by the first steps of SGD, and the network diverged with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._internal.overflow import can_read_for_free
from ..cosine import apply

LARGEST_PULL = 1.0
"""c in λ·‖gradient‖ ≤ c·‖w‖: at learning rate 0.1 one gradient moves a neuron by a tenth of its length at most, and by
its whole length together with all that momentum 0.9 makes of it."""


def bounded(measure: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Return measure(rows), with its gradient by each row w shortened to LARGEST_PULL·‖w‖ where it is longer.

    The value and the gradient's direction do not change, nor does a gradient below the bound and its derivatives;
    above the bound second derivatives take the factor as constant. What multiplies the result later (a GradScaler, the
    number of accumulated batches) multiplies the bound as well; a mean over several results has the bound of one.

    Args:
        measure: a weighted term of the loss, of the rows.
        rows: (..., d) in float32 at least.
    """
    if not (torch.is_grad_enabled() and rows.requires_grad):
        return measure(rows)
    inner, scale = apply(_Entry, rows)
    value: Tensor = apply(_Exit, measure(inner), scale)
    return value


class _Entry(Function):
    """The rows, and a zero whose gradient is the scale that :class:`_Exit` sends past the measure."""

    @staticmethod
    def forward(rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows.view_as(rows), rows.new_zeros(())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, scale: Tensor | None) -> Tensor | None:
        if grad is None or scale is None:  # no gradient of the value, but one of its gradient
            return grad
        (rows,) = ctx.saved_tensors
        limit = LARGEST_PULL * scale * torch.linalg.vector_norm(rows.detach(), dim=-1, keepdim=True)
        length = torch.linalg.vector_norm(grad.detach(), dim=-1, keepdim=True)
        if (
            can_read_for_free(grad) and not (length > limit).any()
        ):  # the ordinary case needs no second tensor of this size
            return grad
        return grad * _shortening(grad.detach(), length, limit)


class _Exit(Function):
    """The value; Σ|gradient| of its elements goes to `scale`."""

    @staticmethod
    def forward(value: Tensor, scale: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad.detach().abs().sum()


def _shortening(grad: Tensor, length: Tensor, limit: Tensor) -> Tensor:
    """The factor (..., 1) that brings the rows of `grad`, of this length, within the limit; 1 where they are."""
    largest = torch.linalg.vector_norm(grad, torch.inf, dim=-1, keepdim=True)
    length = torch.where(length.isinf(), largest * grad.shape[-1] ** 0.5, length)  # the squares may overflow
    return torch.where(length > limit, limit / length, 1.0)
