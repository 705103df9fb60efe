"""Build the wheel, install it into an empty environment and use it there: make wheel."""

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = ("py.typed", "data/digits.npz", "report/page.css", "report/page.js")
IMPORT = "import hypersphere as hs; hs.SphereConv2d(3, 4, 3); print(hs.__file__)"


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command and return what it printed; its errors go to the terminal."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        pip = ("-m", "pip", "--disable-pip-version-check")
        constraints = ("--constraint", ROOT / "constraints.txt")
        shutil.rmtree(ROOT / "build", ignore_errors=True)  # setuptools would take modules of before from there
        run(sys.executable, *pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
        (wheel,) = folder.glob("*.whl")
        names = zipfile.ZipFile(wheel).namelist()
        assert {f"hypersphere/{name}" for name in FILES} <= set(names), f"{wheel.name} lacks one of {FILES}"
        assert not [name for name in names if name.startswith(("tests", "benchmarks", "tools"))], names
        venv.create(folder / "environment", with_pip=True)
        python = folder / "environment" / "bin" / "python"
        run(python, *pip, "install", "--quiet", *constraints, f"{wheel}[cli]")
        place = run(python, "-c", IMPORT, cwd=folder).strip()
        assert Path(place).is_relative_to(folder / "environment"), f"imported from {place}"
        command = folder / "environment" / "bin" / "hypersphere"
        run(command, "train", "plain", "--steps", "5", "--quiet", "--out", "run", cwd=folder)
        assert (folder / "run" / "result.json").exists()
        print(f"{wheel.name}: {len(names)} files, installed, imported and trained for 5 steps in an empty environment")


if __name__ == "__main__":
    main()
