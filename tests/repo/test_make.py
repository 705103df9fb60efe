"""The Makefile: how it runs tests, and in which environment."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MAKEFILE = Path(__file__).parents[2] / "Makefile"
CRASHES = 11  # pytest-xdist gives up after 4 dead workers per process by default


def test_tests_that_kill_their_worker_do_not_hide_the_others(tmp_path):
    options = re.search(r"^WORKERS := (.+)", MAKEFILE.read_text(), re.MULTILINE)
    (tmp_path / "test_crashing.py").write_text(
        "import os, signal, pytest\n"
        f"@pytest.mark.parametrize('i', range({2 * CRASHES}))\n"
        "def test(i):\n"
        "    if i % 2: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-m", "pytest", *options[1].split(), "-q", "-p", "no:cacheprovider", str(tmp_path)]
    output = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout
    assert f"{CRASHES} failed, {CRASHES} passed" in output


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("command", ["docs", "demo", "quick", "lint"])
def test_an_environment_of_ones_own_is_used_as_it_is(command):
    """`make -n` prints what would run: nothing is installed."""
    make = ["make", "-n", "-f", str(MAKEFILE), command, "VENV=/some/env"]
    output = subprocess.run(make, capture_output=True, text=True, cwd=MAKEFILE.parent).stdout
    programs = re.findall(r"\S+/bin/\S+", output)
    assert programs
    assert all(program.startswith("/some/env/bin/") for program in programs)
    assert "pip" not in output
