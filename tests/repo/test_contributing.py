"""Follow the how-tos of CONTRIBUTING.md literally in a copy of the tree, and use what they add."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
KINDS = ["similarity", "margin", "measure", "orthogonalizer", "network", "dataset", "recipe", "command", "config field"]
KINDS += ["figure", "table of a paper", "public name"]
GENERATED = {"src/hypersphere/_internal/catalog.py", "docs/models.md", "docs/figures.md"}
COPIED = (
    "src/hypersphere",
    "tests",
    "tools",
    "benchmarks",
    "docs",
    "results",
    "README.md",
    "pyproject.toml",
    "Makefile",
)
CONTRACTS = (
    "tests/layers/test_similarity.py",
    "tests/losses/test_heads.py",
    "tests/orthogonal/test_orthogonal.py",
)  # read tests/reference*.py


class Block(NamedTuple):
    path: str
    place: str
    code: str


class HowTo(NamedTuple):
    blocks: list[Block]
    python: str
    command: list[str]


def read() -> dict[str, HowTo]:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page[page.index("## Add something") : page.index("## Style")]
    how_tos = {}
    for part in section.split("\n### ")[1:]:
        title, _, body = part.partition("\n")
        kind = next(kind for kind in KINDS if kind in title)
        blocks = [
            Block(*groups) for groups in re.findall(r"^```python\n# (\S+), ([^\n]+)\n(.*?)^```$", body, re.S | re.M)
        ]
        python, command = re.findall(r"^`([^`]+)`(?:; `hypersphere (.+)`)?$", body, re.M)[-1]
        how_tos[kind] = HowTo(blocks, python, shlex.split(command))
    return how_tos


HOW_TOS = read()
ADDED = [block for how_to in HOW_TOS.values() for block in how_to.blocks if block.path.startswith("tests/")]
TESTS = [(block.path, name) for block in ADDED for name in re.findall(r"^def (test_\w+)", block.code, re.M)]
ENTRIES = re.findall(r'^    "(\w+)": ', "".join(block.code for block in ADDED), re.M)


def insert(text: str, place: str, code: str) -> str:
    """The text of a file with the code where the block's first line says."""
    how, _, name = place.partition(" ")
    if place == "a new file":
        return code
    if place == "at the end":
        return f"{text}\n\n{code}"
    if how == "before":
        start = re.search(rf"^{re.escape(name)}", text, re.M).start()
        return text[:start] + code + text[start:]
    if how == "above":
        start = re.search(rf"^(#:.*\n)*{name}\b", text, re.M).start()
        return f"{text[:start].rstrip()}\n\n\n{code}\n\n{text[start:]}"
    assert how == "in"
    start = re.search(rf"^(class )?{name}\b", text, re.M).start()
    end = re.compile(r"^(?=[})\]])|\n\n\n|\Z", re.M).search(text, start)  # the table's last bracket or the class's end
    at = end.start() + (1 if text[end.start() : end.start() + 1] == "\n" else 0)
    return text[:at] + code + text[at:]


def contents(root: Path) -> dict[str, bytes]:
    files = [
        file for part in COPIED for file in ([root / part] if (root / part).is_file() else (root / part).rglob("*"))
    ]
    return {
        file.relative_to(root).as_posix(): file.read_bytes()
        for file in files
        if file.is_file() and "__pycache__" not in file.parts
    }


