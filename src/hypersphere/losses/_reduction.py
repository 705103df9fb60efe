"""The reduction of losses by pytorch-metric-learning's own rules: imported when a head is given one of its objects."""

from __future__ import annotations

from typing import Any

from pytorch_metric_learning import distances  # type: ignore[import-untyped]
from pytorch_metric_learning.losses import BaseMetricLossFunction  # type: ignore[import-untyped]
from pytorch_metric_learning.losses.mixins import WeightRegularizerMixin  # type: ignore[import-untyped]
from torch import Tensor


class Reduction(WeightRegularizerMixin, BaseMetricLossFunction):  # type: ignore[misc]
    """Reduce the losses of samples and add the regularizers.

    Args:
        reducer: None if losses arrive reduced already.
        options: weight_regularizer, embedding_regularizer and their weights, as its losses take them.
    """

    def __init__(self, reducer: Any, **options: Any) -> None:
        super().__init__(reducer=reducer, **options)
        self.by_sample = reducer is not None

    def forward(self, losses: Tensor, counted: Tensor, weight: Tensor, embeddings: Tensor, labels: Tensor) -> Any:
        """Reduce the losses (B,) of the samples `counted` (B,), or add to a loss that is reduced already."""
        entry = {"losses": losses, "indices": None, "reduction_type": "already_reduced"}
        if self.by_sample:
            indices = counted.nonzero().squeeze(1)
            entry = {"losses": losses[indices], "indices": indices, "reduction_type": "element"}
            if not len(indices):  # a reducer's mean of nothing is NaN
                entry = self.zero_loss()
        terms = {"loss": entry}
        self.add_weight_regularization_to_loss_dict(terms, weight)
        self.add_embedding_regularization_to_loss_dict(terms, embeddings)
        return self.reducer(terms, embeddings, labels)


def check_distance(distance: Any, scale: float | None) -> None:
    """Require the distance that the head computes: the cosine, or with the norm of embeddings the inner product."""
    kinds = {distances.CosineSimilarity: True, distances.DotProductSimilarity: scale is not None}
    normalizes = kinds.get(type(distance))
    if normalizes is None or (distance.p, distance.power, distance.normalize_embeddings) != (2, 1, normalizes):
        settings = {name: getattr(distance, name, None) for name in ("p", "power", "normalize_embeddings")}
        raise ValueError(
            "heads compare by angle: distance must be CosineSimilarity() or, with this head's scale, "
            f"DotProductSimilarity(normalize_embeddings={scale is not None}), "
            f"got {type(distance).__name__} with {settings}"
        )
