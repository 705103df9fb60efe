"""Convert images to grey or to three channels, as a network needs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._dataset import ArrayDataset, LazyDataset
from .image_folder import STRIP

_LUMA = (19595, 38470, 7471)  # of red, green and blue in 65536: ITU-R 601, as Pillow has it


def with_channels(pixels: Tensor, channels: int) -> Tensor:
    """Convert uint8 (N, 1 or 3, H, W) to `channels` channels: grey becomes equal channels, colours become grey."""
    if not pixels.numel():
        raise ValueError(f"inputs must hold pixels, got (N, C, H, W) = {tuple(pixels.shape)}")
    stored = pixels.shape[1]
    if stored == channels:
        return pixels
    if stored == 1:
        return pixels.expand(-1, channels, -1, -1)
    if stored == 3 and channels == 1:
        weight = torch.tensor(_LUMA, dtype=torch.int32).view(1, 3, 1, 1)
        grey = torch.empty_like(pixels[:, :1])
        rows = max(1, STRIP // (len(pixels) * pixels.shape[3]))
        for strip, out in zip(pixels.split(rows, 2), grey.split(rows, 2), strict=True):
            out.copy_((strip.int() * weight).sum(1, keepdim=True, dtype=torch.int32) + 32768 >> 16)
        return grey
    raise ValueError(f"inputs must have {channels} channels, got {stored}")


@dataclass(frozen=True)
class DecodeWithChannels:
    """Decode an image file and convert it to `channels` channels."""

    decode: Callable[[str], Tensor]
    channels: int

    def __call__(self, path: str) -> Tensor:
        return with_channels(self.decode(path).unsqueeze(0), self.channels)[0]


def convert(dataset: Any, channels: int) -> Any:
    """Return a dataset of uint8 images with `channels` channels; itself if it has them already."""
    if isinstance(dataset, LazyDataset):
        return LazyDataset(dataset.paths, dataset.labels, dataset.classes, DecodeWithChannels(dataset.decode, channels))
    if not hasattr(dataset, "__getitem__") or not len(dataset):
        return dataset  # an empty one is reported where it is used
    sample = dataset[0][0]
    if isinstance(sample, Tensor) and sample.dim() == 3 and len(sample) == channels:
        return dataset
    if isinstance(dataset, ArrayDataset) and sample.dim() == 3 and sample.dtype == torch.uint8:
        # in parts: all rows of a large array at once would take strips of one pixel row each
        parts = [with_channels(part, channels) for part in dataset.inputs.split(256)]
        return ArrayDataset(torch.cat(parts), dataset.labels, dataset.classes)
    got = f"{sample.dtype} {tuple(sample.shape)}" if isinstance(sample, Tensor) else type(sample).__name__
    raise ValueError(f"data.channels={channels} needs uint8 images (1 or 3, H, W), got {got}")
