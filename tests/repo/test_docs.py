"""The README and the docs pages run, their numbers are true, their pictures reproducible; the demo works.

An expression in a page's code that is followed by "# → text", on its line or the next, must have that text as its repr.
"""

import ast
import importlib
import io
import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from html import unescape
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest
import torch
from rich.console import Console
from tools import demo_controls, demo_table, make_pictures

import hypersphere as hs
from hypersphere.cli import tune
from tests.report_runs import write_run
from tests.runs import workers_in_this_process

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def run_page(text: str) -> None:
    """Run a page's python blocks in one namespace; AssertionError for a stated result that is not what comes out."""
    namespace = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        lines = [*block.splitlines(), ""]
        for node in ast.parse(block).body:
            if not isinstance(node, ast.Expr):
                exec(compile(ast.Module([node], []), "page", "exec"), namespace)
                continue
            result = eval(compile(ast.Expression(node.value), "page", "eval"), namespace)
            on_line, below = lines[node.end_lineno - 1 : node.end_lineno + 1]
            if stated := re.search(r"  # → (.*)$", on_line) or re.match(r"# → (.*)$", below):
                assert repr(result) == stated[1], on_line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_runs_and_says_what_comes_out(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    workers_in_this_process(monkeypatch, tune.work)  # of `hypersphere tune`
    # A page may add to these tables; other tests must not see that.
    tables = [hs.similarity.SIMILARITIES, hs.losses.MARGINS, hs.orthogonal.ORTHOGONALIZERS, hs.models.PRESETS]
    tables += [hs.data.AUGMENTATIONS, hs.data.DATASETS]
    with ExitStack() as stack:
        for table in tables:
            stack.enter_context(patch.dict(table))
        run_page(page.read_text(encoding="utf-8"))


def test_a_wrong_result_on_a_page_is_noticed() -> None:
    run_page("```python\n1 + 1  # → 2\n2 + 2\n# → 4\n```\n")
    for wrong in ("x + 1  # → 3", "x + 1\n# → 3"):
        with pytest.raises(AssertionError, match=r"x \+ 1"):
            run_page(f"```python\nx = 1\n```\ntext\n```python\n{wrong}\n```\n")


def test_readme_shows_code_within_its_first_fifteen_lines() -> None:
    head = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:15]
    assert head[0].startswith("# ")
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110
    code = head[head.index("```python") + 1 :]
    assert any("hs." in line for line in code)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_links_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    commands = re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE)
    assert set(commands) <= targets
    if page.name == "README.md":
        assert {"demo", "test", "bench", "gpu"} <= set(commands)
    for target, _, anchor in (link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", text)):
        if not target.startswith("http"):
            linked = page.parent / target if target else page
            assert linked.exists(), target
            if anchor:
                headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
                assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


SOURCE = ROOT / "src" / "hypersphere"
BASE = {"_internal", "neurons"}
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_architecture_names_what_exists() -> None:
    for file, name in set(re.findall(r"`([\w/]+\.py): ([\w.]+)`", ARCHITECTURE)):
        body = ast.parse((SOURCE / file).read_text(encoding="utf-8")).body
        for part in name.split("."):
            nodes = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part]
            assert nodes, f"{file} has no {name}"
            body = nodes[0].body


def test_packages_import_each_other_as_shown() -> None:
    """Only those above them in the table, and exactly those of the list, beside the base."""
    rooms = re.findall(r"^\| `(\w+)` \|", ARCHITECTURE, re.MULTILINE)
    files = [path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or not path.name.startswith("__")]
    assert {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in files} <= set(rooms)
    imports: dict[str, set[str]] = {}
    for path in files:
        own, *deeper = path.relative_to(SOURCE).parts
        own = own.removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == len(deeper) + 1:
                used = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
                above = rooms[: rooms.index(own) + 1]
                assert not [room for room in used if room in rooms and room not in above], f"{path}: {used}"
                imports.setdefault(own, set()).update({*used} & {*rooms} - BASE - {own})
    shown = re.findall(r"^([\w, ]+?) +→ ([\w, ]+)$", ARCHITECTURE, re.MULTILINE)
    lines = [(room, targets) for names, targets in shown for room in names.split(", ")]
    expected = {room: {*targets.split(", ")} & {*rooms} for room, targets in lines}
    assert len(lines) == len(expected)
    assert {room: imports.get(room, set()) for room in {*rooms} - BASE} == expected


