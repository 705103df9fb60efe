"""Sharded tensors, each whole in one process: for optimizers that need all rows of a matrix.

Every process sends its rows of a matrix to the matrix's owner, which steps it and sends the rows back: one all-to-all
there and one back for all matrices together, whatever the number of rows that a process has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .sharding import gather, local_part, mesh_of, shard_like


@dataclass(frozen=True)
class Split:
    """How a tensor is split over the processes of a mesh, in one of its dimensions, and who owns it.

    Attributes:
        axis: the dimension of the mesh that splits it; all others hold the same.
        dim: the dimension of the tensor that is split as by torch.chunk: the last processes may have nothing.
        owner: the position along `axis` of the process in which it is whole.
    """

    mesh: Any
    axis: int
    dim: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    owner: int

    @property
    def rank(self) -> int:
        rank: int = self.mesh.get_local_rank(self.axis)
        return rank

    @property
    def is_here(self) -> bool:
        return self.rank == self.owner

    @property
    def sizes(self) -> list[int]:
        """The share of each process along `dim`."""
        rows, count = self.shape[self.dim], self.mesh.size(self.axis)
        share = -(-rows // count)
        return [min(max(rows - r * share, 0), share) for r in range(count)]

    def numel(self, rank: int) -> int:
        return self.sizes[rank] * (self.shape.numel() // self.shape[self.dim])

    def unflatten(self, flat: Tensor, rows: int) -> Tensor:
        """Return what was sent with `dim` in front."""
        rest = [n for d, n in enumerate(self.shape) if d != self.dim]
        return flat.view(rows, *rest).movedim(0, self.dim)

    def of_state(self, state: Tensor) -> Split:
        """Return the split of a state with another shape, along its longest dimension."""
        dim = max(range(state.dim()), key=lambda d: state.shape[d])
        return replace(self, dim=dim, shape=state.shape, dtype=state.dtype)

    def to_dtensor(self, part: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, Replicate, Shard

        placements = [Shard(self.dim) if i == self.axis else Replicate() for i in range(self.mesh.ndim)]
        stride = torch.empty(self.shape, device="meta").stride()
        own = part.clone(memory_format=torch.contiguous_format)  # deepcopy fails for a part of a larger memory
        return DTensor.from_local(own, self.mesh, placements, run_check=False, shape=self.shape, stride=stride)


Splits = dict[Tensor, Split]


def assign(groups: Iterable[Sequence[Tensor]]) -> Splits:
    """Give every sharded parameter an owner, so that all have the same work; without those that are not split by rows
    or columns over one dimension of a mesh. Further groups do not change the owners of the first."""
    groups = [[p for p in params if mesh_of(p) is not None] for params in groups]
    if not any(groups):
        return {}
    from torch.distributed.tensor import Replicate, Shard

    loads: dict[Any, list[float]] = {}
    splits: Splits = {}
    for params in groups:
        for p in sorted(params, key=Tensor.numel, reverse=True):
            mesh, placements = p.device_mesh, p.placements  # type: ignore[attr-defined]
            axes = [i for i, place in enumerate(placements) if not isinstance(place, Replicate)]
            if len(axes) != 1 or type(placements[axes[0]]) is not Shard:
                continue
            load = loads.setdefault((mesh, axes[0]), [0.0] * mesh.size(axes[0]))
            owner = load.index(min(load))
            load[owner] += p.numel() ** 1.5  # a product of square matrices
            dim = placements[axes[0]].dim % p.dim()
            splits[p] = Split(mesh, axes[0], dim, p.shape, p.dtype, local_part(p).device, owner)
    return splits


def whole(params: Sequence[Tensor], tensors: Iterable[Any], splits: Splits) -> list[Tensor | None]:
    """Return tensors that lie as these parameters do, such as their gradients: each in its owner, None elsewhere.

    Plain tensors are returned as they are, and those that are split in another way whole in all processes.
    """
    tensors = list(tensors)
    result: list[Tensor | None] = [None if p in splits else gather(t) for p, t in zip(params, tensors, strict=True)]
    numbers = [i for i, p in enumerate(params) if p in splits]
    parts = [local_part(tensors[i]) for i in numbers]
    own = [replace(splits[params[i]], dtype=part.dtype) for i, part in zip(numbers, parts, strict=True)]
    for i, tensor in zip(numbers, collect(parts, own), strict=True):
        result[i] = tensor
    return result


def parts_of(params: Sequence[Tensor], wholes: Sequence[Tensor | None], splits: Splits) -> list[Tensor]:
    """Invert :func:`whole`: return the parts of this process, in the parameters' dtypes."""
    result = [
        w if w is None or p in splits else local_part(shard_like(p, w)) for p, w in zip(params, wholes, strict=True)
    ]
    numbers = [i for i, p in enumerate(params) if p in splits]
    own = [splits[params[i]] for i in numbers]
    for i, part in zip(numbers, spread([wholes[i] for i in numbers], own), strict=True):
        result[i] = part
    return result  # type: ignore[return-value]


