"""Data and networks: augmented batches against a loader that works image by image, and against training; loading
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

from hypersphere import data, models
from hypersphere._internal import catalog
from hypersphere.data.batching import batches

from .measure import Contestant, Measurement, Plan, seconds

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
#: prints the time of an import after torch, in seconds
IMPORT = "import time, torch; start = time.process_time(); import {}; print(time.process_time() - start)"


class Images(Dataset[tuple[Tensor, int]]):
    """Random images in memory, with the shape and dtype of CIFAR-10."""

    classes = tuple("0123456789")

    def __init__(self, n: int) -> None:
        self.inputs, self.labels = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (n,))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.inputs[i], int(self.labels[i])


class ByImage(Images):
    """The naive version for a DataLoader, with zero padding, which is faster than symmetric."""

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        top, left, flipped = (int(torch.randint(high, ())) for high in (9, 9, 2))
        image = F.pad(self.inputs[i], (4, 4, 4, 4))[:, top : top + 32, left : left + 32]
        if flipped:
            image = image.flip(-1)
        return image.to(torch.float32).sub_(127.5).div_(128), int(self.labels[i])


def measurements(plan: Plan) -> Iterator[Measurement]:
    yield from _augment_measurements(plan)
    yield from _load_measurements(plan)
    yield from _build_measurements(plan)
    yield from _import_measurements(plan)


def _augment_measurements(plan: Plan) -> Iterator[Measurement]:
    size, count = (16, 2) if plan.quick else (128, 10)
    case = f"{count} batches of {size} images, 3×32×32: pad, crop, flip, normalize"
    images, by_image = Images(size * count), ByImage(size * count)
    contestants = [
        Contestant(BY_IMAGE, partial(_exhaust, DataLoader(by_image, size, shuffle=True))),
        Contestant(STEP, partial(_train, _make_training(), size, count)),
        Contestant(OURS, partial(_iterate_ours, images, size, "cifar10+.spherenet"), against=BY_IMAGE, goals=GOALS),
        *(Contestant(name, partial(_iterate_ours, images, size, augment)) for name, augment in OTHERS.items()),
    ]
    taken = seconds(case, contestants, plan.fewer(2))
    for contestant in contestants:
        name = contestant.name
        yield contestant.measurement(case, "images / s", len(images) / taken[name])
        if name != STEP:
            yield contestant.measurement(case, TIME, taken[name] / taken[BY_IMAGE])
            yield contestant.measurement(case, STEP_TIME, taken[name] / taken[STEP])


def _exhaust(batches: Iterable[Any]) -> Tensor:
    """Iterate over all batches; return the last inputs."""
    ((inputs, _),) = deque(batches, maxlen=1)
    return inputs


def _iterate_ours(images: Images, size: int, augment: str | None) -> Tensor:
    return _exhaust(batches(images, size, augment=augment))


def _make_training() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = models.create("cnn9", num_classes=10, widths=(16, 32, 48))
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def _train(trained: tuple[torch.nn.Module, torch.optim.Optimizer], size: int, count: int) -> Tensor:
    model, optimizer = trained
    x, y = torch.randn(size, 3, 32, 32), torch.randint(10, (size,))
    for _ in range(count):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.detach()


def _load_measurements(plan: Plan) -> Iterator[Measurement]:
    """Load both splits from the official files, or from files of that size; the quick run only loads the test split."""
    splits = ("test",) if plan.quick else ("train", "test")
    official = Path(os.environ.get("HYPERSPHERE_DATA") or "nowhere") / "cifar-10-batches-bin"
    files = [name for split in splits for name in FILES[split]]
    case = f"CIFAR-10, {len(files)} × {IMAGES * (PIXELS + 1) / 1e6:.2f} MB"
    with TemporaryDirectory() as folder:
        root = official if all((official / name).is_file() for name in files) else _write_files(Path(folder), files)
        reading = Contestant(READING, partial(_read_files, [root / name for name in files]))
        opening = Contestant(OPENING, partial(_load, root, splits), against=READING, goals=OPENING_GOALS)
        taken = seconds(case, [reading, opening], plan.fewer(2))
        for contestant in (reading, opening):
            time = taken[contestant.name]
            yield contestant.measurement(case, "ms", 1e3 * time)
            yield contestant.measurement(case, READ_TIME, time / taken[READING])
            yield contestant.measurement(case, PEAK, _peak_bytes(contestant) / (len(files) * IMAGES * PIXELS))


def _write_files(folder: Path, names: Iterable[str]) -> Path:
    """Write files of CIFAR-10's format and size with random images."""
    random = np.random.default_rng(0)
    for name in names:
        records = random.integers(256, size=(IMAGES, PIXELS + 1), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / name)
    return folder


def _read_files(paths: Iterable[Path]) -> Tensor:
    # all arrays stay in memory, like the pixels of a dataset
    return torch.from_numpy([np.fromfile(path, np.uint8) for path in paths][-1])


def _load(root: Path, splits: Iterable[str]) -> Tensor:
    return [data.load("cifar10", root, split) for split in splits][-1].inputs


def _peak_bytes(contestant: Contestant) -> int:
    """Measure the peak bytes of Python and numpy; torch allocates nothing here."""
    tracemalloc.start()
    try:
        contestant.forward()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _build_measurements(plan: Plan) -> Iterator[Measurement]:
    case = f"{len(catalog.MODELS)} presets on the meta device"
    taken = seconds(case, [Contestant(name, partial(_build, name)) for name in catalog.MODELS], plan.fewer(4))
    slowest = max(taken, key=lambda name: taken[name])
    yield Measurement(case, f"the slowest, {slowest}", "s", taken[slowest], BUILD_GOAL)
    yield Measurement(case, "the median", "s", statistics.median(taken.values()))


def _build(name: str) -> Tensor:
    import hypersphere.papers.gan  # noqa: F401 registers the GAN's networks

    with torch.device("meta"):
        return next(models.create(name).parameters())


def _import_measurements(plan: Plan) -> Iterator[Measurement]:
    case = "a fresh process that has imported torch"
    for module, goal in {"hypersphere.models": IMPORT_GOAL, "hypersphere.data": None}.items():
        command = [sys.executable, "-c", IMPORT.format(module)]
        runs = [float(subprocess.check_output(command)) for _ in range(1 if plan.quick else 7)]
        yield Measurement(case, f"import {module}", "s", statistics.median(runs), goal)
        if plan.quick:
            break
