"""The parts of the callbacks for trainers: arguments, the energy's gradient, stochastic OPT, merging."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._internal import checks
from .._internal.modules import install_command
from ..energy.regularizer import EnergyRegularizer
from ..rotation.merging import merge
from ..rotation.parametrization import find_rotated
from ..rotation.stochastic import Resampler


def add_gradient(energy: EnergyRegularizer, optimizer: Optimizer, scaler: Any = None) -> Tensor | None:
    """Add ∂energy, times the scale of a GradScaler, to the gradients of the optimizer's parameters; return the energy.

    The energy depends on the weights only, so this equals the energy as a term of the loss, evaluated once per step.
    None, and nothing is done, if the optimizer holds no parameter of the energy's layers (that of a GAN's other half).
    """
    regularized = {p for neurons in energy.neurons.values() for p in neurons.module.parameters()}
    held = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if regularized.isdisjoint(held):
        return None
    value = energy()
    if value.requires_grad:
        scaled = value * (1.0 if scaler is None else scaler.get_scale())
        for parameter, grad in zip(held, torch.autograd.grad(scaled, held, allow_unused=True), strict=True):
            if parameter.grad is None:
                parameter.grad = grad
            elif grad is not None:  # in place: it may be a view of a bucket of DistributedDataParallel
                parameter.grad.add_(grad)
    return value.detach()


def start_resampling(model: nn.Module, optimizers: Iterable[Optimizer], every: int) -> None:
    """Make a Resampler if the model is rotated with ``sample`` or ``shuffle``."""
    sampled = [layer for layer in find_rotated(model) if layer.rotation.plan.redrawn]
    if not sampled:
        return
    numbers = next(sampled[0].rotation.task.parameters())
    for optimizer in (candidates := list(optimizers)):
        if any(p is numbers for group in optimizer.param_groups for p in group["params"]):
            Resampler(model, optimizer, every)
            return
    Resampler(model, candidates[0], every)  # raises: it names the layer


def merge_if_rotated(model: nn.Module) -> None:
    if any(find_rotated(model)):
        merge(model)


def check_energy(energy: Any) -> None:
    if not isinstance(energy, EnergyRegularizer):
        raise TypeError(f"energy must be a hypersphere.EnergyRegularizer, got {type(energy).__name__}")


class CallbackArguments:
    """The constructor of the callbacks; `base` is the package's own class of callbacks, None if it is not installed."""

    package: str
    base: type | None

    def __init__(self, energy: EnergyRegularizer | None = None, *, every: int = 750, merge: bool = True) -> None:
        if self.base is None:
            name = type(self).__name__
            raise ImportError(f"{name} needs {self.package}: {install_command(self.package)}")
        super().__init__()
        if energy is not None:
            check_energy(energy)
        self.energy, self.every, self.merge = energy, checks.integer("every", every, low=1), merge
