"""Layers that compare by angle instead of inner product: output = scale·g(cos) + bias (SphereNet, Eq. 1).

:class:`SphereConv1d`, :class:`SphereConv2d`, :class:`SphereConv3d` and :class:`SphereLinear` take every option of
their torch counterparts and keep their parameters' names and shapes, so a plain layer's state_dict loads strictly.
`scale` and `bias` are the β and γ of SphereNorm (2.5). The forward pass of each class is one call of a pure function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.utils import _ntuple

from .._internal import checks
from .._internal.fx import Proxy, call_as_leaf
from .._internal.global_hooks import watch_weight_decay
from .._internal.nearest import explain_keywords
from .._internal.overflow import finite_gradient
from .._internal.precision import autocast_enabled
from .._internal.quantized import QCONFIG, refuse_quantized
from .._internal.sharding import RefuseSplit, is_sharded
from . import fused_conv
from .cosine import cosine_conv, cosine_linear
from .similarity import Similarity, chunked, cosine, resolve
from .split_linear import split_linear

SimilarityLike = str | Callable[[Tensor], Tensor]
Scale = bool | float | str | None  # the only string is "auto"


def sphere_linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    similarity: SimilarityLike = "cosine",
    *,
    scale: Tensor | float | None = None,
) -> Tensor:
    """Compute scale·g(θ) + bias for the angle θ between every input row and every neuron (Eq. 1, 2.4).

    Args:
        input: (..., d).
        weight: (N, d), neurons of any length.
        bias: (N,) or None.
        similarity: a name ("cosine", "linear", "sigmoid(0.7)", ...) or a callable of cosines (B, N).
        scale: None, a number, or (N,).

    Returns:
        (..., N)

    Example:
        >>> sphere_linear(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0], [0.0, 5.0]]))
        tensor([[0.6000, 0.8000]])
    """
    check_dtypes(input, weight)
    if input.dim() == 0 or weight.dim() != 2 or input.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"input must be (..., d) and weight (N, d), got {tuple(input.shape)} and {tuple(weight.shape)}"
        )
    c = cosine_linear(input, weight)
    rows = c if c.dim() == 2 else c.reshape(-1, c.shape[-1])  # filters on dimension 1
    return apply_similarity(rows, bias, similarity, scale).view(c.shape)


def sphere_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    similarity: SimilarityLike = "cosine",
    *,
    scale: Tensor | float | None = None,
) -> Tensor:
    """Compute :func:`sphere_conv2d` over one dimension."""
    return _sphere_conv(1, input, weight, bias, stride, padding, dilation, groups, similarity, scale)


def sphere_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    similarity: SimilarityLike = "cosine",
    *,
    scale: Tensor | float | None = None,
) -> Tensor:
    """Compute scale·g(θ) + bias for the angle θ between every patch and every filter (Eq. 1); arguments as F.conv2d.

    Args:
        input: (B, C, H, W) or (C, H, W).
        weight: (O, C/groups, kH, kW), filters of any length.
        bias: (O,) or None.
        similarity: a name ("cosine", "linear", "sigmoid(0.7)", ...) or a callable of cosines (B, O, H', W').
        scale: None, a number, or (O,).

    Example:
        >>> y = sphere_conv2d(torch.randn(8, 3, 32, 32), torch.randn(16, 3, 3, 3), padding="same", similarity="linear")
        >>> y.shape, bool((y.abs() <= 1).all())
        (torch.Size([8, 16, 32, 32]), True)
    """
    return _sphere_conv(2, input, weight, bias, stride, padding, dilation, groups, similarity, scale)


def sphere_conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    similarity: SimilarityLike = "cosine",
    *,
    scale: Tensor | float | None = None,
) -> Tensor:
    """Compute :func:`sphere_conv2d` over three dimensions."""
    return _sphere_conv(3, input, weight, bias, stride, padding, dilation, groups, similarity, scale)


def _sphere_conv(
    n: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int | Sequence[int],
    padding: str | int | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
    similarity: SimilarityLike,
    scale: Tensor | float | None,
) -> Tensor:
    _check_conv(n, input, weight, groups)
    x = input if input.dim() == n + 2 else input.unsqueeze(0)
    strides, dilations = _ntuple(n)(stride), _ntuple(n)(dilation)
    x, paddings = _explicit_padding(x, weight.shape[2:], strides, padding, dilations)
    options = (strides, tuple(paddings), dilations, groups)
    g = _resolve_checked(weight.shape[0], bias, similarity, scale)

    def unfused(x: Tensor, weight: Tensor, scale: Tensor | float | None, bias: Tensor | None) -> Tensor:
        return apply_similarity(cosine_conv(x, weight, *options), bias, g, scale)

    chunked_g = chunked(g) if fused_conv.is_supported(x, weight, scale, bias) else None
    if chunked_g is None:
        y = unfused(x, weight, scale, bias)
    else:
        y = fused_conv.sphere_conv(x, weight, scale, bias, chunked_g, options, unfused)
    return y if input.dim() == n + 2 else y.squeeze(0)


def apply_similarity(
    c: Tensor, bias: Tensor | None, similarity: SimilarityLike, scale: Tensor | float | None
) -> Tensor:
    """Compute scale·g(c) + bias of cosines c (B, N, ...) in [-1, 1], filters on dimension 1."""
    g = _resolve_checked(c.shape[1], bias, similarity, scale)
    y = c if g is cosine or g == Similarity("cosine") else g(c)  # c is clamped already
    if y.shape != c.shape:
        raise ValueError(f"similarity must keep the shape {tuple(c.shape)}, got {tuple(y.shape)}")
    along_filters = (-1, *[1] * (c.dim() - 2))
    factor = scale.to(y.dtype).view(along_filters) if isinstance(scale, Tensor) else scale
    if bias is None:
        if factor is not None:
            return y * factor
        # The backward pass needs y, and the output may be changed in place (nn.ReLU(inplace=True)).
        return y.clone() if y.requires_grad else y
    shift = bias.to(y.dtype).view(along_filters)
    if isinstance(factor, Tensor):
        return torch.addcmul(shift, y, factor)
    return torch.add(shift, y, alpha=1 if factor is None else factor)


def _resolve_checked(
    filters: int, bias: Tensor | None, similarity: SimilarityLike, scale: Tensor | float | None
) -> Callable[[Tensor], Tensor]:
    """Return the similarity as a function; check that bias and scale fit."""
    _check_per_filter("bias", bias, filters)
    if isinstance(scale, Tensor):
        _check_per_filter("scale", scale, filters)
    g = resolve(similarity, filters)
    if isinstance(similarity, str) and isinstance(g, nn.Module):
        raise ValueError(f"similarity {similarity!r} has parameters: pass the module, or use a layer")
    return g


def _explicit_padding(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: str | int | Sequence[int], dilation: Sequence[int]
) -> tuple[Tensor, Sequence[int]]:
    """Return input and symmetric zero padding equivalent to `padding`, which may be "valid" or "same"."""
    n = len(kernel)
    if not isinstance(padding, str):
        return x, _ntuple(n)(padding)
    checks.choice("padding", padding, ("valid", "same"))
    if padding == "valid":
        return x, (0,) * n
    if any(s != 1 for s in stride):
        raise ValueError(f"padding='same' needs stride 1, got {tuple(stride)}")
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if all(t % 2 == 0 for t in total):
        return x, [t // 2 for t in total]
    # torch pads one more at the end of a dimension; F.pad starts with the last dimension
    return F.pad(x, [side for t in reversed(total) for side in (t // 2, t - t // 2)]), (0,) * n


def _check_per_filter(name: str, value: Any, filters: int) -> None:
    if value is not None and (not isinstance(value, Tensor) or value.shape != (filters,)):
        raise ValueError(f"{name} must be a tensor of shape ({filters},), got {getattr(value, 'shape', value)!r}")


def _check_conv(n: int, input: Tensor, weight: Tensor, groups: int) -> None:
    check_dtypes(input, weight)
    if weight.dim() != n + 2:
        raise ValueError(f"weight must have {n + 2} dimensions, got {tuple(weight.shape)}")
    if input.dim() not in (n + 1, n + 2) or input.shape[-n - 1] != weight.shape[1] * groups:
        raise ValueError(
            f"with groups={groups} and weight {tuple(weight.shape)} the input must have "
            f"{weight.shape[1] * groups} channels and {n} more dimensions, batched or not; got {tuple(input.shape)}"
        )


def check_dtypes(input: Tensor, weight: Tensor) -> None:
    """Require floating point tensors of one dtype, unless autocast is on."""
    checks.floating("input", input)
    checks.floating("weight", weight)
    if input.dtype is not weight.dtype and not autocast_enabled(input):
        raise TypeError(f"input and weight must have one dtype, got {input.dtype} and {weight.dtype}")


def _why_unsplit(layer: Any) -> str:
    """Return why parallelize_module cannot split a sphere layer; empty if it can."""
    if isinstance(layer, SphereLinear) and not isinstance(layer.similarity, nn.Module):
        return ""
    kind = f"{type(layer).__name__}{' with a learned similarity' if isinstance(layer, SphereLinear) else ''}"
    return f"{kind} cannot be split over processes: " + (
        "call parallelize_module before spherize" if isinstance(layer, SphereLinear) else "leave it out of the plan"
    )


class SphereOptions:
    """Mixin that adds `similarity` and `scale` to a torch layer class."""

    not_plain = (
        "a sphere layer compares by angle, so that its weight's length does not count: fold BatchNorm with "
        "hypersphere.fuse_bn, and adapt or quantize plain layers only"
    )
    qconfig = QCONFIG
    _distribute_module_applied = RefuseSplit(_why_unsplit)
    similarity: Callable[[Tensor], Tensor]
    scale: Tensor | float | None

    def register_parameter(self: Any, name: str, param: nn.Parameter | None) -> None:
        """Register a parameter, but no quantized one of torchao, which takes the layer for a plain one."""
        refuse_quantized(self, name, param)
        super().register_parameter(name, param)  # type: ignore[misc]

    def _set_sphere(self: Any, similarity: SimilarityLike, scale: Scale, num_filters: int) -> None:
        weight = self.weight if hasattr(self, "weight") else self.weight_ih_l0
        like = {"device": weight.device, "dtype": weight.dtype}
        self.similarity = resolve(similarity, num_filters, **like)
        check_scale(scale)
        if scale == "auto":
            if not hasattr(self, "weight"):
                raise ValueError(
                    "scale='auto' is for Linear and Conv layers; recurrent layers take None, True or a number"
                )
            scale = auto_scale(weight)
        if scale is True:
            self.scale = nn.Parameter(torch.ones(num_filters, **like))
        elif scale is None:
            self.register_parameter("scale", None)
        else:
            self.scale = float(scale)
        watch_weight_decay(self)

    def reset_parameters(self: Any) -> None:
        """Reset as torch does; a learned scale becomes 1."""
        super().reset_parameters()  # type: ignore[misc]
        if isinstance(getattr(self, "scale", None), nn.Parameter):
            nn.init.ones_(self.scale)

    def __setstate__(self: Any, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        watch_weight_decay(self)  # a copy is a new layer

    def _load_from_state_dict(self: Any, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Load a state_dict; without `scale` or `similarity.log_k` (a plain layer's) these keep their values.

        So does `bias` beside a learned scale, which older networks did not have.
        """
        own = {"scale": self.scale} if isinstance(self.scale, Tensor) else {}
        if own and isinstance(getattr(self, "bias", None), Tensor):
            own["bias"] = self.bias
        if isinstance(self.similarity, nn.Module):
            own |= {f"similarity.{name}": value for name, value in self.similarity.state_dict().items()}
        for name, value in own.items():
            state_dict.setdefault(prefix + name, value.detach())
        super()._load_from_state_dict(state_dict, prefix, *args)  # type: ignore[misc]

    def extra_repr(self: Any) -> str:
        text: str = super().extra_repr()  # type: ignore[misc]
        if not isinstance(self.similarity, nn.Module):  # a module prints itself
            text += f", similarity={self.similarity}"
        if self.scale is not None:
            text += f", scale={'learned' if isinstance(self.scale, Tensor) else self.scale}"
        return text


