"""Print tables: with rich on a terminal, as plain columns elsewhere. Read numbers, report errors."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .._internal.text import one_line as one_line
from .._internal.text import printable as printable


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None, left: int = 0
) -> None:
    """Print a table to stdout, the first `left` columns aligned left and all others right.

    Example:
        >>> print_table(["name", "N"], [["a", "12"], ["bcdef", "7"]], left=1)
        name    N
        a      12
        bcdef   7
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    if sys.stdout and sys.stdout.isatty() and print_rich(header, rows, title, left, sum(widths) + 3 * len(widths) + 1):
        return
    if title is not None:
        print(title)
    for line in (header, *rows):
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def print_rich(header: Sequence[str], rows: Sequence[Sequence[str]], title: str | None, left: int, width: int) -> bool:
    """Print with rich and return True; False without rich or if the terminal is too narrow for unbroken numbers."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    console = Console()
    if console.width < width:
        return False
    pretty = Table(*header, title=title)
    for i, column in enumerate(pretty.columns):
        column.justify, column.no_wrap = "left" if i < left else "right", True
    for line in rows:
        pretty.add_row(*map(Text, line))  # Text: brackets in a cell are no markup
    console.print(pretty)
    return True


def say(text: str) -> None:
    """Print a line to stderr, if there is one: print would use stdout instead."""
    if sys.stderr is not None:
        print(printable(text), file=sys.stderr)


@contextmanager
def user_errors(options: argparse.Namespace, *more: type[Exception]) -> Iterator[None]:
    """Report what files, packages and values raise, and `more`, in one line, with exit code 2."""
    kinds: tuple[type[Exception], ...] = (OSError, ImportError, ValueError, *more)
    try:
        yield
    except BrokenPipeError:  # whoever read has enough: `main` ends without a word
        raise
    except kinds as error:
        options.error(one_line(error))


def integer(low: int, high: float = math.inf) -> Callable[[str], int]:
    """Return a function that reads the integer of a flag, for argparse."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not low <= int(text) <= high:
            allowed = f">= {low}" if high == math.inf else f"from {low} to {high:,}"
            raise argparse.ArgumentTypeError(f"must be an integer {allowed}, got {text!r}")
        return int(text)

    return read


def file_to_write(*endings: str, hint: str = "") -> Callable[[str], Path]:
    """Return a function that reads the path of a file to write, which has one of the endings if some are given."""

    def read(text: str) -> Path:
        path = Path(text)
        if endings and path.suffix.lower() not in endings:
            raise argparse.ArgumentTypeError(f"must end in {' or '.join(endings)}{hint}, got {text!r}")
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise argparse.ArgumentTypeError(f"must be a file in a folder that exists, got {text!r}")
        if not os.access(path.absolute().parent, os.W_OK):
            raise argparse.ArgumentTypeError(f"no permission to write in {str(path.absolute().parent)!r}")
        return path

    return read


def number(allowed: str, is_right: Callable[[float], bool]) -> Callable[[str], float]:
    """Return a function that reads the number of a flag, for argparse."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not is_right(value):
            raise argparse.ArgumentTypeError(f"must be {allowed}, got {text!r}")
        return value

    return read
