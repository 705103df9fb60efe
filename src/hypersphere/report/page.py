"""Build one self-contained HTML page of texts, sortable tables and interactive charts.

The page opens from disk without a network. All texts are escaped, also those inside figures. The script of the charts,
plotly.js, is in the page compressed; page.js starts it after the first paint and draws a chart when it is in view.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import html
import importlib.util
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._internal.interruption import Interruptions
from .._internal.modules import install_command
from .._internal.safe_files import remove_temporaries, write_text

Cell = str | float | None | tuple[str, float | None]
Figure = Mapping[str, Any]

_TEMPLATES = ("hovertemplate", "texttemplate")  # plotly's own markup: not escaped, so they must not contain names
_LABELS = ("name", "text", "hovertext", "title", "ticktext")  # shortened in charts
_LONGEST_LABEL = 60  # letters
_LONGEST_CELL = 300  # letters; longer ones scroll
_WEBGL = {"cone", "isosurface", "mesh3d", "scatter3d", "streamtube", "surface", "volume"}  # browsers allow about 16


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
        self._figures: list[str] = []

    def section(self, title: str) -> None:
        """Begin a section. The contents at the top of the page link to it."""
        number = len(self._sections)
        self._parts.append(("</section>" if number else "") + f'<section id="s{number}"><h2>{escape(title)}</h2>')
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

    def chart(
        self, figure: Figure, *, caption: str = "", wide: bool = False, height: int = 400, csv: Sequence[str] = ()
    ) -> None:
        """Add a plotly chart. Charts in a row share the width of the page.

        Args:
            figure: {"data": [trace, ...], "layout": {...}} as plotly takes it, of dicts, lists, numbers, texts and
                numpy arrays (stored as float32 or int32). Texts are plain: markup is shown as it is, and a line end
                is a line break; labels are shortened. The exceptions are hovertemplate and texttemplate, which take
                plotly's markup: no names of layers, runs or files there. Colours of :func:`colour` follow
                the page's theme; so do the axes and fonts, unless the figure sets them.
            caption: below the chart.
            wide: take the whole width.
            height: in pixels.
            csv: offer the points for download, with these titles of the columns: the trace's name, x, y, customdata.
        """
        number, webgl = len(self._figures), any(trace.get("type") in _WEBGL for trace in figure["data"])
        text = json.dumps(_plain(figure), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
        self._figures.append(f'<script type="application/json" id="f{number}">{text}</script>')
        columns = f' data-csv="{escape(json.dumps(list(csv)))}"' if csv else ""
        below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        self._parts.append(
            f'<figure class="chart{" wide" * wide}" data-figure="f{number}"{" data-webgl" * webgl}{columns}>'
            f'<div class="plot" style="height:{int(height)}px"></div>{below}</figure>'
        )

    def picture(self, svg: str, alt: str) -> None:
        """Add an SVG picture, as an image: scripts in it do not run.

        Args:
            alt: what is seen, for those who do not see it.
        """
        source = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
        self._parts.append(f'<figure class="picture wide"><img src="{source}" alt="{escape(alt)}"></figure>')

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
        """Return the page. ImportError if it has charts and plotly is not installed."""
        own = _file("page.js")
        scripts, library = [own], ""
        if self._figures:
            plotly, packed = _plotly()
            scripts.append(plotly)
            library = f'<script type="text/plain" id="plotly">{packed}</script>'
        # Only these scripts may run, and nothing may be fetched.
        allowed = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
        policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
        links = "".join(f'<li><a href="#s{i}">{escape(name)}</a></li>' for i, name in enumerate(self._sections))
        contents = f"<nav><ul>{links}</ul></nav>" if len(self._sections) > 1 else ""
        foot = "Charts: plotly.js, © Plotly, Inc., MIT licence. " if self._figures else ""
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            f"<title>{escape(self.title)}</title><style>{_file('page.css')}</style></head>\n"
            f"<body><header><h1>{escape(self.title)}</h1>{f'<p>{escape(self.lead)}</p>' if self.lead else ''}{contents}"
            f"</header>\n<main>{''.join(self._parts)}{'</section>' if self._sections else ''}</main>\n"
            f"<footer>{foot}Made by hypersphere.</footer>\n"
            f"{''.join(self._figures)}{library}<script>{own}</script></body></html>\n"
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


LINE = "@line/1"  # the colour of frames and thin lines, for a figure


def colour(index: int, alpha: float = 1.0) -> str:
    """Return a colour of the palette for a figure. It is readable on a light and on a dark page."""
    return f"@{index}/{alpha:g}"


def escape(text: str) -> str:
    """Escape a text for HTML; control characters and lone surrogates become replacement characters."""
    return html.escape(_clean(text))


def _clean(text: str) -> str:
    return re.sub("[^\t\n\r -~\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def _cell(cell: Cell) -> str:
    shown, value = cell if isinstance(cell, tuple) else (cell, None if isinstance(cell, str) else cell)
    text = escape(shown if isinstance(shown, str) else _number(shown))
    if value is None and isinstance(shown, str):
        return f'<td><div class="long">{text}</div></td>' if len(shown) > _LONGEST_CELL else f"<td>{text}</td>"
    order = f' data-value="{float(value)!r}"' if value is not None and math.isfinite(value) else ""
    return f"<td class=number{order}>{text}</td>"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


# Figures


def _plain(value: Any, key: str = "") -> Any:
    """Turn a figure into JSON: texts escaped, arrays packed, non-finite numbers null."""
    if isinstance(value, str):
        if key in _TEMPLATES:
            return value
        text = _clean(value)
        if key in _LABELS and len(text) > _LONGEST_LABEL:
            half = _LONGEST_LABEL // 2
            text = f"{text[:half]}…{text[-half:]}"
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", "<br>")
    if isinstance(value, np.ndarray):
        return _packed(value) if value.dtype.kind in "fiu" else _plain(value.tolist(), key)
    if isinstance(value, np.generic):
        return _plain(value.item(), key)
    if isinstance(value, Mapping):
        return {str(name): _plain(each, str(name)) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, key) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _packed(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return plotly's form of an array of numbers."""
    small = array.dtype.kind == "f" or (array.size and max(abs(int(array.min())), abs(int(array.max()))) >= 2**31)
    kind = "f4" if array.dtype.kind == "f" else "f8" if small else "i4"
    packed = {"dtype": kind, "bdata": base64.b64encode(np.ascontiguousarray(array, f"<{kind}").tobytes()).decode()}
    return packed | ({"shape": ", ".join(map(str, array.shape))} if array.ndim > 1 else {})


# The scripts


@functools.cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@functools.cache
def _plotly() -> tuple[str, str]:
    """Return plotly.js, and its compressed bytes as base64. Without importing plotly, which takes a while."""
    found = importlib.util.find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"pages with charts need plotly: {install_command('report')}")
    data = Path(found.submodule_search_locations[0], "package_data", "plotly.min.js").read_bytes()
    return data.decode(), base64.b64encode(gzip.compress(data, mtime=0)).decode()


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
