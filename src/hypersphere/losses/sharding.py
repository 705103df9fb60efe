"""Heads whose classes are split over processes.

Every process holds the weights of some classes and computes their part of the sums over all classes, for the samples of
all processes: embeddings and labels are gathered, and per forward pass two numbers and a maximum per sample are summed
over the processes. No tensor of batch × classes leaves a process. Margins and reductions are computed in every process,
for all samples; each differentiates the losses of its own samples, and gradients are summed over the processes where
they meet: at the sums, at the embeddings and at parameters that every process has.

Shapes: B batch of all processes, C classes, n classes of this process, d embedding size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

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
from .._internal.global_hooks import record_change
from .._internal.overflow import rescale, row_divisors
from .._internal.precision import accumulation_dtype, without_autocast
from .._internal.sharding import is_sharded, reduce_, replicate, shard_like
from ..layers.cosine import unit
from ..layers.similarity import LearnableSigmoid
from .head_inputs import check_embeddings, check_labels, check_sample_weight, find_kept
from .streaming import LogitRule, Sums, can_stream, make_rule
from .subcenters import nearest_subcenters

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Head = Any  # an AngularSoftmaxLoss, whose module imports this one
H = TypeVar("H", bound=nn.Module)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_MODES = ("dtype of embeddings", "head.training", "torch.is_grad_enabled()", "embeddings.requires_grad")
_ROWS_OF_A_DRAW = 4096
_LEAST_BLOCK = 256  # classes: less takes more time


def shard_head(head: H, mesh: DeviceMesh) -> H:
    """Split the classes of a head over the processes of a mesh, in place; return the head.

    What has a row per class (`weight`, `bias`, the k of a learned similarity, fixed neurons of a rotated head) becomes
    a DTensor Parameter with placement Shard(0), split as torch.chunk does: the last shards may be smaller or empty. All
    else is the same in every process, and its gradient is summed over them. Values are those of the mesh's first
    process. A head on the meta device starts here, shard by shard: no process ever holds the whole weight. Make the
    optimizer after this call, and rotate (:func:`hypersphere.rotate`) before it.

    Every process of the mesh calls the head with its own samples, any number of them, and gets the loss of all:

    - "mean" and "sum" are over the samples of all processes; "none" gives the losses of the own samples.
    - The gradient of the embeddings is multiplied by the number of processes, because DistributedDataParallel and
      fully_shard average the gradients of the body; then the body gets the gradient of one process with all samples.
    - `logits` gives those of the own samples for all classes.

    With `sample=` every process takes its share of the sample from its own classes: labels, near and drawn ones.

    Invalid input of one process raises the same error in all of them. Keep the head out of DDP and fully_shard.

    Args:
        head: a loss head with a similarity of this package, not in eval mode on some processes only.
        mesh: a one-dimensional DeviceMesh; of a larger one, one dimension by its name, mesh["name"].

    Example:
        >>> from hypersphere.losses import ArcFaceLoss
        >>> from torch.distributed.device_mesh import init_device_mesh
        >>> def make_head(num_processes):  # in every process that torchrun has started
        ...     return shard_head(ArcFaceLoss(1_000_000, 128), init_device_mesh("cpu", (num_processes,)))
    """
    _check_mesh(mesh)
    _check_head(head)
    _shard(head, mesh)
    return head


def _shard(head: Head, mesh: DeviceMesh) -> None:
    shards = ClassShards(mesh, head.num_classes)
    is_meta, replaced = next(head.parameters()).is_meta, list[tuple[Tensor, tuple[Tensor, ...]]]()
    sampler: Any = head.sampler
    for module in head.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                by_class = _has_row_per_class(parameter, name, head)
                module._parameters[name] = shards.distribute(parameter, by_class=by_class)
                if module._parameters[name] is not parameter:
                    replaced.append((parameter, ()))
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and not (name == "near" and module is sampler):
                module._buffers[name] = shards.of_first(buffer)
    if sampler is not None:
        sampler.first, sampler.num_classes = shards.start, shards.stop - shards.start
        sampler.count = math.ceil(sampler.count * sampler.num_classes / head.num_classes)
        sampler.near = None if sampler.near is None else shards.split_near(sampler.near)
    head.shards = shards
    record_change("losses.shard_head", replaced)
    if is_meta:
        for module in head.modules():
            reset: Any = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset()


def _has_row_per_class(parameter: Tensor, name: str, head: Head) -> bool:
    """Return whether a parameter of a head is split: not the numbers of a rotation, even if there are C of them."""
    numbers = {"bias", "log_k", "magnitude"}
    return parameter.dim() > 0 and len(parameter) == head.num_classes and name in {"weight", "original", *numbers}


def _check_mesh(mesh: Any) -> None:
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"mesh must be a DeviceMesh (torch.distributed.device_mesh), got {mesh!r}")
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names
        way_out = f'mesh["{names[-1]}"]' if names else 'mesh["name"] of a mesh made with mesh_dim_names'
        raise ValueError(f"mesh must have one dimension, got {mesh.ndim}: choose one, as in {way_out}")
    if mesh.get_coordinate() is None:
        raise ValueError("mesh must contain this process")


def _check_head(head: Any) -> None:
    if not getattr(type(head), "is_loss_head", False):
        raise TypeError(f"head must be a loss head such as ArcFaceLoss, got {type(head).__name__}")
    if head.shards is not None or any(map(is_sharded, head.parameters())):
        raise ValueError("head is sharded already")
    if not can_stream(head.similarity):
        name = getattr(head.similarity, "__name__", type(head.similarity).__name__)
        raise ValueError(f"head must have a similarity of hypersphere to be sharded, got {name}")
    if head.sparse:
        raise ValueError("head must be made without sparse= to be sharded")
    if head.metric_reduction is not None:
        raise ValueError("head must have no reducer or regularizer of pytorch-metric-learning to be sharded")
    for parametrizations in getattr(head, "parametrizations", {}).values():
        for rotation in parametrizations:
            plan = getattr(rotation, "plan", None)
            if plan is None or plan.side != "input" or plan.frozen:
                got = type(rotation).__name__ if plan is None else f"side={plan.side!r}, apply={plan.apply!r}"
                raise ValueError(f"head to be sharded must be rotated with side='input' if at all, got {got}")
    if head.energy_weight and head.subcenters > 1:
        raise ValueError(f"head can be sharded with energy_weight=0 or subcenters=1, got subcenters={head.subcenters}")
    if next(head.parameters()).is_meta:
        lost = [name for name, buffer in head.named_buffers() if name not in ("step", "sampler.draw", "sampler.near")]
        if lost:
            raise ValueError(f"head on the meta device has lost {', '.join(lost)}: make it on a device")


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
        up = row_divisors(embeddings, head._longest(accumulation_dtype(embeddings.dtype)))
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
        products = head._nearest_of(direction @ unit(weight.to(x.dtype)).mT) * rule.product_scale
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
