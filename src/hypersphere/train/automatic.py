"""Replace what a config leaves to "auto", once the data of a training are known.

All rules are here. A value that is given is never changed, and config.json records what was chosen.
"""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..data.image_folder import read_size
from .config import Config, Data, Optimizer, derive
from .config.values import AUTO, MATRIX_OPTIMIZERS, kind_of_data

LEAST = 16  # pixels per side of images that are augmented; the digits have 8
AS_THEY_ARE, LARGEST = 256, 128  # pixels: images of one size up to the first are not resized, others become the second
PROBED, DECODED = 1000, 16  # files whose size is read, and whose pixels
BATCH, RATE, OTHER_RATE, ADAM_RATE = 64, 0.1, 0.02, 0.003
EPOCHS, PHOTO_EPOCHS, STEPS = 12, 30, 240
WARMUP = 20  # warm-up takes 1/20 of the steps


def data_of(config: Config) -> Data:
    """Return the settings of the data; a generator would learn an augmentation, so it has none."""
    is_open = config.model.is_generator and config.data.augment == AUTO
    return replace(config.data, augment=None) if is_open else config.data


def resolve_graph(data: Data) -> Data:
    """Resolve the settings of a graph, which has one batch and splits of its own."""
    values: dict[str, Any] = {"batch_size": BATCH, "size": None, "augment": None, "validation": None}
    return replace(data, **{key: value for key, value in values.items() if getattr(data, key) == AUTO})


def resolve_samples(data: Data, train: Any, has_no_test: Callable[[], bool]) -> Data:
    """Resolve size, augmentation and validation split from the samples."""
    is_folder = data.name == "image_folder"
    if data.size == AUTO:
        resizes = is_folder and data.augment in (AUTO, None, "photo", "shift")  # others expect certain sizes
        data = replace(data, size=_size(train.paths) if resizes else None)
    if data.augment == AUTO:
        data = replace(data, augment=_augmentation(train, data.size))
    if data.validation == AUTO:
        held_out = is_folder and data.fold is None and has_no_test()
        data = replace(data, validation=0.2 if held_out else None)
    return data


def resolve_batch_size(data: Data, samples: int, is_photo: bool) -> Data:
    """Resolve the batch size: 20 steps or more in an epoch of few photos."""
    if data.batch_size != AUTO:
        return data
    size = 1 << (samples // 20).bit_length() >> 1
    return replace(data, batch_size=min(BATCH, max(8, size)) if is_photo else BATCH)


def fit_to_processes(given: Data, data: Data, processes: int) -> Data:
    """Round a batch size that was left to auto up to a multiple of the processes, and of the images per class."""
    size, unit = data.batch_size, processes * (data.images_per_class or 1)
    return replace(data, batch_size=-(-size // unit) * unit) if given.batch_size == AUTO else data


def resolve_training(config: Config, epoch: int, is_photo: bool) -> Config:
    """Resolve everything else: optimizer, learning rate, length, warm-up; `epoch` is the number of its steps."""
    is_photo = is_photo and not config.model.is_generator
    changes: dict[str, Any] = {}
    optimizer = config.optimizer
    if optimizer.name == AUTO:
        adamw = {"optimizer.name": "adamw", "optimizer.lr": ADAM_RATE}
        changes |= adamw if is_photo and may_use_adamw(config) else {"optimizer.name": "sgd"}
    if optimizer.lr == AUTO and "optimizer.lr" not in changes:
        changes["optimizer.lr"] = learning_rate(config)
        if is_photo and config.clip == AUTO:  # or networks with a wide linear layer, such as cnn6, diverge
            changes["clip"] = 1.0
    epochs = config.epochs
    if epochs == AUTO:
        epochs = changes["epochs"] = max(PHOTO_EPOCHS if is_photo else EPOCHS, -(-STEPS // epoch))
    if config.schedule.warmup == AUTO:
        total = config.steps if config.steps is not None else (epochs or 0) * epoch
        warms_up = is_photo and config.schedule.name == "cosine"
        changes["schedule.warmup"] = total // WARMUP if warms_up else 0
    return derive(config, changes)


_RATES = {"pion": 0.01, "adamh": 0.018, "muonh": 0.018, "muon": 0.02}  # muon's is absolute, others relative to norms


def may_use_adamw(config: Config) -> bool:
    """Return whether photos are trained by AdamW: whoever gives a rate or a momentum means SGD's."""
    optimizer = config.optimizer
    return optimizer.name == AUTO and optimizer.lr == AUTO and optimizer.momentum is None and config.rotation is None


def rest_rate(optimizer: Optimizer) -> float:
    """Return the learning rate of embeddings, output and vectors if matrices are stepped apart, else that of all."""
    return (optimizer.rest_lr or ADAM_RATE) if optimizer.name in MATRIX_OPTIMIZERS else optimizer.lr


def describe_rate(optimizer: Optimizer) -> str:
    """Return the optimizer and its learning rate in words, once both are known."""
    rest = f", {rest_rate(optimizer):g} for the rest" if optimizer.name in MATRIX_OPTIMIZERS else ""
    return f"optimizer {optimizer.name}, learning rate {optimizer.lr:g}{rest}"


def learning_rate(config: Config) -> float:
    """Return the learning rate for `auto`: in proportion to the batch up to 64, other optimizers have torch's."""
    name = config.optimizer.name
    if name in _RATES:
        return _RATES[name]
    if name not in (AUTO, "sgd", "row_sgd", "ogd"):
        kind = next(kind for key, kind in vars(torch.optim).items() if key.lower() == name and isinstance(kind, type))
        return float(inspect.signature(kind).parameters["lr"].default)
    if config.model.is_generator or kind_of_data(config.data.name) not in ("images", None):
        return OTHER_RATE
    batch = BATCH if config.data.batch_size == AUTO else config.data.batch_size * config.accumulate
    return RATE * min(1.0, batch / BATCH)


def _size(paths: list[str]) -> int | None:
    """Return the size for files of images; None: all have one size, and are not square."""
    sizes = [read_size(path) for path in _some(paths, PROBED)]
    if len(set(sizes)) == 1 and max(sizes[0]) <= AS_THEY_ARE:
        height, width = sizes[0]
        return height if height == width else None
    return min(LARGEST, int(statistics.median(map(min, sizes))))


def _augmentation(train: Any, size: int | None) -> str | None:
    samples = [sample for sample, _ in _some(train, DECODED)]
    if not all(isinstance(image, Tensor) and image.dtype == torch.uint8 and image.dim() == 3 for image in samples):
        return None
    if min((size or min(sample.shape[1:]) for sample in samples), default=0) < LEAST:
        return None
    has_colours = any(len(sample) == 3 and bool((sample != sample[:1]).any()) for sample in samples)
    return "photo" if has_colours else "shift"


def _some(items: Any, most: int) -> list[Any]:
    """Return up to `most` items, evenly spaced."""
    count = min(most, len(items))
    return [items[i * len(items) // count] for i in range(count)]
