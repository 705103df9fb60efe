"""Losses of a head from sums over the classes and the logit of the label.

Shapes: B batch, C classes, d embedding size.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._internal.functions import is_recorded, is_transformed
from .._internal.overflow import finite_gradient, rescale, row_divisors
from .._internal.precision import accumulation_dtype
from ..layers.cosine import unit
from ..layers.similarity import LearnableSigmoid, angle
from .from_logits import longest
from .head_inputs import Head
from .logit_rule import COSINE
from .sampling import sum_over_sample
from .streaming import sum_over_classes


def losses_from_sums(head: Head, embeddings: Tensor, weight: Tensor, classes: Tensor, stream: bool) -> Tensor:
    """Compute the losses (B,) from sums over the classes and the logit of the label."""
    dtype = accumulation_dtype(torch.promote_types(embeddings.dtype, weight.dtype))
    x = finite_gradient(embeddings).to(dtype)
    up = row_divisors(x, longest(head, dtype)) if head.scale is None else None
    if up is not None:  # with `sample` or `sparse`: others take all logits at once
        x = rescale(x, 1 / up, 1.0)
    direction = unit(x)
    s: Any = head.scale if head.scale is not None else (x * direction).sum(1)  # ‖x‖, with gradient 0 at x = 0
    similarity: Any = head.similarity
    smooth = None
    if head.label_smoothing:
        smooth = x.new_ones(head.num_classes) if head.class_weight is None else head.class_weight.to(dtype)
    bias = head._biases()
    bias = None if bias is None else bias.to(dtype)
    weight = weight if head.sparse else finite_gradient(weight)
    rule = head._make_rule(direction, weight, classes)
    is_product = rule.similarity is None
    beside = x.new_full((len(x),), -math.inf)
    sum_all: Any = sum_over_classes
    if head.sampler is not None and head.training:
        if is_recorded() or is_transformed():
            raise RuntimeError("sample= needs eager mode: compile the network without its head")
        sum_all = partial(sum_over_sample, head.sampler, torch.is_grad_enabled())
    sum_all = sum_all if head.shards is None else partial(head.shards.sum_over_classes, sum_all)
    sums = sum_all(
        x if is_product and head.scale is None else direction,
        weight,
        classes,
        rule,
        s=s.unsqueeze(1) if head.scale is None and not is_product else None,
        bias=bias,
        k=similarity.k if isinstance(similarity, LearnableSigmoid) else None,
        class_weight=smooth,
        beside=beside,
        stream=stream,
        sparse=head.sparse and weight.is_leaf and (smooth is None or head._is_sampled),
    )
    cosine = sums.at_target / (s + (s == 0)) if is_product and head.scale is None else sums.at_target
    value = cosine if similarity == COSINE else similarity.at_angle(angle(cosine), classes)
    if head.has_margin:
        value = value + head._difference(cosine, classes, embeddings).to(dtype)
    target_logit = s * value if bias is None else s * value + bias[classes]
    beside.copy_(target_logit.detach())
    return head._combine(target_logit, sums, classes, smooth)
