"""What all pictures share: sizes, colours, texts and ticks of an axis."""

import math
import os
import re
from collections.abc import Iterable
from xml.sax.saxutils import escape as escape_xml

from .._internal.safe_files import write_text

# Okabe and Ito's colours, distinct for all kinds of colour vision, without yellow, which is too faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

TITLE, LABEL, TICK = 16, 13, 12  # font sizes in pixels
EDGE = 14  # margin
LETTER = 0.56  # width of a letter / font size, at most, in common sans-serif fonts


def data_range(numbers: list[float], margin: float) -> tuple[float, float]:
    low, high = min(numbers), max(numbers)
    if is_empty_range(low, high):
        pad = 0.1 * abs(high) or 1.0
    else:
        pad = margin * (high - low)
    return low - pad, high + pad


def is_empty_range(low: float, high: float) -> bool:
    """Return whether the range is empty up to rounding errors."""
    return high - low <= max(1e-9 * max(abs(low), abs(high)), 1e-300)


def ticks(low: float, high: float, wanted: float, smallest_step: float = 0.0) -> list[tuple[float, str]]:
    """Return about `wanted` round numbers from low to high with their labels."""
    rough = (high - low) / max(2.0, wanted)
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(next(f * power for f in (1.0, 2.0, 5.0, 10.0) if f * power >= 0.75 * rough), smallest_step)
    slack = 1e-6  # for borders that are round numbers up to rounding
    numbers = [k * step for k in range(math.ceil(low / step - slack), math.floor(high / step + slack) + 1)]
    return [(number, _tick_label(number, step, max(abs(low), abs(high)))) for number in numbers]


def log_ticks(low: float, high: float, wanted: float) -> list[tuple[float, str]]:
    """Return the exponents from low to high of about `wanted` round numbers, with the numbers as labels."""
    first, last = math.floor(low), math.ceil(high)
    slack = 1e-9
    for factors in ((1,), (1, 3), (1, 2, 5)):
        numbers = [f * 10.0**k for k in range(first, last + 1) for f in factors]
        found = [number for number in numbers if low - slack <= math.log10(number) <= high + slack]
        if len(found) >= 3:
            found = found[:: math.ceil(len(found) / max(2.0, wanted))]
            return [(math.log10(number), _tick_label(number, number, number)) for number in found]
    return [(math.log10(number), label) for number, label in ticks(10.0**low, 10.0**high, wanted) if number > 0]


def _tick_label(number: float, step: float, largest: float) -> str:
    """Format with as many digits as the step needs; powers of ten for very large or small numbers."""
    if abs(number) < step / 2:
        return "0"
    if 1e-3 <= largest < 1e6:
        return f"{number:.{_decimals(step)}f}".replace("-", "−")
    exponent = math.floor(math.log10(largest))
    digits = f"{number / 10.0**exponent:.{_decimals(step / 10.0**exponent)}f}".replace("-", "−")
    power = "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return {"1": power, "−1": f"−{power}"}.get(digits, f"{digits}×{power}")


def _decimals(step: float) -> int:
    """Return the number of decimals of multiples of the step: two for 0.05."""
    return next((n for n in range(12) if abs(step * 10**n - round(step * 10**n)) < 1e-6 * step * 10**n), 12)


def finish(parts: Iterable[str], title: str, width: float, height: float, path: str | os.PathLike[str] | None) -> str:
    """Put the parts into a white picture of this size; write it to a file, if one is given, and return it."""
    size = f'width="{width:g}" height="{height:g}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} viewBox="0 0 {width:g} {height:g}" '
        'font-family="system-ui, Helvetica, Arial, sans-serif" fill="#333">',
        f'<title>{escape(title)}</title><rect {size} fill="#fff"/>',
    ]
    svg = "\n".join(part for part in (*head, *parts, "</svg>") if part) + "\n"
    if path is not None:
        write_text(path, svg)
    return svg


# Text


def text_line(
    text: str, x: float, y: float, size: float, *, anchor: str = "start", room: float = math.inf, more: str = ""
) -> str:
    """Draw one line of text, smaller if it would not fit into `room` pixels; "" for an empty text."""
    if not text:
        return ""
    size = max(min(size, size * room / text_width(text, size)), 7.0)
    place = f'x="{x:.2f}" y="{y:.2f}" font-size="{size:.3g}" text-anchor="{anchor}"'
    return f"<text {place}{more and ' ' + more}>{escape(text)}</text>"


def text_width(text: str, size: float) -> float:
    return LETTER * size * len(text)


def escape(text: str) -> str:
    # XML does not allow control characters and lone surrogates.
    return escape_xml(re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))
