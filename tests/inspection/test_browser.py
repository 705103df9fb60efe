"""Open the pages of `hypersphere inspect` in Chromium, from disk and without a network; skipped without Chromium."""

import shutil

import pytest
import torch
from safetensors.torch import save_file

from hypersphere.inspection import compare, inspect
from hypersphere.inspection.page import make_page

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
    pytest.mark.xdist_group("browser"),
]

ATTACK = "window.attacked=1"
NAMES = [f"</script><script>{ATTACK}</script>", f'"><img src=x onerror={ATTACK}>', "%{y} 🦔 <b>", "n" * 10_000, "plain"]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def test_pages_open_and_nothing_of_a_name_runs(browser, tmp_path):
    paths = [tmp_path / "before.safetensors", tmp_path / "after.safetensors"]
    for path in paths:
        save_file({name: torch.randn(6, 8) for name in NAMES}, path)
    for i, result in enumerate((inspect(paths[0]), compare(*paths))):
        file = tmp_path / f"{i}.html"
        make_page(result).write(file)
        scheme = ("light", "dark")[i]
        page = browser.new_context(offline=True, viewport={"width": 900, "height": 900}, color_scheme=scheme).new_page()
        problems = []
        page.on("console", lambda message, to=problems: to.append(message.text))
        page.on("pageerror", lambda error, to=problems: to.append(str(error)))
        page.goto(file.as_uri())
        bars, dots = (page.locator(f".chart {tag}[data-tip]") for tag in ("rect", "circle"))
        # Energies are dots: a logarithmic axis has no 0 for bars to start at.
        assert (bars.count(), dots.count()) == ((len(NAMES), len(NAMES)) if i == 0 else (2 * len(NAMES), 0))
        text = page.inner_text("body")
        assert all(name in text for name in NAMES)
        bars.first.hover()
        assert page.locator(".tip").is_visible()
        assert page.evaluate("window.attacked") is None
        assert problems == []
