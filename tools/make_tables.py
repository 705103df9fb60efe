"""Write what is generated: _internal/catalog.py, tables of docs/models.md and docs/figures.md, docs/results.md and
docs/finetuning.md with their pictures, docs/optimizers.md, docs/embeddings.md, docs/tested_models.md, a part of
docs/layers.md, the tables of the demo.

`make tables` runs `python -m tools.make_tables`. With --check nothing is written, and the exit code is 1 if a file is
stale; tests/repo/test_catalog.py runs that.
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from tools import (
    classes_page,
    compare_heads,
    demo_controls,
    demo_table,
    depth_page,
    embeddings_page,
    finetune_page,
    networks,
    norm_free_page,
    results_page,
    tested_models,
)

import hypersphere
from hypersphere import cli, data, losses, models, orthogonal
from hypersphere._internal.modules import import_all
from hypersphere._internal.safe_files import write_text
from hypersphere.data import _registry, subsets
from hypersphere.energy import measures
from hypersphere.integrations.pytorch_metric_learning import METRIC_LOSSES, PREFIX
from hypersphere.layers import similarity
from hypersphere.papers.figures import FIGURES
from hypersphere.train import optimizers, recipes, schedule
from hypersphere.train.config import Embedding, Loss, Optimizer

CHECK = "--check"
ROOT = Path(__file__).parents[1]
HEADER = '''"""Every name that configs and the command line take, readable without torch.

