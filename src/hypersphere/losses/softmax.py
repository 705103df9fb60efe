"""The softmax shared by all heads: logits s·g(θ) + b with a margin at the label, and their cross-entropy.

The formulas and the table of heads are in :mod:`hypersphere.losses.heads`.

Shapes: B batch, C classes, d embedding size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._internal import checks
from .._internal.functions import is_recorded, is_transformed
from .._internal.fx import Proxy, call_as_leaf
from .._internal.global_hooks import watch_sparse, watch_weight_decay
from .._internal.nearest import explain_keywords
from .._internal.overflow import row_divisors
from .._internal.precision import accumulation_dtype, without_autocast
from ..energy.gradient_limit import bound_gradient
from ..energy.hyperspherical import batch_energy, make_law, sample_energies
from ..layers.cosine import unit
from ..layers.similarity import angle, resolve
from ..layers.sphere import SimilarityLike
from .class_shards import ClassShards
from .from_logits import logits_without_margin, longest, losses_from_logits
from .from_sums import losses_from_sums
from .head_inputs import (
    Annealing,
    as_class_weight,
    check_embeddings,
    check_labels,
    check_sample_weight,
    find_kept,
    miner_weights,
)
from .logit_rule import COSINE, LogitRule, Sums, can_stream, check_stream, make_rule
from .margins import MARGINS, sphereface_annealing
from .metric_learning import MetricOptions, make_reduction
from .result import in_dtype_of, reduce_losses
from .sampling import ClassSampler, check_sample
from .subcenters import find_outliers, nearest_subcenters

_STREAM_BYTES = 2**25  # of logits: above this, streaming is as fast, and stream="auto" streams
_SOFTPLUS_THRESHOLD = 60.0  # softplus(x) = x above: exact in float64 too


class AngularSoftmaxLoss(nn.Module):
    """The softmax shared by all heads: f = s·g(θ) + b with a margin at the label.

    Args:
        num_classes, embedding_size: the shape (C, d) of `weight`; with K > 1 `subcenters` it is (C, K, d).
        similarity: g, as in the layers; "learnable" has a k for every class.
        margin: None, or (name of :data:`MARGINS`, m).
        scale: None for the norm of the embedding, or the length to which embeddings are scaled.
        annealing: True for :func:`sphereface_annealing`, False, or a callable of the step n (a 0-d int64 tensor): the
            target is (λ·g + margin)/(1 + λ). n counts forward passes in training mode with grad enabled, from 1. It
            is the buffer `step`, which exists with False too, so that both can load each other's state_dict; a
            state_dict without it keeps the current one. None: no annealing and no `step`.
    """

    is_loss_head = True
    needs_sums = False  # whether the other classes' logits are not s·g(θ) + b, so that the loss is always from sums
    shards: ClassShards | None = None  # see :func:`shard_head`
    loss_factor = 1.0  # by which the cross-entropy is multiplied
    step: Tensor
    class_weight: Tensor | None

    @explain_keywords
    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        similarity: SimilarityLike = "cosine",
        margin: tuple[str, float] | None = None,
        scale: float | None = None,
        annealing: Annealing | None = False,
        *,
        bias: bool = False,
        class_weight: Tensor | Sequence[float] | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        energy_weight: float = 0.0,
        energy_s: float = 2.0,
        subcenters: int = 1,
        detach_margin: bool = False,
        stream: bool | int | str = "auto",
        sample: float | int | None = None,
        correct: bool = True,
        seed: int = 0,
        sparse: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **metric: Unpack[MetricOptions],
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": checks.floating_dtype(dtype)}
        self.num_classes = checks.integer("num_classes", num_classes, low=2)
        self.embedding_size = checks.integer("embedding_size", embedding_size, low=1)
        if margin is not None and not (isinstance(margin, tuple) and len(margin) == 2):
            raise TypeError(f"margin must be None or (name, number), got {margin!r}")
        self.margin_kind, self.margin = margin or ("none", 0.0)
        if margin is not None:
            checks.choice("margin", self.margin_kind, MARGINS)
            checks.number("margin", self.margin)
        self.scale = None if scale is None else checks.number("scale", scale, low=0.0, open_low=True)
        self.label_smoothing = checks.number("label_smoothing", label_smoothing, low=0.0, high=1.0)
        self.ignore_index = checks.integer("ignore_index", ignore_index)
        checks.choice("reduction", reduction, ("mean", "sum", "none"))
        self.metric_reduction = make_reduction(reduction, self.scale, **metric)
        self.reduction = "none" if metric.get("reducer") is not None else reduction
        self.energy_weight = checks.number("energy_weight", energy_weight, low=0.0)
        self.energy_law = make_law(energy_s, False, False, name="energy_s")
        self.subcenters = checks.integer("subcenters", subcenters, low=1)
        self.detach_margin = checks.flag("detach_margin", detach_margin)
        centers = () if self.subcenters == 1 else (self.subcenters,)
        self.weight = nn.Parameter(torch.empty(self.num_classes, *centers, self.embedding_size, **factory))
        self.bias = nn.Parameter(torch.empty(self.num_classes, **factory)) if bias else None
        self.reset_parameters()
        watch_weight_decay(self)
        self.similarity = resolve(similarity, self.num_classes, **factory)
        self.stream = check_stream(stream, self.similarity)
        self.sparse, count = checks.flag("sparse", sparse), check_sample(sample, self.num_classes)
        correct, self.seed = checks.flag("correct", correct), checks.integer("seed", seed)
        for name, wanted in (("sample", count is not None), ("sparse", self.sparse)):
            if wanted:
                self._check_parts(name, count is not None, metric)
        self.sampler = None
        if count is not None:
            self.sampler = ClassSampler(self.num_classes, count, correct, self.seed, self.weight.device)
        if self.sparse:
            watch_sparse(self)
        if annealing is not None and not isinstance(annealing, bool) and not callable(annealing):
            raise TypeError(f"annealing must be True, False or a callable of the step, got {annealing!r}")
        self.annealing = sphereface_annealing if annealing is True else annealing or None
        if annealing is not None:
            self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=device))
        weights = as_class_weight(class_weight, self.num_classes, dtype, self.weight.device)
        self.register_buffer("class_weight", weights, persistent=False)

    def _check_parts(self, option: str, sampled: bool, metric: MetricOptions) -> None:
        """Raise if the loss has parts that need all classes, with the option `sample` or `sparse`."""
        if self.energy_weight:
            raise ValueError(
                f"energy_weight must be 0 with {option}=, got {self.energy_weight:g}: it compares all classes"
            )
        if metric.get("weight_regularizer") is not None:
            raise ValueError(f"weight_regularizer must be None with {option}=: it compares all classes")
        if not can_stream(self.similarity):
            raise ValueError(f"similarity must be one of hypersphere with {option}=, got {self.similarity!r}")
        if option == "sparse" and self.weight.dim() > 2:
            raise ValueError(f"subcenters must be 1 with sparse=True, got {self.subcenters}")
        if option == "sparse" and self.label_smoothing and not sampled:
            raise ValueError(
                f"label_smoothing must be 0 with sparse=True, got {self.label_smoothing:g}: every class would have "
                "a gradient; with sample= only those of the sample have one"
            )

    @property
    def has_margin(self) -> bool:
        """Whether the target's logit differs from s·g(θ) + b."""
        return self.margin_kind in MARGINS

    def reset_parameters(self) -> None:
        if self.shards is None:
            nn.init.xavier_normal_(self.weight.flatten(0, -2))
        else:
            self.shards.start_weight(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        if "step" in self._buffers:  # older state_dicts of heads without annealing lack it
            state_dict.setdefault(prefix + "step", self.step)
        if self.shards is not None:
            self.shards.split(state_dict, prefix, self)
        if self.sampler is None:  # of a head that sampled
            for name in [key for key in state_dict if key.startswith(prefix + "sampler.")]:
                del state_dict[name]
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        watch_weight_decay(self)
        if self.sparse:
            watch_sparse(self)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: Sequence[Tensor] | None = None,
        *,
        sample_weight: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss of embeddings (B, d) with labels (B,), in the dtype of the embeddings.

        It is computed in at least float32, and in the wider dtype of embeddings and weight; under autocast that is the
        result's, as of torch's own losses.

        Args:
            indices_tuple: the output of a miner of pytorch-metric-learning; samples are weighted by how often they
                occur in it.
            sample_weight: (B,) weights of the samples.
        """
        if isinstance(embeddings, Proxy):
            return call_as_leaf(self, embeddings, labels, indices_tuple, sample_weight=sample_weight)
        if self.shards is not None:
            return in_dtype_of(embeddings, self.shards.loss(self, embeddings, labels, indices_tuple, sample_weight))
        weight = self.weight.flatten(0, -2)  # read once: it may be parametrized
        check_embeddings(embeddings, self.embedding_size)
        check_labels(labels, len(embeddings))
        check_sample_weight(sample_weight, labels)
        with without_autocast(embeddings):  # a logit of 30 has a resolution of 0.1 in bfloat16
            loss = self._loss(embeddings, weight, labels, indices_tuple, sample_weight)
            if self.metric_reduction is not None:
                loss = self.metric_reduction(loss, labels != self.ignore_index, weight, embeddings, labels)
        return in_dtype_of(embeddings, loss) if isinstance(loss, Tensor) else loss  # a dict of losses by a reducer

    def logits(self, embeddings: Tensor) -> Tensor:
        """Compute s·g(θ) + b for all classes (B, C), without a margin: for inference."""
        if self.shards is not None:
            return in_dtype_of(embeddings, self.shards.logits(self, embeddings))
        weight = self.weight.flatten(0, -2)
        check_embeddings(embeddings, self.embedding_size)
        with without_autocast(embeddings):  # a logit of 30 has a resolution of 0.1 in bfloat16
            logits = logits_without_margin(self, embeddings, weight)
        return in_dtype_of(embeddings, logits)

    def outliers(self, embeddings: Tensor, labels: Tensor, threshold: float = math.radians(75)) -> Tensor:
        """Return the indices of samples far from their class, by class: likely wrong labels (sub-center ArcFace, 3.3).

        The dominant sub-center of a class is the nearest one of most of its samples; an outlier is more than
        `threshold` (radians) away from it. Give the embeddings of all data at once.

        Example:
            >>> head = AngularSoftmaxLoss(2, 2, subcenters=2)
            >>> head.weight.data = torch.tensor([[[1.0, 0], [0, 1]], [[-1, 0], [0, -1]]])
            >>> x = torch.tensor([[1.0, 0.1], [0.9, 0.0], [0.0, 1.0], [-1.0, 0.0]])
            >>> head.outliers(x, torch.tensor([0, 0, 0, 1]))
            tensor([2])
        """
        check_embeddings(embeddings, self.embedding_size)
        check_labels(labels, len(embeddings))
        kept = find_kept(labels, self.num_classes, self.ignore_index)
        threshold = checks.number("threshold", threshold, low=0.0, high=math.pi, hint=" (radians)")
        found = find_outliers(unit(embeddings.detach()), self.weight.detach(), labels, threshold)
        return found if kept is None else found[kept[found]]

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Compute :meth:`logits`, by its name in pytorch-metric-learning."""
        return self.logits(embeddings)

    def _loss(
        self,
        embeddings: Tensor,
        weight: Tensor,
        labels: Tensor,
        indices_tuple: Sequence[Tensor] | None,
        sample_weight: Tensor | None,
    ) -> Tensor:
        kept = find_kept(labels, self.num_classes, self.ignore_index)
        classes = labels if kept is None else torch.where(kept, labels, 0)
        if self.training and torch.is_grad_enabled():
            self._update(embeddings, weight, classes, kept)
        penalty = self._sample_penalty(embeddings)
        unweighted = self.class_weight is None and sample_weight is None and indices_tuple is None
        equal = kept is None and penalty is None and unweighted
        stream = self._is_streamed(embeddings, weight)
        if stream or self.needs_sums or self.shards is not None or self._is_sampled:
            losses = losses_from_sums(self, embeddings, weight, classes, stream)
            losses = losses if kept is None else losses * kept
        else:
            losses = losses_from_logits(
                self, embeddings, weight, labels, classes, kept, self.reduction if equal else "none"
            )
        if penalty is not None:
            penalty = penalty if self.class_weight is None else penalty * self.class_weight.to(penalty.dtype)[classes]
            losses = losses + (penalty if kept is None else penalty * kept).to(losses.dtype)
        losses = losses if self.shards is None else self.shards.own_gradient(losses)
        if indices_tuple is not None:
            losses = losses * miner_weights(indices_tuple, labels).to(losses.dtype)
        loss = losses
        if losses.dim():
            loss = reduce_losses(losses, classes, kept, sample_weight, self.class_weight, self.reduction)
        loss = loss if self.loss_factor == 1 else loss * self.loss_factor
        if not self.energy_weight or not len(labels):
            return loss
        counts = torch.ones_like(classes, dtype=losses.dtype) if kept is None else kept.to(losses.dtype)
        counts = counts if sample_weight is None else counts * sample_weight
        dtype = torch.promote_types(embeddings.dtype, weight.dtype)
        if self.subcenters > 1:
            classes = nearest_subcenters(unit(embeddings.detach().to(dtype)), weight, classes, self.subcenters)[1]
        return loss + self._energy(weight.to(dtype), classes, counts)

    def _update(self, embeddings: Tensor, weight: Tensor, classes: Tensor, kept: Tensor | None) -> None:
        """Update buffers by a batch, in training mode with grad enabled; kept (B,): which samples are not ignored."""
        if self.annealing is not None and self.has_margin:
            # A new tensor, because a compiled backward pass may compute λ again from the old step.
            self.step = self.step + 1

    def _sample_penalty(self, embeddings: Tensor) -> Tensor | None:
        """Compute what is added to the loss of each sample, (B,) or None."""
        return None

    def _label_cosines(self, embeddings: Tensor, weight: Tensor, classes: Tensor) -> Tensor:
        """Compute the cosines (B,) with the label's class, without gradient, before those with all classes."""
        dtype = accumulation_dtype(torch.promote_types(embeddings.dtype, weight.dtype))
        directions, rows = unit(embeddings.detach().to(dtype)), weight.detach()
        if self.shards is not None:
            return self.shards.label_cosines(directions, rows, classes, self.subcenters)
        return nearest_subcenters(directions, rows, classes, self.subcenters)[0]

    def _is_streamed(self, embeddings: Tensor, weight: Tensor) -> bool:
        if is_transformed() or is_recorded() or not len(embeddings):
            return False  # transforms and compilers take all logits at once
        dtype = accumulation_dtype(torch.promote_types(embeddings.dtype, weight.dtype))
        if self.sparse or (self._is_sampled and self.stream):
            return True
        few = len(embeddings) * len(weight) * dtype.itemsize <= _STREAM_BYTES
        if not self.stream or (self.stream == "auto" and (few or not can_stream(self.similarity))):
            return False
        # with scale=None very long embeddings need all logits at once
        return self.scale is not None or row_divisors(embeddings, longest(self, dtype)) is None

    @property
    def _is_sampled(self) -> bool:
        return self.sampler is not None and self.training

    def _make_rule(self, direction: Tensor, weight: Tensor, classes: Tensor) -> LogitRule:
        """Make the rule of the logits of all classes but the label's, from unit embeddings (B, d)."""
        return make_rule(self.similarity, self.scale, self.stream, self.subcenters)

    def _biases(self) -> Tensor | None:
        """Return what is added to the logits of the classes, (C,) or None."""
        return self.bias

    def _combine(self, target_logit: Tensor, sums: Sums, classes: Tensor, smooth: Tensor | None) -> Tensor:
        """Compute the losses (B,) from the logit of the label and the sums; smooth (C,): class weights to smooth by."""
        losses = F.softplus(sums.others - target_logit, threshold=_SOFTPLUS_THRESHOLD)
        if smooth is None:
            return losses if self.class_weight is None else losses * self.class_weight.to(losses.dtype)[classes]
        share, own_weight = self.label_smoothing, smooth[classes]
        all_log_sum = target_logit + losses
        spread_out = smooth.sum() * all_log_sum - sums.weighted - own_weight * target_logit
        return (1 - share) * own_weight * losses + share / self.num_classes * spread_out

    def _difference(self, target_cosine: Tensor, classes: Tensor, embeddings: Tensor) -> Tensor:
        """Compute :meth:`_margin_difference`, without gradient if the head detaches the margin."""
        difference = self._margin_difference(target_cosine, classes, embeddings)
        return difference.detach() if self.detach_margin else difference

    def _margin_difference(self, target_cosine: Tensor, target: Tensor, embeddings: Tensor) -> Tensor:
        """Compute margin(θ) − g(θ) at the label, (B,); a subclass may read the length of the embeddings (B, d)."""

        def g(theta: Tensor) -> Tensor:
            at_angle = getattr(self.similarity, "at_angle", None)
            if at_angle is not None:
                values: Tensor = at_angle(theta, target)
                return values
            cosines = theta.cos().unsqueeze(1).expand(-1, self.num_classes)  # filters on dimension 1, always
            return self.similarity(cosines).gather(1, target.unsqueeze(1)).squeeze(1)

        if self.margin_kind == "additive_cosine":  # −m at every angle
            difference = torch.full_like(target_cosine, -self.margin)
        elif self.margin_kind == "additive_angle" and self.similarity == COSINE:  # with fewer operations than below
            theta, m = angle(target_cosine), self.margin
            difference = torch.where(theta <= math.pi - m, (theta + m).cos() - target_cosine, -m * math.sin(m))
        else:
            theta = angle(target_cosine)
            plain = target_cosine if self.similarity == COSINE else g(theta)
            with_margin = MARGINS[self.margin_kind](theta, self.margin, lambda a: plain if a is theta else g(a))
            difference = with_margin - plain
        if self.annealing is None:
            return difference
        return difference / (1 + self.annealing(self.step))  # (λ·g + ψ)/(1 + λ) − g

    def _energy(self, weight: Tensor, target: Tensor, counts: Tensor) -> Tensor:
        """Compute λ_M·class_energy at the labels, reduced as the losses are; counts (B,) weight the samples."""
        rows, share = weight.to(accumulation_dtype(weight.dtype)), self.energy_weight * counts
        law = self.energy_law
        if self.reduction == "none":
            each = bound_gradient(lambda r: share.to(r.dtype) * sample_energies(r, target, law, self.shards), rows)
            return each if self.shards is None else self.shards.sum_gradient(each)
        total = counts.sum()
        total = torch.where(total > 0, total, 1.0)
        mean = bound_gradient(lambda r: batch_energy(r, target, share / total, law, self.shards), rows)
        return mean if self.reduction == "mean" else mean * total

    def extra_repr(self) -> str:
        texts = [f"num_classes={self.num_classes}", f"embedding_size={self.embedding_size}"]
        if self.has_margin:
            texts.append(f"margin={self.margin:g}")
        texts.append(f"scale={self.scale if self.scale is not None else 'own norm'}")
        if self.subcenters > 1:
            texts.append(f"subcenters={self.subcenters}")
        if self.energy_weight:
            texts.append(f"energy_weight={self.energy_weight:g}")
        return ", ".join(texts)
