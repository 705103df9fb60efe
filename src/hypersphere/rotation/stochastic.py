"""Stochastic OPT: rotate a sample of dimensions, merge the rotation into the neurons, sample again (OPT, Sec. 4)."""

from __future__ import annotations

from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.optim import Optimizer

from .._internal import checks
from .._internal.draws import generator, not_traced
from .._internal.sharding import reshard, write
from .parametrization import NeuronRotation, RotatedWeight, find_rotated

_newest: WeakKeyDictionary[NeuronRotation, ReferenceType[Resampler]] = WeakKeyDictionary()  # of each rotation


class Resampler:
    """Draw new dimensions every `every` steps of the optimizer (stochastic OPT, Algorithm 1).

    It counts by a hook on the optimizer, so a batch whose gradient is only accumulated and a step that a GradScaler
    skips do not count. After `every` steps each small rotation is merged into its neurons, which changes neither the
    network's function nor the neurons' energy (Theorem 2). Then new dimensions are drawn, the rotation is reset to the
    identity, and the optimizer's state of it is cleared. Draws depend only on seed, layer and draw number, and all
    counters are buffers of the model, so training can be resumed at any step.

    Args:
        model: rotated with ``sample``; layers rotated without it are left alone.
        optimizer: the one that holds the rotations, or accelerate's or Lightning's wrapper of it, or torch's
            ZeroRedundancyOptimizer. A layer follows the newest Resampler that was made for it.
        every: steps between draws (the paper: 750 on CIFAR-100, 1000 on ImageNet).

    Example:
        >>> import hypersphere as hs
        >>> net = hs.rotate(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), sample=0.5)
        >>> optimizer = torch.optim.Adam(hs.param_groups(net), lr=0.01)
        >>> resampler = Resampler(net, optimizer, every=2)
        >>> for _ in range(4):
        ...     optimizer.zero_grad()
        ...     net(torch.randn(5, 8)).square().sum().backward()
        ...     optimizer.step()
        >>> net[0].parametrizations.weight[0].default.draw
        tensor(2)
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, every: int = 750) -> None:
        checks.module("model", model)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
        if getattr(optimizer, "_overlap_with_ddp", False):
            raise ValueError("optimizer must step by step(): got overlap_with_ddp=True of ZeroRedundancyOptimizer")
        self.model, self.optimizer = model, _inside(optimizer, "optimizer")[-1]  # of accelerate, Lightning
        self.every = checks.integer("every", every, low=1)
        self.sampled = [layer for layer in find_rotated(model) if layer.rotation.plan.redrawn]
        if not self.sampled:
            raise ValueError("model must be rotated with sample or shuffle: hypersphere.rotate(model, sample=0.25)")
        reshard(model)
        known = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        for layer in self.sampled:
            if not known.issuperset(layer.rotation.task.rotations.values()):
                raise ValueError(f"optimizer must hold the rotation of {layer.label}: make the optimizer after rotate")
        self._follow_optimizer()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._follow_optimizer()  # copies of optimizers have no hooks

    def _follow_optimizer(self) -> None:
        for layer in self.sampled:
            layer.rotation.resampled = True
            _newest[layer.rotation] = ref(self)
        self.optimizer.register_step_post_hook(self._after_step)

    def step(self) -> None:
        """Merge and draw again where `every` steps are over; steps themselves are counted by the optimizer's hook.

        Not needed, and harmless after every batch, as a learning rate scheduler is stepped.
        """
        self._check_rotated()
        self._resample_due(self.sampled)

    @not_traced
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Count a step of the optimizer."""
        skipped = getattr(optimizer, "found_inf", None)  # a GradScaler leaves it to fused optimizers to skip
        if skipped is not None and bool(skipped):
            return
        own = [layer for layer in self.sampled if _newest[layer.rotation]() is self and _is_rotated(layer)]
        for layer in own:
            layer.rotation.task.inner += 1
        self._resample_due(own)

    def _resample_due(self, layers: list[RotatedWeight]) -> None:
        counts = [layer.rotation.task.inner for layer in layers]
        for layer, count in zip(layers, torch.stack([n.cpu() for n in counts]).tolist() if counts else [], strict=True):
            if count >= self.every:
                reshard(self.model)
                self._resample(layer)

    def resample(self) -> None:
        """Merge the rotations into the neurons and draw new dimensions."""
        self._check_rotated()
        reshard(self.model)
        for layer in self.sampled:
            self._resample(layer)

    def _check_rotated(self) -> None:
        for layer in self.sampled:
            if not _is_rotated(layer):
                raise ValueError(f"{layer.label} is no longer rotated: make a new Resampler")

    @torch.no_grad()
    def _resample(self, layer: RotatedWeight) -> None:
        plan, task = layer.rotation.plan, layer.rotation.task
        seed, draw = int(task.seed), int(task.draw) + 1
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            # The start of "network" is random: seed it by the draw.
            torch.manual_seed(generator(seed, "start", draw).initial_seed())
            starts = plan.starts()
        write(layer.neurons, layer.merged(magnitude=False))
        for name, parameter in task.rotations.items():
            write(parameter, starts[name])
            parameter.grad = None
            for holder in _inside(self.optimizer, "optim"):  # ZeroRedundancyOptimizer has no state of its own
                holder.state.pop(parameter, None)
        task.draw.fill_(draw)
        task.inner.zero_()
        for name, dims in plan.draw_dims(seed, draw).items():
            task.get_buffer(name).copy_(dims)


def _is_rotated(layer: RotatedWeight) -> bool:
    return is_parametrized(layer.module, layer.tensor_name) and layer.parametrizations[0] is layer.rotation


def _inside(optimizer: Optimizer, attribute: str) -> list[Optimizer]:
    """Return an optimizer and those that it wraps, from the outside to the inside."""
    optimizers = [optimizer]
    while isinstance(inside := getattr(optimizers[-1], attribute, None), Optimizer):
        optimizers.append(inside)
    return optimizers