def put(params: Sequence[Tensor], wholes: Sequence[Tensor | None], splits: Splits) -> None:
    """Write whole tensors into parameters."""
    for p, part in zip(params, parts_of(params, wholes, splits), strict=True):
        local_part(p).copy_(part)


def collect(parts: Sequence[Tensor], splits: Sequence[Split]) -> list[Tensor | None]:
    """Return the whole tensors in their owners, None elsewhere."""
    wholes: list[Tensor | None] = [None] * len(parts)
    for numbers in _together(splits):
        first, ranks = splits[numbers[0]], range(splits[numbers[0]].mesh.size(splits[numbers[0]].axis))
        by_owner = [[i for i in numbers if splits[i].owner == r] for r in ranks]
        mine = by_owner[first.rank]
        sent = [[parts[i].movedim(splits[i].dim, 0).flatten() for i in owned] for owned in by_owner]
        got = _all_to_all(sent, [[splits[i].numel(r) for i in mine] for r in ranks], first)
        for i, *pieces in zip(mine, *got, strict=True):
            sizes = splits[i].sizes
            wholes[i] = torch.cat(
                [splits[i].unflatten(x, n) for x, n in zip(pieces, sizes, strict=True)], splits[i].dim
            )
    return wholes


def spread(wholes: Sequence[Tensor | None], splits: Sequence[Split]) -> list[Tensor]:
    """Return this process's parts of tensors that are whole in their owners."""
    parts: dict[int, Tensor] = {}
    for numbers in _together(splits):
        first, ranks = splits[numbers[0]], range(splits[numbers[0]].mesh.size(splits[numbers[0]].axis))
        by_owner = [[i for i in numbers if splits[i].owner == r] for r in ranks]
        shares = [
            whole.to(splits[i].dtype).movedim(splits[i].dim, 0).split(splits[i].sizes)
            for i in by_owner[first.rank]
            if (whole := wholes[i]) is not None
        ]
        sent = [[share[r].flatten() for share in shares] for r in ranks]
        got = _all_to_all(sent, [[splits[i].numel(first.rank) for i in owned] for owned in by_owner], first)
        for owned, pieces in zip(by_owner, got, strict=True):
            for i, piece in zip(owned, pieces, strict=True):
                parts[i] = splits[i].unflatten(piece, splits[i].sizes[first.rank])
    return [parts[i] for i in range(len(splits))]


def _together(splits: Sequence[Split]) -> list[list[int]]:
    """Return the numbers of tensors that travel in one exchange."""
    groups: dict[Any, list[int]] = {}
    for i, split in enumerate(splits):
        groups.setdefault((split.mesh, split.axis, split.dtype, split.device), []).append(i)
    return list(groups.values())


def _all_to_all(sent: list[list[Tensor]], expected: list[list[int]], split: Split) -> list[list[Tensor]]:
    """Send tensors to every process, and return what came from each, of the expected lengths."""
    empty = torch.empty(0, dtype=split.dtype, device=split.device)
    send = torch.cat([empty, *(x for tensors in sent for x in tensors)])
    counts = [sum(lengths) for lengths in expected]
    got = torch.empty(sum(counts), dtype=split.dtype, device=split.device)
    group = split.mesh.get_group(split.axis)
    dist.all_to_all_single(got, send, counts, [sum(map(Tensor.numel, tensors)) for tensors in sent], group=group)
    return [list(x.split(lengths)) for x, lengths in zip(got.split(counts), expected, strict=True)]
