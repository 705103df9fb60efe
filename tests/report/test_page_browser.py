"""Open a report in Chromium from disk, without a network: what runs, what shows and what it looks like.

One browser and one page for all tests, since starting one takes seconds. Skipped without Chromium or playwright.
"""

from __future__ import annotations

import csv
import io
import re
import shutil

import pytest
from PIL import Image

from hypersphere.cli import main
from hypersphere.report import page as page_module
from hypersphere.report import report_runs
from tests.report_runs import curve, train_small, write_run

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]

ATTACK = "window.attacked=1"
RUN = f"<img src=x onerror={ATTACK}>'\"&amp;🦔 seed"  # a file's name has no slash
LAYERS = [f"</script><script>{ATTACK}</script>", f'"><svg onload={ATTACK}>', "{{7*7}} %{x} ${1} \\u003cb", "n" * 10_000]
SIZE = {"width": 900, "height": 800}


class Opened:
    """The page, and what its browser reported."""

    def __init__(self, browser, file, **options):
        self.problems, self.requests, self.file = [], [], file
        options = {"offline": True, "viewport": SIZE, "color_scheme": "light"} | options
        self.page = browser.new_context(**options).new_page()
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url[:200]))
        self.page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.page.goto(file.as_uri())

    def chart(self, title):
        """Return the chart whose title begins so, scrolled into view."""
        find = "title => [...document.querySelectorAll('.plot > svg')].findIndex((s) => s.ariaLabel.startsWith(title))"
        number = self.page.evaluate(find, title)
        assert number >= 0, title
        chart = self.page.locator(".chart").nth(number)
        chart.scroll_into_view_if_needed()
        return chart

    def tip(self):
        return self.page.locator(".tip").inner_text() if self.page.locator(".tip").is_visible() else ""


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A report of two hostile runs and a trained one."""
    folder = tmp_path_factory.mktemp("page")
    runs = []
    for seed in (0, 1):
        energies = [{"step": s, "split": "train", "energies": dict.fromkeys(LAYERS, 1.0 + s)} for s in (0, 10)]
        test = curve([1.0, 0.8], "test", accuracy=0.5)
        run = write_run(folder / f"{RUN}{seed}", [*energies, *curve([3.0, 2.0, 1.0 + seed]), *test], seed)
        runs.append(run)
    runs.append(train_small(folder / "small"))
    report_runs(runs, html=folder / "page.html")
    assert (folder / "page.html").stat().st_size < 300_000
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield Opened(browser, folder / "page.html")
        browser.close()


@pytest.fixture(autouse=True)
def _no_errors(opened):
    """No test may make the browser report an error. Tests of one file may run in several processes, in any order."""
    yield
    assert opened.problems == []


def csv_of(opened, selector):
    with opened.page.expect_download() as download:
        opened.page.locator(selector).first.dispatch_event("click")
    return list(csv.reader(download.value.path().read_text("utf-8-sig").splitlines()))


def test_tables_and_curves_as_csv(opened):
    header, *rows = csv_of(opened, ".table + .csv")
    assert header[:4] == ["group", "runs", "split", "accuracy"]
    assert [row[1] for row in rows] == ["2", "1"]
    assert float(rows[0][3]) == 0.5
    opened.chart("loss, train").evaluate("chart => chart.id = 'losses'")
    header, *rows = csv_of(opened, "#losses > .csv")
    assert header == ["group", "step", "loss", "standard deviation"]
    hostile = [row for row in rows if row[0] != "small"]
    assert [row[1:3] for row in hostile] == [["0", "3"], ["10", "2"], ["20", "1.5"]]
    assert hostile[0][0] == RUN.removesuffix(" seed")
    assert float(hostile[2][3]) == pytest.approx(0.5**0.5, rel=1e-6)


def test_a_cell_is_no_formula(opened, tmp_path):
    page = page_module.Page("=1")
    page.table(["=2+3", 'a"b'], [["@x", -5], ["-1+2", "c,d"]])
    page.write(tmp_path / "x.html")
    other = Opened(opened.page.context.browser, tmp_path / "x.html")
    assert csv_of(other, ".csv") == [["'=2+3", 'a"b'], ["'@x", "-5"], ["'-1+2", "c,d"]]
    assert other.problems == []


def test_nothing_is_fetched(opened):
    assert [url for url in opened.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert len([url for url in opened.requests if url.startswith("file:")]) == 1


def test_hostile_names_show_and_do_nothing(opened):
    body = opened.page.locator("body").inner_text()
    for name in (f"{RUN}0", f"{RUN}1"):
        assert name in body
    charts = " ".join(opened.page.locator(".chart svg").all_text_contents())
    for name in LAYERS[:3]:
        assert name in charts
    assert re.search("n{20,50}…n{20,50}", charts)
    assert opened.page.evaluate("window.attacked") is None
    assert opened.page.evaluate("document.querySelectorAll('body img[src=x], body svg[onload]').length") == 0


def test_hover_shows_the_values(opened):
    plot = opened.chart("loss, train").locator("svg svg")
    box = plot.bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + box["height"] / 2)  # near step 10 of 0 to 20
    assert opened.tip() == f"step 10\n{RUN.removesuffix(' seed')}: 2 ± 0"
    opened.page.mouse.move(1, 1)
    assert opened.tip() == ""
    matrix = opened.chart("small: confusion matrix")
    matrix.locator("[data-tip]").first.hover()
    assert re.fullmatch(r"\d, predicted as \d: \d+", opened.tip())


def test_a_legend_switches_its_line(opened):
    chart = opened.chart("loss, train")
    key, (band, line) = chart.locator("text[data-key='0']"), chart.locator("[data-line='0']").all()
    for is_on, act in ((False, key.click), (True, lambda: key.press("Enter"))):
        act()
        assert (band.is_visible(), line.is_visible()) == (is_on, is_on)
        assert key.get_attribute("aria-pressed") == str(is_on).lower()


def test_a_legend_of_panels_switches_the_lines_of_all(opened, tmp_path):
    """Nine groups over a number, with hostile names: their curves are panels."""
    runs = [
        write_run(tmp_path / f"{name}<b>, {depth}", curve([2.0, 1.0 / depth]), model={"name": name, "depth": depth})
        for name in ("&amp;", "b", "c")
        for depth in (2, 4, 8)
    ]
    report_runs(runs, html=tmp_path / "page.html")
    other = Opened(opened.page.context.browser, tmp_path / "page.html")
    chart = other.chart("loss, train, by depth")
    assert [text for text in chart.locator("svg text").all_text_contents() if "<b>" in text] == [
        "&amp;<b>",
        "b<b>",
        "c<b>",
    ]
    lines = chart.locator("polyline")
    for is_on in (False, True):
        chart.get_by_role("button", name="depth 4").click()
        assert [line.is_visible() for line in lines.all()] == [True, is_on, True] * 3
    lines.nth(5).hover()
    assert other.tip().splitlines()[0].startswith("step ")
    assert "depth 8: " in other.tip()
    chart.evaluate("chart => chart.id = 'panels'")
    header, *rows = csv_of(other, "#panels > .csv")
    assert header == ["line", "group", "step", "loss", "standard deviation"]
    assert rows[:2] == [["&amp;<b>", "depth 2", "0", "2", ""], ["&amp;<b>", "depth 2", "10", "0.5", ""]]
    assert other.problems == []


def test_a_sphere_turns(opened):
    """By dragging and by arrow keys; its legend switches layers."""
    canvas = opened.chart("small").locator("canvas")
    pixels = canvas.screenshot()
    assert len(Image.open(io.BytesIO(pixels)).convert("RGB").getcolors(100_000)) > 10
    turn, tilt = map(float, canvas.get_attribute("data-view").split())
    box = canvas.bounding_box()
    opened.page.mouse.move(box["x"] + 100, box["y"] + 100)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + 140, box["y"] + 120, steps=4)
    opened.page.mouse.up()
    assert list(map(float, canvas.get_attribute("data-view").split())) == pytest.approx([turn + 20, tilt + 10])
    canvas.press("ArrowLeft")
    canvas.press("ArrowUp")
    assert list(map(float, canvas.get_attribute("data-view").split())) == pytest.approx([turn + 10, tilt])
    turned = canvas.screenshot()
    assert turned != pixels
    opened.chart("small").locator(".legend button").first.click()
    assert canvas.screenshot() != turned


def test_table_is_sorted_by_a_click(opened):
    button = opened.page.locator("table").first.locator("th button", has_text="accuracy")
    values = "[...document.querySelector('table').querySelectorAll('td:nth-child(4)')].map((td) => td.dataset.value)"
    for sign in (1, -1):
        button.click()
        found = [float(value) for value in opened.page.evaluate(values) if value is not None]
        assert len(found) == 2
        assert found == sorted(found, reverse=sign < 0)


CONTRASTS = """() => {
  const light = (text) => {
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = text.match(/[\\d.]+/g).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let outer = node; outer; outer = outer.parentElement) {
      const colour = getComputedStyle(outer).backgroundColor;
      if (!/^rgba\\(.*, 0\\)$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const texts = [...document.querySelectorAll("h1, h2, p, th button, td, a, figcaption, footer, svg text")];
  return texts.filter((node) => node.textContent.trim() && node.getClientRects().length).map((node) => {
    const style = getComputedStyle(node), inside = node instanceof SVGElement;
    const [a, b] = [light(inside ? style.fill : style.color), light(behind(node))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.textContent.slice(0, 40)];
  }).sort(([a], [b]) => a - b);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_are_readable(opened, scheme):
    """A contrast of 4.5, as WCAG AA asks for, of all texts against what is behind them, in charts too."""
    opened.page.emulate_media(color_scheme=scheme)
    wanted = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 27)"}[scheme]
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == wanted
    worst, text = opened.page.evaluate(CONTRASTS)[0]
    assert worst >= 4.5, text


def test_fits_a_phone(opened):
    phone = Opened(opened.page.context.browser, opened.file, viewport={"width": 390, "height": 800})
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert phone.problems == []


def test_prints_on_white_with_pictures_of_the_scenes(opened):
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    chart = opened.chart("small")
    assert (chart.locator("canvas").is_visible(), chart.locator("svg").is_visible()) == (False, True)
    opened.page.emulate_media(media="screen", color_scheme="light")


def test_without_scripts_the_charts_are_pictures(opened):
    plain = Opened(opened.page.context.browser, opened.file, java_script_enabled=False)
    pictures = plain.page.locator(".plot > svg")
    assert pictures.count() > 5
    assert all(picture.is_visible() for picture in pictures.all())


def test_pages_of_figures(opened, tmp_path):
    """Spheres that turn, and a picture with its table."""
    for name in ("sphere", "lemmas"):
        assert main(["figure", name, "--html", str(tmp_path / f"{name}.html")]) == 0
    spheres, lemmas = (Opened(opened.page.context.browser, tmp_path / f"{name}.html") for name in ("sphere", "lemmas"))
    assert spheres.page.locator("canvas").count() == 3
    assert lemmas.page.locator(".plot > svg").is_visible()
    assert lemmas.page.locator("tbody tr").count() == 8
    assert spheres.problems == lemmas.problems == []