def auto_scale(weight: Tensor) -> float:
    """Return the fixed scale of ``scale="auto"``: √(d/3) for a Linear's weight, max(1, √d/6) for a Conv's.

    The cosine of an input with a random neuron is about 1/√d, too small for the layers that follow. With √(d/3) the
    output of a Linear is as large as torch's own start makes it for an input whose elements have mean square 1. A
    filter's gradient sums over all positions, so a convolution needs a smaller scale: with a larger one, SGD turns its
    filters too far in the first steps (measured in docs/layers.md).
    """
    d = weight[0].numel()
    return round(math.sqrt(d / 3) if weight.dim() == 2 else max(1.0, math.sqrt(d) / 6), 2)


def check_scale(scale: Any) -> None:
    """Require None, True, "auto", or a finite number that is not 0."""
    if scale is None or scale is True or (isinstance(scale, str) and scale == "auto"):
        return
    if scale is False or not isinstance(scale, int | float):
        raise TypeError(f"scale must be None (1), True (learned), 'auto' or a number (fixed), got {scale!r}")
    if checks.number("scale", scale) == 0:
        raise ValueError("scale must not be 0, or the output would not depend on the input")


class SphereLinear(SphereOptions, nn.Linear):
    """:class:`torch.nn.Linear` with angles instead of inner products: scale·g(θ) + bias (Eq. 1, 2.4).

    Args:
        similarity: "cosine", "linear", "linear(a, b)", "sigmoid", "sigmoid(k)", "learnable" (a k for every neuron),
            a module, or any callable of cosines (B, N).
        scale: None (1), True (learned, one for every neuron, starts at 1), a number (fixed), or "auto" (fixed, see
            :func:`auto_scale`).

    Example:
        >>> layer = SphereLinear(128, 10, similarity="sigmoid(0.3)", scale=16.0)
        >>> layer(torch.randn(4, 128)).shape
        torch.Size([4, 10])
        >>> layer.load_state_dict(nn.Linear(128, 10).state_dict())
        <All keys matched successfully>
    """

    @explain_keywords
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        similarity: SimilarityLike = "cosine",
        scale: Scale = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=checks.floating_dtype(dtype))
        self._set_sphere(similarity, scale, out_features)

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return call_as_leaf(self, input)
        if is_sharded(self.weight):
            return split_linear(input, self.weight, self.bias, self.similarity, self.scale, apply_similarity)
        return sphere_linear(input, self.weight, self.bias, self.similarity, scale=self.scale)


