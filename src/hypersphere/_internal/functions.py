"""Call autograd Functions: quickly in eager mode, in place where nothing records, with a forward-mode derivative.

torch.compile refuses Functions that define ``jvp``. So ours call it ``tangents``; a subclass with ``jvp`` is used under
torch.func and forward-mode AD only.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad


def apply(function: type[Function], *arguments: Any) -> Any:
    """Call function.apply without its signature check, which takes longer than the rest of a small layer."""
    if torch.compiler.is_compiling():
        return function.apply(*arguments)
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        with torch.no_grad():  # its operations instead of a call of Python, which could not be saved
            return function.forward(*arguments)
    if is_transformed():
        return _with_jvp(function).apply(*arguments)
    return super(Function, function).apply(*arguments)  # type: ignore[misc]


def is_recorded() -> bool:
    """Return whether a compiler or torch.jit.trace records what is computed: no branch may depend on values."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]


def is_transformed() -> bool:
    """Return whether a transform of torch.func or a level of forward-mode AD is active; not for a compiler."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def needs_naive_formula() -> bool:
    """Return whether a transform is active other than one torch.func.grad (or vjp), which is like eager mode."""
    if not is_transformed():
        return False
    stack = torch._C._functorch.get_interpreter_stack() or []
    first_gradient = len(stack) == 1 and stack[0].key() == torch._C._functorch.TransformType.Grad
    return forward_ad._current_level >= 0 or not first_gradient


def save(ctx: Any, *tensors: Any) -> None:
    """Save tensors for the backward pass, and for ``tangents`` where that may be called."""
    ctx.save_for_backward(*tensors)
    if is_transformed():
        ctx.save_for_forward(*tensors)


def can_overwrite(*tensors: Any) -> bool:
    """Return whether a backward pass may work in place, which avoids page faults: nothing records or batches it."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    functorch = torch._C._functorch
    if torch._C._are_functorch_transforms_active() and any(
        isinstance(t, Tensor) and functorch.is_functorch_wrapped_tensor(t) for t in tensors
    ):
        return False
    is_batched = functorch.is_legacy_batchedtensor  # by autograd.grad(is_grads_batched=True)
    return not any(isinstance(t, Tensor) and is_batched(t) for t in tensors)


def chain(x: Tensor, *steps: tuple[Any, ...]) -> Tensor:
    """Call tensor methods in turn: chain(x, ("mul", y), ("rsqrt",)) is x.mul(y).rsqrt().

    Works in place where :func:`can_overwrite` allows it, so `x` must not be used elsewhere.
    """
    suffix = "_" if can_overwrite(x, *(argument for step in steps for argument in step[1:])) else ""
    for name, *arguments in steps:
        x = getattr(x, name + suffix)(*arguments)
    return x


def or_zeros(tangent: Tensor | None, like: Tensor) -> Tensor:
    """Return a tangent; None means zero."""
    return torch.zeros_like(like) if tangent is None else tangent


@cache
def _with_jvp(function: type[Function]) -> type[Function]:
    """Return a subclass with ``jvp``; the function itself if it has no ``tangents``."""
    if not hasattr(function, "tangents"):
        return function
    return type(function.__name__, (function,), {"jvp": staticmethod(function.tangents)})
