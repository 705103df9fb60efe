"""Read and write parameters that FSDP2 (torch.distributed.fsdp.fully_shard) splits over processes as DTensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "device_mesh")


def gather(tensor: Tensor) -> Tensor:
    """Return the whole tensor, in every process; its gradient reaches the shards."""
    if not is_sharded(tensor):
        return tensor
    full: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return full


def write(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor, the same in every process, into a parameter."""
    if is_sharded(target):
        from torch.distributed.tensor import distribute_tensor

        mesh, placements = target.device_mesh, target.placements  # type: ignore[attr-defined]
        value = distribute_tensor(value.to(target.device, target.dtype), mesh, placements, src_data_rank=None)
    target.copy_(value)


def reshard(*models: nn.Module | None) -> None:
    """Make FSDP2 put its shards into the modules: after a forward pass the outermost one has whole parameters.

    These are copies: their gradients would be averaged or lost, and writing to them changes nothing.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    from torch.distributed.fsdp import FSDPModule

    for model in models:
        for module in () if model is None else model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
