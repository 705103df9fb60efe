"""The logits of classes as a function of products with their weights, and the sums that a loss takes of them.

Shapes: B batch, n classes, K sub-centers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..layers.cosine import clamp_cosine
from ..layers.similarity import LearnableSigmoid, Similarity, sigmoid

BLOCK = 4096  # classes: 4 MB of float32 logits for 256 samples
COSINE = Similarity("cosine")


@dataclass(frozen=True)
class LogitRule:
    """How the products a (B, n) of samples with unit class weights become logits, and what is summed.

    Attributes:
        scale: s, if it is the same for all samples.
        similarity: g(cosines (B, n), k), with k (n,), 0-d or None; None: the identity.
        block: the number of classes at a time.
        softplus: sum softplus(L_j); otherwise the sum is log Σ exp L_j.
        centers: K, the number of consecutive rows of the weight that belong to one class.
    """

    scale: float = 1.0
    similarity: Callable[[Tensor, Tensor | None], Tensor] | None = None
    block: int = BLOCK
    softplus: bool = False
    centers: int = 1

    def __call__(
        self, products: Tensor, s: Tensor | None = None, bias: Tensor | None = None, k: Tensor | None = None
    ) -> Tensor:
        """Return the logits (B, n); s (B, 1) replaces `scale`. The products of the identity are scaled already."""
        logits = products
        if self.similarity is not None:
            logits = (self.similarity(clamp_cosine(products), k) * (self.scale if s is None else s)).to(products.dtype)
        return logits if bias is None else logits + bias

    @property
    def product_scale(self) -> float:
        """The factor of the products: the scale, if the logits are the products."""
        return self.scale if self.similarity is None else 1.0

    def pull_back(self, inputs: list[Tensor | None], gradient: Callable[[Tensor], Tensor]) -> list[Tensor | None]:
        """Return the gradients of the inputs (products, s, bias, k), given that of the logits as a function of them."""
        products, _, bias, _ = inputs
        assert products is not None
        if self.similarity is None:
            grad = gradient(self(products, bias=bias))
            return [grad, None, None if bias is None else grad.sum(0), None]
        with torch.enable_grad():
            leaves = [None if t is None else t.detach().requires_grad_() for t in inputs]
            logits = self(*leaves)  # type: ignore[arg-type]
        used = [leaf for leaf in leaves if leaf is not None]
        grads = iter(torch.autograd.grad(logits, used, gradient(logits.detach()), allow_unused=True))
        return [None if leaf is None else next(grads) for leaf in leaves]


def can_stream(similarity: Any) -> bool:
    """Return whether the similarity is one of this package: those of users may need all classes at once."""
    return isinstance(similarity, Similarity | LearnableSigmoid)


def check_stream(stream: Any, similarity: Any) -> bool | int | str:
    """Return `stream` of a head; raise if it is none of those allowed."""
    if stream != "auto" and (isinstance(stream, str) or not isinstance(stream, int) or stream < 0):
        raise ValueError(f"stream must be True, False, 'auto' or a number of classes, got {stream!r}")
    if stream and stream != "auto" and not can_stream(similarity):
        raise ValueError(f"stream={stream!r} needs a similarity of hypersphere, got {similarity!r}")
    return stream


def make_rule(similarity: Any, scale: float | None, stream: bool | int | str, centers: int = 1) -> LogitRule:
    """Make the rule of a head whose embeddings are scaled to `scale`; None: as long as they are."""
    block = stream if isinstance(stream, int) and stream > 1 else BLOCK
    if isinstance(similarity, LearnableSigmoid):
        return LogitRule(scale or 1.0, sigmoid, block, centers=centers)  # type: ignore[arg-type]
    is_cosine = similarity == COSINE
    rule = None if is_cosine else lambda cosines, _: similarity(cosines)
    return LogitRule(scale or 1.0, rule, block, centers=centers)


class Sums(NamedTuple):
    """What the loss needs of all classes, (B,) each.

    Attributes:
        others: log Σ exp L_j or Σ softplus(L_j) over the classes j ≠ y.
        at_target: a at the label y; 0 if the label is not among the classes.
        weighted: Σ v_j L_j over the classes j ≠ y, for class weights v; 0 without.
    """

    others: Tensor
    at_target: Tensor
    weighted: Tensor
