"""Sub-centers: several weight vectors for each class, of which the nearest to a sample counts (sub-center ArcFace).

Shapes: B samples, C classes, K sub-centers, d embedding size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..layers.cosine import unit


def nearest_subcenters(directions: Tensor, weight: Tensor, classes: Tensor, centers: int) -> tuple[Tensor, Tensor]:
    """Return the cosines (B,) of unit rows (B, d) with the nearest sub-center of their class, and its index (B,).

    Args:
        weight: (C·K, d).
        classes: (B,) in [0, C).
        centers: K.
    """
    first = classes * centers
    rows = first.unsqueeze(1) + torch.arange(centers, device=first.device)
    cosines = torch.einsum("bd,bkd->bk", directions, unit(weight[rows].to(directions.dtype)))
    largest, index = cosines.max(1)
    return largest.clamp(-1, 1), first + index


def find_outliers(directions: Tensor, weight: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """Return the indices, class by class, of unit rows (B, d) more than an angle away from their dominant sub-center.

    Args:
        weight: (C, d) or (C, K, d).
        labels: (B,); those outside of [0, C) take part in no class.
        threshold: the angle in radians.
    """
    weight = weight.unsqueeze(1) if weight.dim() == 2 else weight
    outliers = [labels.new_zeros(0)]
    for label in labels.unique().tolist():
        if 0 <= label < len(weight):
            samples = (labels == label).nonzero().squeeze(1)
            cosines = directions[samples] @ unit(weight[label].to(directions.dtype)).mT
            dominant = torch.bincount(cosines.argmax(1)).argmax()
            outliers.append(samples[cosines[:, dominant] < math.cos(threshold)])
    return torch.cat(outliers)
