"""Split the classes of a head over processes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from .._internal.global_hooks import record_change
from .._internal.sharding import is_sharded
from .class_shards import ClassShards
from .head_inputs import Head
from .logit_rule import can_stream

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

H = TypeVar("H", bound=nn.Module)


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
