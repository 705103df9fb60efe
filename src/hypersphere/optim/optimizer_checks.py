"""Refuse optimizers that would not keep matrices orthogonal."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from .ogd import OGD

_orthogonal_hook: RemovableHandle | None = None


def refuse_other_optimizers() -> None:
    """Make optimizers other than OGD raise when they step a group with ``orthogonal=True``."""
    global _orthogonal_hook
    if _orthogonal_hook is None:
        _orthogonal_hook = register_optimizer_step_pre_hook(_refuse_orthogonal)


def _refuse_orthogonal(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if isinstance(getattr(optimizer, "optim", optimizer), OGD):  # ZeroRedundancyOptimizer wraps one
        return
    for i, group in enumerate(optimizer.param_groups):
        if group.get("orthogonal"):
            raise ValueError(
                f"{type(optimizer).__name__} would not keep the matrices of group {group.get('name', i)!r} orthogonal: "
                "use hypersphere.OGD(param_groups(model, ogd=True))"
            )
