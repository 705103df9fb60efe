"""Break the source one line at a time and check that the tests notice: `make mutants`.

The mutations are in mutations.toml. Each names a snippet that occurs once under src/ (no file, so that files may move),
its replacement, and the tests that must fail. Every mutation is made in a copy of the repository; a failing subset of
the suite means that `make test` fails too.

    python -m tools.mutations                     # all of them
    python -m tools.mutations 'energy.*' --jobs 1
    python -m tools.mutations --check             # only: every snippet occurs once and every test is there

Exit codes: 0 all caught, 1 a mutation survived, 2 the list does not fit the source or its tests fail without mutation.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
NOT_COPIED = shutil.ignore_patterns(".git", ".*_cache", ".venv", ".hypothesis", "__pycache__", "*.egg-info", "runs")
PYTEST = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
TIMEOUT = 300  # seconds for the tests of one mutation
GREEN, RED = 0, 1  # exit codes of pytest; all others mean that the tests could not be run


@dataclass(frozen=True)
class Mutation:
    """One change: `old` becomes `new` in `file` (relative to the repository), and `tests` must fail."""

    id: str
    old: str
    new: str
    tests: list[str]
    file: Path


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ids", nargs="*", metavar="ID", help="run only these; * is a wildcard (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="mutations tested at a time (default: 2)")
    parser.add_argument("--skip-clean", action="store_true", help="do not run the tests without a mutation first")
    parser.add_argument("--check", action="store_true", help="compare the list with the source and run no test")
    options = parser.parse_args()
    mutations = [
        mutation for mutation in load() if not options.ids or any(fnmatchcase(mutation.id, i) for i in options.ids)
    ]
    if not mutations:
        fail(f"no mutation is called {' or '.join(options.ids)}")
    if options.check:
        print(f"{len(mutations)} mutations fit the source")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [copy_tree(Path(folder, str(i))) for i in range(max(1, options.jobs))]
        if not options.skip_clean:
            check_clean(trees[0], mutations, options.jobs)
        return run_all(trees, mutations)


def load() -> list[Mutation]:
    """Read the list and find the file of every snippet; exit if one does not fit the source."""
    sources = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py"))}
    mutations, problems = [], []
    for area, entries in tomllib.loads(LIST.read_text(encoding="utf-8")).items():
        for name, entry in entries.items():
            id, old, new, tests = f"{area}.{name}", entry["old"], entry["new"], entry["tests"].split()
            places = [path for path, text in sources.items() for _ in range(text.count(old))]
            problems += [f"{id}: there is no {test}" for test in tests if not exists(test)]
            if len(places) != 1:
                where = "".join(f"\n    {path.relative_to(ROOT)}" for path in places)
                problems.append(f"{id}: the snippet must occur once under src/, not {len(places)} times: {old}{where}")
                continue
            try:
                compile(sources[places[0]].replace(old, new), places[0], "exec")
            except SyntaxError as error:
                problems.append(f"{id}: the mutation is no Python: {error}")
            mutations.append(Mutation(id, old, new, tests, places[0].relative_to(ROOT)))
    if problems:
        fail("\n".join(problems))
    return mutations


def exists(test: str) -> bool:
    """Look for a file, a test or a case of one ("file::test[case]") without importing it."""
    file, *names = test.partition("[")[0].split("::")
    if not (ROOT / file).is_file():
        return False
    text = (ROOT / file).read_text(encoding="utf-8")
    return all(re.search(rf"^\s*(def|class) {name}\b", text, re.MULTILINE) for name in names)


def copy_tree(folder: Path) -> Path:
    """Copy the repository, and check that Python imports the package from the copy, not from where it is installed."""
    shutil.copytree(ROOT, folder, ignore=NOT_COPIED)
    code = "import hypersphere; print(hypersphere.__file__)"
    command = [sys.executable, "-c", code]
    imported = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=True)
    if not Path(imported.stdout.strip()).is_relative_to(folder):
        fail(f"hypersphere is imported from {imported.stdout.strip()}, not from the copy {folder}")
    print(f"testing {imported.stdout.strip()}", flush=True)
    return folder


def environment(folder: Path) -> dict[str, str]:
    # No bytecode: a cached file is taken for current if the source has the same size and second.
    more = {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **more}


def check_clean(tree: Path, mutations: list[Mutation], jobs: int) -> None:
    """Run the tests of all mutations on the unchanged source; exit unless they pass."""
    tests = list(dict.fromkeys(test for mutation in mutations for test in mutation.tests))
    start = time.perf_counter()
    command = [*PYTEST, "-n", str(jobs), *tests]
    done = subprocess.run(command, cwd=tree, env=environment(tree), stdout=subprocess.PIPE, text=True)
    if done.returncode != GREEN:
        fail(f"{done.stdout}\nthe tests of the list must pass without a mutation")
    print(f"{len(tests)} selections pass without a mutation ({time.perf_counter() - start:.0f} s)", flush=True)


def run_all(trees: list[Path], mutations: list[Mutation]) -> int:
    """Test every mutation, one at a time in each tree; print a table and return the exit code."""
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def test(mutation: Mutation) -> tuple[str, str, float]:
        tree, start = free.get(), time.perf_counter()
        try:
            verdict, detail = run(tree, mutation)
        finally:
            free.put(tree)
        return verdict, detail, time.perf_counter() - start

    widths = [max(len(str(getattr(mutation, name))) for mutation in mutations) for name in ("id", "file")]
    missed, start = [], time.perf_counter()
    with ThreadPoolExecutor(len(trees)) as pool:
        jobs = {pool.submit(test, mutation): mutation for mutation in mutations}
        for job in as_completed(jobs):
            mutation, (verdict, detail, seconds) = jobs[job], job.result()
            id, file = mutation.id.ljust(widths[0]), str(mutation.file).ljust(widths[1])
            print(f"{id}  {file}  {verdict:8}  {seconds:5.1f} s  {detail}", flush=True)
            if verdict != "caught":
                missed.append(mutation.id)
    print(f"{len(mutations) - len(missed)} of {len(mutations)} caught in {time.perf_counter() - start:.0f} s")
    if missed:
        print(f"not caught: {', '.join(missed)}")
    return 1 if missed else 0


def run(tree: Path, mutation: Mutation) -> tuple[str, str]:
    """Test one mutation: "caught" and the test that failed, or "SURVIVED", or "BROKEN" if the tests could not run."""
    path = tree / mutation.file
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        # A session of its own: a test that hangs is killed with all that it has started.
        process = subprocess.Popen(
            [*PYTEST, *mutation.tests],
            cwd=tree,
            env=environment(tree),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "BROKEN", f"no end after {TIMEOUT} s"
    finally:
        path.write_text(before, encoding="utf-8")
    if process.returncode == RED:
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        return "caught", failed[1] if failed else ""
    if process.returncode == GREEN:
        return "SURVIVED", " ".join(mutation.tests)
    return "BROKEN", f"pytest exits with {process.returncode}: {' '.join(output.split())[-200:]}"


def fail(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    sys.exit(main())
