"""Convert image files, arrays and text to the batch that a trained network takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...data import Graph, SampleGenerator
from ...data.augment import Augmentation
from ...data.channels import with_channels
from ...data.image_folder import PIXELS, decode
from ..splits import DataSpec

#: dtypes of stored samples
DTYPES = {name: getattr(torch, name) for name in ("uint8", "float16", "bfloat16", "float32", "float64", "int64")}
_NORMALIZED = 10.0  # larger numbers are pixels that were not normalized


@dataclass(frozen=True)
class Preprocess:
    """``preprocess(inputs)`` returns a batch (B, ...) as in the evaluation of the training.

    What it takes depends on `spec.kind`, the data the network was trained on; a list is a batch.

    - images: the path of a file, a Pillow image, or uint8 pixels (H, W), (H, W, C), (C, H, W), (N, C, H, W) or
      (N, H, W, C). Grey becomes three equal channels and colours become grey as the network needs it, and the size
      becomes that of its images. Floating point numbers are taken as normalized already: (C, H, W) or (N, C, H, W).
    - points: floating point numbers (P, 3) or (N, P, 3).
    - text: a str, whose last characters are read, or numbers of characters (T,) or (N, T).
    - graph: a :class:`~hypersphere.data.Graph`; gives its features.
    - other: numbers of the shape the network was trained on, with or without N before it.

    Example:
        >>> from hypersphere.data.augment import as_stored
        >>> preprocess = Preprocess(DataSpec("images", (1, 8, 8), "uint8", ["a", "b"]), as_stored)
        >>> preprocess(np.zeros((20, 30, 3), np.uint8)).shape  # a large image in colours
        torch.Size([1, 1, 8, 8])
    """

    spec: DataSpec
    augment: Augmentation

    def __call__(self, inputs: Any) -> Tensor:
        if isinstance(inputs, list | tuple):
            return self._batch(list(inputs))
        return _OF_KIND[self.spec.kind](self, inputs)

    def _batch(self, inputs: list[Any]) -> Tensor:
        if not inputs:
            raise ValueError("inputs must hold at least one sample, got an empty list")
        rows = [self(sample) for sample in inputs]
        for row in rows:
            if row.shape[1:] != rows[0].shape[1:]:
                got = f"{tuple(rows[0].shape[1:])} and {tuple(row.shape[1:])}"
                raise ValueError(f"all samples of a batch must have one shape, got {got}")
        return torch.cat(rows)

    # -------------------------------------------------------------------------------------------------- images

    def _images(self, inputs: Any) -> Tensor:
        pixels = _opened(inputs)
        if pixels is None:
            pixels = _array(inputs)
            if pixels.is_floating_point():
                return self._as_it_is(pixels)
            if pixels.dtype != torch.uint8:
                raise TypeError(f"inputs must be uint8 pixels or normalized floating point numbers, got {pixels.dtype}")
            pixels = _channels_first(pixels, self.spec.shape)
            check_pixels(*pixels.shape[2:])
        if self.spec.dtype != "uint8":
            raise TypeError(f"inputs must be {self.spec.dtype}, as the network was trained on, got pixels of uint8")
        channels, *size = self.spec.shape
        pixels = with_channels(pixels, channels)
        if list(pixels.shape[2:]) != size and not self._resizes():
            pixels = F.interpolate(pixels.contiguous(), size, mode="bilinear", antialias=True, align_corners=False)
        return self._checked(self._augmented(pixels))

    def _resizes(self) -> bool:
        """Return whether the augmentation gives images of the network's size; tried on one of another size."""
        channels, height, width = self.spec.shape
        example = torch.zeros(1, channels, 2 * height, 2 * width, dtype=torch.uint8)
        return self._augmented(example).shape[1:] == self.spec.shape

    def _as_it_is(self, numbers: Tensor) -> Tensor:
        """Check floating point samples; those of pixel data must be normalized already."""
        rows = self._rows(numbers)
        if self.spec.dtype != "uint8":
            return self._checked(self._augmented(rows.to(DTYPES[self.spec.dtype])))
        if rows.numel() and float(rows.abs().max()) > _NORMALIZED:
            raise ValueError(
                "inputs of floating point must be normalized, (pixel - 127.5)/128; give pixels of 0 to 255 as uint8"
            )
        return self._checked(rows.float())

    def _rows(self, numbers: Tensor) -> Tensor:
        return numbers.unsqueeze(0) if numbers.dim() == len(self.spec.shape) else numbers

    def _augmented(self, rows: Tensor) -> Tensor:
        return self.augment(rows, SampleGenerator(0, 0, range(len(rows))))

    def _checked(self, rows: Tensor, varies: int = 0) -> Tensor:
        """Check that `rows` are samples of the network's shape; the first `varies` dimensions may have any size."""
        shape = self.spec.shape
        if not len(rows) or rows.dim() != len(shape) + 1 or rows.shape[1 + varies :] != shape[varies:]:
            sizes = [*("P" * varies), *map(str, shape[varies:])]
            sample = f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"
            allowed = f"{sample} or (N, {', '.join(sizes)})"
            raise ValueError(f"inputs must have the shape {allowed}, got {tuple(rows.shape)}")
        if rows.is_floating_point() and not bool(rows.isfinite().all()):
            raise ValueError("inputs must be finite, got NaN or infinite numbers")
        return rows

    # --------------------------------------------------------------------------------------------- other kinds

    def _points(self, inputs: Any) -> Tensor:
        points = _array(inputs)
        if not points.is_floating_point():
            raise TypeError(f"inputs must be points (P, 3) of floating point numbers, got {points.dtype}")
        points = self._checked(self._rows(points.float()), varies=1)
        return self._checked(self._augmented(points), varies=1)

    def _text(self, inputs: Any) -> Tensor:
        context = self.spec.shape[0]
        if isinstance(inputs, str):
            places = {character: i for i, character in enumerate(self.spec.classes)}
            unknown = next((letter for letter in inputs if letter not in places), None)
            if unknown is not None:
                raise ValueError(f"inputs must be of the {len(places)} characters of the run, got {unknown!r}")
            inputs = torch.tensor([places[letter] for letter in inputs[-context:]], dtype=torch.long)
        numbers = _array(inputs)
        if numbers.is_floating_point() or numbers.dtype == torch.bool:
            raise TypeError(f"inputs must be text or numbers of characters, got {numbers.dtype}")
        rows = self._rows(numbers).long()
        if rows.dim() != 2 or not rows.numel():
            raise ValueError(f"inputs must be text, or (T,) or (N, T) and not empty, got {tuple(numbers.shape)}")
        low, high = map(int, rows.aminmax())
        if low < 0 or high >= len(self.spec.classes):
            allowed = f"0 to {len(self.spec.classes) - 1}"
            raise ValueError(f"inputs must be numbers of characters, {allowed}, got {low if low < 0 else high}")
        return rows[:, -context:]

    def _graph(self, inputs: Any) -> Tensor:
        if not isinstance(inputs, Graph):
            raise TypeError(f"inputs must be a hypersphere.data.Graph, got {type(inputs).__name__}")
        return self._checked(F.normalize(inputs.features, p=1.0))

    def _other(self, inputs: Any) -> Tensor:
        numbers = _array(inputs)
        if numbers.is_floating_point() or self.spec.dtype != "uint8":
            return self._as_it_is(numbers)
        if numbers.dtype != torch.uint8:
            raise TypeError(f"inputs must be uint8 or normalized floating point numbers, got {numbers.dtype}")
        return self._checked(self._augmented(self._rows(numbers)))


