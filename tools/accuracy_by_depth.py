"""Train CNNs of 6 to 96 convolutions from several starts; a part of docs/layers.md is made of results/depth.json.

    python -m tools.accuracy_by_depth [--jobs 1]

The network is the demo's, on the handwritten digits of the package. Runs are processes of one thread; finished ones are
kept, so an interrupted call continues. About a quarter of an hour of processor time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import hypersphere as hs
from hypersphere._internal.safe_files import write_text
from hypersphere.train import Config, Loss, Optimizer, derive, fit
from hypersphere.train.networks import build_network
from hypersphere.train.splits import DataSpec

ROOT = Path(__file__).parents[1]
FILE = Path("results", "depth.json")
SEEDS = range(5)
SHALLOW, DEEP = (5e-4, 2e-3, 1e-2, 4e-2), (1e-4, 5e-4, 2e-3, 1e-2)
#: depth -> learning rates: seed 0 tries them all, the best on validation goes on
RATES = {6: SHALLOW, 12: SHALLOW, 24: DEEP, 48: DEEP, 96: DEEP}
DEPTHS = (*RATES,)
LEAK = 0.1  # slope of the leaky ReLU
#: how a CNN starts -> options of the network; the demo shows some of them
STARTS: dict[str, dict[str, Any]] = {
    "torch's start": {},
    "Kaiming's start": {"init": "kaiming"},
    "BatchNorm": {"batch_norm": True},
    "sphere layers": {"init": "kaiming", "similarity": "cosine"},
    "Xavier's start, no ReLU": {"init": "xavier", "relu": False},
    "BatchNorm, no ReLU": {"batch_norm": True, "relu": False},
    "sphere layers, no ReLU": {"init": "kaiming", "similarity": "cosine", "relu": False},
}
#: six convolutions, S-Softmax and SGD: what the layers are -> options of the network, over the rates below
SPHERE = {"init": "kaiming", "similarity": "cosine"}
VARIANTS: dict[str, dict[str, Any]] = {
    "scale 1": {**SPHERE, "scale": None},
    "default scale": SPHERE,
    "learned scale": {**SPHERE, "scale": True},
    f"leaky ReLU ({LEAK:g})": {**SPHERE, "name": "deep_cnn_leaky"},
    "no ReLU": {**SPHERE, "relu": False},
    "plain, Kaiming's start": {"init": "kaiming"},
}
SGD_RATES = (3e-4, 1e-3, 3e-3, 0.01, 0.1)
SGD_SEEDS = range(3)
ALIKE = 100  # images whose features are compared before training
Run = dict[str, Any]


def demo() -> ModuleType:
    """Import the demo and register its CNN with leaky ReLUs; not on import, because names of networks are listed."""
    sys.path.insert(0, str(ROOT / "examples"))
    module = importlib.import_module("demo")
    sys.path.pop(0)

    def leaky(num_classes: int = 10, in_channels: int = 1, depth: int = 12) -> nn.Module:
        net = module.DeepCNN(num_classes, in_channels, depth)
        layers = (nn.LeakyReLU(LEAK) if isinstance(layer, nn.ReLU) else layer for layer in net.layers)
        net.layers = nn.Sequential(*layers)
        return net

    hs.models.register("deep_cnn_leaky", leaky)
    return module


def config(run: Run) -> Config:
    """Return what a run trains."""
    if run["part"] != "rates":
        deep = demo().deep(run["depth"], run["lr"], **STARTS[run["name"]])
    else:
        deep = demo().deep(run["depth"], run["lr"])
        deep = derive(deep, model={"name": "deep_cnn", **VARIANTS[run["name"]]}, loss=Loss("s_softmax"))
        deep = derive(deep, optimizer=Optimizer("sgd", lr=run["lr"], momentum=0.9, weight_decay=0))
    return derive(deep, seed=run["seed"], device="cpu")


@torch.no_grad()
def mean_cosine(run: Run) -> float:
    """Return the mean cosine between the features of two digits before training."""
    torch.manual_seed(run["seed"])
    network = build_network(config(run).model, DataSpec("images", (1, 8, 8), "uint8", [*"0123456789"]))
    images = hs.data.load("digits").inputs[:ALIKE].float()
    features = F.normalize(network.forward_features((images - images.mean()) / images.std()))  # type: ignore[operator]
    return ((features @ features.T).sum().item() - ALIKE) / (ALIKE * (ALIKE - 1))


def train(run: Run) -> Run:
    """Train one run, or measure its start, in a worker."""
    torch.set_num_threads(1)
    if run["part"] == "start":
        return run | {"cosine": round(mean_cosine(run), 4)}
    summary = fit(config(run), progress=False).summary
    assert summary.validation is not None
    measured = {"accuracy": summary.accuracy, "validation": summary.validation["accuracy"]}
    return run | {name: round(100 * value, 4) for name, value in measured.items()}


def trials() -> list[Run]:
    """Return the runs that do not depend on others."""
    rates = [
        {"part": "depth", "name": name, "depth": depth, "lr": lr, "seed": 0}
        for depth in DEPTHS
        for name in STARTS
        for lr in RATES[depth]
    ]
    starts = [
        {"part": "start", "name": name, "depth": depth, "lr": RATES[depth][0], "seed": 0}
        for depth in DEPTHS
        for name in STARTS
    ]
    return [*starts, *rates] + [
        {"part": "rates", "name": name, "depth": DEPTHS[0], "lr": lr, "seed": seed}
        for seed in SGD_SEEDS
        for name in VARIANTS
        for lr in SGD_RATES
    ]


def finals(runs: list[Run]) -> list[Run]:
    """Return the runs of the other seeds at the best rate of each start and depth."""
    chosen = best_rates(runs)
    return [
        {"part": "depth", "name": name, "depth": depth, "lr": lr, "seed": seed}
        for seed in SEEDS[1:]
        for (name, depth), lr in chosen.items()
    ]


def best_rates(runs: list[Run]) -> dict[tuple[str, int], float]:
    """Return (start, depth) -> the rate with the best validation accuracy of seed 0, once all were tried."""
    chosen = {}
    for depth in DEPTHS:
        for name in STARTS:
            tried = [run for run in runs if identity(run)[:3] == ("depth", name, depth) and run["seed"] == 0]
            if {run["lr"] for run in tried} >= {*RATES[depth]}:
                chosen[name, depth] = max(tried, key=lambda run: (run["validation"], -run["lr"]))["lr"]
    return chosen


def identity(run: Run) -> tuple[Any, ...]:
    return tuple(run[name] for name in ("part", "name", "depth", "lr", "seed"))


def load(root: Path = ROOT) -> list[Run]:
    file = root / FILE
    return json.loads(file.read_text(encoding="utf-8"))["runs"] if file.exists() else []


def save(runs: list[Run]) -> None:
    """Write the results, one line a run, in an order that does not depend on who finished first."""
    lines = ",\n".join(json.dumps(run) for run in sorted(runs, key=lambda run: identity(run)))
    machine = {"python": platform.python_version(), "torch": torch.__version__}
    write_text(ROOT / FILE, f'{{"machine": {json.dumps(machine)}, "runs": [\n{lines}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="worker processes (default: 1)")
    options = parser.parse_args()
    runs = load()
    with ProcessPoolExecutor(options.jobs) as pool:
        for wanted in (trials, lambda: finals(runs)):
            done = {identity(run) for run in runs}
            todo = [run for run in wanted() if identity(run) not in done]
            futures = [pool.submit(train, run) for run in todo]
            for number, future in enumerate(as_completed(futures), 1):
                runs.append(future.result())
                save(runs)
                print(f"{number} of {len(todo)}: {runs[-1]}", flush=True)


if __name__ == "__main__":
    main()
