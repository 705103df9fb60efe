"""Sums over very many classes, a block of classes at a time: no tensor of batch × classes is formed.

With a_j = ⟨x, w_j⟩/‖w_j‖ the logit of class j is L_j = s·g(a_j) + b_j. One pass over blocks of classes gives, for every
sample, log Σ exp L_j (of softmax heads) or Σ softplus(L_j) (of binary heads) over all classes but the label's, and a at
the label. A margin changes the label's logit alone, so it is applied outside, to B numbers. The products of a block
wait for the backward pass in memory that its gradient of the weight will take: those of all blocks if B <= d, else of
each ⌈B/d⌉-th, and the others are computed again. The backward pass skips blocks whose probabilities are below the
resolution of the dtype (2⁻²⁴ in float32) for every sample. With K sub-centers a class has K rows, and a_j is the
largest of theirs.

Shapes: B batch, C classes, n classes of a block, K sub-centers, d embedding size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._internal.functions import apply
from .._internal.overflow import can_read_for_free, max_abs, max_root, saturating_cast, shrink_huge
from ..layers.cosine import inverse_row_norm, unit
from .logit_rule import LogitRule, Sums
from .touched_rows import TouchedRows

_SMALL = 64.5  # e^±64 times 10⁹ classes is within the range of float32


def sum_over_classes(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    rule: LogitRule,
    *,
    s: Tensor | None = None,
    bias: Tensor | None = None,
    k: Tensor | None = None,
    class_weight: Tensor | None = None,
    multiplicity: Tensor | None = None,
    beside: Tensor | None = None,
    stream: bool = True,
    sparse: bool = False,
) -> Sums:
    """Compute the sums of a loss over the classes.

    Args:
        x: (B, d), unit rows unless the similarity is the identity.
        weight: (C, d), or (C·K, d) with K sub-centers.
        target: (B,), the labels; one outside of [0, C) is of a class that is not here.
        s: (B, 1), the scale of each sample, if it is not the rule's.
        bias: (C,).
        k: (C,) or 0-d, of the similarity.
        class_weight: v (C,); None: the second sum is 0.
        multiplicity: (C,), for how many classes each counts, without gradient; None: one.
        beside: (B,), the logarithm of what else is in the sum that the softmax divides by, such as the label's logit.
            It may be filled in after this call: only the backward pass reads it, to skip blocks that are negligible.
        stream: a block of classes at a time; False: by plain operations on all logits (B, C).
        sparse: streamed, the weight's gradient is a sparse tensor of the rows whose classes are not negligible.
    """
    if multiplicity is not None and not rule.softplus:
        bias, multiplicity = multiplicity.log() if bias is None else bias + multiplicity.log(), None
    extra = (s, bias, k, target, class_weight, multiplicity)
    if not len(weight):
        zero = x.sum(1) * 0
        return Sums(zero if rule.softplus else zero - math.inf, zero, zero)
    if not stream:
        return _plain_sums(x, weight, *extra, rule)
    gradient = None
    if weight.requires_grad and torch.is_grad_enabled() and weight.dtype is x.dtype and not sparse:
        gradient = torch.empty_like(weight, memory_format=torch.contiguous_format)
    *sums, _, inverse = apply(_Sums, x, weight, *extra, rule, beside, sparse, gradient)
    if can_read_for_free(inverse) and not inverse.amin().item() > 1 / max_root(x.dtype, 2):  # a zero or very long row
        short = shrink_huge(weight, (1,))
        if short is not weight:  # products may have overflowed
            return Sums(*apply(_Sums, x, short, *extra, rule, beside, False, None)[:3])
    return Sums(*sums)


def _plain_sums(
    x: Tensor,
    weight: Tensor,
    s: Tensor | None,
    bias: Tensor | None,
    k: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    multiplicity: Tensor | None,
    rule: LogitRule,
) -> Sums:
    """Compute :func:`sum_over_classes` from all logits (B, C) at once, by operations with all derivatives."""
    products = x @ unit(weight.to(x.dtype)).mT
    if rule.centers > 1:
        products = products.unflatten(1, (-1, rule.centers)).max(2)[0]  # ties: as streamed
    inside, index = _locate(target, products.shape[1])
    logits = rule(products * rule.product_scale, s, bias, k)
    at_target = torch.where(inside, products.gather(1, index.unsqueeze(1)).squeeze(1), 0.0)

    def without_target(number: float) -> Tensor:
        return torch.where(inside.unsqueeze(1), logits.scatter(1, index.unsqueeze(1), number), logits)

    weighted = x.new_zeros(len(x)) if class_weight is None else without_target(0.0) @ class_weight
    if not rule.softplus:
        return Sums(torch.logsumexp(without_target(-math.inf), 1), at_target, weighted)
    losses = torch.logaddexp(without_target(-math.inf), logits.new_zeros(()))
    return Sums((losses if multiplicity is None else losses * multiplicity).sum(1), at_target, weighted)


def _locate(target: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return which labels are among the classes, and the labels, 0 for the others."""
    inside = (target >= 0) & (target < classes)
    return inside, torch.where(inside, target, 0)


