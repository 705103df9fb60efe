"""The Makefile's way of running tests."""

import re
import subprocess
import sys
from pathlib import Path

MAKEFILE = Path(__file__).parents[1] / "Makefile"
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
