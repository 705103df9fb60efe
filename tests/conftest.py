"""What every test shares: the device option and fixture, and the seed."""

import os

import pytest
import torch

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("cpu", "cuda"),
        help="cpu: leave the CUDA variants out; cuda: run those alone, the smoke test for a GPU; default: both",
    )


def pytest_configure() -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:  # the workers share the cores already
        torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--device")
    if wanted is not None:
        config.hook.pytest_deselected(items=[item for item in items if _device_of(item) != wanted])
        items[:] = [item for item in items if _device_of(item) == wanted]


def _device_of(item: pytest.Item) -> str:
    """What a test without the fixture runs on is the CPU."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("device", "cpu")) if callspec else "cpu"


@pytest.fixture(params=["cpu", CUDA])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
