"""The rows of all processes in every process, with the gradient of a loss that all of them compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .functions import apply


def gather_rows(x: Tensor, group: Any = None) -> Tensor:
    """Concatenate the rows (B_r, ...) of all processes; one process without torch.distributed.

    Every process must compute the same loss from the result. Its gradient by the process's own rows is multiplied by
    the number of processes, over which data parallel training averages. The backward pass needs no communication.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size(group) == 1:
        return x
    result: Tensor = apply(_GatherRows, x, group)[0]
    return result


class _GatherRows(Function):
    @staticmethod
    def forward(x: Tensor, group: Any) -> tuple[Tensor, int]:
        processes, rank = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
        count = torch.tensor([len(x)], device=x.device)
        counts = [torch.empty_like(count) for _ in range(processes)]
        torch.distributed.all_gather(counts, count, group)
        sizes = torch.cat(counts).tolist()
        padded = x.new_zeros(max(sizes), *x.shape[1:])
        padded[: len(x)] = x
        parts = [torch.empty_like(padded) for _ in range(processes)]
        torch.distributed.all_gather(parts, padded, group)
        whole = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
        return whole, sum(sizes[:rank])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, int]) -> None:
        ctx.start, ctx.rows = output[1], len(inputs[0])
        ctx.factor = torch.distributed.get_world_size(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None]:
        return grad[ctx.start : ctx.start + ctx.rows] * ctx.factor, None
