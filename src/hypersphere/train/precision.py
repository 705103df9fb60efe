"""Mixed precision, gradient clipping, and one gradient synchronization per step."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from .._internal import checks
from .config import Config
from .distributed import World
from .storage.records import is_number

SLOW = 1.5  # slowdown against float32 that is worth a warning
_ROUNDS = 3


class Precision:
    """Apply autocast, loss scaling and clipping."""

    def __init__(self, config: Config, world: World) -> None:
        self.device = world.device.type
        # An energy term can be steep at the start, so "auto" clips at 1 beside one.
        automatic = None if config.energy is None else 1.0
        self.clip = automatic if isinstance(config.clip, str) else config.clip  # the largest norm of the gradient
        names = {"bfloat16": torch.bfloat16, "float16": torch.float16}
        own = "float16" if self.device == "cuda" and not torch.cuda.is_bf16_supported() else "bfloat16"
        self.dtype = names[own if config.amp is True else str(config.amp)] if config.amp else None
        self.scaler = torch.amp.GradScaler(self.device, enabled=self.dtype == torch.float16)

    def warn_if_slow(self) -> None:
        """Warn if this CPU has no fast kernels for the type. The type stays: a resumed run must have the same."""
        if self.dtype is None or self.device != "cpu":
            return
        factor = slowdown(self.dtype)
        if factor >= SLOW:
            name = str(self.dtype).removeprefix("torch.")
            checks.warn_once(
                f"amp: {name} takes {factor:.1f} times as long as float32 on this CPU (a convolution, measured now); "
                "amp=false is faster here"
            )

    @property
    def may_skip(self) -> bool:
        """Return whether a non-finite gradient may be due to the scale: the step is skipped and the scale lowered."""
        return self.scaler.is_enabled() and self.scaler.get_scale() >= 1

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.dtype is None else torch.autocast(self.device, self.dtype)

    def synchronized(self, module: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Average gradients over processes with the last batch of a step only."""
        wait = isinstance(module, DistributedDataParallel) and not last
        return module.no_sync() if wait else nullcontext()  # type: ignore[operator]

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    def gradient_norm(self, module: nn.Module, optimizer: Optimizer) -> Tensor:
        """Return the norm of all gradients, unscaled."""
        self.scaler.unscale_(optimizer)
        grads = [p.grad for p in module.parameters() if p.grad is not None]
        return get_total_norm([grad.coalesce().values() if grad.is_sparse else grad for grad in grads])

    def step(self, module: nn.Module, optimizer: Optimizer, norm: Tensor) -> None:
        if self.clip is not None:
            clip_grads_with_norm_(module.parameters(), self.clip, norm)
        self.scaler.step(optimizer)
        self.scaler.update()

    def state_dict(self) -> dict[str, float]:
        """Return the state of the loss scaling."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        own = self.scaler.state_dict()
        if not all(is_number(value) and value >= 0 for value in state.values()) or set(state) != set(own):
            raise ValueError(f"precision must have numbers >= 0 for {', '.join(own) or 'nothing'}")
        if own:
            self.scaler.load_state_dict(dict(state))


@cache
def slowdown(dtype: torch.dtype) -> float:
    """Measure how much slower than float32 a small convolution is on this CPU in `dtype`, forward and backward."""
    # No random numbers: measuring must not change the training.
    images, filters = torch.ones(16, 32, 16, 16), torch.full((32, 32, 3, 3), 0.01, requires_grad=True)
    best = {torch.float32: math.inf, dtype: math.inf}
    for _ in range(_ROUNDS):  # alternating, so that other load affects both; the first round is a warm-up
        for candidate in best:
            begin = time.process_time()
            with torch.autocast("cpu", dtype, enabled=candidate is dtype):
                output = F.conv2d(images, filters, padding=1)
            torch.autograd.grad(output.float().sum(), filters)
            best[candidate] = min(best[candidate], time.process_time() - begin)
    return best[dtype] / max(best[torch.float32], 1e-9)
