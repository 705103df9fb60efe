"""Inspecting a file of a ResNet-18: time against weightwatcher's analysis of the same network, and memory.

weightwatcher is measured where it is installed: `make bench` does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from hypersphere import inspect, models

from .measure import Contestant, Measurement, Plan, seconds

OURS, THEIRS = "inspect", "weightwatcher"
SECONDS_GOAL, RATIO_GOAL, MEMORY_GOAL = 3.0, 1 / 8, 2.0
#: prints by how much the memory of a process that has inspected a small file grows at most, in kB (Linux)
PEAK = """
import sys, torch, hypersphere
def memory(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))
torch.set_num_threads(1)
hypersphere.inspect(sys.argv[1])
before = memory("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # forget the peak so far
hypersphere.inspect(sys.argv[2])
print(memory("VmHWM") - before)
"""


def measurements(plan: Plan) -> Iterator[Measurement]:
    name = "resnet20" if plan.quick else "resnet18"
    model = models.create(name, num_classes=10 if plan.quick else 1000).eval()
    with TemporaryDirectory() as folder:
        file, small = Path(folder, "model.safetensors"), Path(folder, "small.safetensors")
        save_file(model.state_dict(), file)
        save_file({"a.weight": torch.randn(64, 200), "b.weight": torch.randn(200, 64)}, small)
        size = file.stat().st_size
        case = f"{name}, a file of {size / 1e6:.1f} MB"
        contestants = [Contestant(OURS, partial(_inspect, file), goals={"s": SECONDS_GOAL})]
        if importlib.util.find_spec(THEIRS) is None:
            print("weightwatcher is not installed, so inspect is not compared with it: make bench installs it")
        elif not plan.quick:
            contestants.append(Contestant(f"{THEIRS} {version(THEIRS)}", partial(_analyze, model)))
        with threadpool_limits(1):  # numpy's threads are not torch's
            taken = seconds(case, contestants, plan.fewer(8))
        for contestant in contestants:
            yield contestant.measurement(case, "s", taken[contestant.name])
        for other in contestants[1:]:
            yield Measurement(case, OURS, f"time / {THEIRS}", taken[OURS] / taken[other.name], RATIO_GOAL)
        peak = int(subprocess.check_output([sys.executable, "-c", PEAK, str(small), str(file)]))
        yield Measurement(case, OURS, "memory / file", 1024 * peak / size, None if plan.quick else MEMORY_GOAL)


def _inspect(file: Path) -> Tensor:
    return torch.tensor([layer.energy for layer in inspect(file)])


def _analyze(model: nn.Module) -> Tensor:
    """Run weightwatcher's analysis with its defaults, silently."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        import weightwatcher

        logging.getLogger(THEIRS).setLevel(logging.ERROR)
        details = weightwatcher.WeightWatcher(model=model).analyze()
    return torch.tensor(details["alpha"].to_numpy())
