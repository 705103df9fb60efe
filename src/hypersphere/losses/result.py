"""Reduce the losses of samples, and return them in the embeddings' dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from .._internal.overflow import rescale
from .._internal.precision import autocast_enabled


def in_dtype_of(embeddings: Tensor, result: Tensor) -> Tensor:
    """Return a loss or logits in the embeddings' dtype, its largest number instead of inf; under autocast as they are.

    Gradients pass beyond that number too.
    """
    if result.dtype is embeddings.dtype or autocast_enabled(embeddings):
        return result
    limit = torch.finfo(embeddings.dtype).max
    result = rescale(result, 1.0, 1.0, limit) if limit < torch.finfo(result.dtype).max else result
    return result.to(embeddings.dtype)


def reduce_losses(
    losses: Tensor,
    labels: Tensor,
    kept: Tensor | None,
    sample_weight: Tensor | None,
    class_weight: Tensor | None,
    reduction: str,
) -> Tensor:
    """Reduce the losses (B,) of samples as `reduction` says; kept (B,): which samples are not ignored."""
    if sample_weight is not None:
        losses = losses * sample_weight.to(losses.dtype)
    if reduction == "none":
        return losses
    total = losses.sum()
    if reduction == "sum":
        return total
    weights = torch.ones_like(losses) if kept is None else kept.to(losses.dtype)
    if class_weight is not None:
        weights = weights * class_weight.to(losses.dtype)[labels]
    if sample_weight is not None:
        weights = weights * sample_weight.to(losses.dtype)
    share = weights.sum()
    return total / torch.where(share > 0, share, 1.0)  # 0 if all samples are ignored
