"""The cross-entropy of all logits, with one tensor of batch × classes in the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._internal.functions import chain, save


class CrossEntropy(Function):
    """−log softmax (B,) at the targets (B, 1); the backward pass allocates one (B, C) tensor, torch's two."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(logits, 1)
        return -log_p.gather(1, target).squeeze(1), log_p

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        save(ctx, inputs[1], output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_log_p: Tensor | None) -> tuple[Tensor, None]:
        target, log_p = ctx.saved_tensors
        grad = log_p.new_zeros(len(log_p)) if grad is None else grad
        down = -torch.ones_like(target, dtype=log_p.dtype)
        result = chain(log_p.exp(), ("scatter_add", 1, target, down), ("mul", grad.unsqueeze(1)))
        if grad_log_p is not None:
            result = result + grad_log_p - log_p.exp() * grad_log_p.sum(1, keepdim=True)
        return result, None

    @staticmethod
    def tangents(ctx: Any, d_logits: Tensor, _: Any) -> tuple[Tensor, Tensor]:
        target, log_p = ctx.saved_tensors
        d_log_p = d_logits - (log_p.exp() * d_logits).sum(1, keepdim=True)
        return -d_log_p.gather(1, target).squeeze(1), d_log_p
