"""The builder of HTML pages, without a browser; test_page_browser.py opens its pages."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from hypersphere.report import Page, line_chart
from hypersphere.report.chart import Chart, Grid, Scene, Series, Surface
from hypersphere.report.scene import draw_scene

HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "<!--<script>",
    "&lt;b&gt; &amp; 🦔",
    "x" * 10_000,
    "\x00\x1b[31m\udc80",
]


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


def data_of(page: Page) -> dict:
    (text,) = [text for attributes, text in Reader(page.html()).scripts if attributes]
    return json.loads(text)


@pytest.mark.parametrize("name", HOSTILE)
def test_texts_are_escaped(name):
    """Every text is shown as it is, and adds no tag; in pictures long ones are shortened."""

    def build(name):
        page = Page(name, name)
        page.section(name)
        page.section("second")
        page.text(name)
        page.table([name], [[name]], caption=name)
        page.chart(line_chart({name: ([1, 2], [3, 4])}, title=name, xlabel=name), caption=name, csv=[name])
        page.images([(name, name, name)], caption=name)
        return page

    page, seen = build(name), Reader(build(name).html())
    tags = [tag for tag, attributes in seen.tags if attributes.get("class") != "long"]
    assert tags == [tag for tag, _ in Reader(build("a").html()).tags]
    shown = re.sub("[^\\s -~\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", name)
    assert seen.text.count(shown) >= 10
    assert data_of(page)["lines"][0]["name"] == data_of(page)["csv"][0] == name


def test_only_its_own_script_may_run():
    page = Page("title")
    page.chart(line_chart({"a": ([1, 2], [3, 4])}))
    read = Reader(page.html())
    policy = next(attributes["content"] for tag, attributes in read.tags if "http-equiv" in attributes)
    (own,) = [text for attributes, text in read.scripts if not attributes]
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}'; ")
    assert "unsafe-eval" not in policy
    assert not [tag for tag, attributes in read.tags if "src" in attributes or tag == "link"]


def test_charts_keep_their_numbers():
    page = Page("title")
    page.chart(line_chart({"a": ([1, 2**31], [0.1, 3e8], [0.25, 1 / 3])}))
    assert data_of(page) == {
        "lines": [
            {"name": "a", "x": [1, 2**31], "y": [0.1, 3e8], "spread": [0.25, 0.3333333], "xlabel": "", "panel": ""}
        ]
    }
    page = Page("title")
    page.chart(Chart("<svg></svg>", grids=[Grid(1, 2, 3, [0.5], [1.5], [[None]])]))
    assert data_of(page)["grids"][0]["values"] == [[None]]


def test_scenes_are_drawn_from_one_side():
    """Far things first; what is hidden at first, and cells with a hole, are not drawn."""
    dots = Series("dots", [(0, -1, 0), (0, 1, 0)], 0)  # the first is nearer
    hidden = Series("hidden", [(0, 0, 1)], 1, is_shown=False)
    chart = draw_scene(Scene([dots, hidden], has_sphere=True), "<title>")
    assert "<title>&lt;title&gt;</title>" in chart.svg
    far, near = re.findall(r'<circle cx="[-\d.]+" cy="[-\d.]+" r="2.1" fill="#0072B2"(.*?)/>', chart.svg)
    assert ("opacity" in far, "opacity" in near) == (True, False)
    assert chart.svg.count('data-key="') == 2
    points = [[(x, y, 0.0) for y in (0, 1, 2)] for x in (0, 1)]
    surface = Surface([0, 1], [0, 1, 2], [[1, 1, None], [1, 1, 1]], points, [["#123456", None]])
    assert draw_scene(Scene(surface=surface), "t").svg.count("<polygon") == 1


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


def test_written_whole_or_not_at_all(tmp_path):
    page = Page("title")
    with pytest.raises(OSError, match="no such folder"):
        page.write(tmp_path / "missing" / "page.html")
    page.write(tmp_path / "page.html")
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
