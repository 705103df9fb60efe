"""Write and read the result of a training: summary, final weights, model."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from .. import __version__
from .._internal import checks, checksummed_json, safe_files
from .._internal.checksummed_json import RUN_ID, Tree
from .._internal.tables import NOTHING, TableResult, TextTable, number, percent
from .._internal.text import one_line
from ..rotation import count_parameters, merge, save_rotations
from ..rotation.parametrization import find_rotated
from .config import Config
from .display import total_energy
from .evaluation import Predictions
from .inference.run import load_run
from .networks import Classifier
from .progress import Progress
from .storage import layout, predictions, weights
from .storage.folder import config_text
from .storage.metrics import Metrics, MetricsLine, parse_lines
from .storage.reading import steps
from .storage.records import finite
from .storage.summary import Summary, read_summary
from .tasks import TrainingTask

Energies = tuple[Mapping[str, float], Mapping[str, float]]  # energies and pair energies by layer


@dataclass(frozen=True, eq=False, repr=False)
class Result(TableResult):
    """The result of a training; prints as a table.

    Attributes:
        summary: metrics of the final weights, seconds, versions, the data's hash; what result.json holds.
        metrics: the lines of metrics.jsonl.
        model: in eval mode, rotations merged; with an angular loss a network with its head, which gives logits.
        path: the run folder; None without `out`.
        config: as it was run.
    """

    summary: Summary
    metrics: list[MetricsLine]
    model: nn.Module
    path: Path | None
    config: Config

    @property
    def rows(self) -> list[MetricsLine]:
        """The evaluations of the training."""
        return [line for line in self.metrics if line.split != "train"]

    def tables(self) -> list[TextTable]:
        header = ["step", "split", "loss", "accuracy", "energy", "seconds"]
        cells = [
            [
                str(line.step),
                line.split,
                number(line.loss),
                percent(line.accuracy),
                number(total_energy(line)),
                NOTHING if line.seconds is None else f"{line.seconds:.1f}",
            ]
            for line in self.rows
        ]
        title = f"{self.config.model.name} on {self.config.data.name}"
        return [TextTable(header, cells, left=2, title=title if self.path is None else f"{title}, {self.path}")]

    def to_dict(self) -> Tree:
        """Return what result.json holds."""
        return self.summary.to_dict()


def read_result(config: Config) -> Result | None:
    """Read the result in `out` if its training length is the config's; None if it must be trained or written again."""
    if config.out is None or not os.path.lexists(Path(config.out, layout.RESULT)):
        return None
    path = Path(config.out)
    try:
        summary = read_summary(path)
        if summary.length != (config.steps, config.epochs):
            return None
        history = path / layout.METRICS
        texts = safe_files.read_plain(history).splitlines()
        lines = parse_lines(texts)
        if len(lines) < len(texts):
            raise ValueError(f"{history} is damaged: line {len(lines) + 1} is not a JSON object of metrics")
        if layout.ADAPTER in summary.checksums:
            weights.check_adapter(path / layout.ADAPTER, summary.checksums[layout.ADAPTER])
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
    collected: Predictions | None,
    *,
    split: str,
    metrics: Mapping[str, float],
    energies: Energies,
    seconds: float,
    diverged: bool,
    run_id: str | None,
) -> Result:
    """Merge the rotations, sum up the training and, in the main process, write final/ and then result.json."""
    config, splits, best = task.config, task.splits, progress.best
    modules = {name: _merged(module) for name, module in task.modules.items()}
    summary = Summary(
        step=progress.step,
        split=split,
        accuracy=finite(metrics.get("accuracy")),
        loss=finite(metrics.get("loss")),
        metrics=finite({name: value for name, value in metrics.items() if name not in ("accuracy", "loss", "step")}),
        energy=finite(sum(energies[0].values())),
        energies=finite(energies[0]),
        pair_energies=finite(energies[1]),
        diverged=diverged,
        best_step=None if best is None else int(best["step"]),
        validation=finite(best),
        parameters={
            "trained": sum(count_parameters(module)["total"] for module in task.modules.values()),
            "total": sum(p.numel() for module in modules.values() for p in module.parameters()),
        },
        seconds=round(seconds, 3),
        samples_per_second=progress.samples / max(seconds, 1e-9),
        seed=config.seed,
        model=config.model.name,
        length=(config.steps, config.epochs),
        data={
            "name": config.data.name,
            **{name: splits.count(name) for name in ("train", "validation", "test")},
            "hash": splits.hash(),
        },
        versions={"hypersphere": __version__, "torch": torch.__version__, "python": platform.python_version()},
        run_id=run_id,
    )
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
    summary: Summary,
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
    step = summary.best_step or summary.step
    described = {"step": step, RUN_ID: summary.run_id, "data": task.splits.spec.to_tree()}
    model = weights.write(path / layout.FINAL, parts, described)
    files = {layout.CONFIG: config_text(task.config, summary.run_id), f"{layout.FINAL}/{layout.MODEL}": model}
    sums = {name: checksummed_json.checksum(text.encode()) for name, text in files.items()}
    trained = task.modules[task.main]
    network = trained.network if isinstance(trained, Classifier) else None
    if task.config.init_from is not None and network is not None and any(find_rotated(network)):
        save_rotations(network, path / layout.ADAPTER)  # of the network it started from
        sums[layout.ADAPTER] = checksummed_json.checksum(safe_files.read_plain(path / layout.ADAPTER))
    if collected is not None:
        predictions.write(path, summary.split, sums[f"{layout.FINAL}/{layout.MODEL}"], collected.tree())
    sums[layout.METRICS] = str(history.mark()["checksum"])
    tree = {"format": layout.FORMAT, **summary.to_dict(), "checksums": sums}
    safe_files.write_text(path / layout.RESULT, checksummed_json.with_checksum(tree))
