"""Collectives with gradients, for tensors that the processes of a group compute together.

One scalar is differentiated by all processes: each calls backward on its own copy, and the gradient of a tensor is the
sum over the processes of what each computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from .functions import apply

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup as Group
    from torch.distributed.device_mesh import DeviceMesh


def exchange(numbers: list[int], group: Group, device: torch.device) -> list[list[int]]:
    """Return the integers of all processes, by rank."""
    own = torch.tensor(numbers, device=device)
    everyone = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(everyone, own, group=group)
    rows: list[list[int]] = torch.stack(everyone).tolist()
    return rows


def raise_together(error: Exception | None, codes: list[int], group: Group, device: torch.device) -> None:
    """Raise in every process the error of the first process that has one.

    Args:
        error: this process's.
        codes: of all processes, 0 without an error.
    """
    rank = next((rank for rank, code in enumerate(codes) if code), None)
    if rank is None:
        return
    errors: list[Any] = [error]
    dist.broadcast_object_list(errors, group=group, group_src=rank, device=device)
    kind = TypeError if isinstance(errors[0], TypeError) else ValueError
    raise kind(f"rank {rank}: {errors[0]}")


def gather_batch(x: Tensor, counts: list[int], group: Group, factor: float = 1.0) -> Tensor:
    """Concatenate the rows of all processes; the gradient is summed over them and multiplied by `factor`.

    Args:
        x: (counts[rank], ...) rows of this process; gathered in x's dtype, returned in at least float32.
    """
    rows: Tensor = apply(_GatherBatch, x, counts, group, factor)
    return rows


def gather_samples(x: Tensor) -> Tensor:
    """Concatenate the rows (B_r, ...) of all processes of the default group; x itself without torch.distributed.

    For a loss that every process computes from the result and differentiates on its own. The gradient by the process's
    rows is multiplied by the number of processes, over which data parallel training averages. The backward pass needs
    no communication.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return x
    group = dist.group.WORLD
    assert group is not None
    numbers = exchange([len(x), x[:1].numel() if len(x) else -1], group, x.device)
    widths = {width for _, width in numbers if width >= 0}
    if len(widths) > 1:
        raise ValueError(f"rows must have equal sizes on all ranks, got {', '.join(map(str, sorted(widths)))} numbers")
    counts = [count for count, _ in numbers]
    batch: Tensor = apply(_GatherSamples, x, counts, group)
    return batch


def concatenate(x: Tensor, counts: list[int], group: Group) -> Tensor:
    """Concatenate the rows of all processes, without gradient."""
    most = max(counts)
    padded = x.detach() if len(x) == most else torch.cat([x.detach(), x.new_zeros(most - len(x), *x.shape[1:])])
    out = x.new_empty(group.size() * most, *x.shape[1:])
    parts = list(out.split(most)) if most else []
    if most:
        dist.all_gather(parts, padded.contiguous(), group=group)
    return out if min(counts) == most else torch.cat([part[:n] for part, n in zip(parts, counts, strict=True)])


def own_gradient(x: Tensor, rows: slice) -> Tensor:
    """Return x (n, ...); only `rows` pass a gradient."""
    y: Tensor = apply(_OwnGradient, x, rows)
    return y


class RowShards:
    """Rows of a matrix that are split over the processes of a mesh as torch.chunk does: here are [start, stop).

    Attributes:
        sizes: how many rows each process has; the last ones may have none.
    """

    def __init__(self, mesh: DeviceMesh, rows: int) -> None:
        size = -(-rows // mesh.size())
        self.mesh = mesh
        self.sizes = [min(max(rows - rank * size, 0), size) for rank in range(mesh.size())]
        self.start = min(mesh.get_local_rank() * size, rows)
        self.stop = self.start + self.sizes[mesh.get_local_rank()]

    def __deepcopy__(self, memo: Any) -> RowShards:
        return self  # of a process group there is one

    @property
    def group(self) -> Group:
        return self.mesh.get_group()

    def find(self, index: Tensor) -> Tensor:
        """Return the positions in `index` (n,) of rows that are here."""
        return ((index >= self.start) & (index < self.stop)).nonzero().squeeze(1)


class _GatherBatch(Function):
    @staticmethod
    def forward(x: Tensor, counts: list[int], group: Group, factor: float) -> Tensor:
        return concatenate(x, counts, group).to(torch.promote_types(x.dtype, torch.float32))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.counts, ctx.group, ctx.factor = inputs
        ctx.dtype = x.dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        most, own = max(ctx.counts), ctx.counts[ctx.group.rank()]
        parts = [
            part if len(part) == most else torch.cat([part, part.new_zeros(most - len(part), *part.shape[1:])])
            for part in grad.contiguous().split(ctx.counts)
        ]
        total = torch.empty_like(parts[0])
        if most:
            dist.reduce_scatter(total, parts, group=ctx.group)
        return (total[:own] * ctx.factor).to(ctx.dtype), None, None, None


class _GatherSamples(Function):
    @staticmethod
    def forward(x: Tensor, counts: list[int], group: Group) -> Tensor:
        return concatenate(x, counts, group)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, counts, group = inputs
        start = sum(counts[: group.rank()])
        ctx.rows, ctx.factor = slice(start, start + counts[group.rank()]), group.size()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad[ctx.rows] * ctx.factor, None, None


class _OwnGradient(Function):
    @staticmethod
    def forward(x: Tensor, rows: slice) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.rows = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        own = torch.zeros_like(grad)
        own[ctx.rows] = grad[ctx.rows]
        return own, None