def test_pictures_are_those_that_the_code_draws(tmp_path: Path) -> None:
    make_pictures.main(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {*make_pictures.NAMES}
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (ROOT / "docs" / "pictures" / path.name).read_bytes(), "run `make tables`"


#: what users call by the name of a module, with `hypersphere.` before it; all other public names are in hs.__all__
OF_MODULES = {
    "data": "batches episode holdout imbalance load names read_pairs register",
    "losses.functional": "class_energy hyperspherical_energy sphere_conv1d sphere_conv2d sphere_conv3d sphere_linear",
    "geometry": "covering_radius energy_integral minimize_energy separation",
    "integrations": "AccelerateEnergy LightningCallback TransformersCallback",
    "models": "create names register",
    "orthogonal": "Orthogonalizer cayley exponential gram_schmidt householder lowdin",
    "train.recipes": "load names",
    "report": "Chart Page bar_chart dot_plot line_chart report_runs",
    "layers.similarity": "LearnableSigmoid cosine linear sigmoid",
    "train": "Config Result Run derive fit landscape load_file load_run",
}


def test_the_api_reference_has_every_public_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    hooks = importlib.import_module("site_hooks")
    pages = {page: hooks.api_page(*about) for page, about in hooks.API.items()}
    shown = {line.removeprefix("::: ") for text in pages.values() for line in text.splitlines() if line[:3] == ":::"}
    names = {name.rpartition(".")[2] for name in shown}
    modules = {name for name in hs.__all__ if isinstance(getattr(hs, name), ModuleType)}
    assert set(hs.__all__) - modules <= names
    assert {f"hypersphere.{module}.{name}" for module, text in OF_MODULES.items() for name in text.split()} <= shown
    assert all(f": api/{page}.md\n" in NAVIGATION for page in pages)


def test_every_page_is_in_the_navigation_and_the_guide_has_twelve_at_most() -> None:
    listed = re.findall(r": (\w+)\.md$", NAVIGATION, re.MULTILINE)
    assert sorted(listed) == [page.stem for page in PAGES[1:]]
    assert listed.index("results") <= 12  # the papers' pages come after the guide


def test_site_builds_without_warnings_and_signatures_are_whole(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="make docs installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    pages = {path: path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")}
    for path, html in pages.items():
        assert not re.search(r'(?:src|<link[^>]* href)="?(?:https?:)?//', html), f"{path} loads from elsewhere"
    reference = "".join(html for path, html in pages.items() if path.parent.name == "api")
    signatures = re.findall(r'<div class="[^"]*doc-signature[^"]*">(.*?)</div>', reference, re.DOTALL)
    lines = [re.sub("<.*?>", "", line) for signature in signatures for line in unescape(signature).splitlines()]
    assert len(lines) > len(signatures) > 200
    assert max(map(len, lines)) <= 100  # wrapped by ruff: "line_length" in mkdocs.yml


def test_notebook_runs_from_top_to_bottom() -> None:
    """Cells run as plain code, which needs no Jupyter; nothing in them is of IPython."""
    cells = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text(encoding="utf-8"))["cells"]
    namespace = {"__name__": "notebook"}
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        assert cell["outputs"], "stored without its outputs"
        exec("".join(cell["source"]), namespace)
    test, model = (namespace[name] for name in ("y_test", "rotated"))
    right = (model(namespace["x_test"]).argmax(1) == test).float().mean()
    assert right > 0.8
    assert list(model.state_dict()) == list(namespace["plain"].state_dict())


