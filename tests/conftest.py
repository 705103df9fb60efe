"""What every test shares: the device option and fixture, and the seed."""

import gc
from pathlib import Path

import pytest
import torch

from hypersphere._internal.amx import avoid_trapping_amx

# Files of tests that take more than about 4 seconds: processes, torch.compile, long trainings, gradients of many cases.
SLOW = (
    *("page_browser", "report"),
    *("amx", "make", "benchmarks", "catalog", "checkpoint", "cli_train", "close_neurons", "compile", "contributing"),
    *("data_formats", "distributed", "docs", "energy", "energy_losses", "energy_regularizer", "export", "gan"),
    *("hostile_runs", "meta", "minimize", "models", "models_tables", "notebook", "ogd", "orthogonal"),
    *("outdated_optimizers", "overflow", "real_data", "recurrent", "rotation_torch_utils"),
    *("rotation_training", "run", "stochastic", "train_distributed", "train_engine", "train_kill"),
    *(
        "train_resume",
        "cli_run",
        "data_hostile",
        "inspection_hostile",
        "inspection_browser",
        "reproduce",
        "tune",
        "train_fields",
    ),
    *("bounded_force", "energy_draws", "figures", "landscape", "train_openset", "train_layout", "estimators"),
)
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("cpu", "cuda"),
        help="cpu: leave the CUDA variants out; cuda: run those alone, the smoke test for a GPU; default: both",
    )
    parser.addoption("--quick", action="store_true", help="leave out the files of tests that take seconds (make quick)")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the workers of pytest-xdist inherit the environment
        avoid_trapping_amx()
    torch.set_num_threads(1)  # the workers share the cores, and runs are compared with those of other processes
    for devices in (torch.cuda, torch.xpu, torch.mtia):
        if not devices.is_available():  # torch.manual_seed formats a stack trace for each of these, 0.4 ms or more
            devices.manual_seed_all = lambda seed: None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    slow = config.getoption("--quick") and collection_path.stem.removeprefix("test_") in SLOW
    return True if slow and collection_path.parent == Path(__file__).parent else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--device")
    if wanted is not None:
        config.hook.pytest_deselected(items=[item for item in items if _device_of(item) != wanted])
        items[:] = [item for item in items if _device_of(item) == wanted]


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end: no collection of garbage looks at it again."""
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
def _seed() -> None:
    torch.manual_seed(0)
