"""Mixed precision, clipping, and gradients that are averaged over processes once a step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from .config import Config
from .distributed import World


class Precision:
    """What lies between a loss and the optimizer's step."""

    def __init__(self, config: Config, world: World) -> None:
        self.device = world.device.type
        self.clip = config.clip
        names = {"bfloat16": torch.bfloat16, "float16": torch.float16}
        own = "float16" if self.device == "cuda" and not torch.cuda.is_bf16_supported() else "bfloat16"
        self.dtype = names[own if config.amp is True else str(config.amp)] if config.amp else None
        self.scaler = torch.amp.GradScaler(self.device, enabled=self.dtype == torch.float16)

    @property
    def may_skip(self) -> bool:
        """Whether a gradient that is not finite is the scale's fault: the step is left out, the scale made smaller."""
        return self.scaler.is_enabled() and self.scaler.get_scale() >= 1

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.dtype is None else torch.autocast(self.device, self.dtype)

    def synchronized(self, module: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Gradients are averaged over processes with the last batch of a step alone."""
        wait = isinstance(module, DistributedDataParallel) and not last
        return module.no_sync() if wait else nullcontext()  # type: ignore[operator]

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    def gradient_norm(self, module: nn.Module, optimizer: Optimizer) -> Tensor:
        """The norm of all gradients, true to scale."""
        self.scaler.unscale_(optimizer)
        return get_total_norm([p.grad for p in module.parameters() if p.grad is not None])

    def step(self, module: nn.Module, optimizer: Optimizer, norm: Tensor) -> None:
        if self.clip is not None:
            clip_grads_with_norm_(module.parameters(), self.clip, norm)
        self.scaler.step(optimizer)
        self.scaler.update()

    def state_dict(self) -> dict[str, Any]:
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state)
