"""The chart is parsed as XML and its lines are read back as numbers."""

import math
import os
import re
import stat
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypersphere._internal.safe_files import write_text
from hypersphere.report import bar_chart, dot_plot, linechart
from hypersphere.report.linechart import DASHES, Mark
from hypersphere.report.svg import PALETTE, shorten, text_line, text_width, ticks

SVG = "{http://www.w3.org/2000/svg}"


def line_chart(*args, **options):
    return linechart.line_chart(*args, **options).svg


def drawn(svg, tag):
    """The elements inside the plot, whose svg clips them."""
    (plot,) = ElementTree.fromstring(svg).findall(f"{SVG}svg")
    return plot.findall(f"{SVG}{tag}")


def points(element):
    return [tuple(map(float, point.split(","))) for point in element.get("points").split()]


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg).findall(f"{SVG}text")]


def test_line_is_an_affine_map_of_its_points():
    svg = line_chart({"a": ([0, 1, 4], [-1.0, 0.0, 1.0])}, xlim=(0, 4), ylim=(-1, 1))
    (line,) = drawn(svg, "polyline")
    (x0, y0), (x1, y1), (x2, y2) = points(line)
    assert (x1 - x0) / (x2 - x0) == pytest.approx(0.25, abs=1e-3)
    assert (y1 - y0) / (y2 - y0) == pytest.approx(0.5, abs=1e-3)
    assert y2 < y0  # up is up


def test_band_reaches_spread_above_and_below():
    svg = line_chart({"a": ([0, 1], [0.0, 2.0], [1.0, 0.5])})
    (band,), (line,) = drawn(svg, "polygon"), drawn(svg, "polyline")
    (_, y0), (_, y1) = points(line)
    pixels = (y0 - y1) / 2.0
    upper0, upper1, lower1, lower0 = (y for _, y in points(band))
    assert [y0 - upper0, y1 - upper1, lower1 - y1, lower0 - y0] == pytest.approx(
        [pixels, pixels / 2, pixels / 2, pixels], abs=0.05
    )


def test_y_limits_come_from_what_xlim_shows():
    svg = line_chart({"a": ([0, 1, 2, 3], [0.0, 1.0, 2.0, 1000.0])}, xlim=(0, 2))
    assert max(points(drawn(svg, "polyline")[0])[:3])[1] < 100  # 2.0 is near the top, not squeezed to the bottom
    assert "1000" not in texts(svg)


def test_all_texts_are_escaped():
    nasty = "<b>&\"'</b>\x00\ud800"
    svg = line_chart({nasty: ([0, 1], [0, 1])}, title=nasty, xlabel=nasty, ylabel=nasty)
    assert texts(svg).count("<b>&\"'</b>\ufffd\ufffd") == 4
    assert "<b>" not in svg


def test_every_line_has_a_legend_entry_and_a_look_of_its_own():
    names = [f"line {index}" for index in range(len(PALETTE) * len(DASHES))]
    svg = line_chart({name: ([0, 1], [index, index]) for index, name in enumerate(names)}, height=900)
    assert [text for text in texts(svg) if text in names] == names
    looks = {(line.get("stroke"), line.get("stroke-dasharray")) for line in drawn(svg, "polyline")}
    assert len(looks) == len(names)


def test_legend_is_below_the_plot_and_inside_the_picture():
    names = [f"a rather long name, number {index}" for index in range(9)]
    svg = line_chart({name: ([0, 1], [0, 1]) for name in names}, width=500, height=500)
    root = ElementTree.fromstring(svg)
    plot = root.find(f"{SVG}svg")
    rows = [float(e.get("y")) for e in root.findall(f"{SVG}text") if e.text in names]
    assert len(rows) == 9
    assert min(rows) > float(plot.get("y")) + float(plot.get("height"))
    assert max(rows) < 500


