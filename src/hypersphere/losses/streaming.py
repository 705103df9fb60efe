"""The softmax over very many classes, a block of classes at a time: no tensor of batch × classes is formed.

With a_j = ⟨x, w_j⟩/‖w_j‖ the logit of class j is L_j = s·g(a_j) + b_j. One pass over blocks of classes gives, for every
sample, log Σ exp L_j over all classes but the label's, and a at the label. A margin changes the label's logit alone, so
it is applied outside, to B numbers. The backward pass computes the logits of each block again. It skips blocks whose
probabilities sum to less than 2⁻²⁴ for every sample.

Shapes: B batch, C classes, n classes of a block, d embedding size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._internal.functions import apply
from ..layers.cosine import clamp_cosine, inverse_row_norm, unit
from ..layers.similarity import LearnableSigmoid, Similarity, sigmoid

BLOCK = 4096  # classes: 4 MB of float32 logits for 256 samples
_NEGLIGIBLE = -24 * math.log(2)


@dataclass(frozen=True)
class LogitRule:
    """How the products a (B, n) of samples with unit class weights become logits.

    Attributes:
        scale: s, if it is the same for all samples.
        similarity: g(cosines (B, n), k), with k (n,), 0-d or None; None: the identity.
        block: the number of classes at a time.
    """

    scale: float = 1.0
    similarity: Callable[[Tensor, Tensor | None], Tensor] | None = None
    block: int = BLOCK

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


def make_rule(similarity: Any, scale: float | None, stream: bool | int | str) -> LogitRule:
    """Make the rule of a head whose embeddings are scaled to `scale`; None: as long as they are."""
    block = stream if isinstance(stream, int) and stream > 1 else BLOCK
    if isinstance(similarity, LearnableSigmoid):
        return LogitRule(scale or 1.0, sigmoid, block)  # type: ignore[arg-type]
    is_cosine = similarity == Similarity("cosine")
    return LogitRule(scale or 1.0, None if is_cosine else lambda cosines, _: similarity(cosines), block)


def log_sum_of_others(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    rule: LogitRule,
    *,
    s: Tensor | None = None,
    bias: Tensor | None = None,
    k: Tensor | None = None,
    class_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute log Σ exp L_j and Σ v_j L_j over the classes j ≠ y of each sample, and a at its label y.

    Args:
        x: (B, d), unit rows unless the similarity is the identity.
        weight: (C, d).
        target: (B,), the labels, in [0, C).
        s: (B, 1), the scale of each sample, if it is not the rule's.
        bias: (C,).
        k: (C,) or 0-d, of the similarity.
        class_weight: v (C,); None: the second sum is 0.

    Returns:
        the logarithm of the sum, a at the label, the weighted sum: (B,) each.
    """
    inverse = inverse_row_norm(weight.detach()).to(x.dtype)
    results = apply(_LogSumOfOthers, x, weight, s, bias, k, target, inverse, class_weight, rule)
    return results[0], results[1], results[2]


