"""Heads whose classes are split over processes.

Every process holds the weights of some classes and computes their part of the sums over all classes, for the samples of
all processes: embeddings and labels are gathered, and per forward pass two numbers and a maximum per sample are summed
over the processes. No tensor of batch × classes leaves a process. Margins and reductions are computed in every process,
for all samples; each differentiates the losses of its own samples, and gradients are summed over the processes where
they meet: at the sums, at the embeddings and at parameters that every process has.

Shapes: B batch of all processes, C classes, n classes of this process, d embedding size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from .._internal.collectives import (
    RowShards,
    concatenate,
    exchange,
    gather_batch,
    own_gradient,
    raise_together,
)
from .._internal.draws import generator
from .._internal.functions import apply, is_recorded, is_transformed
from .._internal.overflow import rescale, row_divisors
from .._internal.precision import accumulation_dtype, without_autocast
from .._internal.sharding import is_sharded, reduce_, replicate, shard_like
from ..layers.cosine import unit
from ..layers.similarity import LearnableSigmoid
from .from_logits import longest, nearest_of
from .head_inputs import Head, check_embeddings, check_labels, check_sample_weight, find_kept
from .logit_rule import LogitRule, Sums, make_rule
from .subcenters import nearest_subcenters

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_MODES = ("dtype of embeddings", "head.training", "torch.is_grad_enabled()", "embeddings.requires_grad")
_ROWS_OF_A_DRAW = 4096
_LEAST_BLOCK = 256  # classes: less takes more time


class ClassShards(RowShards):
    """The classes of this process, and the losses of a head whose classes are split."""

    rows: slice  # of the gathered batch: this process's samples

    # ------------------------------------------------------------------------------------------------ parameters

    def distribute(self, parameter: nn.Parameter, *, by_class: bool) -> nn.Parameter:
        """Return the parameter as a DTensor, or as it is in the first process."""
        if not by_class:
            value = self.of_first(parameter.detach())
            if parameter.is_meta:
                return nn.Parameter(value, parameter.requires_grad)
            parameter.data = value  # the same Parameter: other layers may share it
            return parameter
        if parameter.is_meta:
            local = parameter.new_empty(self.stop - self.start, *parameter.shape[1:], device=self.device)
            return nn.Parameter(self._join(local, parameter), parameter.requires_grad)
        from torch.distributed.tensor import Shard, distribute_tensor

        return nn.Parameter(distribute_tensor(parameter.detach(), self.mesh, [Shard(0)]), parameter.requires_grad)

    def split_near(self, near: Tensor) -> Tensor:
        """Return the near classes of a sampler as a DTensor; on the meta device none has been searched."""
        if near.is_meta:
            return self._join(near.new_full((self.stop - self.start, near.shape[1]), -1, device=self.device), near)
        return self._join(self.of_first(near)[self.start : self.stop], near)

    def _join(self, local: Tensor, whole: Tensor) -> Tensor:
        """Return the DTensor that has these rows here and the shape of `whole`."""
        from torch.distributed.tensor import DTensor, Shard

        shape, stride = whole.shape, whole.stride()
        joined: Tensor = DTensor.from_local(local, self.mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
        return joined

    def of_first(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the first process in all of them; on the mesh's device zeros, if it is on meta."""
        if tensor.is_meta:
            return torch.zeros_like(tensor, device=self.device)
        tensor = tensor.to(self.device, copy=True).contiguous()
        dist.broadcast(tensor, group=self.group, group_src=0)
        return tensor

    @property
    def device(self) -> torch.device:
        kind = self.mesh.device_type
        return torch.device(kind) if kind == "cpu" else torch.device(kind, torch.accelerator.current_device_index())

    def start_weight(self, weight: Tensor) -> None:
        """Fill a sharded weight (C, d) or (C, K, d) from Xavier's normal distribution, the same for any number of
        processes."""
        seed = self.of_first(torch.randint(2**62, ())).item()
        local, std = weight.to_local(), (2 / (weight.shape[:-1].numel() + weight.shape[-1])) ** 0.5  # type: ignore[attr-defined]
        with torch.no_grad():
            for block in range(self.start // _ROWS_OF_A_DRAW, -(-self.stop // _ROWS_OF_A_DRAW)):
                first = block * _ROWS_OF_A_DRAW
                drawn = torch.empty(_ROWS_OF_A_DRAW, *weight.shape[1:]).normal_(
                    0, std, generator=generator(int(seed), "weight", block)
                )
                low, high = max(self.start, first), min(self.stop, first + _ROWS_OF_A_DRAW)
                local[low - self.start : high - self.start].copy_(drawn[low - first : high - first])

    def split(self, state_dict: dict[str, Tensor], prefix: str, head: nn.Module) -> None:
        """Split the whole tensors of a state_dict, the same in every process, as the head's parameters are."""
        for name, parameter in (*head.named_parameters(), *head.named_buffers()):
            value = state_dict.get(prefix + name)
            if value is None or not is_sharded(parameter):
                continue
            if value.shape != parameter.shape:
                raise ValueError(
                    f"{prefix}{name} must be {tuple(parameter.shape)} to be loaded into this head, "
                    f"got {tuple(value.shape)}"
                )
            if not is_sharded(value):
                state_dict[prefix + name] = shard_like(parameter, value)

    def _call(self, head: nn.Module, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Call a function of the head while its parameters are plain tensors.

        The weight is that of this process's classes. Other numbers per class are gathered: each sample needs those of
        its label. Gradients that every process has a part of are summed.
        """
        values: dict[str, Tensor] = {}
        for name, parameter in head.named_parameters():
            local = is_sharded(parameter) and not name.endswith(("bias", "log_k"))
            value = parameter.to_local() if local else replicate(parameter, self.mesh)  # type: ignore[attr-defined]
            values[f"head.{name}"] = value
        result: Tensor = functional_call(_Caller(head), values, (function, *arguments))
        return result

    # ---------------------------------------------------------------------------------------------------- losses

    def loss(self, head: Head, embeddings: Tensor, labels: Tensor, indices_tuple: Any, sample_weight: Any) -> Tensor:
        """Compute the loss of the samples of all processes; with reduction "none" the losses of the own samples."""
        error = _find_error(head, embeddings, labels, indices_tuple, sample_weight)
        counts, weighted = self._meet(head, error, embeddings, sample_weight is not None)
        labels = concatenate(labels, counts, self.group)
        if weighted:
            sample_weight = torch.ones(len(embeddings)) if sample_weight is None else sample_weight
            sample_weight = concatenate(sample_weight.to(embeddings.device, torch.float64), counts, self.group)
        x = self._gather(head, embeddings, counts)
        with without_autocast(embeddings):
            loss = self._call(head, _loss, x, labels, sample_weight)
        return loss[self.rows] if head.reduction == "none" else loss

    def logits(self, head: Head, embeddings: Tensor) -> Tensor:
        """Compute the logits of the own samples for all classes."""
        counts, _ = self._meet(head, _find_error(head, embeddings), embeddings, False)
        x = self._gather(head, embeddings, counts)
        with without_autocast(embeddings):
            return self._call(head, self._logits, x, counts)

    def _meet(
        self, head: nn.Module, error: Exception | None, embeddings: Any, weighted: bool
    ) -> tuple[list[int], bool]:
        """Return how many samples each process has and whether any has weights; raise the same error in all."""
        numbers = [int(error is not None), 0, 0, 0, 0, 0, 0]
        if error is None:
            wants_grad = torch.is_grad_enabled() and embeddings.requires_grad
            modes = [_DTYPES.index(embeddings.dtype), head.training, torch.is_grad_enabled(), wants_grad]
            numbers[1:] = [len(embeddings), weighted, *map(int, modes)]
        codes, counts, with_weights, *rest = map(list, zip(*exchange(numbers, self.group, self.device), strict=True))
        raise_together(error, codes, self.group, self.device)
        for text, values in zip(_MODES, rest, strict=True):
            if len(set(values)) > 1:
                shown = [str(_DTYPES[v]) if text == _MODES[0] else str(bool(v)) for v in values]
                raise ValueError(f"{text} must be equal on all ranks, got {', '.join(shown)}")
        rank = self.mesh.get_local_rank()
        self.rows = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        return counts, any(with_weights)

    def _gather(self, head: Head, embeddings: Tensor, counts: list[int]) -> Tensor:
        """Gather the embeddings (B, d) of all processes; longer ones than a head can multiply are shortened."""
        up = row_divisors(embeddings, longest(head, accumulation_dtype(embeddings.dtype)))
        x = embeddings if up is None else rescale(embeddings, 1 / up, 1.0)
        return gather_batch(x, counts, self.group, factor=float(self.mesh.size()))

    def own_gradient(self, losses: Tensor) -> Tensor:
        """Return the losses (B,); only those of the own samples pass a gradient."""
        return own_gradient(losses, self.rows)

    def sum_gradient(self, x: Tensor) -> Tensor:
        """Return x, the same in all processes; its gradient is summed over them."""
        return replicate(x, self.mesh)

    def sum_over_classes(
        self,
        sum_here: Callable[..., Sums],
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        rule: LogitRule,
        *,
        bias: Tensor | None = None,
        k: Tensor | None = None,
        class_weight: Tensor | None = None,
        **options: Any,
    ) -> Sums:
        """Compute the sums over the classes of all processes, given the weight of these (n, d).

        Args:
            sum_here: :func:`.streaming.sum_over_classes`, or an estimate of it.
        """
        bias, k, class_weight = (self._of(numbers) for numbers in (bias, k, class_weight))
        target, size = target - self.start, self.mesh.size()
        # a process has all samples: with this all together take no more memory than one process with all classes
        rule = replace(rule, block=max(rule.block // (2 * size), _LEAST_BLOCK))
        sums = sum_here(x, weight, target, rule, bias=bias, k=k, class_weight=class_weight, **options)
        if not len(weight):  # it has a gradient in every process, or those that read gradients wait for each other
            sums = sums._replace(at_target=sums.at_target + weight.sum())
        return Sums(*apply(_SumOverShards, *sums, rule.softplus, self.mesh))

    def label_cosines(self, directions: Tensor, weight: Tensor, classes: Tensor, centers: int) -> Tensor:
        """Compute the cosines (B,) with the label's class, given the weight of the own classes, without gradient."""
        here = self.find(classes)
        cosines = directions.new_zeros(len(classes))
        cosines[here] = nearest_subcenters(directions[here], weight, classes[here] - self.start, centers)[0]
        return reduce_(cosines, self.mesh)

    def _of(self, numbers: Tensor | None) -> Tensor | None:
        """Return the numbers of the own classes; a 0-d tensor is for all classes."""
        return numbers[self.start : self.stop] if numbers is not None and numbers.dim() else numbers

    def _logits(self, head: Head, x: Tensor, counts: list[int]) -> Tensor:
        weight, similarity = head.weight.flatten(0, -2), head.similarity
        x = x.to(accumulation_dtype(torch.promote_types(x.dtype, weight.dtype)))
        direction = unit(x)
        rule = make_rule(similarity, head.scale, False)
        s = (x * direction).sum(1, keepdim=True) if head.scale is None else None
        k = self._of(similarity.k) if isinstance(similarity, LearnableSigmoid) else None
        products = nearest_of(head, direction @ unit(weight.to(x.dtype)).mT) * rule.product_scale
        if rule.similarity is None and s is not None:
            products = products * s
        bias = head._biases()
        bias = None if bias is None else self._of(bias.to(x.dtype))
        own: Tensor = apply(_ToOwnRows, rule(products, s, bias, k), counts, self.sizes, self.group)
        return own


class _Caller(nn.Module):
    """Call a function of a head, for functional_call."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        return function(self.head, *arguments)


def _loss(head: Head, x: Tensor, labels: Tensor, sample_weight: Tensor | None) -> Tensor:
    weights = sample_weight if sample_weight is None else sample_weight.to(accumulation_dtype(x.dtype))
    return head._loss(x, head.weight.flatten(0, -2), labels, None, weights)


def _find_error(
    head: Head,
    embeddings: Any,
    labels: Any = None,
    indices_tuple: Sequence[Tensor] | None = None,
    sample_weight: Any = None,
) -> Exception | None:
    """Return what is wrong with this process's input, or None."""
    if is_recorded() or is_transformed():
        raise RuntimeError("a sharded head runs in eager mode only: compile the network without its head")
    try:
        check_embeddings(embeddings, head.embedding_size)
        if labels is None:
            return None
        check_labels(labels, len(embeddings))
        check_sample_weight(sample_weight, labels)
        find_kept(labels, head.num_classes, head.ignore_index)
        if indices_tuple is not None:
            raise ValueError("indices_tuple must be None for a sharded head: use sample_weight")
        if sample_weight is not None and sample_weight.requires_grad:
            raise ValueError("sample_weight of a sharded head must not require a gradient")
    except (ValueError, TypeError) as error:
        return error
    return None


class _SumOverShards(Function):
    """The sums over the classes of all processes, given those of each."""

    @staticmethod
    def forward(
        others: Tensor, at_target: Tensor, weighted: Tensor, softplus: bool, mesh: DeviceMesh
    ) -> tuple[Tensor, Tensor, Tensor]:
        if softplus:
            total, at, weights = reduce_(torch.stack([others, at_target, weighted]), mesh)
            return total, at, weights
        largest = reduce_(others.clone(), mesh, "MAX").clamp_min_(torch.finfo(others.dtype).min)
        total, at, weights = reduce_(torch.stack([(others - largest).exp(), at_target, weighted]), mesh)
        return total.log() + largest, at, weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        others, _, _, ctx.softplus, ctx.mesh = inputs
        ctx.save_for_backward(others, output[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        here, everywhere = ctx.saved_tensors
        others, at_target, weighted = reduce_(torch.stack(grads), ctx.mesh)
        others = others if ctx.softplus else others * (here - everywhere).exp()
        return others, at_target, weighted, None, None


class _ToOwnRows(Function):
    """Exchange all samples' logits for the own classes (B, n) for the own samples' logits for all classes."""

    @staticmethod
    def forward(logits: Tensor, counts: list[int], sizes: list[int], group: Any) -> Tensor:
        own, here = counts[group.rank()], sizes[group.rank()]
        received = logits.new_empty(own * sum(sizes))
        sent = [n * here for n in counts]
        dist.all_to_all_single(received, logits.reshape(-1), [own * n for n in sizes], sent, group=group)
        parts = received.split([own * n for n in sizes])
        return torch.cat([part.view(own, n) for part, n in zip(parts, sizes, strict=True)], 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.counts, ctx.sizes, ctx.group = inputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        rank, counts, sizes = ctx.group.rank(), ctx.counts, ctx.sizes
        sent = torch.cat([part.reshape(-1) for part in grad.split(sizes, 1)])
        received = grad.new_empty(sum(counts) * sizes[rank])
        splits = [counts[rank] * n for n in sizes], [n * sizes[rank] for n in counts]
        dist.all_to_all_single(received, sent, splits[1], splits[0], group=ctx.group)
        return received.view(sum(counts), sizes[rank]), None, None, None