class _SphereConv(SphereOptions):
    @explain_keywords
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        similarity: SimilarityLike = "cosine",
        scale: Scale = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options = (stride, padding, dilation, groups, bias, padding_mode, device, checks.floating_dtype(dtype))
        super().__init__(in_channels, out_channels, kernel_size, *options)  # type: ignore[call-arg]
        self._set_sphere(similarity, scale, out_channels)

    def forward(self: Any, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return call_as_leaf(self, input)
        n, padding, weight = len(self.kernel_size), self.padding, self.weight  # read once: it may be parametrized
        if is_sharded(weight):
            raise ValueError(f"{type(self).__name__} cannot compute with a weight that is split over processes")
        if self.padding_mode != "zeros":
            _check_conv(n, input, weight, self.groups)
            input = F.pad(finite_gradient(input), self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        options = (self.stride, padding, self.dilation, self.groups, self.similarity, self.scale)
        return _sphere_conv(n, input, weight, self.bias, *options)


class SphereConv1d(_SphereConv, nn.Conv1d):
    """:class:`torch.nn.Conv1d` with angles instead of inner products; see :class:`SphereConv2d`."""


class SphereConv2d(_SphereConv, nn.Conv2d):
    """:class:`torch.nn.Conv2d` with angles instead of inner products: scale·g(θ) + bias for every patch (Eq. 1).

    Patch norms cost a box filter over one channel per group, for any stride, dilation and padding mode.

    Args:
        similarity: "cosine", "linear", "linear(a, b)", "sigmoid", "sigmoid(k)", "learnable" (a k for every filter),
            a module, or any callable of cosines (B, O, H', W').
        scale: None (1), True (learned, one for every filter, starts at 1), a number (fixed), or "auto" (fixed, see
            :func:`auto_scale`). With `bias` this is SphereNorm: β·F + γ (2.5).

    Example:
        >>> layer = SphereConv2d(3, 16, 3, padding=1, padding_mode="reflect", similarity="learnable", scale=True)
        >>> layer(torch.randn(8, 3, 32, 32)).shape
        torch.Size([8, 16, 32, 32])
        >>> sorted(layer.state_dict())
        ['bias', 'scale', 'similarity.log_k', 'weight']
    """


class SphereConv3d(_SphereConv, nn.Conv3d):
    """:class:`torch.nn.Conv3d` with angles instead of inner products; see :class:`SphereConv2d`."""
