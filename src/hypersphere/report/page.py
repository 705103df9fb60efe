"""Build one self-contained HTML page of texts, sortable tables and charts.

The page opens from disk without a network. All texts are escaped. Charts are the SVG pictures of this package, in the
page's light or dark colours; page.js adds values on hover, legends that switch lines, CSV and turnable scenes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .._internal.interruption import Interruptions
from .._internal.safe_files import remove_temporaries, write_text
from .._internal.tables import number
from .chart import Chart, Line
from .svg import THEME

Cell = str | float | None | tuple[str, float | None]

_LONGEST_CELL = 300  # letters; longer ones scroll


class Page:
    """One HTML page, written from top to bottom.

    Args:
        title: of the page, plain text like all texts here.
        lead: a sentence below the title.

    Example:
        >>> page = Page("Two runs", "Trained on digits.")
        >>> page.section("Results")
        >>> page.table(["run", "accuracy"], [["a", 0.5], ["b", ("91.2 %", 0.912)]])
        >>> "<h2" in page.html()
        True
    """

    def __init__(self, title: str, lead: str = "") -> None:
        self.title, self.lead = title, lead
        self._sections: list[str] = []
        self._parts: list[str] = []

    def section(self, title: str) -> None:
        """Begin a section. The contents at the top of the page link to it."""
        index = len(self._sections)
        self._parts.append(("</section>" if index else "") + f'<section id="s{index}"><h2>{escape(title)}</h2>')
        self._sections.append(title)

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def table(self, header: Sequence[str], rows: Iterable[Sequence[Cell]], *, caption: str = "") -> None:
        """Add a table that is sorted by a click on a column's title.

        Args:
            rows: a cell is a text, a number, None (empty) or (text, number to sort by).
        """
        cells = [[_cell(cell) for cell in row] for row in rows]
        kinds = [all("number" in cell[:20] for cell in column) for column in zip(*cells, strict=True)]
        kinds = kinds or [False] * len(header)
        titles = "".join(
            f'<th scope="col"{" class=number" * is_number}><button type="button">{escape(name)}</button></th>'
            for name, is_number in zip(header, kinds, strict=True)
        )
        body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
        above = f'<p class="caption">{escape(caption)}</p>' if caption else ""
        self._parts.append(
            f'{above}<div class="table"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def chart(self, chart: Chart, *, caption: str = "", wide: bool = False, csv: Sequence[str] = ()) -> None:
        """Add a chart. Charts in a row share the width of the page.

        Args:
            chart: of :func:`line_chart` and the like.
            caption: below the chart.
            wide: take the whole width.
            csv: offer the points of its lines for download, with these titles of the columns: line, x, y, spread.
        """
        data: dict[str, Any] = {"lines": chart.lines, "grids": chart.grids, "scene": chart.scene, "csv": list(csv)}
        text = json.dumps(
            {key: value for key, value in data.items() if value},
            default=lambda part: _rounded(asdict(part), 7 if isinstance(part, Line) else 4),
            allow_nan=False,
            separators=(",", ":"),
        ).replace("<", "\\u003c")
        below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        self._parts.append(
            f'<figure class="chart{" wide" * wide}"><div class="plot">{chart.svg}</div>{below}'
            f'<script type="application/json">{text}</script></figure>'
        )

    def images(self, images: Iterable[tuple[str, str, str]], *, caption: str = "") -> None:
        """Add small images side by side.

        Args:
            images: (data URI of a PNG, line below it, text shown while the pointer rests on it).
        """
        figures = "".join(
            f'<figure title="{escape(hint)}"><img src="{escape(source)}" alt="{escape(hint)}">'
            f"<figcaption>{escape(line)}</figcaption></figure>"
            for source, line, hint in images
        )
        above = f'<p class="caption">{escape(caption)}</p>' if caption else ""
        self._parts.append(f'{above}<div class="images">{figures}</div>')

    def html(self) -> str:
        """Return the page."""
        script = _file("page.js")
        colours = "".join(
            f'.plot [{part}="{colour}"]{{{part}:var(--{name})}}'
            for colour, name in THEME.items()
            for part in ("fill", "stroke")
        )
        # Only this script may run, and nothing may be fetched.
        allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy = f"default-src 'none'; script-src 'sha256-{allowed}'; style-src 'unsafe-inline'; img-src data:"
        links = "".join(f'<li><a href="#s{i}">{escape(name)}</a></li>' for i, name in enumerate(self._sections))
        contents = f"<nav><ul>{links}</ul></nav>" if len(self._sections) > 1 else ""
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            f"<title>{escape(self.title)}</title><style>{_file('page.css')}{colours}</style></head>\n"
            f"<body><header><h1>{escape(self.title)}</h1>{f'<p>{escape(self.lead)}</p>' if self.lead else ''}{contents}"
            f"</header>\n<main>{''.join(self._parts)}{'</section>' if self._sections else ''}</main>\n"
            f"<footer>Made by hypersphere.</footer>\n<script>{script}</script></body></html>\n"
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file; the file is whole or not there.

        A signal takes effect once it is written, and temporary files of killed writers are removed.
        """
        text, file = self.html(), Path(path)
        with Interruptions() as interruptions:
            remove_temporaries(file.parent, (file.name,))
            write_text(file, text)
        interruptions.reraise()


def escape(text: str) -> str:
    """Escape a text for HTML; control characters and lone surrogates become replacement characters."""
    return html.escape(re.sub("[^\t\n\r -~\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))


def _cell(cell: Cell) -> str:
    shown, value = cell if isinstance(cell, tuple) else (cell, None if isinstance(cell, str) else cell)
    text = escape(shown if isinstance(shown, str) else _format(shown))
    if value is None and isinstance(shown, str):
        return f'<td><div class="long">{text}</div></td>' if len(shown) > _LONGEST_CELL else f"<td>{text}</td>"
    order = f' data-value="{float(value)!r}"' if value is not None and math.isfinite(value) else ""
    return f"<td class=number{order}>{text}</td>"


def _format(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else number(value)


def _rounded(value: Any, digits: int) -> Any:
    """Round the numbers behind a chart, so that the page stays small."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: _rounded(part, digits) for key, part in value.items()}
    return [_rounded(part, digits) for part in value] if isinstance(value, list | tuple) else value


@functools.cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
