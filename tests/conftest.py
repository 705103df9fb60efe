"""What every test shares: the device option and fixture, the seed, and that nothing was warned of yet."""

import gc

import pytest
import torch

from hypersphere._internal import checks
from hypersphere._internal.amx import avoid_trapping_amx

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("cpu", "cuda"),
        help="cpu: leave the CUDA variants out; cuda: run those alone, the smoke test for a GPU; default: both",
    )
    parser.addoption("--quick", action="store_true", help="leave out the tests marked slow (make quick)")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the workers of pytest-xdist inherit the environment
        avoid_trapping_amx()
    torch.set_num_threads(1)  # the workers share the cores, and runs are compared with those of other processes
    for devices in (torch.cuda, torch.xpu, torch.mtia):
        if not devices.is_available():  # torch.manual_seed formats a stack trace for each of these, 0.4 ms or more
            devices.manual_seed_all = lambda seed: None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("slow")])
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    wanted = config.getoption("--device")
    if wanted is not None:
        config.hook.pytest_deselected(items=[item for item in items if _device_of(item) != wanted])
        items[:] = [item for item in items if _device_of(item) == wanted]


def pytest_collection_finish() -> None:
    """Freeze objects created at import: faster garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # what tests leave is looked at less often


def _device_of(item: pytest.Item) -> str:
    """What a test without the fixture runs on is the CPU."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("device", "cpu")) if callspec else "cpu"


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def _as_new() -> None:
    torch.manual_seed(0)
    checks._warned.clear()  # what is warned of once in a process is so in every test
