"""Center loss, and what keeps the value of such a loss finite."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from .._internal import checks
from .._internal.nearest import explain_keywords
from .._internal.overflow import clamp_abs, finite_gradient, has_overflow, rescale, saturating_cast
from .._internal.precision import accumulation_dtype, without_autocast
from .result import in_dtype_of


class CenterLoss(nn.Module):
    """Softmax with center loss: cross-entropy of W x + b, plus λ/2·‖x − c_y‖², mean over the batch.

    The centres c (C, d) are parameters, learned by their gradient λ·(c_y − x); they start at 0.

    Args:
        num_classes, embedding_size: C and d.
        center_weight: λ.
        bias: of the linear classifier.
        label_smoothing: as in F.cross_entropy.

    Example:
        >>> loss = CenterLoss(10, 64)
        >>> loss(torch.randn(32, 64), torch.randint(10, (32,))).backward()
        >>> loss.logits(torch.randn(2, 64)).shape, loss.centers.grad.shape
        (torch.Size([2, 10]), torch.Size([10, 64]))
    """

    @explain_keywords
    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        center_weight: float = 0.003,
        *,
        bias: bool = True,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        classes = checks.integer("num_classes", num_classes, low=2)
        self.linear = nn.Linear(checks.integer("embedding_size", embedding_size, low=1), classes, bias)
        self.centers = nn.Parameter(torch.zeros_like(self.linear.weight))
        self.center_weight = checks.number("center_weight", center_weight, low=0.0)
        self.label_smoothing = checks.number("label_smoothing", label_smoothing, low=0.0, high=1.0)

    @property
    def weight(self) -> Tensor:
        return self.linear.weight

    @property
    def bias(self) -> Tensor | None:
        return self.linear.bias

    def logits(self, embeddings: Tensor) -> Tensor:
        """Return W x + b, (B, C)."""
        return in_dtype_of(embeddings, finite_result(self, CenterLoss._logits, embeddings))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss; 0 for an empty batch."""
        return in_dtype_of(embeddings, finite_result(self, CenterLoss._loss, embeddings, labels))

    def _loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        logits = self._logits(embeddings).to(accumulation_dtype(self.centers.dtype))
        loss = F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        centers = finite_gradient(self.centers, torch.bfloat16)[labels]
        distances = (finite_gradient(embeddings, torch.bfloat16).to(logits.dtype) - centers).square().sum(1)
        return loss + self.center_weight / 2 * distances.mean()

    def _logits(self, embeddings: Tensor) -> Tensor:
        logits: Tensor = self.linear(saturating_cast(embeddings, self.weight.dtype))
        return logits


class _Method(nn.Module):
    """Call a method of a head in functional_call."""

    def __init__(self, head: nn.Module, method: Callable[..., Tensor]) -> None:
        super().__init__()
        self.head, self.method = head, method

    def forward(self, *arguments: Tensor) -> Tensor:
        return self.method(self.head, *arguments)


def finite_result(head: nn.Module, method: Callable[..., Tensor], embeddings: Tensor, *labels: Tensor) -> Tensor:
    """Call a method of a head; again in float64 if it overflows for finite inputs and the values can be read."""
    own = dict(head.named_parameters())
    if labels and not len(embeddings):  # no mean: 0, with gradients
        empty = [tensor.flatten()[:0].sum().to(embeddings.dtype) for tensor in (embeddings, *own.values())]
        return torch.stack(empty).sum()
    result = method(head, embeddings, *labels)
    if not has_overflow(result) or not all(bool(torch.isfinite(x).all()) for x in (embeddings, *own.values())):
        return result
    with without_autocast(embeddings):
        wide = {f"head.{name}": _widen(parameter) for name, parameter in own.items()}
        exact: Tensor = functional_call(_Method(head, method), wide, (_widen(embeddings), *labels))
        return rescale(exact, 1.0, 1.0, torch.finfo(result.dtype).max).to(result.dtype)


def _widen(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, so small that its squares are finite; its gradient is finite in its own dtype."""
    return clamp_abs(rescale(tensor, 1.0, 1.0).double(), 1e140)
