"""Data and networks: augmented batches against a loader that goes image by image, and against training; opening
CIFAR-10 against reading its files; building the presets; importing them."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tracemalloc
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hypersphere import catalog, data, models
from hypersphere.data.sampling import batches

from .measure import Contestant, Figure, Plan, seconds

BY_IMAGE, STEP, OURS = "torch DataLoader, image by image", "training step of CNN-9 16/32/48", "batches"
TIME, STEP_TIME = "time / image by image", "time / training"
GOALS = {TIME: 1 / 3, STEP_TIME: 1 / 5}
#: other augmentations, for information
OTHERS: dict[str, str | None] = {"batches, flip alone": "cifar10.spherenet", "batches, augment=None": None}

READING, OPENING = "np.fromfile of each file", 'data.load("cifar10")'
READ_TIME, PEAK = "time / reading", "peak memory / pixels"
OPENING_GOALS = {READ_TIME: 1.5, PEAK: 1.1}
FILES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
IMAGES, PIXELS = 10_000, 3 * 32 * 32  # of each file, of an image

BUILD_GOAL, IMPORT_GOAL = 0.2, 0.1  # seconds
#: what importing takes beyond torch, in seconds
IMPORT = "import time, torch; start = time.process_time(); import {}; print(time.process_time() - start)"


class Images(Dataset[tuple[Tensor, int]]):
    """Random images in memory, of the shape and type of CIFAR-10's."""

    classes = tuple("0123456789")

    def __init__(self, n: int) -> None:
        self.inputs, self.labels = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (n,))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.inputs[i], int(self.labels[i])


class ByImage(Images):
    """As one writes it down for a DataLoader; black borders, which are the quicker ones to make."""

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        top, left, flipped = (int(torch.randint(high, ())) for high in (9, 9, 2))
        image = F.pad(self.inputs[i], (4, 4, 4, 4))[:, top : top + 32, left : left + 32]
        if flipped:
            image = image.flip(-1)
        return image.to(torch.float32).sub_(127.5).div_(128), int(self.labels[i])


def figures(plan: Plan) -> Iterator[Figure]:
    yield from _augmenting(plan)
    yield from _opening(plan)
    yield from _building(plan)
    yield from _importing(plan)


def _augmenting(plan: Plan) -> Iterator[Figure]:
    size, count = (16, 2) if plan.quick else (128, 10)
    case = f"{count} batches of {size} images, 3×32×32: pad, crop, flip, normalize"
    images, by_image = Images(size * count), ByImage(size * count)
    contestants = [
        Contestant(BY_IMAGE, partial(_last, DataLoader(by_image, size, shuffle=True))),
        Contestant(STEP, partial(_training, _trained(), size, count)),
        Contestant(OURS, partial(_ours, images, size, "cifar10+.spherenet"), against=BY_IMAGE, goals=GOALS),
        *(Contestant(name, partial(_ours, images, size, augment)) for name, augment in OTHERS.items()),
    ]
    taken = seconds(case, contestants, plan.fewer(2))
    for contestant in contestants:
        name = contestant.name
        yield contestant.figure(case, "images / s", len(images) / taken[name])
        if name != STEP:
            yield contestant.figure(case, TIME, taken[name] / taken[BY_IMAGE])
            yield contestant.figure(case, STEP_TIME, taken[name] / taken[STEP])


def _last(batches: Iterable[Any]) -> Tensor:
    """Goes through all of them."""
    ((inputs, _),) = deque(batches, maxlen=1)
    return inputs


def _ours(images: Images, size: int, augment: str | None) -> Tensor:
    return _last(batches(images, size, augment=augment))


def _trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = models.create("cnn9", num_classes=10, widths=(16, 32, 48))
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def _training(trained: tuple[torch.nn.Module, torch.optim.Optimizer], size: int, count: int) -> Tensor:
    model, optimizer = trained
    x, y = torch.randn(size, 3, 32, 32), torch.randint(10, (size,))
    for _ in range(count):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.detach()


def _opening(plan: Plan) -> Iterator[Figure]:
    """Both splits from the official files, or from files of their size; the quick run has the test split alone."""
    splits = ("test",) if plan.quick else ("train", "test")
    given = Path(os.environ.get("HYPERSPHERE_DATA") or "nowhere") / "cifar-10-batches-bin"
    files = [name for split in splits for name in FILES[split]]
    case = f"CIFAR-10, {len(files)} × {IMAGES * (PIXELS + 1) / 1e6:.2f} MB"
    with TemporaryDirectory() as folder:
        root = given if all((given / name).is_file() for name in files) else _written(Path(folder), files)
        reading = Contestant(READING, partial(_read, [root / name for name in files]))
        opening = Contestant(OPENING, partial(_opened, root, splits), against=READING, goals=OPENING_GOALS)
        taken = seconds(case, [reading, opening], plan.fewer(2))
        for contestant in (reading, opening):
            time = taken[contestant.name]
            yield contestant.figure(case, "ms", 1e3 * time)
            yield contestant.figure(case, READ_TIME, time / taken[READING])
            yield contestant.figure(case, PEAK, _peak(contestant) / (len(files) * IMAGES * PIXELS))


def _written(folder: Path, names: Iterable[str]) -> Path:
    """Files of CIFAR-10's format and size with random images."""
    random = np.random.default_rng(0)
    for name in names:
        records = random.integers(256, size=(IMAGES, PIXELS + 1), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / name)
    return folder


def _read(paths: Iterable[Path]) -> Tensor:
    # all of them stay, as all pixels of a data set do
    return torch.from_numpy([np.fromfile(path, np.uint8) for path in paths][-1])


def _opened(root: Path, splits: Iterable[str]) -> Tensor:
    return [data.load("cifar10", root, split) for split in splits][-1].inputs


def _peak(contestant: Contestant) -> int:
    """The most bytes of Python and numpy at once; torch has none of its own here."""
    tracemalloc.start()
    try:
        contestant.forward()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _building(plan: Plan) -> Iterator[Figure]:
    case = f"{len(catalog.MODELS)} presets on the meta device"
    taken = seconds(case, [Contestant(name, partial(_built, name)) for name in catalog.MODELS], plan.fewer(4))
    slowest = max(taken, key=lambda name: taken[name])
    yield Figure(case, f"the slowest, {slowest}", "s", taken[slowest], BUILD_GOAL)
    yield Figure(case, "the median", "s", statistics.median(taken.values()))


def _built(name: str) -> Tensor:
    with torch.device("meta"):
        return next(models.create(name).parameters())


def _importing(plan: Plan) -> Iterator[Figure]:
    case = "a fresh process that has imported torch"
    for module, goal in {"hypersphere.models": IMPORT_GOAL, "hypersphere.data": None}.items():
        command = [sys.executable, "-c", IMPORT.format(module)]
        runs = [float(subprocess.check_output(command)) for _ in range(1 if plan.quick else 7)]
        yield Figure(case, f"import {module}", "s", statistics.median(runs), goal)
        if plan.quick:
            break
