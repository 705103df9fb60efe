"""Heads that classify each class against all others by binary losses, without a softmax: SphereFace2, UniFace.

Every class asks "is it mine?" with one threshold for all classes, so cosines of different samples can be compared with
one number, as verification does.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from .._internal import checks
from .._internal.nearest import explain_keywords
from ..layers.similarity import Similarity
from .head_inputs import HeadOptions
from .logit_rule import LogitRule, Sums
from .softmax import AngularSoftmaxLoss


class Power(Similarity):
    """g(θ) = 2((1 + cos θ)/2)^t − 1 = 2·cos(θ/2)^2t − 1 of SphereFace2; t is the first of `numbers`."""

    def __call__(self, c: Tensor) -> Tensor:
        return 2 * ((1 + c) / 2).clamp(0, 1).pow(float(self.numbers[0])) - 1

    def at_angle(self, theta: Tensor, filters: Tensor) -> Tensor:
        return self(theta.cos())


class BinaryLoss(AngularSoftmaxLoss):
    """The sum over classes of softplus(−f_y) at the label and softplus(f_j) at the others.

    f_j = s·g(θ_j) + b for all classes, with one learned number b, the parameter `offset`.

    Args:
        offset: where b starts.
        label_share, others_share: weights of the two terms.
    """

    needs_sums = True

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        similarity: Any,
        margin: float,
        scale: float,
        *,
        offset: float,
        label_share: float = 1.0,
        others_share: float = 1.0,
        **options: Any,
    ) -> None:
        if options.get("label_smoothing"):
            raise ValueError(
                f"label_smoothing must be 0 for {type(self).__name__}, whose classes do not share a probability; "
                f"got {options['label_smoothing']!r}"
            )
        super().__init__(num_classes, embedding_size, similarity, ("additive_cosine", margin), scale, None, **options)
        self.start, self.label_share, self.others_share = offset, label_share, others_share
        self.offset = nn.Parameter(self.weight.new_tensor(offset))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "offset"):
            nn.init.constant_(self.offset, self.start)

    def _biases(self) -> Tensor | None:
        return self.offset.expand(self.num_classes) if self.bias is None else self.bias + self.offset

    def _make_rule(self, direction: Tensor, weight: Tensor, classes: Tensor) -> LogitRule:
        return replace(super()._make_rule(direction, weight, classes), softplus=True)

    def _combine(self, target_logit: Tensor, sums: Sums, classes: Tensor, smooth: Tensor | None) -> Tensor:
        of_label = torch.logaddexp(-target_logit, target_logit.new_zeros(()))
        losses = self.label_share * of_label + self.others_share * sums.others
        return losses if self.class_weight is None else losses * self.class_weight.to(losses.dtype)[classes]


class SphereFace2Loss(BinaryLoss):
    """SphereFace2 (Wen et al. 2022), its version C.

    With g(θ) = 2((1 + cos θ)/2)^t − 1, f_y = r·(g(θ_y) − m) + b and f_j = r·(g(θ_j) + m) + b, the loss is
    50/r·(λ·softplus(−f_y) + (1 − λ)·Σ_{j≠y} softplus(f_j)). b is learned, the parameter `offset`; it starts where both
    terms pull equally at right angles.

    Args:
        margin: m in [0, 1].
        scale: r.
        positive_weight: λ in (0, 1).
        power: t >= 1.

    Example:
        >>> import torch
        >>> loss = SphereFace2Loss(10, 64)
        >>> loss(torch.randn(32, 64), torch.randint(10, (32,))).backward()
    """

    @explain_keywords
    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.4,
        scale: float = 40.0,
        positive_weight: float = 0.7,
        power: float = 3.0,
        **options: Unpack[HeadOptions],
    ) -> None:
        m, r = checks.number("margin", margin, low=0.0, high=1.0), checks.number("scale", scale, low=0.0, open_low=True)
        share = checks.number("positive_weight", positive_weight, low=0.0, high=1.0, open_low=True)
        if share == 1:
            raise ValueError(f"positive_weight must be > 0 and < 1, got {positive_weight!r}")
        t = checks.number("power", power, low=1.0)
        classes = checks.integer("num_classes", num_classes, low=2)
        super().__init__(
            *(num_classes, embedding_size, Power("power", (repr(t),)), m, r),
            offset=balanced_offset(classes, m, r, share, t),
            label_share=50 / r * share,
            others_share=50 / r * (1 - share),
            **options,
        )

    def _make_rule(self, direction: Tensor, weight: Tensor, classes: Tensor) -> LogitRule:
        rule = super()._make_rule(direction, weight, classes)
        return replace(rule, similarity=lambda cosines, _: self.similarity(cosines) + self.margin)


def balanced_offset(classes: int, margin: float, scale: float, share: float, power: float) -> float:
    """Compute where b of SphereFace2 starts: λ·σ(−(a_y + b)) = (1 − λ)(C − 1)·σ(a_j + b) at right angles.

    e^b is the positive root of a quadratic equation; it has two forms, of which one cancels.
    """
    g = 2 * 0.5**power - 1
    at_label, at_others = scale * (g - margin), scale * (g + margin)
    z = share / ((1 - share) * (classes - 1))
    root = math.hypot(1 - z, 2 * math.sqrt(z) * math.exp((at_label - at_others) / 2))
    if z < 1:
        return math.log(2 * z) - at_others - math.log(1 - z + root)
    return math.log((z - 1 + root) / 2) - at_label


class UniFaceLoss(BinaryLoss):
    """UniFace (Zhou et al. 2023), unified cross-entropy: f_y = s·(cos θ_y − m) + b, f_j = s·cos θ_j + b.

    The loss is softplus(−f_y) + Σ_{j≠y} softplus(f_j). b is learned, the parameter `offset`, the negative of the
    paper's threshold; it starts at −log(10·C).

    Args:
        margin: m, a cosine in [0, 1].
        scale: s.

    Example:
        >>> import torch
        >>> loss = UniFaceLoss(10, 64)
        >>> loss(torch.randn(32, 64), torch.randint(10, (32,))).backward()
    """

    @explain_keywords
    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.4,
        scale: float = 64.0,
        **options: Unpack[HeadOptions],
    ) -> None:
        m = checks.number("margin", margin, low=0.0, high=1.0, hint=" (a difference of cosines)")
        offset = -math.log(10 * checks.integer("num_classes", num_classes, low=2))
        scale = checks.number("scale", scale)
        super().__init__(num_classes, embedding_size, "cosine", m, scale, offset=offset, **options)
