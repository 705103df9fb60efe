"""Write and read the result of a training: summary, final weights, model."""

from __future__ import annotations

import os
import platform
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import __version__
from .._internal import checks, checksummed_json, safe_files
from .._internal.checksummed_json import RUN_ID
from ..rotation import count_parameters, merge, save_rotations
from ..rotation.parametrization import find_rotated
from .config import Config
from .evaluation import Predictions
from .inference.run import load_run
from .networks import Classifier
from .progress import Progress
from .storage import layout, predictions, weights
from .storage.folder import config_text
from .storage.metrics import Metrics, finite
from .storage.reading import one_line, steps
from .storage.summary import SUMS, read_summary
from .tasks import TrainingTask


@dataclass(frozen=True)
class Result:
    """The result of a training.

    Attributes:
        summary: final figures, seconds, versions, the data's hash; what result.json holds.
        metrics: the lines of metrics.jsonl.
        model: in eval mode, rotations merged; with an angular loss a network with its head, which gives logits.
        path: the run folder; None without `out`.
        config: as it was run.
    """

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    model: nn.Module
    path: Path | None
    config: Config

    def __repr__(self) -> str:
        measured = ((name, self.summary.get(name)) for name in ("accuracy", "loss"))
        figures = "".join(f", {name} {value:.4g}" for name, value in measured if value is not None)
        place = "" if self.path is None else f", {str(self.path)!r}"
        network = f"{self.config.model.name} on {self.config.data.name}"
        return f"Result({network}, step {self.summary['step']}{figures}{place})"


def read_result(config: Config) -> Result | None:
    """Read the result in `out` if its training length is the config's; None if it must be trained or written again."""
    if config.out is None or not os.path.lexists(Path(config.out, layout.RESULT)):
        return None
    path = Path(config.out)
    try:
        summary, _ = read_summary(path)
        if summary["length"] != [config.steps, config.epochs]:
            return None
        history = path / layout.METRICS
        lines = [checksummed_json.parse(line) for line in safe_files.read_plain(history).splitlines()]
        if not all(isinstance(line, dict) for line in lines):
            raise ValueError(f"{history} has lines that are not JSON objects")
        return Result(summary, lines, load_run(path).model, path, config)
    except (OSError, ValueError) as error:
        problem = one_line(error)
    where = path / layout.CHECKPOINTS
    if not (where.is_dir() and steps(where)):
        raise ValueError(f"{problem}; there is no checkpoint to finish from again")
    checks.warn(f"{problem}; finishing again from the last checkpoint")
    return None


def write_result(
    task: TrainingTask,
    progress: Progress,
    history: Metrics,
    seconds: float,
    final: dict[str, Any],
    collected: Predictions | None = None,
) -> Result:
    """Merge the rotations, sum up the training and, in the main process, write final/ and then result.json."""
    config, splits, best = task.config, task.splits, progress.best
    modules = {name: _merged(module) for name, module in task.modules.items()}
    summary = {
        "format": layout.FORMAT,
        "accuracy": None,
        **final,
        "energy": sum(final["energies"].values()),
        "step": progress.step,
        "best_step": None if best is None else best["step"],
        "validation": best,
        "parameters": {
            "trained": sum(count_parameters(module)["total"] for module in task.modules.values()),
            "total": sum(p.numel() for module in modules.values() for p in module.parameters()),
        },
        "seconds": round(seconds, 3),
        "samples_per_second": progress.samples / max(seconds, 1e-9),
        "seed": config.seed,
        "model": config.model.name,
        "length": [config.steps, config.epochs],
        "data": {
            "name": config.data.name,
            **{name: splits.count(name) for name in ("train", "validation", "test")},
            "hash": splits.hash(),
        },
        "versions": {"hypersphere": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    main = modules[task.main]
    model = main.network if isinstance(main, Classifier) and main.head is None else main
    path = None if config.out is None else Path(config.out)
    if path is not None and task.world.is_main:
        _write(path, task, modules, summary, history, collected)
    return Result(summary, history.lines, model, path, config)


def _merged(module: nn.Module) -> nn.Module:
    """Return a copy on the CPU with plain layers, in eval mode."""
    copy = deepcopy(module).cpu().eval()
    return merge(copy) if any(find_rotated(copy)) else copy


def _write(
    path: Path,
    task: TrainingTask,
    modules: dict[str, nn.Module],
    summary: dict[str, Any],
    history: Metrics,
    collected: Predictions | None,
) -> None:
    parts: dict[str, nn.Module] = {}
    for name, module in modules.items():
        if isinstance(module, Classifier):
            parts["model"] = module.network
            if module.head is not None:
                parts["head"] = module.head
        else:
            parts["model" if name == task.main else name] = module
    step = summary["best_step"] or summary["step"]
    described = {"step": step, RUN_ID: summary[RUN_ID], "data": task.splits.spec.to_tree()}
    model = weights.write(path / layout.FINAL, parts, described)
    files = {layout.CONFIG: config_text(task.config, summary[RUN_ID]), f"{layout.FINAL}/{layout.MODEL}": model}
    trained = task.modules[task.main]
    network = trained.network if isinstance(trained, Classifier) else None
    if task.config.init_from is not None and network is not None and any(find_rotated(network)):
        save_rotations(network, path / layout.FINAL / layout.ROTATIONS)  # an adapter of the network it started from
    sums = {name: checksummed_json.checksum(text.encode()) for name, text in files.items()}
    if collected is not None:
        predictions.write(path, summary["split"], sums[f"{layout.FINAL}/{layout.MODEL}"], collected.tree())
    sums[layout.METRICS] = history.mark()["checksum"]
    safe_files.write_text(path / layout.RESULT, checksummed_json.with_checksum(finite(summary) | {SUMS: sums}))
