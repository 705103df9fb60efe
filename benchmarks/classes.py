"""Heads with very many classes: streamed, sampled, split over processes, with sparse gradients. Ratios in one run."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from multiprocessing.pool import Pool
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from pytorch_metric_learning import losses as peers
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from hypersphere import ArcFaceLoss
from hypersphere.losses import shard_head
from hypersphere.optim import RowSGD

from .losses import small_measurements
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
    yield from _sampled(100_000 // shrink, 512, rounds, fitted=True)
    yield from _two_processes(100_000 // shrink, 512, rounds)
    yield from _two_processes(1_000_000 // shrink, 128, plan.fewer(10))
    yield from _sparse_steps(1_000_000 // shrink, 10_000_000 // shrink, plan)
    yield from small_measurements(plan)


def _heads(classes: int, size: int, plan: Plan, *, peer: bool = False, fitted: bool = False) -> Iterator[Measurement]:
    """Measure forward and backward pass; `fitted`: every embedding is near to its class."""
    case = f"{size}-d, {classes:,} classes, batch {BATCH}" + (", fitted embeddings" if fitted else "")
    time_goals = {WHOLE: 0.5 if fitted else 0.95 if size == 512 else 0.75, PEER: 0.45}
    head = ArcFaceLoss(classes, size, 0.5, 64.0)
    weight = head.weight
    x, labels = _draw_batch(weight.detach(), fitted)
    x.requires_grad_()

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
        blocks = nn.LinearCrossEntropyOptions()  # without them it is F.linear and F.cross_entropy
        in_blocks = partial(F.linear_cross_entropy, x, weight, labels, options=blocks)
        slow = Contestant(LINEAR_CROSS_ENTROPY, in_blocks, (x, weight))
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


def _sampled(classes: int, size: int, plan: Plan, *, fitted: bool = False) -> Iterator[Measurement]:
    """Measure training steps, of new samples in each; `fitted`: every embedding is near to its class."""
    case = f"{size}-d, {classes:,} classes, batch {BATCH}, with the optimizer's step"
    case += ", fitted embeddings" if fitted else ""
    full, sampled = ArcFaceLoss(classes, size), ArcFaceLoss(classes, size, sample=0.1, sparse=True)
    steps = {
        "all classes, SGD": _make_step(full, torch.optim.SGD(full.parameters(), 0.1, momentum=0.9), fitted),
        "sample=0.1, sparse=True, RowSGD": _make_step(sampled, RowSGD(sampled.parameters(), 0.1), fitted),
    }
    taken = seconds(case, [Contestant(name, step) for name, step in steps.items()], plan)
    first, second = steps
    yield Measurement(case, first, "s", taken[first])
    yield Measurement(case, second, "s", taken[second])
    yield Measurement(case, second, "time / all classes", taken[second] / taken[first], 0.2)


def _make_step(head: Any, optimizer: torch.optim.Optimizer, fitted: bool) -> Callable[[], Tensor]:
    def step() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = head(*_draw_batch(head.weight.detach(), fitted))
        loss.backward()
        optimizer.step()
        return loss

    return step


def _draw_batch(weight: Tensor, fitted: bool) -> tuple[Tensor, Tensor]:
    labels, x = torch.randint(len(weight), (BATCH,)), torch.randn(BATCH, weight.shape[1])
    return F.normalize(weight[labels]) + 0.3 / weight.shape[1] ** 0.5 * x if fitted else x, labels


def _two_processes(classes: int, size: int, plan: Plan) -> Iterator[Measurement]:
    """Compare a process of two, each with half of the classes and of the batch, with one alone."""
    case = f"{size}-d, {classes:,} classes, batch {BATCH}, shard_head"
    results = {ranks: _in_processes(ranks, plan, _measure_rank, classes, size, plan) for ranks in (1, 2)}
    (alone, alone_mb), *_ = results[1]
    yield Measurement(case, "1 process", "s", alone)
    yield Measurement(case, "1 process", MB, alone_mb)
    slower, total = max(taken for taken, _ in results[2]), sum(mb for _, mb in results[2])
    yield Measurement(case, "2 processes, the slower", "s", slower)
    yield Measurement(case, "2 processes, the slower", "time / 1 process", slower / alone, 0.6)
    yield Measurement(case, "2 processes, in sum", MB, total)
    yield Measurement(case, "2 processes, in sum", "memory / 1 process", total / alone_mb, 1.1)


def _pool(processes: int, plan: Plan) -> Pool:
    return get_context("fork" if plan.quick else "spawn").Pool(processes)


def _in_processes(ranks: int, plan: Plan, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what function(*arguments) returns in each of `ranks` processes that gloo joins."""
    with TemporaryDirectory() as folder, _pool(ranks, plan) as pool:
        joined = [pool.apply_async(_join, (function, r, ranks, folder, *arguments)) for r in range(ranks)]
        return [result.get() for result in joined]


def _join(function: Callable[..., Any], rank: int, ranks: int, folder: str, *arguments: Any) -> Any:
    torch.set_num_threads(1)
    file, patience = f"file://{folder}/group", timedelta(minutes=10)  # for a process that failed
    dist.init_process_group("gloo", init_method=file, rank=rank, world_size=ranks, timeout=patience)
    try:
        return function(*arguments)
    finally:
        dist.destroy_process_group()


def _measure_rank(classes: int, size: int, plan: Plan) -> tuple[float, float]:
    torch.manual_seed(0)
    ranks = dist.get_world_size()
    head = ArcFaceLoss(classes, size, stream=True)
    if ranks > 1:
        shard_head(head, init_device_mesh("cpu", (ranks,)))
    x = torch.randn(BATCH // ranks, size, requires_grad=True)
    labels = torch.randint(classes, (len(x),))
    contestant = Contestant("head", lambda: head(x, labels), (x, head.weight))
    taken = seconds("", [contestant], plan)["head"]
    return taken, (peak_bytes(contestant) - head.weight.nbytes / ranks) / 1e6


def _sparse_steps(fewer: int, more: int, plan: Plan) -> Iterator[Measurement]:
    """Compare steps on as many drawn classes (1 % of `more`), in a process of its own for the peak memory."""
    case = f"64-d, batch {BATCH}, {more // 100:,} classes sampled, sparse=True, RowSGD"
    results = {}
    for classes in (fewer, more):
        with _pool(1, plan) as pool:
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
    step, taken = _make_step(head, RowSGD(head.parameters(), 0.1), False), []
    for _ in range(rounds):
        start = time.process_time()
        step()
        taken.append(time.process_time() - start)
    return median(taken[1:]), taken[0], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
