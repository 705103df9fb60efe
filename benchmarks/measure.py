"""Measure CPU seconds, bytes saved for the backward pass, and peak memory of contestants."""

from __future__ import annotations

import ctypes
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from rich.progress import track
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

LARGEST_BLOCK = 31 * 2**20


@dataclass(frozen=True)
class Plan:
    """How often to measure."""

    rounds: int = 40
    """Every contestant runs once per round."""
    warmup: int = 3
    """Additional first rounds that are not counted."""
    compile: bool = True
    """Measure torch.compile too."""

    @property
    def quick(self) -> bool:
        """Whether this is a smoke test, without slow cases."""
        return self.rounds == 1 and not self.warmup

    def fewer(self, times: int) -> Plan:
        """Return a plan with fewer rounds, for slow cases."""
        return replace(self, rounds=max(1, self.rounds // times), warmup=min(1, self.warmup))


@dataclass(frozen=True)
class Measurement:
    """A measured number; `goal` is its upper limit."""

    case: str
    contestant: str
    name: str
    value: float
    goal: float | None = None


@dataclass(frozen=True)
class Contestant:
    """A function to measure: `forward` and, with `leaves`, the backward pass."""

    name: str
    forward: Callable[[], Tensor]
    leaves: Sequence[Tensor] = ()
    against: str | None = None
    """The contestant its time is divided by."""
    goals: dict[str, float] = field(default_factory=dict)
    """Name of a measurement → its upper limit."""

    def step(self, grad: Tensor | None) -> None:
        y = self.forward()
        if grad is not None:
            y.backward(grad)

    def reset(self) -> None:
        for leaf in self.leaves:
            leaf.grad = None

    def grad(self) -> Tensor | None:
        """Return the gradient of the output for the backward pass."""
        return torch.ones_like(self.forward()) if self.leaves else None

    def measurement(self, case: str, name: str, value: float) -> Measurement:
        return Measurement(case, self.name, name, value, self.goals.get(name))


@contextmanager
def quiet_process() -> Iterator[None]:
    """Use one thread, and malloc's state as in a process that has trained for a while."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # glibc returns large blocks to the system at every free, and the next one costs page faults, until a block of up to
    # 32 MB is freed once: then it keeps blocks up to that size. In training this happens in the first step.
    torch.ones(LARGEST_BLOCK // 4)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def no_page_faults() -> Iterator[None]:
    """Keep all freed memory in the process.

    By default glibc returns what exceeds twice the largest block it keeps, so a step that uses more than 62 MB has page
    faults every time, and one that uses less has none: realistic, but not a cost of the computation.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda parameter, value: 0)  # glibc only
    trim_threshold = -1  # M_TRIM_THRESHOLD
    mallopt(trim_threshold, 2**30)
    try:
        yield
    finally:
        mallopt(trim_threshold, 2 * LARGEST_BLOCK)


def seconds(case: str, contestants: Sequence[Contestant], plan: Plan) -> dict[str, float]:
    """Return the median CPU seconds of a step, by name; every round runs all contestants, in random order."""
    taken: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    grads = {contestant.name: contestant.grad() for contestant in contestants}
    order, shuffle = list(contestants), random.Random(0).shuffle
    # no auto_refresh: a thread that redraws the bar would add to the measured CPU time
    for _ in track(range(plan.warmup + plan.rounds), case, auto_refresh=False):
        shuffle(order)
        for contestant in order:
            contestant.reset()
            start = time.process_time()
            contestant.step(grads[contestant.name])
            taken[contestant.name].append(time.process_time() - start)
            contestant.reset()
    return {name: statistics.median(values[plan.warmup :]) for name, values in taken.items()}


def kept_bytes(contestant: Contestant) -> int:
    """Count the bytes saved for the backward pass, parameters and inputs included, each storage once."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = contestant.forward()  # keep it alive, or an address could be reused
    del y
    return sum(storages.values())


def peak_bytes(contestant: Contestant) -> int:
    """Measure the peak memory of a step beyond what was allocated before, new gradients included.

    Counts every request to torch's allocator, so it is deterministic; scratch space of oneDNN is not included.
    """
    with torch.no_grad():  # only the shape is needed
        grad = contestant.grad()
    contestant.reset()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        contestant.step(grad)
    contestant.reset()
    events = (event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]")
    in_time = sorted(events, key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in in_time), initial=0))


def check_same(contestant: Contestant, other: Contestant) -> None:
    """Require that both contestants compute the same."""
    a, b = contestant.forward().detach(), other.forward().detach()
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda m: f"{contestant.name}, {other.name}: {m}")