Generated from the tables in the code. Do not edit: add the entry where it lives and run `make tables`.
"""
# fmt: off
'''


def tables() -> dict[str, tuple[str, Any]]:
    """The name of each table → the comment above it and its content."""
    modules = import_all(cli.__name__, cli.__path__)
    commands = {module.__name__.rpartition(".")[2]: first_line(module) for module in modules}
    return {
        "PUBLIC": ('name of the package → the module that has it; "" for a module', public_names()),
        "COMMANDS": ("command → what it does", commands),
        "RECIPES": ("recipe → what it is", {name: recipes.describe(name) for name in recipes.names()}),
        "FIGURES": ("figure → what it is", {name: figure.summary for name, figure in FIGURES.items()}),
        "MODELS": ("network → the data it takes", {name: models.preset(name).data_kind for name in models.names()}),
        "DATA": ("dataset → what it holds", {name: _registry.DATASETS[name].kind for name in data.names()}),
        "FOLDERS": (
            "dataset → the folders of its official files, below root",
            {name: entry.folders for name, entry in _registry.DATASETS.items() if entry.folders},
        ),
        "AUGMENTATIONS": ("", (*data.AUGMENTATIONS,)),
        "IMBALANCES": ("", subsets.IMBALANCES),
        "SIMILARITIES": (
            'similarity → how many numbers it takes in parentheses, as in "sigmoid(0.7)"',
            {name: len(positional(g)) - 1 for name, g in similarity.SIMILARITIES.items()},
        ),
        "MARGINS": ("", (*losses.MARGINS,)),
        "LOSSES": ("loss → the settings it takes, beside label_smoothing and energy_weight", loss_settings()),
        "MEASURES": (
            "measure → the settings it takes",
            {name: measure_settings(name) for name in measures.REGULARIZERS},
        ),
        "EVENNESS": (
            "loss of evenness of a batch of embeddings → the settings it takes",
            {name: evenness_settings(name) for name in losses.EVENNESS if name != "alignment"},  # which needs two views
        ),
        "METHODS": ("method of a rotation → its inits", method_inits()),
        "INITS": ("", orthogonal.INITS),
        "OPTIMIZERS": ("optimizer → the settings it takes, beside lr", optimizer_settings()),
        "SCHEDULES": ("", schedule.SCHEDULES),
    }


def public_names() -> dict[str, str]:
    """The names that a type checker sees in hypersphere/__init__.py."""
    branch = next(node for node in ast.parse(Path(hypersphere.__file__).read_text()).body if isinstance(node, ast.If))
    homes = {}
    for node in branch.body:
        if isinstance(node, ast.ImportFrom):
            home = node.module or ""
            for name in (alias.name for alias in node.names):
                homes[name] = home
    return homes


def first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def positional(function: Any) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]


def loss_settings() -> dict[str, tuple[str, ...]]:
    settings = [field.name for field in fields(Loss)]
    heads = {name: positional(head) for name, head in losses.heads.HEADS.items()}
    margins = dict.fromkeys(losses.MARGINS, positional(losses.AngularSoftmaxLoss))
    others = {"center": ["center_weight"]}
    others |= {PREFIX + name: [*keys, "softmax_weight"] for name, keys in METRIC_LOSSES.items()}
    taken: dict[str, list[str]] = {"softmax": []} | margins | heads | others
    order = ["softmax", *heads, *margins, *others]
    return {name: tuple(key for key in settings if key in taken[name]) for name in order}


def measure_settings(name: str) -> tuple[str, ...]:
    takes = {"half_space": measures.ENERGIES, "angular": measures.ANGULAR, "minibatch": ("energy",)}
    return tuple(key for key, names in takes.items() if name in names)


def evenness_settings(name: str) -> tuple[str, ...]:
    taken = inspect.signature(losses.EVENNESS[name]).parameters
    return tuple(field.name for field in fields(Embedding) if field.name in taken and field.name != "weight")


def method_inits() -> dict[str, tuple[str, ...]]:
    def starts(method: orthogonal.Orthogonalizer, init: str) -> bool:
        try:
            method.start(4, init)
        except ValueError:
            return False
        return True

    inits = {
        name: tuple(init for init in orthogonal.INITS if starts(method, init))
        for name, method in orthogonal.ORTHOGONALIZERS.items()
    }
    return inits | {"none": orthogonal.INITS}


def optimizer_settings() -> dict[str, tuple[str, ...]]:
    settings = [field.name for field in fields(Optimizer) if field.name not in ("name", "lr")]
    taken = {name: inspect.signature(kind).parameters for name, kind in optimizers.OPTIMIZERS.items()}
    return {name: tuple(key for key in settings if key in taken[name]) for name in taken}


def catalog() -> str:
    """The text of _internal/catalog.py."""
    text = HEADER
    for name, (comment, table) in tables().items():
        if isinstance(table, dict):
            kind = type(next(iter(table.values()))).__name__.replace("tuple", "tuple[str, ...]")
            body = f"dict[str, {kind}] = {{\n{packed(f'{quoted(k)}: {quoted(v)},' for k, v in table.items())}}}"
        else:
            body = f"tuple[str, ...] = (\n{packed(f'{quoted(name)},' for name in table)})"
        text += f"\n{f'#: {comment}' + chr(10) if comment else ''}{name}: {body}\n"
    return text


def packed(entries: Iterable[str]) -> str:
    """As many entries a line as fit."""
    lines = [""]
    for entry in entries:
        if len(lines[-1]) + len(entry) > 115:
            lines.append("")
        lines[-1] += f" {entry}"
    return "".join(f"   {line}\n" for line in lines if line)


def quoted(value: Any) -> str:
    """As ruff writes it: double quotes."""
    if isinstance(value, tuple):
        return f"({', '.join(map(quoted, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, str):
        return "'" + value + "'" if '"' in value else f'"{value}"'
    return repr(value)


def models_page(page: str) -> str:
    """docs/models.md with the table of networks between its markers."""
    return between_markers(page, "networks", networks.markdown())


def figures_page(page: str) -> str:
    """docs/figures.md with the table of figures between its markers."""
    rows = [
        (f"`{name} {figure.takes}`".replace(" `", "`"), figure.about, figure.source) for name, figure in FIGURES.items()
    ]
    lines = [("figure", "what is drawn", "paper"), ("---", "---", "---"), *rows]
    return between_markers(page, "figures", "".join(f"| {' | '.join(line)} |\n" for line in lines))


def with_texts(path: Path, texts: dict[str, str]) -> str:
    """A page with each text between its markers, of those that it has."""
    page = path.read_text(encoding="utf-8")
    for name, text in texts.items():
        page = between_markers(page, name, text)
    return page


def between_markers(page: str, name: str, table: str) -> str:
    return re.sub(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end -->)", lambda _: table, page, count=1, flags=re.DOTALL)


def generated() -> dict[Path, str]:
    """Each file that is generated, and its text."""
    pages = ("models.md", "figures.md", "index.md", "losses.md", "embeddings.md", "scale.md")
    models, figures, index, losses_page, embeddings, scale = (ROOT / "docs" / name for name in pages)
    readme, demo = ROOT / "README.md", demo_table.markdown(demo_table.read(ROOT))
    controls = json.loads((ROOT / "results" / demo_controls.FILE).read_text(encoding="utf-8"))
    many_classes = classes_page.generated(ROOT)
    return {
        readme: between_markers(readme.read_text(encoding="utf-8"), demo_table.MARKER, demo),
        index: between_markers(index.read_text(encoding="utf-8"), demo_controls.MARKER, demo_table.markdown(controls)),
        ROOT / "src" / "hypersphere" / "_internal" / "catalog.py": catalog(),
        losses_page: with_texts(losses_page, {compare_heads.MARKER: compare_heads.markdown(ROOT)} | many_classes),
        scale: with_texts(scale, many_classes),
        embeddings: with_texts(embeddings, embeddings_page.generated(ROOT)),
        models: models_page(models.read_text(encoding="utf-8")),
        figures: figures_page(figures.read_text(encoding="utf-8")),
        **results_page.generated(ROOT),
        **tested_models.generated(ROOT),
        **measured_page(finetune_page),
        **measured_page(norm_free_page),
        **measured_page(depth_page),
    }


def measured_page(maker: Any) -> dict[Path, str]:
    """A page with what was measured between its markers, and its pictures."""
    page, files = ROOT / "docs" / maker.PAGE, maker.generated(ROOT)
    text = files.pop(maker.MARKER, None)
    written = {page.parent / name: picture for name, picture in files.items()}
    if text is not None:
        written[page] = between_markers(page.read_text(encoding="utf-8"), maker.MARKER, text)
    return written


def main() -> int:
    try:
        files = generated()
    except ValueError as error:  # such as of a plan whose rows have changed
        print(f"make_tables: {error}", file=sys.stderr)
        return 1
    stale = {path: text for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        print(f"{'stale' if CHECK in sys.argv else 'wrote'}: {path.relative_to(ROOT)}")
        if CHECK not in sys.argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
    return int(bool(stale) and CHECK in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
