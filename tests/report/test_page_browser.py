"""Open a report in Chromium from disk, without a network: what runs, what shows and what it looks like.

One browser and one page for all tests, since starting one takes seconds. Skipped without Chromium or playwright.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import time

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
SIZE = {"width": 420, "height": 500}  # one 3-D chart in view at a time
FLAGS = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox"]


def until(browser_page, script, argument=None):
    """Wait until the script returns something true. Playwright's own wait needs eval, which the page forbids."""
    end = time.monotonic() + 60
    while not (found := browser_page.evaluate(script, argument)):
        assert time.monotonic() < end, f"never true: {script}"
        browser_page.wait_for_timeout(30)
    return found


class Opened:
    """The page, and what its browser reported."""

    def __init__(self, browser, file, wait_until="load"):
        self.problems, self.requests, self.file = [], [], file
        self.page = browser.new_context(offline=True, viewport=SIZE, color_scheme="light").new_page()
        self.page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url[:200]))
        self.page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.page.goto(file.as_uri(), wait_until=wait_until)

    def draw(self, number):
        """Scroll to a chart and wait until it is drawn; return its box."""
        chart = self.page.locator(".chart").nth(number)
        self.page.evaluate("i => document.querySelectorAll('.chart')[i].scrollIntoView({block: 'center'})", number)
        until(self.page, "i => document.querySelectorAll('.chart')[i].dataset.state === 'drawn'", number)
        return chart

    def states(self):
        return self.page.evaluate("[...document.querySelectorAll('.chart')].map((chart) => chart.dataset.state)")

    def resting_eye(self, number):
        """Return where a sphere is seen from once it rests: the last step of a drag may come late."""
        seen = [self.page.evaluate(EYE, number)]
        while len(seen) < 4 or any(eye != seen[-1] for eye in seen[-4:]):
            assert len(seen) < 100, "the sphere keeps turning"
            self.page.wait_for_timeout(100)
            seen.append(self.page.evaluate(EYE, number))
        return seen[-1]

    def spheres(self):
        return self.page.evaluate(
            "[...document.querySelectorAll('.chart')].flatMap((chart, i) => 'webgl' in chart.dataset ? [i] : [])"
        )


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A report of two hostile runs and a trained one: two 3-D charts, at most one of them live."""
    folder = tmp_path_factory.mktemp("page")
    runs = []
    for seed in (0, 1):
        energies = [{"step": s, "split": "train", "energies": dict.fromkeys(LAYERS, 1.0 + s)} for s in (0, 10)]
        test = curve([1.0, 0.8], "test", accuracy=0.5)
        run = write_run(folder / f"{RUN}{seed}", [*energies, *curve([3.0, 2.0, 1.0 + seed]), *test], seed)
        runs.append(run)
    runs.append(train_small(folder / "small"))
    with pytest.MonkeyPatch.context() as patch:
        source = page_module._file
        assert "MOST_WEBGL = 12;" in source("page.js")
        patch.setattr(page_module, "_file", lambda name: source(name).replace("MOST_WEBGL = 12;", "MOST_WEBGL = 1;"))
        report_runs(runs, html=folder / "page.html")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        made = Opened(browser, folder / "page.html")
        yield made
        browser.close()


@pytest.fixture(autouse=True)
def _no_errors(opened):
    """No test may make the browser report an error. Tests of one file may run in several processes, in any order."""
    yield
    assert opened.problems == []


def test_every_chart_is_drawn(opened):
    for number in range(len(opened.states())):
        chart = opened.draw(number)
        assert chart.locator(".main-svg").count() >= 1
        if "webgl" in chart.evaluate("chart => ({...chart.dataset})"):
            picture = Image.open(io.BytesIO(chart.locator(".plot").screenshot()))
            assert len(picture.convert("RGB").crop((0, 50, picture.width, 350)).getcolors(100_000)) > 10
        else:
            assert chart.locator(".scatterlayer path, .barlayer path, .heatmaplayer image").count() >= 1


def test_charts_out_of_view_are_drawn(opened):
    """A picture of the whole page shows them; of the 3-D charts as many as may be live."""
    fresh = Opened(opened.page.context.browser, opened.file)
    flat = "[...document.querySelectorAll('.chart:not([data-webgl])')].every((c) => c.dataset.state === 'drawn')"
    until(fresh.page, flat)
    until(fresh.page, "document.querySelectorAll('[data-webgl][data-state=drawn]').length === 1")
    assert fresh.page.evaluate("scrollY") == 0
    assert fresh.problems == []
    fresh.page.close()


def test_the_load_event_waits_for_the_charts(opened):
    """Whoever takes a picture at the load event, as `chromium --screenshot` does, gets them."""
    fresh = Opened(opened.page.context.browser, opened.file, wait_until="commit")
    waits = "document.querySelector('.chart[data-state=waiting]:not([data-webgl])') && performance.now() < 8000"
    until(fresh.page, "document.readyState === 'complete'")
    assert not fresh.page.evaluate(waits)
    fresh.page.close()


def csv_of(opened, selector):
    with opened.page.expect_download() as download:
        opened.page.locator(selector).first.dispatch_event("click")
    return list(csv.reader(download.value.path().read_text("utf-8-sig").splitlines()))


def test_tables_and_curves_as_csv(opened):
    header, *rows = csv_of(opened, ".table + .csv")
    assert header[:4] == ["group", "runs", "split", "accuracy"]
    assert [row[1] for row in rows] == ["2", "1"]
    assert float(rows[0][3]) == 0.5
    losses = "[...document.querySelectorAll('.chart')].findIndex((c) => c.textContent.includes('loss, train'))"
    number = opened.page.evaluate(losses)
    opened.draw(number)
    opened.page.evaluate("i => document.querySelectorAll('.chart')[i].id = 'losses'", number)
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
    for number in range(len(opened.states())):
        if number not in opened.spheres():
            opened.draw(number)
    body = opened.page.locator("body").inner_text()
    for name in (f"{RUN}0", f"{RUN}1"):
        assert name in body
    charts = opened.page.evaluate(
        "[...document.querySelectorAll('.chart')].map((chart) => chart.textContent).join(' ')"
    )
    for name in LAYERS[:3]:
        assert name in charts.replace("\u00a0", " ")
    assert "n" * 30 + "…" + "n" * 30 in charts
    assert opened.page.evaluate("window.attacked") is None
    assert opened.page.evaluate("document.querySelectorAll('body img[src=x], body svg[onload]').length") == 0


def test_hover_shows_the_values(opened):
    box = opened.draw(0).locator(".nsewdrag").first.bounding_box()
    opened.page.mouse.move(box["x"] + 2, box["y"] + box["height"] / 2)  # near the points of step 0
    shown = until(opened.page, "document.querySelector('.chart .hoverlayer')?.textContent")
    assert re.search(r"\d", shown)


EYE = """i => {
  const eye = document.querySelectorAll(".chart .plot")[i]._fullLayout.scene._scene.getCamera().eye;
  return [eye.x, eye.y, eye.z];
}"""


def test_sphere_turns_and_stays_turned(opened):
    """Dragging turns it. When another takes its WebGL context, a picture stays, and it comes back as it was."""
    other, first = opened.spheres()
    box = opened.draw(first).locator("canvas").first.bounding_box()
    before = opened.page.evaluate(EYE, first)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    opened.page.mouse.move(x, y)
    opened.page.mouse.down()
    opened.page.mouse.move(x + 60, y + 20, steps=4)
    opened.page.mouse.up()
    turned = opened.resting_eye(first)
    assert max(abs(a - b) for a, b in zip(before, turned, strict=True)) > 0.1
    opened.draw(other)
    states = opened.states()
    assert (states[first], states[other]) == ("released", "drawn")
    assert opened.page.locator(".chart").nth(first).locator("img").count() == 1
    opened.draw(first)
    assert opened.resting_eye(first) == pytest.approx(turned, abs=1e-3)


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
    for (let each = node; each; each = each.parentElement) {
      const found = getComputedStyle(each).backgroundColor;
      if (!/^rgba\\(.*, 0\\)$/.test(found)) return found;
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
    opened.draw(0)
    wanted = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 27)"}[scheme]
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == wanted
    ink = {"light": "rgb(27, 31, 36)", "dark": "rgb(232, 236, 240)"}[scheme]
    until(opened.page, "ink => getComputedStyle(document.querySelector('.xtick text')).fill === ink", ink)
    worst, text = opened.page.evaluate(CONTRASTS)[0]
    assert worst >= 4.5, text


def test_fits_a_phone(opened):
    opened.page.set_viewport_size({"width": 390, "height": 800})
    until(opened.page, "document.documentElement.scrollWidth <= innerWidth")
    opened.page.set_viewport_size(SIZE)


def test_prints_on_white_with_every_chart(opened):
    opened.draw(0)  # plotly.js has started
    opened.page.emulate_media(media="print", color_scheme="dark")
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    until(opened.page, "[...document.querySelectorAll('.chart')].every((c) => /drawn|released/.test(c.dataset.state))")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for number in opened.spheres():
        assert opened.page.locator(".chart").nth(number).locator("img").count() == 1
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 700
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    opened.page.emulate_media(media="screen", color_scheme="light")


def test_pages_of_figures(opened, tmp_path):
    """Spheres that turn, and a picture with its table."""
    assert main(["figure", "sphere", "--html", str(tmp_path / "sphere.html")]) == 0
    assert main(["figure", "lemmas", "--html", str(tmp_path / "lemmas.html")]) == 0
    browser = opened.page.context.browser
    page = Opened(browser, tmp_path / "sphere.html")
    assert page.spheres() == [0, 1, 2]
    for number in page.spheres():
        page.draw(number)
    before = page.page.locator(".plot").nth(0).screenshot()
    box = page.draw(0).locator("canvas").first.bounding_box()
    page.page.mouse.move(box["x"] + 200, box["y"] + 200)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + 320, box["y"] + 220, steps=5)
    page.page.mouse.up()
    page.page.wait_for_timeout(300)
    assert page.page.locator(".plot").nth(0).screenshot() != before
    other = Opened(browser, tmp_path / "lemmas.html")
    assert until(other.page, "document.querySelector('.picture img').naturalWidth") == 720
    assert other.page.locator("tbody tr").count() == 8
    assert page.problems == other.problems == []
