"""Losses of pytorch-metric-learning by name, as heads of a classifier."""

from __future__ import annotations

import inspect
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._internal import checks
from .._internal.modules import install_command
from .._internal.nearest import explain_keywords, unknown
from .._internal.overflow import finite_gradient, saturating_cast
from ..losses.embedding import finite_result
from ..losses.metric_learning import MetricOptions
from ..losses.result import in_dtype_of

PREFIX = "pml."  # of the names of pytorch-metric-learning's losses in a config
#: losses of pytorch-metric-learning → which of margin and scale they take
METRIC_LOSSES: dict[str, tuple[str, ...]] = {
    "AngularLoss": (),
    "CircleLoss": (),
    "ContrastiveLoss": (),
    "FastAPLoss": (),
    "GeneralizedLiftedStructureLoss": (),
    "IntraPairVarianceLoss": (),
    "LargeMarginSoftmaxLoss": ("margin", "scale"),
    "LiftedStructureLoss": (),
    "MarginLoss": ("margin",),
    "MultiSimilarityLoss": (),
    "NCALoss": (),
    "NPairsLoss": (),
    "NTXentLoss": (),
    "NormalizedSoftmaxLoss": (),
    "ProxyAnchorLoss": ("margin",),
    "ProxyNCALoss": (),
    "SignalToNoiseRatioContrastiveLoss": (),
    "SoftTripleLoss": ("margin",),
    "SubCenterArcFaceLoss": ("margin", "scale"),
    "SupConLoss": (),
    "TripletMarginLoss": ("margin",),
    "TupletMarginLoss": ("margin", "scale"),
}


class MetricLoss(nn.Module):
    """A loss of pytorch-metric-learning by name, as a head of a classifier.

    Losses with class weights (those with `get_logits`) classify by these. For all others, and with `softmax_weight`, a
    linear classifier is trained beside the loss; with softmax_weight=0 on detached embeddings, so that it shows the
    accuracy and does not change the embeddings, nor the loss's value.

    Args:
        name: a key of :data:`METRIC_LOSSES`; its own defaults apply.
        num_classes, embedding_size: C and d.
        margin, scale: for losses that take them, in their units.
        softmax_weight: adds this times the cross-entropy of the linear classifier (Softmax + Contrastive: 1).
        label_smoothing: of that cross-entropy.
        options: reducer, distance, weight_regularizer and others, which are passed on to the loss.

    Example:
        >>> loss = MetricLoss("TripletMarginLoss", 10, 64, margin=0.2)
        >>> loss(torch.randn(32, 64), torch.randint(10, (32,))).backward()
        >>> loss.logits(torch.randn(2, 64)).shape
        torch.Size([2, 10])
    """

    @explain_keywords
    def __init__(
        self,
        name: str,
        num_classes: int,
        embedding_size: int,
        *,
        margin: float | None = None,
        scale: float | None = None,
        softmax_weight: float = 0.0,
        label_smoothing: float = 0.0,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__()
        if name not in METRIC_LOSSES:
            raise ValueError(unknown("loss of pytorch-metric-learning", name, METRIC_LOSSES))
        numbers = {key: value for key, value in (("margin", margin), ("scale", scale)) if value is not None}
        for key in numbers:
            if key not in METRIC_LOSSES[name]:
                raise ValueError(f"{name} takes no {key}")
        classes = checks.integer("num_classes", num_classes, low=2)
        sizes = {"num_classes": classes, "embedding_size": checks.integer("embedding_size", embedding_size, low=1)}
        kind = getattr(_library(), name)
        known = inspect.signature(kind).parameters
        has_classes = hasattr(kind, "get_logits")
        taken = {key: value for key, value in sizes.items() if has_classes or key in known}
        try:
            self.loss = kind(**taken, **numbers, **options)
        except TypeError as error:  # a loss without class weights has no weight_regularizer
            raise TypeError(f"{name}: {error}") from None
        self.softmax_weight = checks.number("softmax_weight", softmax_weight, low=0.0)
        self.label_smoothing = checks.number("label_smoothing", label_smoothing, low=0.0, high=1.0)
        self.linear = nn.Linear(embedding_size, classes) if softmax_weight or not has_classes else None

    def logits(self, embeddings: Tensor) -> Tensor:
        """Return logits (B, C): the loss's own, or those of the linear classifier."""
        x = saturating_cast(embeddings, torch.float32)
        return in_dtype_of(embeddings, finite_result(self, MetricLoss._logits, x))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss; 0 for an empty batch."""
        x = saturating_cast(finite_gradient(embeddings, torch.bfloat16), torch.float32)
        return in_dtype_of(embeddings, finite_result(self, MetricLoss._loss, x, labels))

    def _logits(self, embeddings: Tensor) -> Tensor:
        if self.linear is None:
            logits: Tensor = self.loss.get_logits(embeddings)
        else:
            logits = self.linear(saturating_cast(embeddings, self.linear.weight.dtype))
        return logits

    def _loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.loss(embeddings, labels)
        if self.linear is not None:
            seen = embeddings if self.softmax_weight else embeddings.detach()
            logits = self.linear(saturating_cast(seen, self.linear.weight.dtype)).to(seen.dtype)
            entropy = F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
            if self.softmax_weight:
                loss = loss + self.softmax_weight * entropy
            else:
                loss = loss + entropy - entropy.detach()  # trains the classifier, adds 0 to the value
        return loss


def _library() -> Any:
    try:
        from pytorch_metric_learning import losses  # type: ignore[import-untyped]
    except ImportError:
        raise ValueError(
            f"losses named {PREFIX}... need pytorch-metric-learning: {install_command('metric')}"
        ) from None
    return losses
