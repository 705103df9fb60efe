"""What the commands share: print tables and errors, read the numbers and paths of flags."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .._internal.tables import TextTable
from .._internal.text import one_line as one_line
from .._internal.text import printable as printable


def print_table(table: TextTable) -> None:
    """Print a table to stdout: by rich on a terminal that is wide enough, else as plain columns."""
    if not (sys.stdout and sys.stdout.isatty() and print_rich(table)):
        print(printable(str(table)))


def print_rich(table: TextTable) -> bool:
    """Print with rich and return True; False without rich or if the terminal is too narrow for unbroken numbers."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    console = Console()
    if console.width < sum(table.widths) + 3 * len(table.widths) + 1:
        return False
    pretty = Table(*table.header, title=table.title or None)
    for i, column in enumerate(pretty.columns):
        column.justify, column.no_wrap = "left" if i < table.left else "right", True
    for cells in table.rows:
        pretty.add_row(*(Text(printable(cell)) for cell in cells))  # Text: brackets in a cell are no markup
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
    except BrokenPipeError:  # the reader closed the pipe (`| head`)
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
    """Return a function that reads the path of a file to write, with one of the endings, if any."""

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


def real(allowed: str, is_right: Callable[[float], bool]) -> Callable[[str], float]:
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
