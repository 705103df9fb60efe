"""Read and write parameters that are split over processes as DTensors, by FSDP2 (torch.distributed.fsdp.fully_shard) or
tensor parallelism, and compute with them on all processes of their mesh.

FSDP1 (FullyShardedDataParallel) keeps slices of one flat tensor, or a view of freed memory: it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "device_mesh")


def gather(tensor: Tensor) -> Tensor:
    """Return the whole tensor, in every process; its gradient reaches the shards."""
    if not is_sharded(tensor):
        return tensor
    full: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return full


MeshPart = tuple[Any, tuple[int, ...]]  # a device mesh and some of its dimensions


def local_part(tensor: Tensor) -> Tensor:
    """Return the part that is in this process, which shares its memory; without gradients."""
    return tensor._local_tensor if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def with_local_part(like: Tensor, part: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Return a tensor that is sharded as `like`, of its shape or another, from this process's part."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor, Replicate

    size = like.shape if shape is None else torch.Size(shape)
    placements = [
        Replicate() if p.is_shard() and size[p.dim] != like.shape[p.dim] else p
        for p in like.placements  # type: ignore[attr-defined]
    ]
    stride = torch.empty(size, device="meta").stride()
    mesh = like.device_mesh  # type: ignore[attr-defined]
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=size, stride=stride)


def split_dimensions(tensor: Tensor) -> dict[int, int]:
    """Return the dimensions of a tensor's mesh that split it, and which of the tensor's dimensions each splits."""
    if mesh_of(tensor) is None:
        return {}
    return {i: p.dim % tensor.dim() for i, p in enumerate(tensor.placements) if p.is_shard()}  # type: ignore[attr-defined]


def whole_mesh(tensor: Tensor) -> MeshPart | None:
    mesh = mesh_of(tensor)
    return None if mesh is None else (mesh, tuple(range(mesh.ndim)))


def reduce_together(tensors: list[Tensor], meshes: list[MeshPart | None], op: str = "SUM") -> list[Tensor]:
    """Reduce tensors over the processes of their meshes, by one all-reduce for each mesh; None: as they are."""
    reduced = list(tensors)
    for key in dict.fromkeys(m for m in meshes if m is not None):
        numbers = [i for i, m in enumerate(meshes) if m == key]
        flat = torch.cat([tensors[i].flatten() for i in numbers])
        mesh, dims = key
        for dim in dims:
            dist.all_reduce(flat, getattr(dist.ReduceOp, op), group=mesh.get_group(dim))
        for i, part in zip(numbers, flat.split([tensors[i].numel() for i in numbers]), strict=True):
            reduced[i] = part.view_as(tensors[i])
    return reduced


def mesh_of(tensor: Tensor) -> Any:
    """Return the device mesh over which a tensor is sharded; None if it is plain, or on a single process."""
    mesh = getattr(tensor, "device_mesh", None)
    return None if mesh is None or mesh.size() == 1 else mesh


def position_in(mesh: Any) -> int:
    """Return the number of this process in a mesh, from 0 to mesh.size() − 1."""
    position = 0
    for size, coordinate in zip(mesh.shape, mesh.get_coordinate(), strict=True):
        position = position * size + coordinate
    return position


def reduce_(tensor: Tensor, mesh: Any, op: str = "SUM") -> Tensor:
    """Return the sum (or "MAX") over the processes of a mesh, without a gradient; overwrites a contiguous tensor."""
    tensor = tensor.contiguous()
    for dim in range(mesh.ndim):
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op), group=mesh.get_group(dim))
    return tensor


def sum_over(tensor: Tensor, mesh: Any) -> Tensor:
    """Return the sum of the processes' tensors; its gradient must be the same in all of them."""
    from torch.distributed.tensor import DTensor, Partial

    total: Tensor = DTensor.from_local(tensor, mesh, [Partial()] * mesh.ndim, run_check=False).full_tensor()
    return total


