"""Heads with very many classes: streamed, sampled, with sparse gradients. Ratios in one run."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from pytorch_metric_learning import losses as peers
from torch import Tensor

from hypersphere import ArcFaceLoss
from hypersphere.optim import RowSGD

from .measure import Contestant, Measurement, Plan, check_same, peak_bytes, seconds

BATCH = 256
STREAMED, WHOLE, PEER, LINEAR = "ArcFaceLoss, stream=True", "stream=False", "their ArcFaceLoss", "linear softmax"
LINEAR_CROSS_ENTROPY = "F.linear_cross_entropy"
MB = "MB beyond weight and gradient"


def measurements(plan: Plan) -> Iterator[Measurement]:
    shrink = 100 if plan.quick else 1
    rounds = plan.fewer(5)
    yield from _heads(100_000 // shrink, 512, rounds, peer=True)
    yield from _heads(100_000 // shrink, 512, rounds, fitted=True)
    yield from _heads(1_000_000 // shrink, 128, plan.fewer(10))
    yield from _sampled(100_000 // shrink, 512, rounds)
    yield from _sparse_steps(1_000_000 // shrink, 10_000_000 // shrink, plan)


def _heads(classes: int, size: int, plan: Plan, *, peer: bool = False, fitted: bool = False) -> Iterator[Measurement]:
    """Measure forward and backward pass; `fitted`: every embedding is near to its class."""
    case = f"{size}-d, {classes:,} classes, batch {BATCH}" + (", fitted embeddings" if fitted else "")
    time_goals = {WHOLE: 0.5 if fitted else 0.95 if size == 512 else 0.75, PEER: 0.45}
    head = ArcFaceLoss(classes, size, 0.5, 64.0)
    weight, labels = head.weight, torch.randint(classes, (BATCH,))
    x = torch.randn(BATCH, size)
    x = (F.normalize(weight.detach()[labels]) + 0.3 / size**0.5 * x if fitted else x).requires_grad_()

    def streamed(stream: bool) -> Tensor:
        head.stream = stream
        loss: Tensor = head(x, labels)
        return loss

    contestants = [
        Contestant(name, partial(streamed, s), (x, weight)) for name, s in ((STREAMED, True), (WHOLE, False))
    ]
    check_same(*contestants)
    if peer:
        theirs = peers.ArcFaceLoss(classes, size, math.degrees(0.5), 64)
        theirs.W.data = weight.detach().T.contiguous()
        contestants.append(Contestant(PEER, partial(theirs, x, labels), (x, theirs.W)))
        check_same(contestants[0], contestants[2])
        contestants.append(Contestant(LINEAR, lambda: F.cross_entropy(F.linear(x, weight), labels), (x, weight)))
    taken = seconds(case, contestants, plan)
    if peer and not plan.quick and hasattr(F, "linear_cross_entropy"):  # about 20 seconds
        slow = Contestant(LINEAR_CROSS_ENTROPY, lambda: F.linear_cross_entropy(x, weight, labels), (x, weight))
        contestants.append(slow)
        taken |= seconds(case, [slow], Plan(rounds=1, warmup=0))
    for contestant in contestants:
        name = contestant.name
        extra = (peak_bytes(contestant) - weight.nbytes) / 1e6
        yield Measurement(case, name, "s", taken[name])
        for other in (WHOLE, PEER):
            if name == STREAMED and other in taken:
                yield Measurement(case, name, f"time / {other}", taken[name] / taken[other], time_goals[other])
        yield Measurement(case, name, MB, extra, 40.0 if name == STREAMED else None)


def _sampled(classes: int, size: int, plan: Plan) -> Iterator[Measurement]:
    case = f"{size}-d, {classes:,} classes, batch {BATCH}, with the optimizer's step"
    x, labels = torch.randn(BATCH, size), torch.randint(classes, (BATCH,))
    full, sampled = ArcFaceLoss(classes, size), ArcFaceLoss(classes, size, sample=0.1, sparse=True)
    steps = {
        "all classes, SGD": _make_step(full, torch.optim.SGD(full.parameters(), 0.1, momentum=0.9), x, labels),
        "sample=0.1, sparse=True, RowSGD": _make_step(sampled, RowSGD(sampled.parameters(), 0.1), x, labels),
    }
    taken = seconds(case, [Contestant(name, step) for name, step in steps.items()], plan)
    first, second = steps
    yield Measurement(case, first, "s", taken[first])
    yield Measurement(case, second, "s", taken[second])
    yield Measurement(case, second, "time / all classes", taken[second] / taken[first], 0.2)


def _make_step(head: Any, optimizer: torch.optim.Optimizer, x: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    def step() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = head(x, labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def _sparse_steps(fewer: int, more: int, plan: Plan) -> Iterator[Measurement]:
    """Compare steps on as many drawn classes (1 % of `more`), in a process of its own for the peak memory."""
    case = f"64-d, batch {BATCH}, {more // 100:,} classes sampled, sparse=True, RowSGD"
    results = {}
    for classes in (fewer, more):
        with get_context("fork" if plan.quick else "spawn").Pool(1) as pool:
            results[classes] = pool.apply(_measure_steps, (classes, 64, more // 100, 3 if plan.quick else 9))
    for classes, (taken, first, peak) in results.items():
        name = f"{classes:,} classes"
        yield Measurement(case, name, "s", taken)
        yield Measurement(case, name, "s, first step with a search", first)
        yield Measurement(case, name, "peak MB of the process", peak, 8000.0)
        if classes == more:
            yield Measurement(case, name, "time / fewer classes", taken / results[fewer][0], 2.0)


def _measure_steps(classes: int, size: int, sample: int, rounds: int) -> tuple[float, float, float]:
    torch.set_num_threads(1)
    head = ArcFaceLoss(classes, size, sample=sample, sparse=True)
    x, taken = torch.randn(BATCH, size), []
    step = _make_step(head, RowSGD(head.parameters(), 0.1), x, torch.randint(classes, (BATCH,)))
    for _ in range(rounds):
        start = time.process_time()
        step()
        taken.append(time.process_time() - start)
    return median(taken[1:]), taken[0], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
