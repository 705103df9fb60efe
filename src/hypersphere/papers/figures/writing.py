"""Write a drawing as .svg, .png or an HTML page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from ..._internal.safe_files import write_bytes, write_text
from ...report.page import Page
from .drawing import Drawing

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SCALE = 2  # pixels of a PNG for each of the SVG
_TIMEOUT = 120.0  # seconds for the browser


def check_path(path: Path) -> None:
    """Raise ImportError, before anything is drawn, for a format that needs what is not installed."""
    if path.suffix.lower() == ".png":
        _browser()


def write(drawing: Drawing, path: Path) -> None:
    """Write the picture as .png or .svg, by the file's ending."""
    if path.suffix.lower() == ".png":
        write_bytes(path, png(drawing.svg))
    else:
        write_text(path, drawing.svg)


def write_page(drawing: Drawing, path: Path, title: str, source: str) -> None:
    """Write the page."""
    write_text(path, html(drawing, title, source))


def html(drawing: Drawing, title: str, source: str) -> str:
    """Make one page that opens offline: the picture or its turnable panels, then the table."""
    page = Page(title, source)
    page.section("Figure")
    for chart in drawing.panels or [drawing.chart]:
        page.chart(chart, wide=not drawing.panels)
    if drawing.rows:
        page.section("Numbers")
        page.table(list(drawing.rows[0]), [list(row.values()) for row in drawing.rows])
    for note in drawing.notes:
        page.text(note)
    return page.html()


def png(svg: str) -> bytes:
    """Render an SVG by a browser that is installed. ImportError without one.

    No package that hypersphere uses anyway can draw SVG, and those that can bring cairo or a browser of their own.
    """
    browser = _browser()
    size = re.search(r'width="([\d.]+)" height="([\d.]+)"', svg)
    width, height = (round(float(pixels)) for pixels in size.groups()) if size else (900, 600)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "figure.svg"), Path(folder, "figure.png")
        source.write_text(svg, encoding="utf-8")
        command = [browser, "--headless", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        command += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []  # root has no sandbox
        command += [f"--force-device-scale-factor={_SCALE}", f"--window-size={width},{height}"]
        command += [f"--screenshot={target}", source.as_uri()]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise ValueError(f"{browser} did not draw the picture within {_TIMEOUT:.0f} seconds; use .svg") from None
        if not target.exists():
            raise ValueError(f"{browser} did not draw the picture (exit code {done.returncode}); use .svg")
        return target.read_bytes()


def _browser() -> str:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise ImportError("a .png is rendered by Chromium or Chrome: install one of them, or write .svg")
    return browser
