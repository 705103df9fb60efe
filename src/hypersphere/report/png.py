"""Pixels inside an SVG: encode them as PNG with the standard library."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor


def png_uri(pixels: Tensor) -> str:
    """Encode uint8 pixels (H, W) or (3, H, W) as the address of an <image>."""
    grey = pixels.dim() == 2
    rows = (pixels[..., None] if grey else pixels.movedim(0, -1)).flatten(1).contiguous()
    height, width = pixels.shape[-2:]
    filtered = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), rows], 1)  # 0: no filter in each row
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if grey else 2, 0, 0, 0)
    body = zlib.compress(filtered.numpy().tobytes(), 9)
    data = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def image(pixels: Tensor, x: float, y: float, width: float, height: float) -> str:
    """Draw uint8 pixels into a rectangle of an SVG; single pixels stay squares."""
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<image {place} preserveAspectRatio="none" style="image-rendering:pixelated" href="{png_uri(pixels)}"/>'
