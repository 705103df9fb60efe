"""Pixels inside an SVG."""

from __future__ import annotations

import torch
from torch import Tensor

from ...report.png import png_uri


def image(pixels: Tensor, x: float, y: float, width: float, height: float) -> str:
    """Draw uint8 pixels into a rectangle; single pixels stay squares."""
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<image {place} preserveAspectRatio="none" style="image-rendering:pixelated" href="{png_uri(pixels)}"/>'


def to_uint8(numbers: Tensor) -> Tensor:
    """Scale an image to its own range of grey levels."""
    low, high = numbers.min(), numbers.max()
    return ((numbers - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8)
