"""Tables of text, for terminals, notebooks and files, and the numbers in their cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .text import printable

NOTHING = "–"  # the cell of a value that does not exist


@dataclass(frozen=True)
class TextTable:
    """A header and rows of cells; the first `left` columns are aligned left, all others right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    title: str = ""

    def __str__(self) -> str:
        widths = self.widths
        lines = [
            "  ".join(self._align(i, cell, width) for i, (cell, width) in enumerate(zip(line, widths, strict=True)))
            for line in (self.header, *self.rows)
        ]
        return "\n".join(line.rstrip() for line in ([self.title] if self.title else []) + lines)

    @property
    def widths(self) -> list[int]:
        """The width of each column."""
        return [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]

    def _align(self, column: int, cell: str, width: int) -> str:
        return cell.ljust(width) if column < self.left else cell.rjust(width)

    def html(self) -> str:
        """Return an HTML table, as notebooks show it."""

        def row(kind: str, cells: Sequence[str]) -> str:
            aligned = ("left" if i < self.left else "right" for i in range(len(cells)))
            tagged = (
                f'<{kind} style="text-align: {side}">{escape(printable(cell))}</{kind}>'
                for side, cell in zip(aligned, cells, strict=True)
            )
            return f"<tr>{''.join(tagged)}</tr>"

        caption = f"<caption>{escape(printable(self.title))}</caption>" if self.title else ""
        body = "".join(row("td", cells) for cells in self.rows)
        return f"<table>{caption}<thead>{row('th', self.header)}</thead><tbody>{body}</tbody></table>"


class TableResult:
    """Base of the results that users see: they print as tables and draw themselves in a notebook.

    A subclass has ``tables()``, may have ``notes()``, lines below the tables, and has ``rows``, its records, and
    ``to_dict()``, everything for JSON.
    """

    def tables(self) -> Sequence[TextTable]:
        """Return the tables that are printed."""
        raise NotImplementedError

    def notes(self) -> Sequence[str]:
        """Return the lines below the tables."""
        return ()

    def to_dict(self) -> Mapping[str, Any]:
        """Return everything for JSON."""
        raise NotImplementedError

    def __str__(self) -> str:
        blocks = [str(table) for table in self.tables()]
        blocks += ["\n".join(self.notes())] if self.notes() else []
        return printable("\n\n".join(blocks))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{escape(printable(note))}</p>" for note in self.notes())
        return "".join(table.html() for table in self.tables()) + notes


def number(value: float | None, digits: int = 4) -> str:
    """Format a number with `digits` significant digits."""
    if value is None:
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.{digits}g}"


def percent(share: float | None, digits: int = 2) -> str:
    """Format a share in percent."""
    return NOTHING if share is None else f"{100 * share:.{digits}f}%"


def degrees(radians: float | None) -> str:
    """Format an angle in degrees, with at least two digits."""
    if radians is None:
        return NOTHING
    angle = math.degrees(radians)
    return f"{angle:.1f}°" if angle >= 0.95 or angle == 0 else f"{angle:.2g}°"
