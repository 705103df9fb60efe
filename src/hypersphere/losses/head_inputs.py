"""What heads are given: their keyword arguments, and checks of embeddings, labels and weights of samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._internal import checks
from .metric_learning import MetricOptions

Head = Any  # an AngularSoftmaxLoss, whose module imports those that use this name
Annealing = bool | Callable[[Tensor], Tensor | float]


class HeadOptions(MetricOptions, total=False):
    """The keyword arguments of every head."""

    bias: bool
    """Learn b_j (C,), starting at 0; for imbalanced data."""
    class_weight: Tensor | Sequence[float] | None
    """(C,) weights of the classes."""
    label_smoothing: float
    """in [0, 1], as in F.cross_entropy."""
    ignore_index: int
    """Samples with this label are ignored (-100)."""
    reduction: str
    """"mean" (divided by the sum of class_weight·sample_weight of samples that are not ignored), "sum" or "none"."""
    energy_weight: float
    """λ_M: adds λ_M·class_energy of the head's weight at the labels that are not ignored (MHE, Eq. 8), default 0. "sum"
    multiplies it by their number, "none" adds each sample's part. The gradient of the mean by a class weight w is
    clipped to a length of ‖w‖, as in :class:`hypersphere.EnergyRegularizer`."""
    energy_s: float
    """The power of that energy (2)."""
    subcenters: int
    """K weight vectors for each class (1): its cosine is that of the nearest. For noisy labels; see `outliers`. The
    energy is that of all C·K, at the one nearest to each sample."""
    detach_margin: bool
    """Take the value of the margin, but the gradient of the logit without it."""
    stream: bool | int | str
    """Compute the loss a block of classes at a time, without a tensor of batch × classes: True, False, the number of
    classes at a time, or "auto": if the logits would take more than 32 MB. For the similarities of this package;
    torch.compile and torch.func take all logits at once."""
    sample: float | int | None
    """In training mode compute the loss from a sample of the classes, a share (0.1) or a number of them: those of the
    labels, near ones, and others that are drawn. Eval mode and `logits` take all classes."""
    correct: bool
    """Count a drawn class for as many as it stands for, so that the sum over the classes has the right mean (True);
    False: as PartialFC does, without near classes."""
    seed: int
    """Of the draws of classes and of ElasticFace's margins, which depend on it and on the number of the step (0)."""
    sparse: bool
    """Make `weight.grad` a sparse tensor of the rows that have a gradient, for torch.optim.SparseAdam, SGD and Adagrad
    and :class:`hypersphere.optim.RowSGD`: with `sample` those of the sample, otherwise the rows of classes with
    a probability above 2⁻²⁴ for any sample. Streams always. Under torch.compile, and of
    a weight that is computed from others, such as a rotated one, the gradient is dense."""
    device: torch.device | str | None
    dtype: torch.dtype | None


def angular_margin(margin: Any) -> float:
    """Return a margin that is an angle in [0, π); raise if it is none."""
    number = checks.number("margin", margin)
    if not 0 <= number < math.pi:
        degrees = f" (radians, not degrees: {margin!r} degrees are {math.radians(number):.3g})" if number >= 0 else ""
        raise ValueError(f"margin must be an angle in radians in [0, π), got {margin!r}{degrees}")
    return number


def check_embeddings(embeddings: Tensor, size: int) -> None:
    checks.floating("embeddings", embeddings)
    if embeddings.dim() != 2 or embeddings.shape[1] != size:
        raise ValueError(f"embeddings must be (B, {size}), got {tuple(embeddings.shape)}")


def check_labels(labels: Tensor, batch: int) -> None:
    if not isinstance(labels, Tensor) or labels.dtype is not torch.int64:
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels must be an int64 tensor, got {got}")
    if labels.shape != (batch,):
        raise ValueError(f"labels must be ({batch},), got {tuple(labels.shape)}")


def check_sample_weight(sample_weight: Tensor | None, labels: Tensor) -> None:
    if sample_weight is not None and (not isinstance(sample_weight, Tensor) or sample_weight.shape != labels.shape):
        raise ValueError(
            f"sample_weight must be a tensor of shape {tuple(labels.shape)}, got {_describe(sample_weight)}"
        )


def find_kept(labels: Tensor, num_classes: int, ignore_index: int) -> Tensor | None:
    """Check the labels' range; return which samples are not ignored (B,), or None if all are known to count."""
    readable = checks.can_read_values(labels)
    if readable and labels.numel() and not 0 <= ignore_index < num_classes:
        low, high = torch.aminmax(labels)
        if low.item() >= 0 and high.item() < num_classes:
            return None
    kept = labels != ignore_index
    if not readable:
        return kept
    outside = labels[((labels < 0) | (labels >= num_classes)) & kept]
    if outside.numel():
        raise ValueError(
            f"labels must be in [0, {num_classes - 1}] or {ignore_index} (ignored), "
            f"got {outside[0].item()} among others"
        )
    return kept


def as_class_weight(
    class_weight: Any, num_classes: int, dtype: torch.dtype | None, device: torch.device
) -> Tensor | None:
    """Return the weights of the classes as a tensor (C,); raise if they are none."""
    if class_weight is None:
        return None
    error = ValueError(f"class_weight must be {num_classes} finite numbers >= 0, got {_describe(class_weight)}")
    try:
        weights = torch.as_tensor(class_weight, device="cpu", dtype=dtype or torch.get_default_dtype())
    except (TypeError, ValueError, RuntimeError):
        raise error from None
    if weights.shape != (num_classes,) or not bool((weights >= 0).all() and weights.isfinite().all()):
        raise error
    return weights.to(device)


def miner_weights(indices_tuple: Sequence[Tensor], labels: Tensor) -> Tensor:
    """Return how often a miner of pytorch-metric-learning chose each sample, (B,), 1 for the most frequent."""
    if not isinstance(indices_tuple, tuple | list) or not all(isinstance(part, Tensor) for part in indices_tuple):
        raise TypeError(f"indices_tuple must be None or a tuple of index tensors, got {indices_tuple!r}")
    if not sum(len(indices) for indices in indices_tuple):
        return torch.ones_like(labels)
    counts = torch.bincount(torch.cat(list(indices_tuple)), minlength=len(labels))
    if len(counts) != len(labels):
        raise ValueError(f"indices_tuple must hold indices below {len(labels)}, got {len(counts) - 1}")
    return counts.to(torch.get_default_dtype()) / counts.max()


def _describe(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
