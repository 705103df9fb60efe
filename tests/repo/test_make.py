"""The Makefile: in which environment it runs."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MAKEFILE = Path(__file__).parents[2] / "Makefile"


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
