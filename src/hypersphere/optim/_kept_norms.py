"""The norms that Hyperball keeps: of whole and of sharded weights.

Letters: W a weight before a step, Δ the change by the wrapped optimizer's step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._internal.sharding import (
    MeshPart,
    gather,
    is_sharded,
    reduce_together,
    split_dimensions,
    with_local_part,
)
from ._shared import ParamGroup, place_of


@dataclass(slots=True)
class Kept:
    """A parameter that keeps its norms.

    Attributes:
        number, index: of its group, and its place there.
        dims: the dimensions over which its norms sum; None: the spectral norm.
        here: its part in this process; all of it if it is not sharded.
        dtype: of its norms.
    """

    parameter: Tensor
    group: ParamGroup
    number: int
    index: int
    dims: tuple[int, ...] | None
    here: Tensor
    dtype: torch.dtype

    @property
    def place(self) -> str:
        return place_of(self.index, self.parameter, self.group, self.number)

    @property
    def is_plain(self) -> bool:
        """Whether it is whole, on a CPU and of its norm's dtype."""
        here = self.here
        return here is self.parameter and here.is_cpu and here.dtype == self.dtype and self.dims is not None

    def mesh(self, *, summed: bool) -> MeshPart | None:
        """Return the dimensions of the mesh that split what a norm sums, or those that split what it does not."""
        over = self.dims or ()
        dims = tuple(i for i, d in split_dimensions(self.parameter).items() if (d in over) == summed)
        return (self.parameter.device_mesh, dims) if dims else None  # type: ignore[attr-defined]

    def norm(self, x: Tensor) -> Tensor:
        """Return the norms of the part here, or the spectral norm of the whole."""
        if self.dims is None:
            whole = gather(with_local_part(self.parameter, x))
            finite = torch.nan_to_num(whole, 0.0, 0.0, 0.0)  # LAPACK refuses others; NaN is what the caller looks for
            largest = torch.linalg.matrix_norm(finite.flatten(1), 2) + 0 * whole.sum()
            return largest.reshape([1] * x.dim())
        return torch.linalg.vector_norm(x, dim=self.dims, keepdim=True)

    def stored(self, radius: Tensor) -> Tensor:
        """Return a radius as the state holds it: as a DTensor if processes have different neurons."""
        if self.dims is None or self.mesh(summed=False) is None:
            return radius
        shape = [1 if d in self.dims else n for d, n in enumerate(self.parameter.shape)]
        return with_local_part(self.parameter, radius, shape)


def norms_of(kept: list[Kept], tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the norms of tensors; of those that are split over processes by one all-reduce."""
    norms = [k.norm(x) for k, x in zip(kept, tensors, strict=True)]
    if not any(is_sharded(k.parameter) for k in kept):
        return norms
    parts = [k.mesh(summed=True) for k in kept]
    squares = reduce_together([n.double().square() for n in norms], parts)
    return [norm if part is None else square.sqrt() for norm, part, square in zip(norms, parts, squares, strict=True)]


def measure(
    kept: list[Kept], befores: list[Tensor], changes: Iterable[Tensor]
) -> tuple[list[Tensor], dict[int, Tensor], list[float]]:
    """Return ‖Δ‖ of all, (‖Δ‖², ⟨W, Δ⟩, ‖W‖²) of those that are split, by number, and the sums of all ‖Δ‖.

    What is split is summed by one all-reduce. The changes Δ are overwritten.
    """
    lengths: list[Tensor] = []
    products: dict[int, Tensor] = {}
    for i, (k, before, change) in enumerate(zip(kept, befores, changes, strict=True)):
        lengths.append(k.norm(change))
        if k.mesh(summed=True) is not None:
            squares = [x.double().square() for x in (lengths[i], k.norm(before.to(change.dtype)))]
            product = change.mul_(before).sum(k.dims, keepdim=True, dtype=torch.float64)
            products[i] = torch.stack([squares[0], product, squares[1]])
    summed = reduce_together(list(products.values()), [kept[i].mesh(summed=True) for i in products])
    for i, product in zip(products, summed, strict=True):
        products[i], lengths[i] = product, product[0].sqrt()
    return lengths, products, _totals(kept, lengths)


def new_norms(
    kept: list[Kept], news: list[Tensor], products: dict[int, Tensor], factors: Sequence[Tensor]
) -> list[Tensor]:
    """Return ‖W + fΔ‖; of what is split by √(‖W‖² + 2f⟨W, Δ⟩ + f²‖Δ‖²), measured anew where that loses digits."""
    norms = {i: k.norm(new) for i, (k, new) in enumerate(zip(kept, news, strict=True)) if i not in products}
    lost = []
    for i, (change, product, weight) in products.items():
        apart = weight + factors[i].square() * change
        square = apart + 2 * factors[i] * product
        norms[i] = square.clamp_min(0.0).sqrt()
        lost.append((square < apart / 2).any())  # the same in all processes that sum this norm
    anew = [i for i, is_lost in zip(products, torch.stack(lost).tolist(), strict=True) if is_lost] if lost else []
    for i, norm in zip(anew, norms_of([kept[i] for i in anew], (news[i] for i in anew)), strict=True):
        norms[i] = norm
    return [norms[i] for i in range(len(kept))]


def _totals(kept: list[Kept], norms: list[Tensor]) -> list[float]:
    """Return the sum of the norms of each parameter over all processes, by one synchronization."""
    sums = norms if kept[0].dims is None or len(kept[0].dims) == kept[0].parameter.dim() else [n.sum() for n in norms]
    if any(is_sharded(k.parameter) for k in kept):
        sums = reduce_together(list(map(Tensor.double, sums)), [k.mesh(summed=False) for k in kept])
    values: list[float] = torch.cat([x.view(1).to(sums[0].device) for x in sums]).tolist()
    return values
