"""MkDocs hooks: the API pages, formulas as MathML (which browsers draw without a script), and the benchmark results.

What `make docs` installs is imported where it is used: the tests read the API pages without it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hypersphere"
API = {  # page: title, and the modules whose public names it has
    "layers": ("Layers", ["layers", "layers.similarity", "neurons"]),
    "losses": ("Losses", ["losses"]),
    "energy": ("Energy", ["energy"]),
    "inspection": ("Inspection", ["inspection"]),
    "rotation": ("Rotations", ["rotation"]),
    "optim": ("Optimizers", ["optim"]),
    "geometry": ("Geometry", ["geometry"]),
    "orthogonal": ("Orthogonal matrices", ["orthogonal"]),
    "models": ("Networks", ["models"]),
    "data": ("Data", ["data"]),
    "train": ("Training", ["train", "train.recipes", "report"]),
    "integrations": (
        "Other packages",
        ["integrations", "integrations.huggingface", "integrations.sklearn"],
    ),
    "openset": ("Open set", ["openset"]),
    "functional": ("Functions", ["losses.functional"]),
}
NOT_SHOWN = {"margins", "measures", "write_text", "similarity", "functional"}  # modules, and a helper
ONLY_EXPORTED = {"neurons"}  # its other names are for the rest of the package
CODE_OR_FORMULA = re.compile(
    r"^```math\n(?P<fenced>.*?)^```$|^\$\$(?P<display>.+?)\$\$$|(?P<code>^```.*?^```$|`+[^`\n]+`+)|\$(?P<inline>[^$\n]+)\$",
    re.DOTALL | re.MULTILINE,
)
_formulas: list[str] = []


def on_files(files: Files, config: Any) -> Files:
    from mkdocs.structure.files import File

    for page, (title, modules) in API.items():
        files.append(File.generated(config, f"api/{page}.md", content=api_page(title, modules)))
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        files.append(File.generated(config, f"benchmarks/{path.name}", abs_src_path=str(path)))
    return files


def api_page(title: str, modules: list[str]) -> str:
    """The Markdown of an API page: one mkdocstrings line per public name."""
    names = [f"::: hypersphere.{module}.{name}" for module in modules for name in public_names(module)]
    return "\n\n".join([f"# {title}", *names]) + "\n"


def public_names(module: str) -> list[str]:
    """The functions and classes of a module that `hypersphere` exports, and those that the module itself exports."""
    names = set(_imported_from(module, _tree(PACKAGE / "__init__.py")))
    if module not in ONLY_EXPORTED:
        path = PACKAGE.joinpath(*module.split("."))
        tree = _tree(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))
        if path.is_dir():
            names |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        names |= set(_listed(tree) or _imported_from(None, tree))
    shown = (name for name in names - NOT_SHOWN if name == "OGD" or not (name.startswith("_") or name.isupper()))
    return sorted(shown, key=str.lower)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _listed(tree: ast.Module) -> list[str]:
    """The names in `__all__ = [...]` and `__all__ += [...]`."""
    lists = [node for node in tree.body if isinstance(node, ast.Assign | ast.AugAssign)]
    lists = [node.value for node in lists if ast.unparse(node).startswith("__all__ ")]
    return [name for value in lists for name in ast.literal_eval(value)]


def _imported_from(module: str | None, tree: ast.Module) -> list[str]:
    """The names in `from .module import name as name`, or from a module below it; None: of any module."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level >= 1]
    imports = [node for node in imports if module is None or f"{node.module}.".startswith(f"{module}.")]
    return [alias.name for node in imports for alias in node.names if alias.name == alias.asname]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put a token in the place of every formula; Markdown would read its letters as emphasis."""
    _formulas.clear()
    return CODE_OR_FORMULA.sub(_token, markdown.replace("](../benchmarks/results/", "](benchmarks/"))


def on_page_content(html: str, **_: Any) -> str:
    return re.sub(r"formula(\d+)alumrof", lambda match: _formulas[int(match[1])], html)


def _token(match: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    if match["code"]:
        return match[0]
    latex = match["fenced"] or match["display"] or match["inline"]
    _formulas.append(convert(latex.strip(), display="inline" if match["inline"] else "block"))
    return f"formula{len(_formulas) - 1}alumrof"


def on_post_build(config: Any, **_: Any) -> None:
    Path(config["site_dir"], "404.html").unlink()  # for web servers: its links are absolute
