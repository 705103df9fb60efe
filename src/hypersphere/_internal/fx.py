"""Leaf modules for torch.fx: symbolic tracing records a call of them instead of what they do, as of torch.nn's own."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.fx import Proxy as Proxy


def call_as_leaf(module: nn.Module, input: Proxy, *more: Any, **options: Any) -> Any:
    """Record a call of `module`, which is being traced with `input`."""
    tracer: Any = input.tracer
    path = tracer.path_of_module(module)
    if not path:
        name = type(module).__name__
        raise TypeError(f"{name} is a leaf of torch.fx and cannot be traced alone: trace nn.Sequential(layer)")
    return tracer.create_proxy("call_module", path, (input, *more), options)