def call(copy: Path, *argv: str) -> str:
    """Run Python in the copy with its own package."""
    environment = {
        "PYTHONPATH": str(copy / "src"),
        "OMP_NUM_THREADS": "1",
        "TERM": "dumb",
    }
    done = subprocess.run(
        [sys.executable, *argv], cwd=copy, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


SCRIPT = """
import json, sys
import hypersphere, torch
import hypersphere as hs
from hypersphere.cli import main
from hypersphere.papers import figures, tables
from hypersphere.train import Config, Optimizer
done = {}
for kind, (python, argv) in json.loads(sys.argv[1]).items():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    eval(python)
    if argv[:1] == ["train"]:
        argv += ["--steps=2", "--data.batch_size=8", "--quiet", f"--out=runs/{len(done)}"]
    done[kind] = main(argv) if argv else 0
print(json.dumps(done))
"""

# Several commands, each in a fork of a process that has imported torch and nothing of the package.
SERVER = """
import json, os, runpy, sys, tempfile
import pytest, torch, torch._dynamo
for kind, what, *rest in json.loads(sys.argv[1]):
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.argv[1:] = rest
            if kind == "-m":
                runpy.run_module(what, run_name="__main__", alter_sys=True)
            else:
                exec(what, {"__name__": "__main__"})
            sys.exit()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        print(json.dumps([code, output.read()]))
"""


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """The tree with everything added and the tables written, and what using and testing it there said."""
    copy = tmp_path_factory.mktemp("copy")
    for path, data in contents(ROOT).items():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes(data)
    for path, place, code in (block for how_to in HOW_TOS.values() for block in how_to.blocks):
        file = copy / path
        assert file.exists() == (place != "a new file"), path
        file.write_text(insert(file.read_text() if file.exists() else "", place, code))
    command = re.search(r"^tables:.*\n\t\$\(BIN\)/python (.*)$", (copy / "Makefile").read_text(), re.M)[1]
    used = {kind: (how_to.python, how_to.command) for kind, how_to in HOW_TOS.items()}
    files = dict.fromkeys([*(path for path, _ in TESTS), *CONTRACTS])
    chosen = " or ".join([*ENTRIES, *(name for _, name in TESTS)])
    tested = ["-m", "pytest", "-v", "-p", "no:cacheprovider", *files, "-k", chosen]
    orders = [shlex.split(command), ["-c", SCRIPT, json.dumps(used)], tested]
    answers = map(json.loads, call(copy, "-c", SERVER, json.dumps(orders)).splitlines())
    return copy, *answers


@pytest.fixture(scope="module")
def copy(followed):
    path, (code, printed), _, _ = followed
    assert code == 0, printed
    return path


def test_there_is_one_for_each_kind():
    assert list(HOW_TOS) == KINDS


def test_two_files_at_most_and_the_tests_mirror_the_package():
    for kind, how_to in HOW_TOS.items():
        source, tests = (
            {block.path for block in how_to.blocks if block.path.startswith(top)} for top in ("src", "tests")
        )
        assert len(source) == (2 if kind == "figure" else 1)  # and one import
        assert len(tests) == 1
        assert all(path.startswith("tests/reference") or (ROOT / path).parent.is_dir() for path in tests)


def test_nothing_else_changes(copy):
    before, after = contents(ROOT), contents(copy)
    changed = {path for path in before | after if before.get(path) != after.get(path)}
    assert changed == GENERATED | {block.path for how_to in HOW_TOS.values() for block in how_to.blocks}


def test_the_code_is_as_ruff_wants_it(copy):
    ruff = shutil.which("ruff", path=Path(sys.executable).parent)
    paths = sorted(
        {block.path for how_to in HOW_TOS.values() for block in how_to.blocks}
        | {"src/hypersphere/_internal/catalog.py"}
    )
    for argv in (["check"], ["format", "--check"]):
        done = subprocess.run([ruff, *argv, "--no-cache", *paths], cwd=copy, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


SHOWN = {"command": "network", "recipe": "[64, 64, 256]", "config field": "nesterov: true"}


def test_the_command_line_knows_it_without_torch(copy):
    argvs = {}
    for kind in KINDS[: KINDS.index("figure")]:
        name, *rest = HOW_TOS[kind].command
        argvs[kind] = [name, *rest, "--print_config"] if name == "train" else [name, "--help"]
    code = "import sys; from hypersphere.cli import main\n"
    code += f"for argv in {[*argvs.values()]!r}: assert main(argv) == 0 and 'torch' not in sys.modules; print('====')"
    for (kind, argv), printed in zip(argvs.items(), call(copy, "-c", code).split("====\n"), strict=False):
        for flag, value in (word.removeprefix("--").split("=") for word in argv if "=" in word):
            assert re.search(rf"^ *{flag.rpartition('.')[2]}: {value} ", printed, re.M)
        assert SHOWN.get(kind, "") in printed


def test_python_and_the_command_line_use_it(followed):
    _, _, (code, printed), _ = followed
    assert code == 0, printed
    assert json.loads(printed.splitlines()[-1]) == dict.fromkeys(KINDS, 0)


def test_their_formulas_and_tests_hold(followed):
    *_, (code, printed) = followed
    assert code == 0, printed
    assert (len(TESTS), len(ENTRIES)) == (9, 3)
    for path, name in TESTS:
        assert f"{path}::{name} PASSED" in printed
    for name in ENTRIES:
        assert re.search(rf"\[.*{name}.*\] PASSED", printed)