#: dimensions of a sample; None: any
KINDS: dict[str, int | None] = {"images": 3, "points": 2, "text": 1, "graph": 1, "other": None}

_OF_KIND: dict[str, Callable[[Preprocess, Any], Tensor]] = {
    "images": Preprocess._images,
    "points": Preprocess._points,
    "text": Preprocess._text,
    "graph": Preprocess._graph,
    "other": Preprocess._other,
}


def _opened(inputs: Any) -> Tensor | None:
    """Read an image file or a Pillow image as uint8 (1, 3, H, W); None if it is neither."""
    if isinstance(inputs, str | os.PathLike):
        if not os.path.isfile(inputs):
            raise FileNotFoundError(f"no such file: {os.fspath(inputs)!r}")
        return decode(os.fspath(inputs)).unsqueeze(0)
    if not (hasattr(inputs, "getbands") and hasattr(inputs, "convert")):  # duck typing: Pillow may be missing
        return None
    width, height = inputs.size
    check_pixels(height, width)
    if inputs.mode.startswith(("I", "F")):
        raise ValueError(f"an image must have 8 bits a colour, got Pillow's mode {inputs.mode}")
    return torch.from_numpy(np.array(inputs.convert("RGB"))).permute(2, 0, 1).unsqueeze(0)


def check_pixels(height: int, width: int) -> None:
    """Raise ValueError for an image with too many pixels to decode safely."""
    if height * width > PIXELS:
        raise ValueError(f"an image must have at most {PIXELS} pixels, got {width}×{height}")


def _array(inputs: Any) -> Tensor:
    if isinstance(inputs, Tensor):
        return inputs.detach()
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "biuf":
        order = inputs.dtype.newbyteorder("=")
        return torch.from_numpy(np.ascontiguousarray(inputs, order).copy())
    what = f"an array of {inputs.dtype}" if isinstance(inputs, np.ndarray) else type(inputs).__name__
    raise TypeError(f"inputs must be a NumPy array or a tensor, or a list of such, got {what}")


def _channels_first(pixels: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return pixels as (N, C, H, W); ValueError if the layout is ambiguous."""
    known = {1, 3, shape[0]}
    if pixels.dim() == 2:
        return pixels[None, None]
    if pixels.dim() not in (3, 4):
        raise ValueError(f"inputs must be (H, W), (H, W, C), (C, H, W) or (N, C, H, W), got {tuple(pixels.shape)}")
    rows = pixels if pixels.dim() == 4 else pixels[None]
    first, last = rows.shape[1] in known, rows.shape[3] in known
    if first and last and rows.shape[1:] != shape:
        raise ValueError(
            f"inputs of shape {tuple(pixels.shape)} may have their channels first or last: give (N, C, H, W)"
        )
    if not (first or last):
        kinds = " or ".join(map(str, sorted(known)))
        raise ValueError(f"inputs must have {kinds} channels, first or last, got {tuple(pixels.shape)}")
    return rows if first else rows.permute(0, 3, 1, 2)
