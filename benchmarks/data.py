"""Batches: flip and pad-crop of CIFAR-10's shapes against a loader that goes image by image, and against training."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hypersphere import models
from hypersphere.data.sampling import batches

from .measure import Contestant, Figure, Plan, seconds

BY_IMAGE, STEP, OURS = "torch DataLoader, image by image", "training step of CNN-9 16/32/48", "batches"
TIME, STEP_TIME = "time / image by image", "time / training"
GOALS = {TIME: 1 / 3, STEP_TIME: 1 / 5}
#: other augmentations, for information
OTHERS: dict[str, str | None] = {"batches, flip alone": "cifar10.spherenet", "batches, augment=None": None}


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
