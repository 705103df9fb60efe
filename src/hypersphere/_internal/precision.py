"""The dtype of norms and angles, and autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for norms and angles: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def autocast_enabled(x: Tensor) -> bool:
    """Return whether autocast is on for the device of x; the meta device has none."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Switch autocast off for the device of x."""
    return torch.autocast(x.device.type, enabled=False) if autocast_enabled(x) else nullcontext()
