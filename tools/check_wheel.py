"""Build the sdist and from it the wheel; collect the tests of the one, use the other in an empty environment."""

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

from hypersphere._internal.modules import DISTRIBUTION

ROOT = Path(__file__).parents[1]
FILES = ("py.typed", "data/digits.npz", "report/page.css", "report/page.js")
METADATA = ("Summary", "Keywords", "Classifier", "Project-URL", "License-Expression", "License-File", "Requires-Python")
IMPORT = "import hypersphere as hs; hs.SphereConv2d(3, 4, 3); print(hs.__file__)"
WITHOUT = "import hypersphere as hs\ntry: hs.integrations.sklearn\nexcept ImportError as error: print(error)"
BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def run(*command: str | Path, cwd: Path = ROOT, path: Path | None = None) -> str:
    """Run a command, with `path` as PYTHONPATH, and return what it printed; its errors go to the terminal."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(path)} if path else {}
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def build_sdist(folder: Path) -> Path:
    """Build the sdist from a copy of the files that git tracks, so that nothing else gets in, and unpack it."""
    tracked = run("git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    tree = folder / "tree"
    for name in tracked:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-c", BUILD, folder, cwd=tree)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder / "sdist", filter="data")
    (unpacked,) = (folder / "sdist").iterdir()
    missing = [name for name in tracked if not name.startswith(".") and not (unpacked / name).exists()]
    assert not missing, f"{archive.name} lacks {missing}: see MANIFEST.in"
    return unpacked


def check_sdist(unpacked: Path) -> None:
    """Collect all tests in an unpacked sdist, and run those that read the pages and the package."""
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    print(run(*pytest, "--collect-only", cwd=unpacked, path=unpacked / "src").splitlines()[-1])
    few = ("tests/test_package.py", "tests/repo/test_docs.py", "-k", "names or links or architecture or packages")
    print(run(*pytest, *few, cwd=unpacked, path=unpacked / "src").splitlines()[-1])


def check_metadata(text: str) -> None:
    """Require what PyPI shows, with a description that is the README."""
    fields = Parser().parsestr(text)
    assert fields["Name"] == DISTRIBUTION
    missing = [name for name in METADATA if not fields.get(name)]
    assert not missing, f"the metadata lack {missing}"
    assert fields["Description-Content-Type"] == "text/markdown"
    assert fields.get_payload().startswith("# hypersphere")


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pip = ("-m", "pip", "--disable-pip-version-check")
        constraints = ("--constraint", ROOT / "constraints.txt")
        unpacked = build_sdist(folder)
        run(sys.executable, *pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, unpacked)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            names = files.namelist()
            check_metadata(files.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode())
        assert {f"hypersphere/{name}" for name in FILES} <= set(names), f"{wheel.name} lacks one of {FILES}"
        assert not [name for name in names if name.startswith(("tests", "benchmarks", "tools"))], names
        check_sdist(unpacked)
        venv.create(folder / "environment", with_pip=True)
        python = folder / "environment" / "bin" / "python"
        run(python, *pip, "install", "--quiet", *constraints, f"{wheel}[cli]")
        place = run(python, "-c", IMPORT, cwd=folder).strip()
        assert Path(place).is_relative_to(folder / "environment"), f"imported from {place}"
        without = run(python, "-c", WITHOUT, cwd=folder)
        assert f"pip install '{DISTRIBUTION}[sklearn]'" in without, f"without scikit-learn: {without!r}"
        command = folder / "environment" / "bin" / "hypersphere"
        run(command, "train", "plain", "--steps", "5", "--quiet", "--out", "run", cwd=folder)
        assert (folder / "run" / "result.json").exists()
        print(f"{wheel.name}: {len(names)} files, installed, imported and trained for 5 steps in an empty environment")


if __name__ == "__main__":
    main()