class _Sums(Function):
    """The sums; and, without gradient, those of the blocks (B, blocks) and 1/‖w‖.

    `gradient` (C·K, d) is memory for the weight's, in which products wait; None: they are computed again.
    """

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        s: Tensor | None,
        bias: Tensor | None,
        k: Tensor | None,
        target: Tensor,
        class_weight: Tensor | None,
        multiplicity: Tensor | None,
        rule: LogitRule,
        beside: Tensor | None,
        sparse: bool,
        gradient: Tensor | None,
    ) -> tuple[Tensor, ...]:
        block_sums, weighted, buffer = [], x.new_zeros(len(x)), _buffer(x, rule)
        inverse, small = x.new_empty(len(weight)), _is_small(x, bias, rule)
        for block in _blocks(weight, rule):
            rows = weight[_rows(block, rule)].to(x.dtype)
            inverse[_rows(block, rule)] = inverse_row_norm(rows)
            waiting = _waiting(x, block, rule, gradient)
            products, _ = _products(x, rows, inverse, block, rule, buffer if waiting is None else waiting)
            logits = rule(products, s, _of(block, bias), _of(block, k))
            if waiting is not None and logits is products:
                logits = _view(buffer, products).copy_(products)
            if class_weight is not None:
                weighted = weighted + _fill_target(logits, target, block, 0.0) @ class_weight[block]
            logits = _fill_target(logits, target, block, -math.inf)
            if rule.softplus:
                block_sums.append(_sum_softplus(logits, _of(block, multiplicity)))
            else:
                block_sums.append(logits.exp_().sum(1).log_() if small else _log_sum(logits))
        stacked = torch.stack(block_sums, 1)
        others = stacked.sum(1) if rule.softplus else torch.logsumexp(stacked, 1)
        return others, _at_target(x, weight, inverse, target, rule)[0], weighted, stacked, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:8], output[0], *output[3:])
        ctx.rule, ctx.beside, ctx.sparse, ctx.gradient = inputs[8:]
        ctx.mark_non_differentiable(*output[3:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        derivatives = _differentiable_backward if torch.is_grad_enabled() else _streamed_backward
        return *derivatives(ctx, *grads[:3]), *[None] * 7


def _differentiable_backward(ctx: Any, *grads: Tensor | None) -> list[Tensor | None]:
    """Return the gradients of x, weight, s, bias and k with their graph, for second derivatives."""
    tensors: Any = ctx.saved_tensors[:8]
    needed = ctx.needs_input_grad[:5]
    sums = _plain_sums(*tensors, ctx.rule)  # type: ignore[call-arg]
    pairs = [(y, grad) for y, grad in zip(sums, grads, strict=True) if grad is not None and y.requires_grad]
    inputs = [t for t, need in zip(tensors, needed, strict=False) if need]
    results = torch.autograd.grad(
        [y for y, _ in pairs], inputs, [grad for _, grad in pairs], create_graph=True, allow_unused=True
    )
    in_order = iter(results)
    return [next(in_order) if need else None for need in needed]


def _streamed_backward(
    ctx: Any, grad_others: Tensor | None, grad_at: Tensor | None, grad_weighted: Tensor | None
) -> list[Tensor | None]:
    """Return the gradients of x, weight, s, bias and k, a block of classes at a time."""
    x, weight, s, bias, k, target, class_weight, multiplicity, others, block_sums, inverse = ctx.saved_tensors
    rule, needed, memory = ctx.rule, ctx.needs_input_grad, ctx.gradient
    ctx.gradient = None  # the products in it are overwritten here: a second backward pass computes them again
    grad_others = torch.zeros_like(others) if grad_others is None else grad_others
    smooth = None if class_weight is None or grad_weighted is None else grad_weighted.unsqueeze(1)
    buffer, grad_buffer = _buffer(x, rule), _buffer(x, rule)

    def gradient(logits: Tensor) -> Tensor:
        out = _view(grad_buffer, logits)
        if rule.softplus:
            grad = torch.sigmoid(logits, out=out)
            grad = grad if multiplicity is None else grad.mul_(multiplicity[block])
        else:
            grad = torch.sub(logits, others.unsqueeze(1), out=out).exp_()
        grad = grad.mul_(grad_others.unsqueeze(1))
        if smooth is not None:
            grad.addcmul_(smooth, class_weight[block])
        return _fill_target(grad, target, block, 0.0)

    negligible = [False] * block_sums.shape[1]
    if smooth is None and x.device.type == "cpu" and not torch.compiler.is_compiling():
        shares = _shares(block_sums, others, ctx.beside, grad_others, rule)
        negligible = (shares < math.log(torch.finfo(x.dtype).eps / 2)).all(0).tolist()
    grad_x = torch.zeros_like(x)
    grad_weight = None
    if needed[1] and not ctx.sparse:
        grad_weight = torch.empty_like(weight) if memory is None else memory
    touched = TouchedRows(weight, *_at_target(x, weight, inverse, target, rule)[1:]) if ctx.sparse else None
    if touched is not None:  # |gradient| times this is at most the derivative by the logit of a loss of weight 1
        relative = _relative(others, ctx.beside, grad_others, rule).unsqueeze(1)
    sums = [
        torch.zeros_like(t) if t is not None and need else None
        for t, need in zip((s, bias, k), needed[2:5], strict=True)
    ]
    for block, skipped in zip(_blocks(weight, rule), negligible, strict=True):
        of_block = _rows(block, rule)
        if skipped:
            if grad_weight is not None:
                grad_weight[of_block].zero_()
            if touched is not None:
                touched.add(of_block, touched.labels(of_block), None)
            continue
        rows, largest = weight[of_block].to(x.dtype), None
        waiting = _waiting(x, block, rule, memory)
        if waiting is not None:
            products = _view(waiting, x, len(rows))
        else:
            products, largest = _products(x, rows, inverse, block, rule, buffer)
        grad, *rest = rule.pull_back([products, s, _of(block, bias), _of(block, k)], gradient)
        assert grad is not None
        for total, part in zip(sums, rest, strict=True):
            if total is not None and part is not None:
                (total if total is sums[0] or not total.dim() else total[block]).add_(part)
        factor = inverse[of_block] * rule.product_scale
        # ⟨w, gradient⟩ is Σ(gradient·product) over the samples
        if largest is None:
            along = torch.mul(products, grad, out=_view(buffer, products)).sum(0)
        else:
            along = torch.zeros_like(factor).index_add_(0, largest.flatten(), (products * grad).flatten())
            grad = torch.zeros(len(rows), len(x), dtype=x.dtype, device=x.device).mT.scatter_(1, largest, grad)
        if touched is not None:
            far = (grad.abs() * relative).amax(0) < torch.finfo(x.dtype).eps / 2
            picked = (~far | touched.labels(of_block)).nonzero().squeeze(1)
            grad, rows, factor, along = grad.mT[picked].mT, rows[picked], factor[picked], along[picked]
        grad = grad.mul_(factor)
        grad_x.addmm_(grad, rows)
        if not needed[1]:
            continue
        part = None if grad_weight is None else grad_weight[of_block]
        out = torch.mm(grad.mT, x, out=part if part is not None and part.dtype is x.dtype else None)
        norms = inverse[of_block] if touched is None else inverse[of_block][picked]
        out.addcmul_(rows, (along * norms.square()).unsqueeze(1), value=-1)
        if touched is not None:
            touched.add(of_block, picked, out)
        elif part is not None and out is not part:
            part.copy_(out)  # the caller clamps what is beyond float16
    if grad_at is not None:
        _, row, inside = _at_target(x, weight, inverse, target, rule)
        rows, share = weight[row].to(x.dtype), (grad_at * inside * inverse[row]).unsqueeze(1)
        grad_x.addcmul_(rows, share)
        if needed[1]:
            along = (rows * x).sum(1) * inverse[row].square()
            of_rows = saturating_cast((x - rows * along.unsqueeze(1)) * share, weight.dtype)
            if touched is not None:
                touched.at_labels = (row, of_rows)
            elif grad_weight is not None:
                grad_weight.index_add_(0, row, of_rows)
    if touched is not None and needed[1]:
        grad_weight = touched.gradient()
    return [grad_x if needed[0] else None, grad_weight, *sums]


def _relative(others: Tensor, beside: Tensor | None, grad_others: Tensor, rule: LogitRule) -> Tensor:
    """Return what makes the derivative by a logit that of a loss of weight 1: p/|gradient of the sum|, (B,)."""
    share = torch.ones_like(others)
    if not rule.softplus and beside is not None:
        share = (others - torch.maximum(others, beside.to(others.dtype))).exp()
    return torch.where(grad_others == 0, 0.0, share / grad_others.abs())


def _at_target(
    x: Tensor, weight: Tensor, inverse: Tensor, target: Tensor, rule: LogitRule
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a (B,) at the labels, the rows of the weight (B,) that give it, and which labels are here (B,)."""
    inside, row = _locate(target, len(weight) // rule.centers)
    if rule.centers == 1:
        products = (x * weight[row].to(x.dtype)).sum(1) * inverse[row]
        return products * inside, row, inside
    rows = row.unsqueeze(1) * rule.centers + torch.arange(rule.centers, device=row.device)
    every = torch.einsum("bd,bkd->bk", x, weight[rows].to(x.dtype)) * inverse[rows]
    products, largest = every.max(1)
    return products * inside, rows.gather(1, largest.unsqueeze(1)).squeeze(1), inside


def _blocks(weight: Tensor, rule: LogitRule) -> Iterator[slice]:
    """Return slices of classes; a block has about `rule.block` rows of the weight."""
    classes, size = len(weight) // rule.centers, max(rule.block // rule.centers, 1)
    return (slice(start, min(start + size, classes)) for start in range(0, classes, size))


def _rows(block: slice, rule: LogitRule) -> slice:
    """Return the rows of the weight of a block of classes."""
    return slice(block.start * rule.centers, block.stop * rule.centers)


def _of(block: slice, numbers: Tensor | None) -> Tensor | None:
    """Return the numbers of the classes of a block; a 0-d tensor is for all classes."""
    return numbers[block] if numbers is not None and numbers.dim() else numbers


def _buffer(x: Tensor, rule: LogitRule) -> Tensor:
    """Allocate the numbers of one block: memory that is used again costs no page faults."""
    return x.new_empty(len(x) * max(rule.block, rule.centers))


def _view(buffer: Tensor, like: Tensor, n: int | None = None) -> Tensor:
    """View a buffer as (B, n) with the samples next to one another: so all three products are fastest."""
    n = like.shape[1] if n is None else n
    return buffer[: n * len(like)].view(n, len(like)).mT


def _waiting(x: Tensor, block: slice, rule: LogitRule, gradient: Tensor | None) -> Tensor | None:
    """Return where in the memory of the gradient the products of a block wait; None: they do not.

    They take the gradient of ⌈B/d⌉ blocks, the first of which is this one: the others are computed after it.
    """
    if gradient is None or rule.centers > 1 or (block.start // rule.block) % -(-len(x) // x.shape[1]):
        return None
    start, size = block.start * x.shape[1], (block.stop - block.start) * len(x)
    return gradient.view(-1)[start : start + size] if start + size <= gradient.numel() else None


def _is_small(x: Tensor, bias: Tensor | None, rule: LogitRule) -> bool:
    """Return whether no sum of exponentials of logits can overflow or vanish, so that no maximum is needed."""
    if rule.similarity is not None or not can_read_for_free(x):
        return False
    largest = rule.scale * torch.linalg.vector_norm(x, dim=1).amax().item() + (0.0 if bias is None else max_abs(bias))
    return largest < _SMALL


def _shares(block_sums: Tensor, others: Tensor, beside: Tensor | None, grad_others: Tensor, rule: LogitRule) -> Tensor:
    """Return the logarithms of the largest derivatives (B, blocks) of the loss by the logits of a block."""
    if rule.softplus:
        shares = block_sums.log()
    else:
        total = others if beside is None else torch.maximum(others, beside.to(others.dtype))
        shares = block_sums - total.unsqueeze(1)
    return torch.where((grad_others == 0).unsqueeze(1), -math.inf, shares)


def _products(
    x: Tensor, rows: Tensor, inverse: Tensor, block: slice, rule: LogitRule, buffer: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Compute ⟨x, w⟩/‖w‖ (B, n) of a block, in the buffer; with sub-centers also which row of the block is largest."""
    out = _view(buffer, x, len(rows))
    products = torch.mm(x, rows.mT, out=out).mul_(inverse[_rows(block, rule)] * rule.product_scale)
    if rule.centers == 1:
        return products, None
    largest, index = products.unflatten(1, (-1, rule.centers)).max(2)
    return largest, index + torch.arange(0, len(rows), rule.centers, device=index.device)


def _log_sum(logits: Tensor) -> Tensor:
    """Compute log Σ exp over dimension 1, in place; −inf for a row of −inf."""
    largest = logits.amax(1, keepdim=True).clamp_min(torch.finfo(logits.dtype).min)
    return logits.sub_(largest).exp_().sum(1).log_().add_(largest.squeeze(1))


def _sum_softplus(logits: Tensor, multiplicity: Tensor | None) -> Tensor:
    """Compute Σ softplus over dimension 1, each times the multiplicity of its class."""
    losses = torch.logaddexp(logits, logits.new_zeros(()))
    return losses.sum(1) if multiplicity is None else losses @ multiplicity


def _fill_target(values: Tensor, target: Tensor, block: slice, number: float) -> Tensor:
    """Put a number at the label of each sample whose label is in the block, in place and without reading values."""
    inside = ((target >= block.start) & (target < block.stop)).unsqueeze(1)
    index = (target - block.start).clamp(0, block.stop - block.start - 1).unsqueeze(1)
    return values.scatter_(1, index, torch.where(inside, number, values.gather(1, index)))
