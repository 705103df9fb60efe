"""Heads whose margin differs from sample to sample: by length (AdaFace, MagFace) or drawn (ElasticFace).

Shapes: B batch, d embedding size. θ is the angle with the label's class weight, n = ‖x‖.
"""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from .._internal import checks
from .._internal.draws import normal_numbers, stable_hash
from .._internal.functions import apply, is_transformed
from .._internal.nearest import explain_keywords
from .._internal.overflow import ClampWithInwardGradient, rescale, row_divisors
from .._internal.precision import accumulation_dtype
from ..layers.cosine import unit_unchecked
from ..layers.similarity import angle
from .head_inputs import HeadOptions, angular_margin
from .margins import additive_angle
from .softmax import AngularSoftmaxLoss

_EDGE = 1e-3  # of AdaFace: angles stay this far from 0 and π, lengths from 0
_LONG = 2.0**16  # longer than any length that matters here


class AdaFaceLoss(AngularSoftmaxLoss):
    """AdaFace (Kim et al. 2022): the margin depends on the embedding's length, which stands for an image's quality.

    z = clip(h·(n − μ)/(σ + 0.001), −1, 1), and f_y = s·(cos(θ_y − m·z) − m·z − m): long embeddings have an additive
    cosine, short ones a smaller angle. μ and σ are moving averages of the lengths' mean and deviation over batches, in
    the buffers `norm_mean` and `norm_std`; they are updated in training mode with grad enabled only. z has no gradient.

    Args:
        margin: m in [0, 1].
        scale: s.
        h: how many deviations from μ the margin reaches its ends: 1/h.
        rate: the share of the current batch in the moving averages.

    Example:
        >>> import torch
        >>> loss = AdaFaceLoss(10, 64)
        >>> loss(torch.randn(32, 64), torch.randint(10, (32,))).backward()
        >>> loss.norm_mean  # 0.99·20 + 0.01·8
        tensor(19.8...)
    """

    norm_mean: Tensor
    norm_std: Tensor

    @explain_keywords
    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.4,
        scale: float = 64.0,
        h: float = 0.333,
        rate: float = 0.01,
        **options: Unpack[HeadOptions],
    ) -> None:
        m = checks.number("margin", margin, low=0.0, high=1.0)
        scale = checks.number("scale", scale)
        super().__init__(num_classes, embedding_size, "cosine", ("additive_angle", m), scale, None, **options)
        self.h = checks.number("h", h, low=0.0)
        self.rate = checks.number("rate", rate, low=0.0, high=1.0)
        for name, start in (("norm_mean", 20.0), ("norm_std", 100.0)):
            like = self.weight.new_tensor(start, dtype=accumulation_dtype(self.weight.dtype))
            self.register_buffer(name, like)

    def _update(self, embeddings: Tensor, weight: Tensor, classes: Tensor, kept: Tensor | None) -> None:
        if is_transformed() or not len(embeddings):
            return
        n = _clipped_length(embeddings.detach(), self.norm_mean.dtype)
        counted = torch.ones_like(n) if kept is None else kept.to(n.dtype)
        count = counted.sum()
        mean = (n * counted).sum() / count.clamp_min(1)
        std = ((n - mean).square() * counted).sum().div((count - 1).clamp_min(1)).sqrt()
        self.norm_mean = torch.where(count > 0, self.norm_mean.lerp(mean, self.rate), self.norm_mean)
        self.norm_std = torch.where(count > 1, self.norm_std.lerp(std, self.rate), self.norm_std)

    def _margin_difference(self, target_cosine: Tensor, target: Tensor, embeddings: Tensor) -> Tensor:
        n = _clipped_length(embeddings.detach(), target_cosine.dtype)
        mean, std = (buffer.to(n.dtype) for buffer in (self.norm_mean, self.norm_std))
        z = (self.h * (n - mean) / (std + 1e-3)).clamp(-1, 1)
        theta = (angle(target_cosine) - self.margin * z).clamp(_EDGE, math.pi - _EDGE)
        return theta.cos() - self.margin * (1 + z) - target_cosine


