"""What our heads take of pytorch-metric-learning: its reducers, distances and regularizers."""

from __future__ import annotations

from typing import Any, TypedDict

from torch import nn

from .._internal import checks
from .._internal.modules import install_command


class MetricOptions(TypedDict, total=False):
    """Keyword arguments of every head, under the names of pytorch-metric-learning and with its meaning."""

    reducer: Any
    """Reduces the losses of the samples that are not ignored, instead of `reduction`."""
    distance: Any
    """Only checked: CosineSimilarity(), or DotProductSimilarity that normalizes embeddings if the head has a scale."""
    weight_regularizer: Any
    """Adds weight_reg_weight (1) times its value at `weight` (C, d) to the reduced loss."""
    weight_reg_weight: float
    embedding_regularizer: Any
    """Adds embedding_reg_weight (1) times its value at the embeddings (B, d) to the reduced loss."""
    embedding_reg_weight: float


def make_reduction(
    reduction: str,
    scale: float | None,
    *,
    reducer: Any = None,
    distance: Any = None,
    weight_regularizer: Any = None,
    weight_reg_weight: float = 1.0,
    embedding_regularizer: Any = None,
    embedding_reg_weight: float = 1.0,
) -> nn.Module | None:
    """Return a module that reduces losses and adds regularizers, or None if no such object is given."""
    for name, value in (
        ("reducer", reducer),
        ("weight_regularizer", weight_regularizer),
        ("embedding_regularizer", embedding_regularizer),
    ):
        if value is not None and not callable(value):
            raise TypeError(f"{name} must be None or one of pytorch-metric-learning's, got {value!r}")
    regularizes = weight_regularizer is not None or embedding_regularizer is not None
    if reducer is not None and reduction != "mean":
        raise ValueError(f"reducer takes the place of reduction: leave out reduction={reduction!r}")
    if regularizes and reducer is None and reduction == "none":
        raise ValueError("reduction='none' has no sum that a regularizer could be added to: give a reducer")
    weights = {
        "weight_reg_weight": checks.number("weight_reg_weight", weight_reg_weight),
        "embedding_reg_weight": checks.number("embedding_reg_weight", embedding_reg_weight),
    }
    if reducer is None and distance is None and not regularizes:
        return None
    try:
        from ._reduction import Reduction, check_distance
    except ImportError as error:
        raise ImportError(
            f"reducer, distance and regularizers need pytorch-metric-learning: {install_command('metric')} ({error})"
        ) from error
    if distance is not None:
        check_distance(distance, scale)
    if reducer is None and not regularizes:
        return None
    module: nn.Module = Reduction(
        reducer, weight_regularizer=weight_regularizer, embedding_regularizer=embedding_regularizer, **weights
    )
    return module
