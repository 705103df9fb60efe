"""Train the four networks of docs/landscape.md, evaluate their landscapes, write the page's table and pictures.

`HYPERSPHERE_DATA=DIR python -m tools.landscape_pictures [RUNS]` takes about 20 minutes on one core. Runs and landscapes
that are done in RUNS (default: runs/landscapes) are kept, and what was interrupted goes on.
"""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.make_tables import between_markers

from hypersphere._internal.safe_files import write_text
from hypersphere.train.storage import landscapes, layout

DOCS = Path(__file__).parents[1] / "docs"
TRAINING = (
    "--model.name cnn6.opt --model.widths 16,32,32 --model.fc 0 --data.name cifar10 --data.batch_size 64 --steps 1200 "
    "--eval_every 1200 --optimizer.lr 0.05 --schedule.name cosine --quiet"
)
#: run folder → its name in the table and what it adds to the training above
RUNS = {
    "plain": ("plain", ""),
    "cayley": ("Cayley, P from 0 (the default)", "--rotation.method cayley"),
    "gram_schmidt": ("Gram-Schmidt, P from N(0, 1)", "--rotation.method gram_schmidt --rotation.init normal"),
    "cayley_normal": ("Cayley, P from N(0, 1)", "--rotation.method cayley --rotation.init normal"),
}
PICTURES = ("plain", "cayley", "gram_schmidt")
HEADER = (
    *("network", "test accuracy %", "error on the 500 %", "ten points more from", "flat %", "convex %"),
    *("highest loss", "uniform: convex %", "uniform: highest loss"),
)


def main(folder: Path) -> None:
    lines = [f"| {' | '.join(HEADER)} |\n", f"|{'---|' * len(HEADER)}\n"]
    for run, (name, flags) in RUNS.items():
        path = folder / run
        if not (path / layout.RESULT).exists():
            resume = "--resume" if path.exists() else ""
            command("train", *shlex.split(f"{TRAINING} {flags} {resume}"), "--out", str(path))
        normal = landscape(path, "normal")
        accuracy = json.loads((path / layout.RESULT).read_text())["accuracy"]
        cells = [name, f"{100 * accuracy:.1f}", f"{100 * normal['error']:.1f}", f"{normal['radius']:.2f}"]
        cells += [f"{100 * normal['flat']:.1f}", f"{100 * normal['convex']:.0f}", f"{normal['highest']:.3g}"]
        if run in PICTURES:
            uniform = landscape(path, "uniform")
            cells += [f"{100 * uniform['convex']:.0f}", f"{uniform['highest']:.3g}"]
            shutil.copyfile(normal["picture"], DOCS / "pictures" / f"landscape_{run}.svg")
        lines.append(f"| {' | '.join(cells + ['–'] * (len(HEADER) - len(cells)))} |\n")
    page = DOCS / "landscape.md"
    write_text(page, between_markers(page.read_text(encoding="utf-8"), "landscapes", "".join(lines)))


def landscape(run: Path, direction: str) -> dict[str, Any]:
    """Evaluate the landscape on 500 test images; return what the command prints, and the highest loss."""
    result: dict[str, Any] = json.loads(
        command("landscape", str(run), "--direction", direction, "--samples", "500", "--json")
    )
    rows = landscapes.read(Path(result["file"])).loss
    result["highest"] = max(value for row in rows for value in row if value is not None)
    return result


def command(*arguments: str) -> str:
    print("hypersphere", shlex.join(arguments), file=sys.stderr)
    return subprocess.run([sys.executable, "-m", "hypersphere", *arguments], stdout=-1, text=True, check=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/landscapes"))
