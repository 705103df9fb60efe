"""Losses of a head from all logits (B, C) at once.

Shapes: B batch, C classes, K sub-centers, d embedding size.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._internal.functions import apply, is_recorded, is_transformed
from .._internal.overflow import finite_gradient, max_root, rescale, row_divisors
from .._internal.precision import accumulation_dtype
from ..layers.cosine import cosine_linear, project, unit_unchecked
from .cross_entropy import CrossEntropy
from .head_inputs import Head
from .logit_rule import COSINE

_MANY = 2**18  # logits: above this, memory counts more than the time of a Python backward pass


def longest(head: Head, dtype: torch.dtype) -> float:
    """Return the largest number of an embedding whose logits stay within the dtype's range."""
    return min(2.0**16, max_root(dtype, 1) / (4 * head.embedding_size**0.5))


def scale_into_range(head: Head, embeddings: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return embeddings and weight in one dtype, and the powers of two `up` (B, 1) that very long embeddings were
    divided by.

    Logits are divided by them too. Their gradients arrive multiplied by up/max(up), which is finite; the rest of
    the factor is applied here.
    """
    dtype = torch.promote_types(embeddings.dtype, weight.dtype)
    up = row_divisors(embeddings, longest(head, dtype))
    if up is None:
        return finite_gradient(embeddings).to(dtype), finite_gradient(weight).to(dtype), None
    if head.scale is not None:  # the length of embeddings does not matter
        return rescale(embeddings, 1 / up, 1 / up, math.inf).to(dtype), finite_gradient(weight).to(dtype), None
    most = up.amax()
    return rescale(embeddings, 1 / up, most / up, math.inf).to(dtype), rescale(weight.to(dtype), 1.0, most), up


def logits_without_margin(head: Head, embeddings: Tensor, weight: Tensor) -> Tensor:
    """Compute s·g(θ) + b for all classes (B, C)."""
    x, neurons, up = scale_into_range(head, embeddings, weight)
    logits = compute_logits(head, x, neurons, up)[0]
    return logits if up is None else rescale(logits, up, up / up.amax())


def losses_from_logits(
    head: Head, embeddings: Tensor, weight: Tensor, labels: Tensor, classes: Tensor, kept: Tensor | None, reduction: str
) -> Tensor:
    """Compute the losses (B,) from all logits (B, C); reduced, if they come from F.cross_entropy."""
    target = classes.unsqueeze(1)
    x, neurons, up = scale_into_range(head, embeddings, weight)
    logits, target_cosine, s = compute_logits(head, x, neurons, up, target)
    logits = logits.to(accumulation_dtype(logits.dtype))
    if head.has_margin:
        # Only the B target logits change: add the difference to them.
        difference = head._difference(target_cosine.squeeze(1), classes, embeddings)
        add = logits.scatter_add if is_transformed() else logits.scatter_add_
        logits = add(1, target, (s * difference.unsqueeze(1)).to(logits.dtype))
    if up is not None:  # logits within these bounds have a finite loss
        logits = rescale(logits, up, up / up.amax(), max_root(logits.dtype, 1) / (16 * max(logits.numel(), 1)))
    weighted = head.class_weight is not None or head.label_smoothing
    if not weighted and not is_recorded() and logits.numel() > _MANY:  # a compiler fuses anyway
        losses: Tensor = apply(CrossEntropy, logits, target)[0]
        return losses if kept is None else losses * kept
    weights = None if head.class_weight is None else head.class_weight.to(logits.dtype)
    return F.cross_entropy(logits, labels, weights, None, head.ignore_index, None, reduction, head.label_smoothing)


def compute_logits(
    head: Head, embeddings: Tensor, weight: Tensor, up: Tensor | None, target: Tensor | None = None
) -> tuple[Tensor, Any, Any]:
    """Return logits without margin (B, C), the target's cosine (B, 1), and s as a number or (B, 1)."""
    x, exact = embeddings, embeddings.to(accumulation_dtype(embeddings.dtype))
    s: Any = head.scale
    if head.scale is None:
        s = (exact * unit_unchecked(exact)).sum(1, keepdim=True)  # ‖x‖, with gradient 0 at x = 0
    target_cosine = None
    if head.similarity == COSINE:
        # s·cos is one product, without a (B, C) tensor of cosines
        rows = x if head.scale is None else unit_unchecked(x)
        if head.subcenters == 1:
            logits, own = project(rows, weight, target, head.scale or 1.0)
        else:
            products = nearest_of(head, project(rows, weight)[0])
            logits = products * (head.scale or 1.0)
            own = products[:, :0] if target is None else products.gather(1, target)
        target_cosine = own / (s + (s == 0)) if head.scale is None else own
    else:
        cosines = finite_gradient(nearest_of(head, cosine_linear(x, weight)))
        target_cosine = None if target is None else cosines.gather(1, target).to(exact.dtype)
        logits = (head.similarity(cosines) * s).to(cosines.dtype)
    bias = head._biases()
    if bias is not None:
        bias = bias if up is None else rescale(bias, 1.0, up.amax()) / up
        logits = logits + bias.to(logits.dtype)
    return logits, target_cosine, s


def nearest_of(head: Head, products: Tensor) -> Tensor:
    """Return the largest of the products with the sub-centers (B, C·K) of each class, (B, C)."""
    if head.subcenters == 1:
        return products
    return products.unflatten(1, (products.shape[1] // head.subcenters, head.subcenters)).max(2)[0]