def replicate(tensor: Tensor, mesh: Any) -> Tensor:
    """Return a tensor whole, the same in every process of the mesh, each of which computes a part with it: gradients
    are summed."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    whole = [Replicate()] * mesh.ndim
    if not is_sharded(tensor):
        tensor = DTensor.from_local(tensor, mesh, whole, run_check=False)
    local: Tensor = tensor.redistribute(placements=whole).to_local(  # type: ignore[attr-defined]
        grad_placements=[Partial()] * mesh.ndim
    )
    return local


def writer_mesh(model: nn.Module) -> Any:
    """Return the largest mesh over which a parameter is sharded, whose first process writes files; None without one."""
    reshard(model)
    return max(filter(None, map(mesh_of, model.parameters())), key=lambda mesh: mesh.size(), default=None)


def gather_for_writer(tensor: Tensor, mesh: Any) -> Tensor:
    """Return the whole tensor; with a mesh on the CPU of its first process, and an empty one in the others."""
    if mesh is None:
        return tensor
    full = gather(tensor.detach())
    return full.new_empty(0) if position_in(mesh) else full.cpu()


def run_in_writer(write: Callable[[], None], mesh: Any) -> None:
    """Call `write` in the first process of a mesh; if it fails, all raise its error. Without a mesh, only call it."""
    error: Exception | None = None
    if mesh is None or position_in(mesh) == 0:
        try:
            write()
        except Exception as failure:
            if mesh is None:
                raise
            error = failure
    for dim in reversed(range(0 if mesh is None else mesh.ndim)):
        outcome, group = [error], mesh.get_group(dim)
        dist.broadcast_object_list(outcome, dist.get_global_rank(group, 0), group)
        error = outcome[0]
    if error is not None:
        raise error


def check_in_all(check: Callable[[], None], like: Tensor, mesh: Any) -> None:
    """Call `check` in every process of a mesh, and raise the error of one in all: nobody waits for a process that left.

    Without a mesh, only call it.
    """
    error: Exception | None = None
    try:
        check()
    except (TypeError, ValueError) as failure:
        if mesh is None:
            raise
        error = failure
    if mesh is None or not reduce_(like.new_full((1,), error is not None), mesh).item():
        return
    for dim in range(mesh.ndim):
        errors: list[Exception | None] = [None] * mesh.size(dim)
        dist.all_gather_object(errors, error, mesh.get_group(dim))
        error = next(filter(None, errors), None)
    assert error is not None
    raise error


def split_rows(tensor: Tensor, mesh: Any) -> Tensor:
    """Return this process's share of the first dimension of a tensor; a plain one must be the same in all processes."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if not is_sharded(tensor):
        tensor = DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
    local: Tensor = tensor.redistribute(placements=[Shard(0)]).to_local()  # type: ignore[attr-defined]
    return local


def copy_to(mesh: Any, tensor: Tensor) -> Tensor:
    """Return a DTensor that holds the first process's tensor in every process of the mesh."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    return distribute_tensor(tensor, mesh, [Replicate()] * mesh.ndim)


class RefuseSplit:
    """An attribute for classes of layers that torch.distributed.tensor's distribute_module, and so parallelize_module,
    reads before it changes them; layers that were split before have their own. Without processes nobody splits a layer,
    and what reads all attributes, such as torch.jit.trace, finds False."""

    def __init__(self, reason: Callable[[Any], str]) -> None:
        self.reason = reason

    def __get__(self, layer: Any, owner: Any) -> bool:
        if layer is not None and is_distributed() and (reason := self.reason(layer)):
            raise ValueError(reason)
        return False


def shard_like(target: Tensor, value: Tensor) -> Tensor:
    """Return the shard of a whole tensor, the same in every process; the tensor itself if `target` is not sharded."""
    if not is_sharded(target):
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = target.device_mesh, target.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(target.device, target.dtype), mesh, placements, src_data_rank=None)


def write(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor, the same in every process, into a parameter."""
    target.copy_(shard_like(target, value))


def read(module: nn.Module, name: str) -> Tensor:
    """Return a tensor of a module, evaluated if it is parametrized and gathered if it is sharded."""
    tensor: Tensor
    if not is_distributed():
        tensor = getattr(module, name)
        return tensor
    inside = f"parametrizations.{name}."
    own = {key: p for key, p in module.named_parameters() if key == name or key.startswith(inside)}
    if any(map(is_sharded, own.values())):
        tensor = functional_call(_Reader(module, name), {f"module.{key}": gather(p) for key, p in own.items()})
        return tensor
    tensor = getattr(module, name)
    if tensor.dim() < 2 or (tensor.numel() and not tensor.untyped_storage().size()):
        raise _fsdp1_error()
    return tensor


class _Reader(nn.Module):
    """Read a tensor of a module in functional_call."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self.module, self.name = module, name

    def forward(self) -> Tensor:
        tensor: Tensor = getattr(self.module, self.name)
        return tensor


def reshard(*models: nn.Module | None) -> None:
    """Make FSDP2 put its shards into the modules: after a forward pass the outermost one has whole parameters.

    These are copies: their gradients would be averaged or lost, and writing to them changes nothing. FSDP1 is refused.
    """
    if not is_distributed():
        return
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    for model in models:
        for module in () if model is None else model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
            if isinstance(module, FullyShardedDataParallel) and module.training_state.name != "SUMMON_FULL_PARAMS":
                raise _fsdp1_error()


def refuse_sharded(verb: str, model: nn.Module, instead: str) -> None:
    """Raise if FSDP2 has sharded a parameter."""
    reshard(model)
    for name, parameter in model.named_parameters():
        if is_sharded(parameter):
            raise ValueError(f"{verb}: {name!r} is sharded: {instead}")


def is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _fsdp1_error() -> ValueError:
    return ValueError(
        "the model is wrapped by FullyShardedDataParallel (FSDP1), which hides its weights: use fully_shard (FSDP2), "
        "or read them under FullyShardedDataParallel.summon_full_params(model)"
    )