def test_single_point_is_a_dot():
    svg = line_chart({"a": ([2], [3])})
    assert len(drawn(svg, "circle")) == 1
    assert drawn(svg, "polyline") == []


@pytest.mark.parametrize("rounding", [0.0, 1e-14])
def test_flat_line_has_ticks(rounding):
    labels = texts(line_chart({"a": ([0, 1], [3.0, 3.0 + rounding])}))
    assert "3.0" in labels
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("width", [300, 550, 750])
def test_long_tick_labels_do_not_touch(width):
    svg = line_chart({"a": ([1, 1 + 6e-8], [0, 1])}, width=width)
    ticks = [e for e in ElementTree.fromstring(svg).iter(f"{SVG}text") if e.get("text-anchor") == "middle"]
    assert len(ticks) >= 2
    for left, right in pairwise(ticks):
        assert float(right.get("x")) - float(left.get("x")) > 7 * len(left.text)  # 12 pixels high, 7 wide


def test_whole_x_has_whole_ticks():
    svg = line_chart({"a": ([1, 2, 3], [0.25, 0.25, 0.25])})
    centred = [e for e in ElementTree.fromstring(svg).iter(f"{SVG}text") if e.get("text-anchor") == "middle"]
    assert [element.text for element in centred] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 1, ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (-1, 1, ["−1.0", "−0.5", "0", "0.5", "1.0"]),
        (0.99, 1.01, ["0.990", "0.995", "1.000", "1.005", "1.010"]),
        (0, 2e6, ["0", "0.5×10⁶", "1.0×10⁶", "1.5×10⁶", "2.0×10⁶"]),
        (-2e-7, 2e-7, ["−2×10⁻⁷", "−10⁻⁷", "0", "10⁻⁷", "2×10⁻⁷"]),
    ],
)
def test_tick_labels(low, high, labels):
    assert [label for _, label in ticks(low, high, wanted=5)] == labels


def test_an_outlier_far_outside_the_limits_stays_drawable():
    svg = line_chart({"a": ([0, 1], [0.0, 1e300])}, ylim=(0, 1e-5))
    assert all(abs(number) <= 1e5 for point in points(drawn(svg, "polyline")[0]) for number in point)


numbers = st.floats(-1e300, 1e300)