class MagFaceLoss(AngularSoftmaxLoss):
    """MagFace (Meng et al. 2021): the margin grows with the embedding's length, which comes to measure quality.

    With a = ‖x‖ clipped to `norm_range` (l, u), m(a) grows linearly over it through `margin_range`, and
    f_y = s·cos(θ_y + m(a)) if cos θ_y > 0, else s·cos θ_y. The loss of a sample has norm_weight·(a/u² + 1/a) added.
    A length outside of the range receives gradients that lead back to it only.

    Args:
        scale: s.
        margin_range: m at the ends of the range of lengths, radians in [0, π/2].
        norm_range: l and u.
        norm_weight: of the regularizer of the lengths.

    Example:
        >>> import torch
        >>> loss = MagFaceLoss(10, 64)
        >>> loss(20 * torch.randn(32, 64), torch.randint(10, (32,))).backward()
    """

    @explain_keywords
    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        scale: float = 64.0,
        margin_range: tuple[float, float] = (0.45, 0.8),
        norm_range: tuple[float, float] = (10.0, 110.0),
        norm_weight: float = 35.0,
        **options: Unpack[HeadOptions],
    ) -> None:
        low, high = (checks.number("margin_range", m, low=0.0, high=math.pi / 2) for m in margin_range)
        shortest, longest = (checks.number("norm_range", n, low=0.0, open_low=True, high=_LONG / 2) for n in norm_range)
        if not shortest < longest:
            raise ValueError(f"norm_range must be two growing lengths, got {norm_range!r}")
        scale = checks.number("scale", scale)
        super().__init__(num_classes, embedding_size, "cosine", ("additive_angle", high), scale, None, **options)
        self.margin_range, self.norm_range = (low, high), (shortest, longest)
        self.norm_weight = checks.number("norm_weight", norm_weight, low=0.0)

    def _margin_difference(self, target_cosine: Tensor, target: Tensor, embeddings: Tensor) -> Tensor:
        (low, high), (shortest, longest) = self.margin_range, self.norm_range
        share = (self._length(embeddings) - shortest) / (longest - shortest)
        theta = angle(target_cosine) + (low + (high - low) * share).to(target_cosine.dtype)
        return torch.where(target_cosine > 0, theta.cos() - target_cosine, 0.0)

    def _sample_penalty(self, embeddings: Tensor) -> Tensor | None:
        if not self.norm_weight:
            return None
        a = self._length(embeddings)
        return self.norm_weight * (a / self.norm_range[1] ** 2 + 1 / a)

    def _length(self, embeddings: Tensor) -> Tensor:
        lengths = _length(embeddings.to(accumulation_dtype(embeddings.dtype)))
        a: Tensor = apply(ClampWithInwardGradient, lengths, *self.norm_range)
        return a


class ElasticFaceLoss(AngularSoftmaxLoss):
    """ElasticFace (Boutros et al. 2022): ArcFace or CosFace with a margin drawn for each sample, m_i ~ N(m, σ²).

    The draw depends on `seed` and the buffer `step` only, which counts forward passes in training mode with grad
    enabled. In eval mode the margin is m.

    Args:
        margin: m; None: 0.5 radians for "arc", a cosine of 0.35 for "cos".
        scale: s.
        kind: "arc", f_y = s·cos(θ_y + m_i) as in :class:`ArcFaceLoss`, or "cos", s·(cos θ_y − m_i).
        plus: ElasticFace+: the smallest of the batch's margins goes to the sample with the largest cosine, and so on.
        std: σ; None: 0.05, with `plus` 0.0175 for "arc" and 0.02 for "cos".

    Example:
        >>> import torch
        >>> loss = ElasticFaceLoss(10, 64, kind="cos", plus=True)
        >>> loss(torch.randn(32, 64), torch.randint(10, (32,))).backward()
    """

    @explain_keywords
    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float | None = None,
        scale: float = 64.0,
        kind: str = "arc",
        plus: bool = False,
        std: float | None = None,
        **options: Unpack[HeadOptions],
    ) -> None:
        checks.choice("kind", kind, ("arc", "cos"))
        if kind == "arc":
            m = angular_margin(0.5 if margin is None else margin)
        else:
            m = checks.number("margin", 0.35 if margin is None else margin, low=0.0, high=1.0)
        name = "additive_angle" if kind == "arc" else "additive_cosine"
        scale = checks.number("scale", scale)
        super().__init__(num_classes, embedding_size, "cosine", (name, m), scale, None, **options)
        usual = 0.05 if not plus else 0.0175 if kind == "arc" else 0.02
        self.kind, self.plus = kind, checks.flag("plus", plus)
        self.key = stable_hash(self.seed, "ElasticFaceLoss")
        self.std = checks.number("std", usual if std is None else std, low=0.0)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=self.weight.device))

    def _update(self, embeddings: Tensor, weight: Tensor, classes: Tensor, kept: Tensor | None) -> None:
        self.step = self.step + 1

    def _margin_difference(self, target_cosine: Tensor, target: Tensor, embeddings: Tensor) -> Tensor:
        margins = torch.full_like(target_cosine, self.margin)
        if self.training:
            drawn = normal_numbers(self.key, self.step, len(target_cosine))
            margins = margins + self.std * drawn.to(margins.dtype)
        if self.plus:
            rank = target_cosine.detach().argsort(descending=True, stable=True).argsort()
            margins = margins.sort()[0][rank]
        if self.kind == "cos":
            return -margins
        plain = target_cosine  # of the cosine at its own angle
        theta = angle(plain)
        return additive_angle(theta, margins, lambda a: plain if a is theta else a.cos()) - plain


def _length(embeddings: Tensor) -> Tensor:
    """Compute ‖x‖ (B,) with gradient x/‖x‖, 0 at x = 0; of very long embeddings a smaller number, at least 2¹⁵."""
    up = row_divisors(embeddings, _LONG)
    x = embeddings if up is None else rescale(embeddings, 1 / up, 1.0)
    return (x * unit_unchecked(x)).sum(1)


def _clipped_length(embeddings: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute AdaFace's lengths (B,), in [0.001, 100]."""
    return _length(embeddings.to(dtype)).clamp(_EDGE, 100)
