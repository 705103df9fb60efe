"""The measuring: CPU seconds, bytes kept for the backward pass, and peak memory of contestants side by side."""

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
    """How much is measured."""

    rounds: int = 40
    """Every contestant runs once a round."""
    warmup: int = 3
    """Rounds before those that count."""
    compile: bool = True
    """Measure torch.compile too."""

    @property
    def quick(self) -> bool:
        """A smoke test, which leaves out what takes long."""
        return self.rounds == 1 and not self.warmup

    def fewer(self, times: int) -> Plan:
        """For a case whose steps take long."""
        return replace(self, rounds=max(1, self.rounds // times), warmup=min(1, self.warmup))


@dataclass(frozen=True)
class Figure:
    """One measured number; `goal` is the most it should be."""

    case: str
    contestant: str
    name: str
    value: float
    goal: float | None = None


@dataclass(frozen=True)
class Contestant:
    """What is measured: `forward` and, if there are `leaves` whose gradients it fills, the backward pass."""

    name: str
    forward: Callable[[], Tensor]
    leaves: Sequence[Tensor] = ()
    against: str | None = None
    """The contestant its time is divided by."""
    goals: dict[str, float] = field(default_factory=dict)
    """Name of a figure → the most it should be."""

    def step(self, grad: Tensor | None) -> None:
        y = self.forward()
        if grad is not None:
            y.backward(grad)

    def reset(self) -> None:
        for leaf in self.leaves:
            leaf.grad = None

    def grad(self) -> Tensor | None:
        """What comes in from behind."""
        return torch.ones_like(self.forward()) if self.leaves else None

    def figure(self, case: str, name: str, value: float) -> Figure:
        return Figure(case, self.name, name, value, self.goals.get(name))


@contextmanager
def quiet_process() -> Iterator[None]:
    """One thread, and memory as in a process that has trained for a while."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # glibc returns large blocks to the system at every free and pays page faults for the next one, until a block of up
    # to 32 MB was freed once: from then on it keeps blocks up to that size. In training this happens in the first step.
    torch.ones(LARGEST_BLOCK // 4)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def no_page_faults() -> Iterator[None]:
    """Freed memory stays in the process, however much it is.

    By itself glibc gives back what exceeds twice the largest block it keeps, so a step that holds more than 62 MB pays
    page faults every time, and one that holds less does not: true to life, but not a matter of arithmetic.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda parameter, value: 0)  # glibc's alone
    trim_threshold = -1  # M_TRIM_THRESHOLD
    mallopt(trim_threshold, 2**30)
    try:
        yield
    finally:
        mallopt(trim_threshold, 2 * LARGEST_BLOCK)


def seconds(case: str, contestants: Sequence[Contestant], plan: Plan) -> dict[str, float]:
    """Median CPU seconds of a step, by name; every round runs all contestants, in random order."""
    taken: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    grads = {contestant.name: contestant.grad() for contestant in contestants}
    order, shuffle = list(contestants), random.Random(0).shuffle
    # without auto_refresh: a thread that redraws the bar would spend the CPU time that is measured
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
    """Bytes that forward leaves for the backward pass, parameters and inputs included, each storage once."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = contestant.forward()  # must live until here, or an address could be given out twice
    del y
    return sum(storages.values())


def peak_bytes(contestant: Contestant) -> int:
    """The most that a step holds beyond what was there before, new gradients included.

    Counts every request to torch's allocator, so it is the same at every run; scratch space of oneDNN is not in it.
    """
    with torch.no_grad():  # only its shape is asked for
        grad = contestant.grad()
    contestant.reset()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        contestant.step(grad)
    contestant.reset()
    events = (event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]")
    in_time = sorted(events, key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in in_time), initial=0))


def check_same(contestant: Contestant, other: Contestant) -> None:
    """A race between functions that differ would say nothing."""
    a, b = contestant.forward().detach(), other.forward().detach()
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda m: f"{contestant.name}, {other.name}: {m}")
