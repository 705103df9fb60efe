"""Memory on a CPU: layers and training steps, with glibc returning freed blocks to the system or keeping them.

Each setting needs its own process, since it cannot be undone. The processes take turns, one step each.
"""

from __future__ import annotations

import random
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor, nn

import hypersphere as hs
from hypersphere.train import Config, derive, fit, keep_memory

from .measure import Measurement, Plan

REGIMES = {"default": "glibc's defaults", "kept": "memory kept"}
LAYERS = {"nn.Conv2d": None, "cosine": 1.15, "linear": 1.30, "sigmoid": 1.35, "learnable": None}  # goals by default
STEPS = ("plain", "cosine", "sigmoid")
LAYOUTS = {"": torch.contiguous_format, ", channels_last": torch.channels_last}
HAND, COMMAND, COMMAND_GOAL = "by hand, glibc's defaults", "hypersphere train", 0.85


def measurements(plan: Plan) -> Iterator[Measurement]:
    shape = (2, 4, 8, 8) if plan.quick else (16, 64, 32, 32)
    width, batch = (4, 8) if plan.quick else (64, 128)
    layer = f"conv 3×3, {'×'.join(map(str, shape))} → {shape[1]}"
    network = f"a step of CNN-9, {width} filters, batch {batch}"
    names = [name + layout for name in STEPS for layout in LAYOUTS]
    with ExitStack() as stack:
        method = "fork" if plan.quick else "spawn"  # a fork need not import torch, but has our blocks
        sizes = (shape, width, batch)
        processes = {regime: stack.enter_context(_Process(method, _serve, regime, *sizes)) for regime in REGIMES}
        for regime, text in REGIMES.items():  # layers first, before any larger block is allocated
            turns = {name: (processes[regime], name) for name in LAYERS}
            taken = _take_turns(turns, plan, f"layers, {text}")
            yield from _measurements(f"{layer}, {text}", taken, "nn.Conv2d", LAYERS if regime == "default" else {})
        for regime, text in REGIMES.items():
            turns = {name: (processes[regime], name) for name in names}
            taken = _take_turns(turns, plan.fewer(5), f"steps, {text}")
            yield from _measurements(f"{network}, {text}", taken, "plain", {})
        command = stack.enter_context(_Process(method, _train, "kept", *sizes))
        turns = {HAND: (processes["default"], "plain"), COMMAND: (command, "")}
        taken = _take_turns(turns, plan.fewer(3), COMMAND)
        yield from _measurements(f"{network}, the command", taken, HAND, {COMMAND: COMMAND_GOAL})


def _measurements(
    case: str, taken: dict[str, list[Any]], base: str, goals: dict[str, float | None]
) -> Iterator[Measurement]:
    for name, values in taken.items():
        yield Measurement(case, name, "ms", 1e3 * statistics.median(seconds for seconds, _ in values))
        yield Measurement(case, name, "page faults", statistics.median(faults for _, faults in values))
        if name != base:
            ratios = [mine / theirs for (mine, _), (theirs, _) in zip(values, taken[base], strict=True)]
            yield Measurement(case, name, f"time / {base}", statistics.median(ratios), goals.get(name))


def _take_turns(turns: dict[str, tuple[_Process, str]], plan: Plan, title: str) -> dict[str, list[Any]]:
    """Return CPU seconds and page faults of each step, by name; every round runs all of them, in random order."""
    taken: dict[str, list[Any]] = {name: [] for name in turns}
    order, shuffle = list(turns), random.Random(0).shuffle
    for _ in track(range(plan.warmup + plan.rounds), title, auto_refresh=False):
        shuffle(order)
        for name in order:
            process, what = turns[name]
            taken[name].append(process.step(what))
    return {name: values[plan.warmup :] for name, values in taken.items()}


class _Process:
    """A process that runs a step on request and reports its cost."""

    def __init__(self, method: str, *work: Any) -> None:
        context: Any = get_context(method)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_main, args=(theirs, *work))
        self.process.start()
        theirs.close()

    def __enter__(self) -> _Process:
        return self

    def step(self, what: str) -> Any:
        self.pipe.send(what)
        return self.pipe.recv()  # EOFError if the process has ended

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()


# Inside of such a process


def _serve(pipe: Connection, shape: tuple[int, ...], width: int, batch: int) -> None:
    steps = _layers(*shape)
    while True:
        name = pipe.recv()
        if name not in steps:
            steps |= _steps(width, batch)
        step = steps[name]
        faults, begin = _page_faults(), time.process_time()
        step()
        seconds = time.process_time() - begin
        pipe.send([seconds, _page_faults() - faults])


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _layers(*shape: int) -> dict[str, Callable[[], object]]:
    channels = shape[1]
    x = torch.randn(shape, requires_grad=True)
    grad = torch.ones_like(x)
    layers: dict[str, nn.Module] = {
        name: nn.Conv2d(channels, channels, 3, padding=1)
        if name == "nn.Conv2d"
        else hs.SphereConv2d(channels, channels, 3, padding=1, similarity=name)
        for name in LAYERS
    }

    def step(layer: nn.Module) -> None:
        layer(x).backward(grad)
        for leaf in (x, *layer.parameters()):
            leaf.grad = None

    return {name: lambda layer=layer: step(layer) for name, layer in layers.items()}


def _steps(width: int, batch: int) -> dict[str, Callable[[], object]]:
    inputs, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))

    def step(network: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(x), labels).backward()
        optimizer.step()

    steps = {}
    for name in STEPS:
        for layout, memory_format in LAYOUTS.items():
            network = hs.models.create("cnn9.opt", num_classes=10, widths=(width,) * 3)
            if name != "plain":
                hs.spherize(network, name)
            optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
            x = inputs.to(memory_format=memory_format)
            steps[name + layout] = lambda n=network, o=optimizer, x=x: step(n, o, x)
    return steps


def _train(pipe: Connection, shape: tuple[int, ...], width: int, batch: int) -> None:
    """Run `hypersphere train`, waiting at each line of its metrics until the next step is requested."""
    images, labels = torch.randint(256, (10 * batch, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (10 * batch,))
    whole = hs.data.ArrayDataset(images, labels, [str(i) for i in range(10)])
    names = {"model.name": "cnn9.opt", "model.widths": (width,) * 3, "data.name": "cifar10", "data.batch_size": batch}
    names |= {"data.augment": None, "optimizer.lr": 0.02, "schedule.name": "constant"}
    config = derive(Config(), names, steps=10**6, log_every=1, eval_every=10**9, device="cpu")
    started = None

    def turn(model: nn.Module, step: int, line: dict[str, Any]) -> None:
        nonlocal started
        if started is not None:
            pipe.send([time.process_time() - started[0], _page_faults() - started[1]])
        pipe.recv()
        started = time.process_time(), _page_faults()

    with patch(
        "hypersphere.data._registry.DATASETS", {"cifar10": hs.data.RegisteredDataset(lambda root, split: whole)}
    ):
        fit(config, callbacks=[turn], progress=False)


def _main(pipe: Connection, work: Callable[..., None], regime: str, *sizes: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if regime == "kept":
        keep_memory()
    work(pipe, *sizes)
