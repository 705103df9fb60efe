"""The builder of HTML pages, without a browser; test_page_browser.py opens its pages."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from hypersphere._internal.modules import install_command
from hypersphere.report import page as module
from hypersphere.report.page import Page, colour

HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "<!--<script>",
    "&lt;b&gt; &amp; 🦔",
    "x" * 10_000,
    "\x00\x1b[31m\udc80",
]


@pytest.fixture(autouse=True)
def _small_library(request, monkeypatch):
    """Put a short text in the place of plotly.js: reading 2 MB of it in each test takes a minute."""
    if request.function is not test_plotly_is_needed_for_charts_only:
        monkeypatch.setattr(module, "_plotly", lambda: ("let x;", "cGFja2Vk"))


class Reader(HTMLParser):
    """Collect the text of a page without scripts, and the attributes of its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.tags, self.scripts = "", [], []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data
        elif self._inside != "style":
            self.text += data


def figure_of(page: Page, number: int = 0) -> dict:
    (text,) = [text for attributes, text in Reader(page.html()).scripts if attributes.get("id") == f"f{number}"]
    return json.loads(text)


@pytest.mark.parametrize("name", HOSTILE)
def test_texts_are_escaped(name):
    """Every text is shown as it is, and adds no tag; a name in a figure is text to plotly too."""
    page = Page(name, name)
    page.section(name)
    page.section("second")
    page.text(name)
    page.table([name], [[name]], caption=name)
    page.chart({"data": [{"y": [1, 2], "name": name, "hovertext": [name]}]}, caption=name, csv=[name])
    page.images([(name, name, name)], caption=name)
    clean = Page("a", "b")
    clean.section("c")
    clean.section("second")
    clean.text("d")
    clean.table(["e"], [["f"]], caption="g")
    clean.chart({"data": [{"y": [1, 2]}]}, caption="h")
    clean.images([("i", "j", "k")], caption="l")
    seen = Reader(page.html())
    tags = [tag for tag, attributes in seen.tags if attributes.get("class") != "long"]
    assert tags == [tag for tag, _ in Reader(clean.html()).tags]
    shown = re.sub("[^\\s -~\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", name)
    assert seen.text.count(shown) >= 10
    label = figure_of(page)["data"][0]["name"]
    assert "<" not in label
    assert len(label) < 500


def test_only_its_own_scripts_may_run():
    page = Page("title")
    page.chart({"data": [{"y": [1, 2]}]})
    read = Reader(page.html())
    policy = next(attributes["content"] for tag, attributes in read.tags if "http-equiv" in attributes)
    (own,) = [text for attributes, text in read.scripts if not attributes]
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert f"'sha256-{digest}'" in policy
    assert "unsafe-eval" not in policy
    assert not [tag for tag, attributes in read.tags if "src" in attributes or tag == "link"]


def test_figures_keep_their_numbers():
    floats, steps, table = np.array([0.1, np.nan, 3e8]), np.array([1, 2**31 - 1]), np.arange(6.0).reshape(2, 3)
    page = Page("title")
    trace = {"x": steps, "y": floats, "z": table, "large": np.array([2**40]), "text": ["a\nb"], "one": np.float32(0.5)}
    page.chart({"data": [{**trace, "nan": float("nan"), "hovertemplate": "%{y}<br>", "color": colour(2, 0.25)}]})
    found = figure_of(page)["data"][0]
    for name, values in trace.items():
        if isinstance(values, np.ndarray):
            back = np.frombuffer(base64.b64decode(found[name]["bdata"]), f"<{found[name]['dtype']}")
            np.testing.assert_array_equal(back, values.astype(back.dtype).ravel())
    assert found["z"]["shape"] == "2, 3"
    assert "shape" not in found["x"]
    assert [found[key]["dtype"] for key in ("x", "y", "large")] == ["i4", "f4", "f8"]
    assert (found["text"], found["one"], found["nan"]) == (["a<br>b"], 0.5, None)
    assert (found["hovertemplate"], found["color"]) == ("%{y}<br>", "@2/0.25")


def test_cells():
    page = Page("title")
    page.table(["a", "b", "c", "d", "e"], [["text", 12345, 0.123456, None, ("91 %", 0.91)]])
    cells = re.findall("<td.*?</td>", page.html())
    assert cells == [
        "<td>text</td>",
        '<td class=number data-value="12345.0">12,345</td>',
        '<td class=number data-value="0.123456">0.1235</td>',
        "<td class=number></td>",
        '<td class=number data-value="0.91">91 %</td>',
    ]


def test_plotly_is_needed_for_charts_only(monkeypatch):
    module._plotly.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    page = Page("title")
    assert 'id="plotly"' not in page.html()
    page.chart({"data": [{"y": [1]}]})
    with pytest.raises(ImportError, match=re.escape(install_command("report"))):
        page.html()


def test_written_whole_or_not_at_all(tmp_path):
    page = Page("title")
    with pytest.raises(OSError, match="no such folder"):
        page.write(tmp_path / "missing" / "page.html")
    page.write(tmp_path / "page.html")
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
