"""The learning rate of every step."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from .config import Schedule as Settings
from .storage.records import Count, Share

SCHEDULES = ("constant", "step", "cosine", "plateau")
PATIENCE = 10  # default
LEAST_MOMENTUM = 0.01  # of BatchNorm


@dataclass
class PlateauState:
    """What the schedule plateau has observed."""

    best: float = math.inf  # the smallest loss
    waited: Count = 0  # rounds since then
    factor: Share = 1.0  # of the rate


class LearningRate:
    """Compute lr(step) = base · warm-up · decay, a function of the step only; for plateau, of the losses too.

    The step is the number of updates done: milestone m is the first step with the smaller rate.
    """

    def __init__(self, settings: Settings, base: float, total: int) -> None:
        self.settings, self.base, self.total = settings, base, total
        self.patience = PATIENCE if settings.patience is None else settings.patience
        self.state = PlateauState()

    def rate(self, step: int, *, of_rotations: bool = False) -> float:
        settings = self.settings
        warmth = min(1.0, (step + 1) / (settings.warmup + 1))
        if settings.name == "step":
            own = settings.rotation_gamma if of_rotations else None
            return self.base * warmth * (own or settings.gamma) ** self._drops(step)
        if settings.name == "cosine":
            part = (step - settings.warmup) / max(1, self.total - settings.warmup)
            return self.base * warmth * 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, part))))
        return self.base * warmth * self.state.factor

    def batch_norm_momentum(self, step: int) -> float | None:
        """Return the momentum of BatchNorm; None: the network's own."""
        first = self.settings.batch_norm
        return None if first is None else max(LEAST_MOMENTUM, first * 0.5 ** self._drops(step))

    def _drops(self, step: int) -> int:
        """Return how many milestones have passed."""
        return bisect_right(self.settings.milestones, step)

    def observe(self, loss: float) -> None:
        """Record the mean loss of a round; plateau lowers the rate after `patience` rounds without a smaller one."""
        if self.settings.name != "plateau":
            return
        state = self.state
        if loss < state.best:
            state.best, state.waited = loss, 0
            return
        state.waited += 1
        if state.waited > self.patience:
            state.factor, state.waited = state.factor * self.settings.gamma, 0


def set_rate(optimizer: Optimizer, rate: float, rotations: float, rest: float) -> None:
    """Set the learning rate of all groups; `rotations` is that of rotations, `rate` that of matrices stepped apart."""
    rates = {"rotations": rotations, "orthogonal": rotations, "matrices": rate}
    for group in optimizer.param_groups:
        group["lr"] = rates.get(group["name"], rest)


def has_batch_norm(module: nn.Module) -> bool:
    return any(isinstance(layer, _BatchNorm) for layer in module.modules())


def set_batch_norm_momentum(module: nn.Module, momentum: float | None) -> None:
    """Set the momentum of every BatchNorm layer; None leaves it as it is."""
    if momentum is not None:
        for layer in module.modules():
            if isinstance(layer, _BatchNorm):
                layer.momentum = momentum
