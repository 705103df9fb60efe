"""A report of many long runs: size of the page and its first paint in Chromium, which must be installed."""

from __future__ import annotations

import json
import math
import random
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from hypersphere.report import report_runs
from hypersphere.train import Config, Data, Loss, Model, fit
from hypersphere.train.storage import layout

from .measure import Measurement, Plan

MEGABYTES_GOAL, PAINT_GOAL = 8.0, 2.0
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox",)
FIRST_PAINT = "performance.getEntriesByType('paint').find((each) => each.name === 'first-paint')?.startTime ?? null"


def measurements(plan: Plan) -> Iterator[Measurement]:
    runs, points = (2, 200) if plan.quick else (8, 10_000)
    case = f"report of {runs} runs of {points:,} points"
    with TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        report_runs(_write_runs(Path(folder), runs, points), html=page)
        yield Measurement(case, "page", "MB", page.stat().st_size / 1e6, MEGABYTES_GOAL)
        browser = next(filter(None, map(shutil.which, BROWSERS)), None)
        if browser is None:
            print("Chromium is not installed, so the first paint is not measured: apt install chromium")
        else:
            yield Measurement(case, "Chromium", "first paint s", _first_paint(browser, page, plan.fewer(8)), PAINT_GOAL)


def _write_runs(folder: Path, runs: int, points: int) -> list[Path]:
    """Train a network with 3-D features for a moment, and copy it as runs of two settings with made-up metrics."""
    model = Model(name="mlp", widths=(64, 3), similarity="learnable")
    config = Config(steps=3, model=model, loss=Loss(name="w_softmax"), data=Data(), out=str(folder / "trained"))
    trained = fit(config, progress=False).path
    settings = json.loads((trained / layout.CONFIG).read_text())
    metrics = [json.loads(line) for line in (trained / layout.METRICS).read_text().splitlines()]
    layers = next(line["energies"] for line in metrics if "energies" in line)
    folders = []
    for seed in range(runs):
        run = Path(shutil.copytree(trained, folder / f"run{seed}"))
        settings |= {"seed": seed, "out": str(run), "clip": 1.0 + seed % 2}
        (run / layout.CONFIG).write_text(json.dumps(settings))
        noise = random.Random(seed)
        lines = [json.dumps(metrics[0])]  # it has the run's id
        for step in range(1, points):
            loss = math.exp(-step / points) + 0.1 * noise.random()
            energies = {name: value * (1 + 0.01 * noise.random()) for name, value in layers.items()}
            split, more = (
                ("test", {"accuracy": 1 - loss / 2}) if step % 100 == 99 else ("train", {"energies": energies})
            )
            lines.append(json.dumps({"step": step, "split": split, "loss": loss, **more}))
        (run / layout.METRICS).write_text("\n".join(lines) + "\n")
        folders.append(run)
    return folders


def _first_paint(browser: str, page: Path, plan: Plan) -> float:
    """Return the median seconds from opening the page without a network to its first paint.

    This is wall time: other work of the machine adds to it.
    """
    from playwright.sync_api import sync_playwright

    taken = []
    with sync_playwright() as driver, driver.chromium.launch(executable_path=browser, args=[*FLAGS]) as chromium:
        for _ in range(plan.warmup + plan.rounds):
            with chromium.new_context(offline=True) as context:
                opened = context.new_page()
                opened.goto(page.as_uri())
                while (milliseconds := opened.evaluate(FIRST_PAINT)) is None:
                    opened.wait_for_timeout(20)
                taken.append(milliseconds / 1000)
    return statistics.median(taken[plan.warmup :])