def _plain_log_sum_of_others(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    rule: LogitRule,
    s: Tensor | None,
    bias: Tensor | None,
    k: Tensor | None,
    class_weight: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :func:`log_sum_of_others` from all logits (B, C) at once, by operations with all derivatives."""
    products, index = x @ unit(weight.to(x.dtype)).mT, target.unsqueeze(1)
    logits = rule(products * rule.product_scale, s, bias, k)
    weighted = x.new_zeros(len(x)) if class_weight is None else logits.scatter(1, index, 0.0) @ class_weight
    log_sum = torch.logsumexp(logits.scatter(1, index, -math.inf), 1)
    return log_sum, products.gather(1, index).squeeze(1), weighted


class _LogSumOfOthers(Function):
    """The sums, and those of each block, (B, blocks)."""

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        s: Tensor | None,
        bias: Tensor | None,
        k: Tensor | None,
        target: Tensor,
        inverse: Tensor,
        class_weight: Tensor | None,
        rule: LogitRule,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        block_sums, weighted, buffer = [], x.new_zeros(len(x)), _buffer(x, rule)
        for block in _blocks(weight, rule):
            logits = rule(_products(x, weight, inverse, block, rule, buffer), s, _of(block, bias), _of(block, k))
            if class_weight is not None:
                weighted = weighted + _fill_target(logits, target, block, 0.0) @ class_weight[block]
            block_sums.append(_log_sum(_fill_target(logits, target, block, -math.inf)))
        at_target = (x * weight[target].to(x.dtype)).sum(1) * inverse[target]
        stacked = torch.stack(block_sums, 1)
        return torch.logsumexp(stacked, 1), at_target, weighted, stacked

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:8], output[0], output[3])
        ctx.rule = inputs[8]
        ctx.mark_non_differentiable(output[3])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        derivatives = _differentiable_backward if torch.is_grad_enabled() else _streamed_backward
        return *derivatives(ctx, *grads[:3]), None, None, None, None


def _differentiable_backward(ctx: Any, *grads: Tensor | None) -> list[Tensor | None]:
    """Return the gradients of x, weight, s, bias and k with their graph, for second derivatives."""
    x, weight, s, bias, k, target, _, class_weight, *_ = ctx.saved_tensors
    needed = ctx.needs_input_grad[:5]
    outputs = _plain_log_sum_of_others(x, weight, target, ctx.rule, s, bias, k, class_weight)
    pairs = [(y, grad) for y, grad in zip(outputs, grads, strict=True) if grad is not None and y.requires_grad]
    inputs = [t for t, need in zip((x, weight, s, bias, k), needed, strict=True) if need]
    results = torch.autograd.grad(
        [y for y, _ in pairs], inputs, [grad for _, grad in pairs], create_graph=True, allow_unused=True
    )
    in_order = iter(results)
    return [next(in_order) if need else None for need in needed]


def _streamed_backward(
    ctx: Any, grad_log: Tensor | None, grad_at: Tensor | None, grad_weighted: Tensor | None
) -> list[Tensor | None]:
    """Return the gradients of x, weight, s, bias and k, a block of classes at a time."""
    x, weight, s, bias, k, target, inverse, class_weight, log_sum, block_sums = ctx.saved_tensors
    rule, needed = ctx.rule, ctx.needs_input_grad
    grad_log = torch.zeros_like(log_sum) if grad_log is None else grad_log
    smooth = None if class_weight is None or grad_weighted is None else grad_weighted.unsqueeze(1)

    def gradient(logits: Tensor) -> Tensor:
        in_place = rule.similarity is None  # nobody else needs these logits
        grad = (logits.sub_ if in_place else logits.sub)(log_sum.unsqueeze(1)).exp_().mul_(grad_log.unsqueeze(1))
        if smooth is not None:
            grad.addcmul_(smooth, class_weight[block])
        return _fill_target(grad, target, block, 0.0)

    negligible = [False] * block_sums.shape[1]
    if smooth is None and x.device.type == "cpu" and not torch.compiler.is_compiling():
        negligible = ((block_sums - log_sum.unsqueeze(1)).amax(0) < _NEGLIGIBLE).tolist()
    grad_x, grad_weight = torch.zeros_like(x), torch.empty_like(weight) if needed[1] else None
    sums = [
        torch.zeros_like(t) if t is not None and need else None
        for t, need in zip((s, bias, k), needed[2:5], strict=True)
    ]
    buffer = _buffer(x, rule)
    for block, skipped in zip(_blocks(weight, rule), negligible, strict=True):
        if skipped:
            if grad_weight is not None:
                grad_weight[block].zero_()
            continue
        products, rows = _products(x, weight, inverse, block, rule, buffer), weight[block].to(x.dtype)
        grad, *others = rule.pull_back([products, s, _of(block, bias), _of(block, k)], gradient)
        for total, part in zip(sums, others, strict=True):
            if total is not None and part is not None:
                (total if total is sums[0] or not total.dim() else total[block]).add_(part)
        grad = grad.mul_(inverse[block] * rule.product_scale)
        grad_x.addmm_(grad, rows)
        if grad_weight is not None:
            part = grad_weight[block]
            out = torch.mm(grad.mT, x, out=part if part.dtype is x.dtype else None)
            along = (rows * out).sum(1) * inverse[block].square()
            out.addcmul_(rows, along.unsqueeze(1), value=-1)
            if out is not part:
                part.copy_(out)
    if grad_at is not None:
        rows, share = weight[target].to(x.dtype), (grad_at * inverse[target]).unsqueeze(1)
        grad_x.addcmul_(rows, share)
        if grad_weight is not None:
            along = (rows * x).sum(1) * inverse[target].square()
            grad_weight.index_add_(0, target, ((x - rows * along.unsqueeze(1)) * share).to(weight.dtype))
    return [grad_x if needed[0] else None, grad_weight, *sums]


def _blocks(weight: Tensor, rule: LogitRule) -> Iterator[slice]:
    return (slice(start, min(start + rule.block, len(weight))) for start in range(0, len(weight), rule.block))


def _of(block: slice, numbers: Tensor | None) -> Tensor | None:
    """Return the numbers of the classes of a block; a 0-d tensor is for all classes."""
    return numbers[block] if numbers is not None and numbers.dim() else numbers


def _buffer(x: Tensor, rule: LogitRule) -> Tensor:
    """Allocate the numbers of one block: memory that is used again costs no page faults."""
    return x.new_empty(len(x) * rule.block)


def _products(x: Tensor, weight: Tensor, inverse: Tensor, block: slice, rule: LogitRule, buffer: Tensor) -> Tensor:
    """Compute ⟨x, w⟩/‖w‖ (B, n) of a block, in the buffer."""
    rows = weight[block].to(x.dtype)
    out = buffer[: len(x) * len(rows)].view(len(x), len(rows))
    return torch.mm(x, rows.mT, out=out).mul_(inverse[block] * rule.product_scale)


def _log_sum(logits: Tensor) -> Tensor:
    """Compute log Σ exp over dimension 1, in place; −inf for a row of −inf."""
    largest = logits.amax(1, keepdim=True).clamp_min(torch.finfo(logits.dtype).min)
    return logits.sub_(largest).exp_().sum(1).log_().add_(largest.squeeze(1))


def _fill_target(values: Tensor, target: Tensor, block: slice, number: float) -> Tensor:
    """Put a number at the label of each sample whose label is in the block, in place and without reading values."""
    inside = ((target >= block.start) & (target < block.stop)).unsqueeze(1)
    index = (target - block.start).clamp(0, block.stop - block.start - 1).unsqueeze(1)
    return values.scatter_(1, index, torch.where(inside, number, values.gather(1, index)))