@given(st.lists(st.tuples(numbers, numbers, st.floats(0, 1e300)), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_any_finite_data_gives_a_picture(triples):
    x, y, spread = zip(*triples, strict=True)
    svg = line_chart({"a": (x, y, spread)})
    assert "nan" not in svg
    assert "inf" not in svg
    for element in drawn(svg, "polygon"):
        assert len(points(element)) == 2 * len(x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"series": {}}, "series must have at least one name"),
        ({"series": {"a": ([], [])}}, r"series\['a'\] must have parts of one length, at least 1, got lengths \[0, 0\]"),
        ({"series": {"a": ([0, 1], [0])}}, r"got lengths \[2, 1\]"),
        ({"series": {"a": ([0, 1], [0, float("nan")])}}, r"y of series\['a'\] must hold finite .* got nan at index 1"),
        ({"xlim": (1, 1)}, r"xlim must be \(low, high\) with low < high, got \(1, 1\)"),
        ({"ylim": (0, float("nan"))}, "ylim must hold finite numbers"),
        ({"width": 100}, r"width must be at least \d+ here, got 100"),
        ({"height": 120}, r"height must be at least \d+ for 1 lines and their legend, got 120"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        line_chart(**{"series": {"a": ([0, 1], [0, 1])}} | arguments)


def test_the_file_holds_what_is_returned(tmp_path):
    chart = linechart.line_chart({"θ": ([0, 1], [0, 1])})
    chart.write(tmp_path / "chart.svg")
    assert (tmp_path / "chart.svg").read_text(encoding="utf-8") == chart.svg == chart._repr_svg_()
    assert os.listdir(tmp_path) == ["chart.svg"]


def test_a_written_file_has_ordinary_permissions(tmp_path):
    write_text(tmp_path / "ours", "a")
    (tmp_path / "plain").write_text("a")
    ours, plain = (stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "plain"))
    assert ours == plain


def test_a_dot_far_from_the_others_is_a_number_at_the_edge():
    near = [("a", 1.0, 1.5, 0.1), ("b", -1.0, 0.5, None)]
    svg = dot_plot([*near, ("far", 2.0, 900.0, 400.0)]).svg
    assert ">900 →</text>" in svg
    assert svg.count("<circle") == 5 + 2  # and the legend's two
    places = [float(x) for x in re.findall(r'<circle cx="([0-9.]+)" cy="[0-9.]+" r="4.5"', svg)]
    assert places[0] - places[1] > 100  # not squeezed together
    assert "→" not in dot_plot(near).svg


def test_logarithmic_axes():
    svg = line_chart({"a": ([1, 10, 1000], [0.01, 1, 100])}, log="xy", xlim=(1, 1000), ylim=(0.01, 100))
    (x0, y0), (x1, y1), (x2, y2) = points(drawn(svg, "polyline")[0])
    assert (x1 - x0) / (x2 - x0) == pytest.approx(1 / 3, abs=1e-3)
    assert (y1 - y0) / (y2 - y0) == pytest.approx(1 / 2, abs=1e-3)
    assert {"0.01", "100", "1000"} <= {*texts(svg)}
    narrow = line_chart({"a": ([2, 2.01, 3], [1, 2, 3])}, log="x")
    assert "2.4" in texts(narrow)
    for options, error in (
        ({"log": "z"}, 'log must be "", "x", "y" or "xy", got \'z\''),
        ({"log": "x"}, r"x of series\['a'\] must be positive on a logarithmic axis, got 0.0"),
        ({"log": "y", "ylim": (-1, 3)}, "ylim must be positive"),
    ):
        with pytest.raises(ValueError, match=error):
            line_chart({"a": ([0, 1], [1, 2])}, **options)
    svg = line_chart({"a": ([1, 2], [10, 1], [5, 3])}, log="y")
    (line,), (band,) = drawn(svg, "polyline"), drawn(svg, "polygon")
    (_, high), (_, low) = points(line)
    assert max(y for _, y in points(band)) - low == pytest.approx((low - high) * 0.30103, abs=0.1)  # at half the lowest


@pytest.mark.parametrize("log", ["", "x", "xy"])
def test_marks_are_crosses_with_a_text_or_lines_across(log):
    marks = [
        Mark("a", "diverged", 14, 9.0),
        Mark("b", "diverged", 7, None),
        Mark("a", "", 7, 1.0),
        *(Mark("a", "x", 1, 1.0) for _ in range(6)),
    ]
    (plot,) = ElementTree.fromstring(line_chart({"a": ([1, 14], [4.0, 9.0])}, marks=marks, log=log)).findall(
        f"{SVG}svg"
    )
    assert [text.text for text in plot.findall(f"{SVG}text")] == ["a diverged", "b diverged", *["a x"] * 3]
    paths = [path.get("d") for path in plot.findall(f"{SVG}path")]
    (x, y), end = map(float, re.findall(r"[\d.]+", paths[0])[:2]), points(plot.find(f"{SVG}polyline"))[-1]
    assert (x + 5, y + 5) == pytest.approx(end, abs=0.1)
    assert len(paths) == 9
    assert "V" in paths[1]


def test_long_names_are_shortened_in_pictures():
    assert shorten("n" * 100, 9) == "nnnn…nnnn"
    svg = line_chart({"n" * 10_000: ([0, 1], [0, 1])}, plot_height=100)
    (name,) = [text for text in texts(svg) if "n" in text]
    assert len(name) < 200


def test_bars_start_at_zero_and_dots_may_be_logarithmic():
    root = ElementTree.fromstring(bar_chart(["<a>", "b", "c"], {"x": [2.0, 1.0, None]}).svg)
    first, second = (float(bar.get("width")) for bar in root.iter(f"{SVG}rect") if bar.find(f"{SVG}title") is not None)
    assert first == pytest.approx(2 * second, abs=0.2)
    assert [title.text for title in root.iter(f"{SVG}title")][1:] == ["<a>: 2", "b: 1"]
    dots = [
        [float(dot.get("cx")) for dot in ElementTree.fromstring(chart.svg).iter(f"{SVG}circle")]
        for chart in (bar_chart("abc", {"x": [1, 10, 100]}, log=True), bar_chart("ab", {"x": [1, 2], "y": [2, None]}))
    ]
    assert dots[0][2] - dots[0][1] == pytest.approx(dots[0][1] - dots[0][0], abs=0.2)
    assert len(dots[1]) == 3 + 2  # and the legend's two


@pytest.mark.parametrize("log", ["", "xy"])
def test_runs_beyond_all_values_are_crosses_in_a_row_above_the_plot(log):
    """Side by side around their x, which the axis shows although no line has it; the row is named at the axis."""
    marks = [Mark("b", "diverged", 30, math.inf), Mark("a", "diverged", 30, math.inf), Mark("a", "", 3, 2.0)]
    series = {"a": ([1, 3], [4.0, 2.0]), "b": ([1, 3, 10], [3.0, 2.0, 1.0])}
    root = ElementTree.fromstring(line_chart(series, marks=marks, log=log))
    groups = root.findall(f"{SVG}g")
    crosses = [list(map(float, re.findall(r"[\d.]+", group[0].get("d"))[:2])) for group in groups]
    (left, y), (right, other) = crosses
    (plot,) = root.findall(f"{SVG}svg")
    assert y == other < float(plot.get("y"))
    (axis,) = [
        path.get("d") for path in root.findall(f"{SVG}path") if path.get("stroke") == "#888" and "H" in path.get("d")
    ]
    assert (left + right) / 2 + 5 == pytest.approx(float(axis.rpartition("H")[2]), abs=0.1)  # 30 is the end
    assert right - left > 10
    assert [group[1].text for group in groups] == ["b diverged, 30", "a diverged, 30"]
    assert [group[0].get("stroke") for group in groups] == [PALETTE[1], PALETTE[0]]
    (name,) = [text for text in root.findall(f"{SVG}text") if text.text == "diverged"]
    assert name.get("text-anchor") == "end"
    assert float(name.get("x")) > text_width("diverged", 12)
    assert len(plot.findall(f"{SVG}path")) == 1  # the other mark is where it says


def test_a_logarithmic_axis_has_ticks_at_few_numbers_of_its_lines():
    def numbers(x):
        svg = line_chart({"a": (x, [(1 + i) / 8 for i in range(len(x))])}, log="x")
        return [text for text in texts(svg) if text and text.isdecimal()]

    assert numbers([6, 24, 96, 12, 48]) == ["6", "12", "24", "48", "96"]
    assert numbers([6, 24, 96, 12, 48, 6.2]) == ["10", "20", "50"]  # 6 and 6.2 would touch


def test_a_line_of_several_charts_has_one_colour():
    svg = line_chart({"c": ([0, 1], [0, 1]), "a": ([0, 1], [0, 1])}, names=["a", "b", "c"])
    assert [line.get("stroke") for line in drawn(svg, "polyline")] == [PALETTE[2], PALETTE[0]]


def test_a_bold_title_fits():
    sizes = [
        float(re.search('font-size="([^"]+)"', text_line("n" * 30, 0, 0, 16, room=260, more=more)).group(1))
        for more in ("", 'font-weight="600"')
    ]
    assert sizes == [pytest.approx(260 / 30 / 0.56, abs=0.1), pytest.approx(260 / 30 / 0.56 / 1.15, abs=0.1)]
