"""Heads whose margin changes the logits of the other classes too: CurricularFace, SphereFace-R.

Shapes: B batch, n classes of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from .._internal import checks
from .._internal.functions import is_transformed
from .._internal.nearest import explain_keywords
from .._internal.precision import accumulation_dtype
from ..layers.similarity import angle
from .head_inputs import HeadOptions, angular_margin
from .logit_rule import LogitRule
from .softmax import AngularSoftmaxLoss


def detached(change: Callable[[Tensor], Tensor], detach: bool) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return a map of cosines for a :class:`LogitRule`; if `detach`, with the gradient of the cosines themselves."""

    def mapped(cosines: Tensor, _: Tensor | None) -> Tensor:
        return cosines + (change(cosines) - cosines).detach() if detach else change(cosines)

    return mapped


class CurricularFaceLoss(AngularSoftmaxLoss):
    """CurricularFace (Huang et al. 2020): ArcFace that gives hard classes more weight as training goes on.

    f_y is ArcFace's. Of the other classes, those with cos θ_j > cos(θ_y + m) have f_j = s·cos θ_j·(t + cos θ_j). t is
    the moving average of cos θ_y over batches, a buffer that starts at 0 and is updated, before it is used, in
    training mode with grad enabled only.

    Args:
        margin: m, radians in [0, π).
        scale: s.
        rate: the share of the current batch in the moving average.

    Example:
        >>> import torch
        >>> loss = CurricularFaceLoss(10, 64)
        >>> loss(torch.randn(32, 64), torch.randint(10, (32,))).backward()
    """

    needs_sums = True
    t: Tensor

    @explain_keywords
    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.5,
        scale: float = 64.0,
        rate: float = 0.01,
        **options: Unpack[HeadOptions],
    ) -> None:
        m, scale = angular_margin(margin), checks.number("scale", scale)
        super().__init__(num_classes, embedding_size, "cosine", ("additive_angle", m), scale, None, **options)
        self.rate = checks.number("rate", rate, low=0.0, high=1.0)
        dtype = accumulation_dtype(self.weight.dtype)
        self.register_buffer("t", torch.zeros((), dtype=dtype, device=self.weight.device))

    def _update(self, embeddings: Tensor, weight: Tensor, classes: Tensor, kept: Tensor | None) -> None:
        if is_transformed() or not len(embeddings):
            return
        cosines = self._label_cosines(embeddings, weight, classes).to(self.t.dtype)
        counted = torch.ones_like(cosines) if kept is None else kept.to(cosines.dtype)
        mean = (cosines * counted).sum() / counted.sum().clamp_min(1)
        self.t = torch.where(counted.any(), self.t.lerp(mean, self.rate), self.t)

    def _make_rule(self, direction: Tensor, weight: Tensor, classes: Tensor) -> LogitRule:
        cosines = self._label_cosines(direction, weight, classes)
        hardest = (angle(cosines) + self.margin).cos().unsqueeze(1)  # beyond π − m too, unlike the target's logit
        t = self.t.to(direction.dtype)

        def harden(c: Tensor) -> Tensor:
            return torch.where(c > hardest, c * (t + c), c)

        rule = super()._make_rule(direction, weight, classes)
        return replace(rule, similarity=detached(harden, self.detach_margin))


class SphereFaceRLoss(AngularSoftmaxLoss):
    """SphereFace-R (Liu et al. 2022): the multiplied angle of SphereFace for normalized embeddings, in three versions.

    =======  =========================  =============
    version  f_y/s                      f_j/s
    =======  =========================  =============
    "v0"     ψ(m·θ_y)                   cos θ_j
    "v1"     cos(min(m·θ_y, π))         cos θ_j
    "v2"     cos θ_y                    cos(θ_j/m)
    =======  =========================  =============

    ψ is :func:`multiplicative`'s. The cross-entropy is multiplied by 50/s. The margin is detached by default: the
    logits have the gradient of the cosines (the paper's characteristic gradient detachment).

    Args:
        margin: m >= 1, a factor of the angle.
        scale: s.

    Example:
        >>> import torch
        >>> loss = SphereFaceRLoss(10, 64, version="v2")
        >>> loss(torch.randn(32, 64), torch.randint(10, (32,))).backward()
    """

    @explain_keywords
    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 1.5,
        scale: float = 30.0,
        version: str = "v1",
        **options: Unpack[HeadOptions],
    ) -> None:
        m = checks.number("margin", margin, low=1.0, hint=" (a factor of the angle)")
        checks.choice("version", version, ("v0", "v1", "v2"))
        options.setdefault("detach_margin", True)
        scale = checks.number("scale", scale)
        super().__init__(num_classes, embedding_size, "cosine", ("multiplicative", m), scale, None, **options)
        self.version, self.needs_sums, self.loss_factor = version, version == "v2", 50 / scale

    def _margin_difference(self, target_cosine: Tensor, target: Tensor, embeddings: Tensor) -> Tensor:
        if self.version == "v0":
            return super()._margin_difference(target_cosine, target, embeddings)
        if self.version == "v2":
            return torch.zeros_like(target_cosine)
        return (self.margin * angle(target_cosine)).clamp(max=math.pi).cos() - target_cosine

    def _make_rule(self, direction: Tensor, weight: Tensor, classes: Tensor) -> LogitRule:
        rule = super()._make_rule(direction, weight, classes)
        if self.version != "v2":
            return rule
        return replace(rule, similarity=detached(lambda c: (angle(c) / self.margin).cos(), self.detach_margin))
