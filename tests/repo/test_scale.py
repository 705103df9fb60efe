"""The job files of examples/million_classes.py name what exists; tests/integrations runs the examples."""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
OPTIONS = re.findall(r'add_argument\("--(\w+)"', (EXAMPLES / "million_classes.py").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["million_classes.slurm", "million_classes.yaml"])
def test_job_files_give_the_options_that_exist(name: str) -> None:
    script = (EXAMPLES / "million_classes.py").read_text(encoding="utf-8")
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    given = re.findall(r"--(\w+)[ =]", text[text.rindex("million_classes.py") :])
    assert set(given) == set(OPTIONS)
    assert len(script.splitlines()) <= 80


def test_commands_of_the_page_give_options_that_exist() -> None:
    page = (EXAMPLES.parent / "docs/scale.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\$ torchrun --nproc-per-node \d examples/million_classes.py (.*)$", page, re.MULTILINE)
    assert len(commands) == 2
    assert {name for command in commands for name in re.findall(r"--(\w+)", command)} <= set(OPTIONS)