def forking(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An example whose processes are forked: those that it spawns would import torch once more each."""

    def context(method: str) -> BaseContext:
        assert method == "spawn"
        return get_context("fork")

    monkeypatch.syspath_prepend(ROOT / "examples")
    example = importlib.import_module(name)
    monkeypatch.setattr(example, "get_context", context)
    return example


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return forking("demo", monkeypatch)


@pytest.fixture
def sphere_layers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return forking("sphere_layers", monkeypatch)


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=120)


def test_demo_trains_its_recipes_as_the_command_does(
    demo: ModuleType, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "DEPTHS", demo.DEPTHS[:1])
    deep, few = demo.train_all(console, seeds=2, steps=11)
    assert len(console.file.getvalue().splitlines()) == len(deep) + len(few) == 4 + 6
    assert {(start, run["seed"]) for (start, _), run in deep.items()} == {(start, 0) for start in demo.DEEP}
    assert all(run["seed"] == seed for (_, seed), run in few.items())
    for run, name, seed in (
        (deep["sphere layers, no ReLU", 6], "deep_sphere", 0),
        (few["rotations", 1], "few_rotated", 1),
    ):
        recipe = hs.train.recipes.load(f"{ROOT}/examples/demo.py:{name}")
        changes = {"model.depth": 6, "optimizer.lr": demo.deep_sphere(6).optimizer.lr} if name == "deep_sphere" else {}
        config = hs.train.derive(recipe, changes, seed=seed, steps=11, out=str(tmp_path / name))
        summary = hs.train.fit(config, progress=False).summary
        assert run["loss"] == pytest.approx(summary.loss, rel=1e-3)  # another order of sums
        assert summary.data["train"] == (1024 if name == "deep_sphere" else 100)
    assert demo.draw(deep, few).count(">rotations<") == 2  # the line's title and the legend
    assert demo.draw(deep, few).count(">BatchNorm<") == 2
    console.print(demo.make_deep_table(deep))
    assert f"{100 * deep['BatchNorm', 6]['accuracy']:.1f}" in console.file.getvalue()


def test_the_page_of_the_demo_begins_with_the_lines_of_its_picture(demo: ModuleType, tmp_path: Path) -> None:
    jobs = {(start, depth): recipe(depth) for start, recipe in demo.DEEP.items() for depth in demo.DEPTHS}
    jobs |= {(method, seed): recipe() for method, recipe in demo.FEW.items() for seed in range(2)}
    for (first, number), config in jobs.items():
        settings = {**hs.train.config.to_tree(config), "seed": 0 if first in demo.DEEP else number}
        lines = [{"step": 100, "split": "test", "loss": 1.0, "accuracy": number / 100}]
        write_run(tmp_path / demo.name_of((first, number)), lines, **settings)
    demo.write_page([job for job in jobs if job[0] in demo.FEW], tmp_path, tmp_path / "demo.html")
    page = (tmp_path / "demo.html").read_text()
    assert re.findall("<h2>(.*?)</h2>", page)[0] == "Accuracy over depth"
    legend = re.findall(r'font-size="13"[^>]*>([^<]+)</text>', page[: page.index("</figure>")])
    assert legend[2:] == [*demo.DEEP]  # after the names of the axes
    table = page[page.index("<table") : page.index("</table>")]
    assert re.findall('button">(.*?)<', table) == ["depth", *map(str, demo.DEPTHS)]
    shares = [f"{depth:.2f}%" for depth in demo.DEPTHS]
    assert re.findall(r"[\d.]+%", table) == shares * len(demo.DEEP)
    groups = [f"MLP, {method}" for method in demo.FEW]
    rows = re.findall("<tr><td>(MLP, [^<]*|[^<]* convolutions)</td>", page)
    assert rows[:3] == groups, "the place of a group sets its colour"


def test_demo_says_what_the_runs_say(demo: ModuleType, console: Console) -> None:
    def run(accuracy: float) -> dict:
        return {"accuracy": accuracy, "seconds": 2.0, "parameters": {"trained": 12345}}

    accuracies = {"plain": (0.96, 0.98), "energy": (0.97, 0.97), "rotations": (0.99, 0.99)}
    few = {(method, seed): run(values[seed]) for method, values in accuracies.items() for seed in (0, 1)}
    console.print(demo.make_table(few))
    shown = console.file.getvalue()
    assert "of 2 runs" in shown
    for cell in ("97.0 ± 1.4", "+0.0 ± 1.4", "+2.0 ± 1.4", "12,345", "2.0 ± 0.0"):
        assert cell in shown
    lines = demo_table.markdown(json.loads(demo.to_json(few))).splitlines()
    assert lines[2] == "| MLP on 100 digits | plain | 97.0 ± 1.4 | | 12,345 |"
    assert lines[4] == "| | rotations | **99.0 ± 0.0** | +2.0 ± 1.4 | 12,345 |"


def test_the_controls_of_the_demo_are_those_that_the_tool_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    trained, stored = demo_controls.tasks(), json.loads((ROOT / "results" / demo_controls.FILE).read_text())
    assert list(trained) == list(stored)
    for task, methods in stored.items():
        assert {*methods} <= {*trained[task]}
        assert all(len(runs["accuracies"]) == len(demo_controls.SEEDS) for runs in methods.values())
    means = {runs["validation"] for runs in stored["MLP on 100 digits"].values()}
    assert None not in means  # the weight decay was chosen by them


def test_sphere_layers_train_the_same_way_in_every_process(sphere_layers: ModuleType, console: Console) -> None:
    results = sphere_layers.train_all(console, seeds=(0, 1), steps=10)
    assert len(console.file.getvalue().splitlines()) == 16
    assert set(results) == {(setting, layers) for setting in sphere_layers.SETTINGS for layers in sphere_layers.LAYERS}
    assert all(len(runs) == 2 and len(run["curve"]) == 1 for runs in results.values() for run in runs)
    assert results["narrow", "sphere"][0]["curve"] != results["narrow", "ordinary"][0]["curve"]
    assert sphere_layers.draw_curves(results).count("<circle") == 16  # eight lines: a dot and its entry in the legend
    threads = torch.get_num_threads()
    again = sphere_layers.train("narrow", "sphere", 1, steps=10)
    torch.set_num_threads(threads)
    assert again["curve"] == results["narrow", "sphere"][1]["curve"]


def test_sphere_layers_that_miss_the_goal_say_so(sphere_layers: ModuleType, console: Console) -> None:
    never = float("inf")
    steps = {"narrow": [never, never], "narrow + BN": [never, 90], "wide": [90, 110]}
    measures = {sphere_layers.ACCURACY: 96.0, sphere_layers.SECONDS: 1.0}
    results = {(name, "sphere"): [{sphere_layers.SPEED: n} | measures for n in runs] for name, runs in steps.items()}
    console.print(sphere_layers.make_table(results))
    for cell in ("never", "in 1 of 2 runs", "100.0 ± 14.1"):
        assert cell in console.file.getvalue()
