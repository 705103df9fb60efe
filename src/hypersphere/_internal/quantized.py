"""Weights that torchao quantized: tensors of its own classes, which have hardly any operations (not imported here)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def is_quantized_tensor(x: Any) -> bool:
    # torch.compile cannot read the __module__ of Parameter
    return type(x) not in (Tensor, nn.Parameter) and type(x).__module__.startswith("torchao.")


def dequantized(x: Tensor) -> Tensor:
    """Return the numbers that a quantized weight stands for; other tensors as they are."""
    return x.dequantize() if is_quantized_tensor(x) else x
