"""Phase and magnitude of an image, swapped with those of another (SphereNet's poster) or random (Section 1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ... import data
from ...report import Chart
from ...report.png import image
from ...report.svg import document, escape, heading
from .drawing import PANEL, TOP, Drawing

_SIZE = 256  # pixels of the longer side of a given image
_ROW = PANEL + 64  # height of a row of panels with the lines below
_DIGITS = (13, 8)  # places in the test split
_PAIRS = 1000  # of digits with different labels, for the mean


def mix(phase: Tensor, magnitude: Tensor) -> Tensor:
    """Return the image with the phase of one and the magnitude of the other 2-D Fourier transform, (..., H, W)."""
    angles = torch.fft.fft2(phase).angle()
    return torch.fft.ifft2(torch.polar(torch.fft.fft2(magnitude).abs(), angles)).real


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Compute Pearson's correlation of the pixels of images (..., H, W)."""
    a, b = (pixels.flatten(-2) - pixels.flatten(-2).mean(-1, keepdim=True) for pixels in (a, b))
    return F.cosine_similarity(a, b, dim=-1)


def phase(inputs: Sequence[Path] = ()) -> Drawing:
    """Draw two images, the mixtures of their phases and magnitudes, and those with random magnitudes or phases."""
    if len(inputs) == 1:
        raise ValueError("phase takes two images, or none for two of the embedded digits; got 1")
    notes = []
    if inputs:
        a, b = _same_size(*(_grey(path) for path in inputs))
        names = [path.name for path in inputs]
    else:
        digits = data.load("digits", None, "test")
        a, b = (digits[i][0][0].double() for i in _DIGITS)
        names = [f"digit {digits.labels[i]}" for i in _DIGITS]
        notes = [_over_digits()]
    noise = _noise(a.shape)
    panels = {
        (names[0],): a,
        (names[1],): b,
        (f"phase of {names[0]}", f"magnitude of {names[1]}"): mix(a, b),
        (f"phase of {names[1]}", f"magnitude of {names[0]}"): mix(b, a),
        (f"phase of {names[0]}", "random magnitude"): mix(a, noise),
        (f"phase of {names[1]}", "random magnitude"): mix(b, noise),
        ("random phase", f"magnitude of {names[0]}"): mix(noise, a),
        ("random phase", f"magnitude of {names[1]}"): mix(noise, b),
    }
    rows = [
        {
            "image": ", ".join(caption),
            f"correlation with {names[0]}": float(correlation(pixels, a)),
            f"with {names[1]}": float(correlation(pixels, b)),
        }
        for caption, pixels in list(panels.items())[2:]
    ]
    return Drawing(_draw(panels, rows), rows, notes)


def _noise(shape: Sequence[int]) -> Tensor:
    """Draw white noise, whose transform has uniform phases and magnitudes of the same size at all frequencies."""
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _draw(panels: dict[tuple[str, ...], Tensor], rows: Sequence[dict[str, Any]]) -> Chart:
    height, width = next(iter(panels.values())).shape
    scale = (PANEL - 30) / max(height, width)
    title = "Phase carries the image: magnitudes and phases swapped, or random"
    parts = [heading(title)]
    for k, (caption, pixels) in enumerate(panels.items()):
        centre, start = PANEL * (k % 4 + 0.5), TOP + _ROW * (k // 4)
        left, top = centre - width * scale / 2, start + PANEL / 2 - height * scale / 2
        parts.append(image(_to_uint8(pixels), left, top, width * scale, height * scale))
        lines = [_short(name) for name in caption]
        if k > 1:
            _, with_first, with_second = rows[k - 2].values()
            lines.append(f"correlation {with_first:.2f} and {with_second:.2f}")
        for i, line in enumerate(lines):
            look = 'font-size="14" font-weight="600"' if i == 0 else 'font-size="13"'
            parts.append(f'<text x="{centre:g}" y="{start + PANEL + 8 + 20 * i:g}" {look}>{escape(line)}</text>')
    return Chart(document(parts, title, PANEL * 4, 2 * _ROW + TOP, is_centred=True))


def _to_uint8(numbers: Tensor) -> Tensor:
    """Scale an image to its own range of grey levels."""
    low, high = numbers.min(), numbers.max()
    return ((numbers - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8)


def _short(name: str, letters: int = 26) -> str:
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def _grey(path: Path) -> Tensor:
    """Read an image file as grey levels (H, W), at most 256 a side."""
    if not path.is_file():
        raise ValueError(f"{path} is not an image file")
    pixels = data.image_folder.decode(str(path)).double().mean(0)
    shrink = min(1.0, _SIZE / max(pixels.shape))
    return _resized(pixels, [max(1, round(side * shrink)) for side in pixels.shape])


def _resized(pixels: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(pixels[None, None], tuple(size), mode="bilinear", antialias=True)[0, 0]


def _same_size(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return a, b if a.shape == b.shape else _resized(b, a.shape)


def _over_digits() -> str:
    """Say which part a mixture is like, over many pairs of the digits."""
    digits = data.load("digits", None, "test")
    drawn = torch.randint(len(digits), (2, 4 * _PAIRS), generator=torch.Generator().manual_seed(0))
    drawn = drawn[:, digits.labels[drawn[0]] != digits.labels[drawn[1]]][:, :_PAIRS]
    first, second = digits.inputs[drawn][:, :, 0].double()
    mixed, noise = mix(first, second), _noise(first.shape)
    with_phase, with_magnitude = correlation(mixed, first), correlation(mixed, second)
    random_magnitude, random_phase = (correlation(x, first).mean() for x in (mix(first, noise), mix(noise, first)))
    return (
        f"Over {drawn.shape[1]} pairs of the embedded digits: mean correlation {float(with_phase.mean()):.2f} with the "
        f"image of the phase, {float(with_magnitude.mean()):.2f} with that of the magnitude; the phase's is closer in "
        f"{float((with_phase > with_magnitude).double().mean()):.0%}. With random magnitudes the correlation with the "
        f"image of the phase is {float(random_magnitude):.2f}, with random phases that with the image of the magnitude "
        f"{float(random_phase):.2f}."
    )
