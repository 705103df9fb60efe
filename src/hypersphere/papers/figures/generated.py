"""Images that generators make (MHE, Fig. 7)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...report import Chart
from ...report.png import image
from ...report.svg import document, heading, text_line
from ...train.inference.inputs import Preprocess
from ...train.inference.run import Run, load_run
from ...train.splits import augmentations, load
from .. import gan as gan  # registers it
from .drawing import TOP, Drawing
from .runs import run_names

SIDE = 6  # images in a row and in a column
_PANEL = 300  # pixels


def generated(inputs: Sequence[Path]) -> Drawing:
    """Draw images of the data, and of each run's generator from the same noise."""
    runs = [load_run(path) for path in inputs]
    for run in runs:
        if not run.config.model.is_generator:
            raise ValueError(f"{run.path} is not a GAN's run: its network is {run.config.model.name}")
    panels = {"data": _real(runs[0])} | {
        name: _generate(run) for run, name in zip(runs, run_names(inputs), strict=True)
    }
    title = "Images of the data and of generators"
    parts = [heading(title)]
    for k, (name, pixels) in enumerate(panels.items()):
        parts.append(image(tiled(pixels), _PANEL * k + 10, TOP + 10, _PANEL - 20, _PANEL - 20))
        middle, look = _PANEL * (k + 0.5), 'font-weight="600"'
        parts.append(text_line(name, middle, TOP + _PANEL + 14, 14, anchor="middle", room=_PANEL - 20, more=look))
    return Drawing(Chart(document(parts, title, _PANEL * len(panels), TOP + _PANEL + 34, is_centred=True)))


def tiled(pixels: Tensor) -> Tensor:
    """Put images (SIDE², C, H, W) into one, (H', W') or (3, H', W'), with white lines between them."""
    padded = torch.nn.functional.pad(pixels, (0, 1, 0, 1), value=255)
    _, channels, height, width = padded.shape
    grid = padded.view(SIDE, SIDE, channels, height, width).permute(2, 0, 3, 1, 4)
    whole = grid.reshape(channels, SIDE * height, SIDE * width)[:, :-1, :-1]
    return whole[0] if channels == 1 else whole[:3]


def _real(run: Run) -> Tensor:
    """Return images as the discriminator gets them, of the generator's size."""
    images = load(run.config.data, run.config.seed).split("train")
    chosen = torch.linspace(0, len(images) - 1, SIDE * SIDE).round().long().tolist()
    preprocess = Preprocess(run.spec, augmentations(run.config.data)[1])
    return _pixels(torch.cat([preprocess(images[i][0]) for i in chosen]))


@torch.no_grad()
def _generate(run: Run) -> Tensor:
    (latent,) = run.preprocess.spec.shape
    noise = torch.randn(SIDE * SIDE, latent, generator=torch.Generator().manual_seed(0))
    return _pixels(run.model(noise))


def _pixels(normalized: Tensor) -> Tensor:
    return (normalized * 128 + 127.5).round().clamp(0, 255).to(torch.uint8)
