"""Stochastic OPT: rotate a sample of dimensions, merge the rotation into the neurons, sample again (OPT, Sec. 4)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.optim import Optimizer

from .._internal import checks
from .._internal.draws import generator
from .parametrization import RotatedWeight, draw_dims, find_rotated, layer_label


class Resampler:
    """Draw new dimensions every `inner` steps (stochastic OPT, Algorithm 1).

    Step it after the optimizer, like a learning rate scheduler. After `inner` steps each small rotation is merged into
    its neurons, which changes neither the network's function nor the neurons' energy (Theorem 2). Then new dimensions
    are drawn, the rotation is reset to the identity, and the optimizer's state of it is cleared. Draws depend only on
    seed, layer and draw number, and all counters are buffers of the model, so training can be resumed at any step.

    Args:
        model: rotated with ``sample``; layers rotated without it are left alone.
        optimizer: the one that holds the rotations.
        inner: steps between draws (the paper: 750 on CIFAR-100, 1000 on ImageNet).

    Example:
        >>> import hypersphere as hs
        >>> net = hs.rotate(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), sample=0.5)
        >>> optimizer = torch.optim.Adam(hs.param_groups(net), lr=0.01)
        >>> resampler = Resampler(net, optimizer, inner=2)
        >>> for _ in range(4):
        ...     optimizer.zero_grad()
        ...     net(torch.randn(5, 8)).square().sum().backward()
        ...     optimizer.step()
        ...     resampler.step()
        >>> net[0].parametrizations.weight[0].default.draw
        tensor(2)
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, inner: int = 750) -> None:
        checks.module("model", model)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
        self.optimizer = optimizer
        self.inner = checks.integer("inner", inner, low=1)
        self.sampled = [each for each in find_rotated(model) if each.rotation.plan.sample is not None]
        if not self.sampled:
            raise ValueError("model must be rotated with sample: hypersphere.rotate(model, sample=0.25)")
        known = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        for each in self.sampled:
            if each.rotation.task.parameter not in known:
                raise ValueError(
                    f"optimizer must hold the rotation of layer {layer_label(each.name)!r}: make the optimizer "
                    "after rotate"
                )
        for each in self.sampled:
            each.rotation.resampled = True

    def __repr__(self) -> str:
        layers = ", ".join(layer_label(each.name) for each in self.sampled)
        return f"Resampler(inner={self.inner}; {layers})"

    def step(self) -> None:
        """Count one training step; after `inner` of them merge and draw again."""
        tasks = [each.rotation.task for each in self.sampled]
        self._check_rotated()
        for task in tasks:
            task.inner += 1
        counts = torch.stack([task.inner.cpu() for task in tasks]).tolist()
        for each, count in zip(self.sampled, counts, strict=True):
            if count >= self.inner:
                self._resample(each)

    def resample(self) -> None:
        """Merge the rotations into the neurons and draw new dimensions."""
        self._check_rotated()
        for each in self.sampled:
            self._resample(each)

    def _check_rotated(self) -> None:
        for each in self.sampled:
            if not is_parametrized(each.module, each.tensor_name):
                raise ValueError(f"layer {layer_label(each.name)!r} is no longer rotated: make a new Resampler")

    @torch.no_grad()
    def _resample(self, each: RotatedWeight) -> None:
        plan, task, neurons = each.rotation.plan, each.rotation.task, each.neurons
        seed, draw, parameter = int(task.seed), int(task.draw) + 1, task.parameter
        assert plan.sample is not None
        assert parameter is not None
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            # The start of "network" is random: seed it by the draw.
            torch.manual_seed(generator(seed, "start", draw).initial_seed())
            start = plan.start()
        assert start is not None
        neurons.copy_(each.rotation(neurons))
        parameter.copy_(start)
        parameter.grad = None
        self.optimizer.state.pop(parameter, None)
        task.draw.fill_(draw)
        task.inner.zero_()
        task.dims.copy_(draw_dims(seed, draw, plan.dimension, plan.sample))
