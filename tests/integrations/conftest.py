"""Tests with other packages, for `make integrations`; where one is missing (in .venv), only `ALWAYS` is run."""

from __future__ import annotations

import os
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tools import tested_models

NEEDED = ("timm", "transformers", "accelerate", "lightning", "peft", "torchao", "skorch", "sklearn")
NEEDED += ("pytorch_metric_learning",)
ALWAYS = ("__init__.py", "test_lazy.py", "test_sklearn.py", "test_huggingface.py")
if any(find_spec(name) is None for name in NEEDED):
    collect_ignore = [file.name for file in Path(__file__).parent.glob("*.py") if file.name not in ALWAYS]
os.environ["HF_HUB_OFFLINE"] = "1"
_outcomes: dict[tuple[str, str], str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-results", action="store_true", help=f"write {tested_models.FILE} from this run")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    told: dict[str, Any] = dict(report.user_properties)
    if report.when == "call" and "cell" in told:
        _outcomes[tuple(told["cell"])] = told["outcome"] if report.passed else tested_models.FAILED


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the results, in the process that gets those of all workers."""
    if session.config.getoption("write_results", False) and not hasattr(session.config, "workerinput"):
        from . import test_matrix

        if not test_matrix.write_results(_outcomes):
            print(f"\n{tested_models.FILE} is not written: not all of the matrix was run")


@pytest.fixture(autouse=True)
def _nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def connect_locally(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test connects to {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_locally)
