"""Check arguments and warn. Every error names the argument, what is allowed and what was given."""

from __future__ import annotations

import math
import os
import sys
import warnings
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .functions import is_recorded
from .nearest import unknown
from .quantized import dequantized

_warned: set[str] = set()
_INSIDE = tuple(str(Path(file).parent) + os.sep for file in (torch.__file__, Path(__file__).parent))


class HypersphereWarning(UserWarning):
    """A mistake that gives no error."""


def warn_once(message: str) -> None:
    """Warn once per process."""
    if message not in _warned:
        _warned.add(message)
        warn(message)


def warn(message: str) -> None:
    """Warn, pointing at the caller's line outside of this package and torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, HypersphereWarning, stacklevel=level)  # skip_file_prefixes needs Python 3.12


def number(
    name: str, value: Any, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False, hint: str = ""
) -> float:
    """Return `value` as a float in [low, high], or (low, high] with `open_low`; not checked under torch.compile."""
    if torch.compiler.is_compiling():
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}{hint}")
    value = float(value)
    if not math.isfinite(value) or value > high or value < low or (open_low and value == low):
        allowed = "finite"
        if math.isfinite(low):
            allowed += f" and {'>' if open_low else '>='} {low:g}"
        if math.isfinite(high):
            allowed += f" and <= {high:g}"
        raise ValueError(f"{name} must be {allowed}, got {value!r}{hint}")
    return value


def integer(name: str, value: Any, *, low: float = -math.inf) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < low:
        raise ValueError(f"{name} must be >= {low}, got {value}")
    return int(value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def choice(name: str, value: Any, allowed: Any) -> None:
    if value not in allowed:
        raise ValueError(unknown(name, value, allowed))


def floating(name: str, x: Any) -> None:
    """Require a real floating point tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a Tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"{name} must have a floating point dtype, got {x.dtype}")


def rows(name: str, weight: Any) -> Tensor:
    """Flatten neurons (N, ...) to rows (N, d)."""
    floating(name, weight)
    if weight.dim() < 2 or not weight.numel():
        raise ValueError(f"{name} must be (N, ...) and not empty, got {tuple(weight.shape)}")
    flat: Tensor = dequantized(weight).flatten(1)
    return flat


def floating_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype must be a floating point dtype, got {dtype!r}")
    return dtype


def has_values(name: str, weight: Tensor) -> None:
    """Require that the weight of layer `name` is not on the meta device."""
    if weight.is_meta:
        raise ValueError(f"the weight of {name!r} has no values on the meta device: load the weights first")


def finite_weight(name: str, weight: Tensor) -> None:
    """Require that the weight of layer `name` is finite (checked once, when a model is converted)."""
    if not weight.is_meta and not bool(torch.isfinite(weight).all()):
        bad = int((~torch.isfinite(weight)).sum())
        raise ValueError(
            f"the weight of {name!r} must be finite, got {bad} NaN or infinite of {weight.numel()} numbers"
        )


def can_read_values(x: Tensor) -> bool:
    """Return whether a check may read values: x has some, and no graph or functorch transform is being traced."""
    return not (is_recorded() or x.is_meta or torch._C._are_functorch_transforms_active())


def module(name: str, value: Any) -> None:
    if not isinstance(value, nn.Module):
        raise TypeError(f"{name} must be a torch.nn.Module, got {type(value).__name__}")
