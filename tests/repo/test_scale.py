"""The job files of examples/million_classes.py name what exists; tests/integrations runs the examples."""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["million_classes.slurm", "million_classes.yaml"])
def test_job_files_give_the_options_that_exist(name: str) -> None:
    script = (EXAMPLES / "million_classes.py").read_text(encoding="utf-8")
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    given = re.findall(r"--(\w+)[ =]", text[text.rindex("million_classes.py") :])
    assert set(given) == set(re.findall(r'add_argument\("--(\w+)"', script))
    assert len(script.splitlines()) <= 80
