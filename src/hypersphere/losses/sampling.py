"""Sums over very many classes, estimated from a sample of them.

S of C classes take part in a step: those of the batch's labels, classes near to them (hard negatives, which carry most
of the sum at a large scale), and m others, drawn without replacement. With F classes that take part for sure, a drawn
one counts (C − F)/m times. So Σ exp L_j has the right mean; its logarithm is too small on average. Without this
correction the sum is that of PartialFC (An et al. 2021).

Shapes: B batch, C classes, S classes of the sample, K near classes of a class, d embedding size.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from .._internal import checks
from .._internal.draws import generator, not_traced
from .._internal.overflow import finite_gradient
from .._internal.sharding import is_sharded
from ..layers.cosine import unit
from .logit_rule import LogitRule, Sums
from .streaming import sum_over_classes

NEAR = 8  # classes that are remembered for each class
_SEARCH = 3  # so a search, with one product for each class, costs about a tenth of the steps up to the next
_BLOCK = 8192  # classes at a time in this search


def check_sample(sample: Any, num_classes: int) -> int | None:
    """Return the number of classes that `sample` of a head says, None for all; raise if it is no share or number."""
    if sample is None:
        return None
    if isinstance(sample, float):
        share = checks.number("sample", sample, low=0.0, high=1.0, open_low=True, hint=" (a share of the classes)")
        return max(1, round(share * num_classes))
    if isinstance(sample, bool) or not isinstance(sample, Integral):
        raise TypeError(f"sample must be a share of the classes such as 0.1, their number, or None; got {sample!r}")
    count = checks.integer("sample", sample, low=1)
    if count > num_classes:
        raise ValueError(f"sample must be at most {num_classes} classes, got {count}")
    return count


class ClassSampler(nn.Module):
    """Choose the classes of every step, as a function of (seed, step), labels and near classes.

    Args:
        count: S. More take part if a batch has more labels than that. With `correct` at least a quarter of S is drawn.
        correct: count drawn classes (C − F)/m times and add hard negatives; False: as PartialFC, only labels are sure.
        seed: of the draws.

    Buffers: `draw`, the number of the step, and with `correct` `near` (C, K), −1 where a class has not been searched.
    Every (3·C/S)-th step searches for the classes with the nearest weights to those of the batch.

    In a sharded head every process chooses among its own classes, `first` and those after it. `near` is split as the
    weight is; it holds numbers of all classes, of which those of this process are used.
    """

    draw: Tensor
    near: Tensor | None
    first = 0

    def __init__(
        self, num_classes: int, count: int, correct: bool, seed: int, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.num_classes, self.count, self.correct, self.seed = num_classes, count, correct, seed
        self.every = max(1, round(_SEARCH * num_classes / count))
        self.register_buffer("draw", torch.zeros((), dtype=torch.int64, device=device))
        near = torch.full((num_classes, min(NEAR, num_classes - 1)), -1, dtype=torch.int32, device=device)
        self.register_buffer("near", near if correct else None)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        for name, buffer in self._buffers.items():  # a head that did not sample lacks them
            if buffer is not None:
                state_dict.setdefault(prefix + name, buffer)
            else:
                state_dict.pop(prefix + name, None)
        super()._load_from_state_dict(state_dict, prefix, *args)

    @not_traced
    @torch.no_grad()
    def forward(self, labels: Tensor, weight: Tensor, advance: bool = True) -> tuple[Tensor, Tensor]:
        """Return the classes (S,), sorted, and how often each counts (S,), for labels (B,) and weights (C·k, d).

        With `advance` it is a new step. Classes count from `first`.
        """
        step, positives = int(self.draw), labels.unique()
        near: Any = self.near
        if near is not None and is_sharded(near):
            near = near.to_local()
        if advance:
            if near is not None and step % self.every == 0 and self.num_classes > 1:
                k = min(near.shape[1], self.num_classes - 1)
                near[positives, :k] = find_near(weight, positives, self.num_classes, k) + self.first
            self.draw += 1
        sure = positives
        if near is not None:
            nearest = near[positives].mT.flatten() - self.first  # the nearest of all labels first
            nearest = nearest[(nearest >= 0) & (nearest < self.num_classes)]
            nearest = nearest[: max(self.count - len(positives), 0) // 2]
            sure = torch.cat([positives, nearest.long()]).unique()
        least = max(1, self.count // 4) if self.correct else 0
        rest = self.num_classes - len(sure)
        m = min(max(self.count - len(sure), least), rest)
        source = generator(self.seed, f"classes from {self.first}" if self.first else "classes", step)
        ranks = distinct(m, rest, source).to(labels.device)
        # the r-th class of those that are not sure
        drawn = ranks + torch.searchsorted(sure - torch.arange(len(sure), device=sure.device), ranks, right=True)
        index, order = torch.cat([sure, drawn]).sort()
        counts = torch.ones(len(index), dtype=torch.float64, device=index.device)
        if self.correct:
            counts[len(sure) :] = rest / max(m, 1)
        return index, counts[order]

    def extra_repr(self) -> str:
        return f"{self.count} of {self.num_classes} classes, correct={self.correct}, seed={self.seed}"


def sum_over_sample(
    sampler: ClassSampler,
    advance: bool,
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    rule: LogitRule,
    *,
    bias: Tensor | None = None,
    k: Tensor | None = None,
    class_weight: Tensor | None = None,
    sparse: bool = False,
    **options: Any,
) -> Sums:
    """Estimate :func:`sum_over_classes` from a sample of the classes, with all labels (B,) that are here among them."""
    inside = (target >= 0) & (target < sampler.num_classes)
    index, counts = sampler(target[inside], weight, advance)
    rows = index if rule.centers == 1 else _rows(index, rule.centers)
    counts = counts.to(x.dtype)
    return sum_over_classes(
        x,
        finite_gradient(F.embedding(rows, weight, sparse=sparse)),
        torch.where(inside, torch.searchsorted(index, target), -1),
        rule,
        bias=None if bias is None else bias[index],
        k=None if k is None else k[index] if k.dim() else k,
        class_weight=None if class_weight is None else class_weight[index] * counts,
        multiplicity=counts if sampler.correct else None,
        **options,
    )


def _rows(classes: Tensor, centers: int) -> Tensor:
    """Return the rows of the weight that belong to classes (n,) with several sub-centers, (n·centers,)."""
    return (classes.unsqueeze(1) * centers + torch.arange(centers, device=classes.device)).flatten()


def distinct(count: int, total: int, source: Generator) -> Tensor:
    """Draw `count` different numbers below `total`, every set equally likely, in O(count) memory."""
    if 4 * count > total:
        return torch.randperm(total, generator=source)[:count]
    numbers = torch.empty(0, dtype=torch.int64)
    while len(numbers) < count:
        more = torch.randint(total, (2 * (count - len(numbers)),), generator=source)
        numbers = torch.cat([numbers, more]).unique()
    return numbers[torch.randperm(len(numbers), generator=source)[:count]]


def find_near(weight: Tensor, classes: Tensor, num_classes: int, k: int) -> Tensor:
    """Return the k classes (P, k) with the nearest weights to those of P classes, the nearest first.

    A class with several sub-centers is at their mean direction.
    """
    centers = len(weight) // num_classes

    def directions(numbers: Tensor) -> Tensor:
        return unit(unit(weight[_rows(numbers, centers)].float()).unflatten(0, (-1, centers)).mean(1))

    own = directions(classes)
    cosines = own.new_full((len(classes), k), -2.0)
    near = torch.zeros(len(classes), k, dtype=torch.int64, device=classes.device)
    for start in range(0, num_classes, _BLOCK):
        block = torch.arange(start, min(start + _BLOCK, num_classes), device=classes.device)
        here = (own @ directions(block).mT).masked_fill_(block == classes.unsqueeze(1), -3.0)
        best, places = here.topk(min(k, len(block)), 1)
        cosines, order = torch.cat([cosines, best], 1).topk(k, 1)
        near = torch.cat([near, places + start], 1).gather(1, order)
    return near.to(torch.int32)
