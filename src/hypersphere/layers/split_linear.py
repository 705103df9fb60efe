"""Sphere layers under tensor parallelism: the weight is split over processes as a DTensor.

ColwiseParallel gives each process some of the neurons, whose cosines it computes alone. RowwiseParallel gives it some
of the inputs: lengths of inputs and neurons and the products are summed over the processes.

Shapes: B batch, N neurons, d dimensions; of this process n neurons or e dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from .._internal.precision import accumulation_dtype
from .._internal.sharding import gather, is_sharded, reduce_, split_rows, sum_over
from .cosine import clamp_cosine, cosine_linear, inverse_norm
from .similarity import LearnableSigmoid, learned_k, sigmoid

Apply = Callable[[Tensor, Tensor | None, Any, Tensor | float | None], Tensor]


def split_linear(
    x: Tensor, weight: Any, bias: Tensor | None, similarity: Any, scale: Tensor | float | None, apply_similarity: Apply
) -> Tensor:
    """Compute :func:`hypersphere.functional.sphere_linear` of DTensors: a DTensor (..., N).

    Args:
        weight: (N, d), split on a mesh of one dimension.
        bias, scale: may be plain, then the same in every process.
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if not is_sharded(x) or x.device_mesh != weight.device_mesh:  # type: ignore[attr-defined]
        raise ValueError(
            "the input of a layer with a split weight must be a DTensor on the same mesh, as the hooks of "
            "parallelize_module make it (or FSDP2 has sharded the layer, and the model was not called as a whole)"
        )
    mesh = weight.device_mesh
    if mesh.ndim != 1 or weight.placements[0] not in (Shard(0), Shard(1)):
        raise ValueError(
            "a sphere layer can be split by ColwiseParallel or RowwiseParallel on a mesh of one dimension, got "
            f"{mesh.ndim} dimensions and the placements {weight.placements}"
        )
    shape = (*x.shape[:-1], weight.shape[0])
    if weight.placements[0] == Shard(1):
        c = _cosines_of_parts(x, weight)
        g, scale = _with_whole_parameters(similarity), gather(scale) if isinstance(scale, Tensor) else scale
        y = apply_similarity(c.reshape(-1, shape[-1]), None if bias is None else gather(bias), g, scale)
        return DTensor.from_local(y.view(shape), mesh, [Replicate()], run_check=False)
    from torch.distributed.tensor import Partial

    own = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])  # type: ignore[attr-defined]
    rows = weight.to_local()
    bias = None if bias is None else split_rows(bias, mesh)
    scale = split_rows(scale, mesh) if isinstance(scale, Tensor) else scale
    c = cosine_linear(own, rows)
    c = c.flatten(0, -2) if c.dim() > 1 else c.unsqueeze(0)
    y = apply_similarity(c, bias, _of_own_neurons(similarity, mesh), scale).view(*own.shape[:-1], len(rows))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(y, mesh, [Shard(len(shape) - 1)], run_check=False, shape=torch.Size(shape), stride=stride)


def _cosines_of_parts(x: Any, weight: Any) -> Tensor:
    """Compute the cosines (..., N), the same in every process, of x (..., d) and w (N, d), both split along d."""
    from torch.distributed.tensor import Shard

    mesh, own = weight.device_mesh, x.redistribute(placements=[Shard(x.dim() - 1)]).to_local()
    product = F.linear(_UnitOfParts.apply(own, mesh), _UnitOfParts.apply(weight.to_local(), mesh))
    total = sum_over(product.to(accumulation_dtype(product.dtype)), mesh)
    return clamp_cosine(total).to(product.dtype)


class _UnitOfParts(Function):
    """Divide parts (..., e) of rows by the length of the whole rows. Beyond 1.8e19 in float32 a row counts as zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: Any) -> Tensor:
        squares = x.to(accumulation_dtype(x.dtype)).square().sum(-1, keepdim=True)
        inverse = inverse_norm(reduce_(squares, mesh), x.dtype)
        y = (x * inverse).to(x.dtype)
        ctx.save_for_backward(y, inverse)
        ctx.mesh = mesh
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        y, inverse = ctx.saved_tensors
        along = reduce_((grad * y).sum(-1, keepdim=True, dtype=inverse.dtype), ctx.mesh)
        return ((grad - y * along) * inverse).to(y.dtype), None


def _with_whole_parameters(similarity: Any) -> Any:
    """Return the similarity with gathered parameters."""
    own = dict(similarity.named_parameters()) if isinstance(similarity, nn.Module) else {}
    if not any(map(is_sharded, own.values())):
        return similarity
    return lambda c: functional_call(similarity, {name: gather(p) for name, p in own.items()}, c)


def _of_own_neurons(similarity: Any, mesh: Any) -> Any:
    """Return the similarity for the neurons of this process."""
    if isinstance(similarity, LearnableSigmoid):
        log_k = similarity.log_k
        own = split_rows(log_k if similarity.num_filters else log_k.expand(mesh.size()), mesh)
        return lambda c: sigmoid(c, learned_k(own))
    if isinstance(similarity, nn.Module) and any(True for _ in similarity.parameters()):
        raise ValueError(
            f"a layer that ColwiseParallel split cannot have the similarity {type(similarity).__name__}, whose "
            "parameters may belong to single neurons: use 'learnable' or one without parameters"
        )
    return similarity
