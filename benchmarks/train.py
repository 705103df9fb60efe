"""Training: overhead of the engine over a hand-written loop, and of a checkpoint over its file."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from rich.progress import track
from safetensors.torch import save_file

import hypersphere as hs
from hypersphere.train import Config, derive, fit
from hypersphere.train.storage import checkpoint

from .measure import Measurement, Plan

HAND, ENGINE = "by hand", "the engine"
FILE, SAVE, COPY, SAVER = "safetensors and flush", "checkpoint.save", "a copy", "Saver.save, until it returns"
ENGINE_GOAL, SAVE_GOAL = 1.03, 1.1
CIFAR_SIZE = 2560


def measurements(plan: Plan) -> Iterator[Measurement]:
    width, batch, steps = (4, 16, 1) if plan.quick else (64, 128, 2)
    yield from _loop(width, batch, steps, plan.fewer(2))
    yield from _checkpoint("cnn3" if plan.quick else "resnet18", plan.fewer(2))


def _loop(width: int, batch: int, steps: int, plan: Plan) -> Iterator[Measurement]:
    """Alternate: a callback of the engine runs `steps` of the hand-written loop after every `steps` of the engine."""
    images, labels = torch.randint(256, (CIFAR_SIZE, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (CIFAR_SIZE,))
    whole = hs.data.ArrayDataset(images, labels, [str(i) for i in range(10)])
    data = {"train": whole, "test": whole.subset(range(10))}
    config = derive(
        Config(),
        {"model.name": "cnn9.opt", "model.widths": (width,) * 3, "data.name": "cifar10", "data.batch_size": batch},
        data={"augment": None},
        optimizer={"lr": 0.02},
        schedule={"name": "constant"},
        steps=steps * (plan.warmup + plan.rounds + 1),
        log_every=steps,
        eval_every=10**9,
        channels_last=False,  # as in the hand-written loop
    )
    by_hand, taken = _by_hand(width, batch, whole, config), {HAND: [], ENGINE: []}
    clock, rounds = time.process_time, iter(track(range(config.steps // steps + 2), "engine", auto_refresh=False))
    last = clock()

    def turn(model: Any, step: int, line: dict[str, Any]) -> None:
        nonlocal last
        taken[ENGINE].append(clock() - last)
        next(rounds, None)
        begin = clock()
        for _ in range(steps):
            next(by_hand)
        taken[HAND].append(clock() - begin)
        last = clock()

    with patch(
        "hypersphere.data._registry.DATASETS", {"cifar10": hs.data.RegisteredDataset(lambda root, split: data[split])}
    ):
        fit(config, callbacks=[turn], progress=False)
    # The first line comes before any step; the last two are the final step and the evaluation.
    counted = {name: values[1 + plan.warmup : -2] or values[1:2] for name, values in taken.items()}
    ratios = [a / b for a, b in zip(counted[ENGINE], counted[HAND], strict=True)]
    case = f"CNN-9, {width} filters, batch {batch}"
    for name, values in counted.items():
        yield Measurement(case, name, "ms a step", 1e3 * statistics.median(values) / steps)
    yield Measurement(case, ENGINE, f"time / {HAND}", statistics.median(ratios), ENGINE_GOAL)


def _by_hand(width: int, batch: int, data: hs.data.ArrayDataset, config: Config) -> Iterator[None]:
    torch.manual_seed(0)
    network = hs.models.create("cnn9.opt", num_classes=10, widths=(width,) * 3)
    settings = config.optimizer
    optimizer = torch.optim.SGD(hs.param_groups(network, settings.weight_decay), lr=settings.lr, momentum=0.9)
    epoch = 0
    while True:
        for inputs, labels in hs.data.batches(data, batch, epoch=epoch):
            loss = F.cross_entropy(network(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()  # for display
            yield
        epoch += 1


def _checkpoint(name: str, plan: Plan) -> Iterator[Measurement]:
    """Measure wall time, since flushing waits for the disk, in the folder for temporary files."""
    network = hs.models.create(name)
    tensors = {key: value.detach() for key, value in network.state_dict().items()}
    saver = checkpoint.Saver()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)

        def alone() -> None:
            save_file(tensors, place / "alone.safetensors")
            with open(place / "alone.safetensors", "rb+") as file:
                os.fsync(file.fileno())

        def whole() -> None:
            saver.save(place / "whole", 1, tensors, {})
            saver.wait()

        contestants: dict[str, Callable[[], object]] = {
            FILE: alone,
            SAVE: whole,
            COPY: lambda: [value.clone() for value in tensors.values()],
            SAVER: lambda: saver.save(place / "later", 1, tensors, {}),
        }
        taken: dict[str, list[float]] = {contestant: [] for contestant in contestants}
        for _ in track(range(plan.warmup + plan.rounds), "checkpoint", auto_refresh=False):
            for contestant, run in contestants.items():
                begin = time.perf_counter()
                run()
                taken[contestant].append(time.perf_counter() - begin)
                saver.wait()
                for rest in place.iterdir():  # overwriting a file takes another time than creating it
                    shutil.rmtree(rest) if rest.is_dir() else rest.unlink()
    counted = {contestant: statistics.median(values[plan.warmup :]) for contestant, values in taken.items()}
    size = sum(value.numel() * value.element_size() for value in tensors.values()) / 1e6
    case = f"checkpoint of {name}, {size:.0f} MB"
    for contestant, value in counted.items():
        yield Measurement(case, contestant, "ms", 1e3 * value)
    yield Measurement(case, SAVE, f"time / {FILE}", counted[SAVE] / counted[FILE], SAVE_GOAL)
    yield Measurement(case, SAVER, f"time / {COPY}", counted[SAVER] / counted[COPY])
