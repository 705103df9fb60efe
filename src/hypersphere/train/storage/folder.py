"""A run's folder: whose it is, what a finished training leaves in it, and what another one begins with."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save
from torch import nn

from ... import __version__
from ..._internal import checks, safe_files
from ..._internal.safe_files import write_bytes, write_text
from ..._internal.tensors import checksum_of, unshared
from ...rotation import count_parameters, merge
from ...rotation.parametrization import rotated
from .. import building
from ..config import Config, ConfigError, derive, load_file, to_tree
from . import signed
from .metrics import finite
from .reading import steps
from .summary import FORMAT as FORMAT
from .summary import RESULT as RESULT
from .summary import SUMS, read_summary

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from ..distributed import World
    from ..training import Training

CONFIG, METRICS, FINAL, CHECKPOINTS, LOCK = "config.json", "metrics.jsonl", "final", "checkpoints", ".lock"
MODEL = "final/model.json"
_PARTS = ("model", "head", "discriminator")  # of final/

#: what is in the folder of a run
OURS = re.compile(r"config\.json|result\.json|metrics\.jsonl|final|checkpoints|\.lock|events\.out\..*|\..*\.tmp")

#: what may be another when a run is resumed: none of it changes what is learned
FREE = ("out", "resume", "keep", "log_every", "checkpoint_every", "device", "data.root", "data.workers", "compile")


@dataclass(frozen=True)
class Result:
    """What came of a training.

    Attributes:
        summary: final figures, seconds, versions, the data's hash; what result.json holds.
        metrics: the lines of metrics.jsonl.
        model: in eval mode, rotations merged; with an angular loss a network with its head, which gives logits.
        path: the run's folder; None if there is none.
        config: as it was run.
    """

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    model: nn.Module
    path: Path | None
    config: Config


def claim(config: Config, world: World) -> Result | None:
    """Whether the folder can be this run's; its result if it is there and finished. ValueError if it is another's."""
    if config.out is None:
        if config.resume:
            raise ConfigError("resume needs out, the folder of the run to go on with")
        return None
    path, problem = Path(config.out), ""
    if world.is_main:
        try:
            _check(config, path)
        except (ValueError, OSError) as error:
            if world.size == 1:
                raise
            problem = str(error)  # the others must not wait for what will never come
    problem = world.broadcast_text(problem)
    if problem:
        raise ValueError(problem)
    return _finished(path, config) if config.resume else None


def _check(config: Config, path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise ValueError(f"out must be a folder, got the file {path}")
    names = [each.name for each in path.iterdir()] if path.is_dir() else []
    for name in (FINAL, CHECKPOINTS):  # a link would have files written and removed outside the folder
        if name in names and not safe_files.is_folder(path / name):
            raise ValueError(f"{path / name} must be a folder itself; a link may stand for the whole run's folder only")
    for name in (CONFIG, METRICS, RESULT):
        if name in names:
            safe_files.check_plain(path / name)
    checkpoints = path / CHECKPOINTS
    if RESULT in names or (checkpoints.is_dir() and any(checkpoints.iterdir())):
        if not config.resume:
            raise ValueError(f"out={path} holds a run already: resume=true goes on with it, or choose another folder")
        _check_same(load_file(path / CONFIG), config, path)
        return
    # A run that failed before its first checkpoint has nothing to lose; what is somebody else's has.
    strange = [name for name in names if not OURS.fullmatch(name)]
    if strange:
        raise ValueError(f"out={path} holds other files and no run, {strange[0]} say: choose another folder")
    if CONFIG in names:
        load_file(path / CONFIG)


def with_recorded(config: Config, world: World) -> Config:
    """The config with the layout that the run in its folder began with, where it leaves that open."""
    if not config.resume or config.out is None or config.channels_last is not None:
        return config
    file = Path(config.out, CONFIG)
    recorded = load_file(file).channels_last if world.is_main and file.is_file() else None
    text = world.broadcast_text("" if recorded is None else str(recorded))
    return derive(config, channels_last=text == "True") if text else config


@contextmanager
def settled(config: Config, world: World) -> Iterator[None]:
    """The folder is the run's own within this: entered once all that can fail at the start has not."""
    if config.out is None or not world.is_main:
        yield
        return
    path = Path(config.out)
    path.mkdir(parents=True, exist_ok=True)
    lock = safe_files.open_plain(path / LOCK, os.O_RDWR | os.O_CREAT)
    with open(lock, "a") as file:
        if fcntl is not None:  # which Windows has not
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # gone with the process, however it ends
                taken = not os.path.samestat(os.fstat(lock), os.lstat(path / LOCK))
            except OSError:
                taken = True
            if taken:
                raise ValueError(f"out={path}: another process is training there")
        try:
            _check(config, path)  # again: it may have been another's while the data were read
            safe_files.remove_temporaries(path, (CONFIG, METRICS, RESULT))
            safe_files.remove_temporaries(path / FINAL, ("model.json", *(f"{name}.safetensors" for name in _PARTS)))
            write_text(path / CONFIG, _config_text(config))
            yield
        finally:
            with suppress(OSError):  # the lock is gone with the process; a disk that fails must say its own error
                (path / LOCK).unlink(missing_ok=True)


def _config_text(config: Config) -> str:
    return signed.signed(to_tree(derive(config, resume=False)))


def _check_same(old: Config, new: Config, path: Path) -> None:
    """The same run: everything but :data:`FREE` is as it was, and the length if no schedule depends on it."""
    free: tuple[str, ...] = FREE if new.schedule.name == "cosine" else (*FREE, "steps", "epochs")
    free += ("model.scale",) if new.model.similarity is None else ()  # its default was null once, as was that of clip
    free += ("clip",) if new.energy is None and {old.clip, new.clip} == {None, "auto"} else ()
    before, now = _flat(to_tree(old)), _flat(to_tree(new))
    if None in (old.channels_last, new.channels_last):  # left open, or not there yet
        free = (*free, "channels_last")
    for key in before | now:
        if key not in free and before.get(key) != now.get(key):
            was, wanted = (json.dumps(each.get(key)) for each in (before, now))
            why = " (the cosine schedule depends on it)" if key in ("steps", "epochs") else ""
            raise ValueError(
                f"out={path} is another run: there {key} is {was}, here it is {wanted}{why}; "
                f"init_from={path} would begin a new one with its weights"
            )


def _flat(tree: dict[str, Any]) -> dict[str, Any]:
    pairs = [(key, value if isinstance(value, dict) else None, value) for key, value in tree.items()]
    flat = {key: value for key, group, value in pairs if group is None}
    return flat | {f"{key}.{name}": each for key, group, _ in pairs if group for name, each in group.items()}


def _finished(path: Path, config: Config) -> Result | None:
    """The result of a run that has been trained as long as the config asks; what is damaged is made anew."""
    if not os.path.lexists(path / RESULT):
        return None
    from ..inference.run import load_run

    try:
        summary, _ = read_summary(path)
        if summary["length"] != [config.steps, config.epochs]:
            return None
        data = safe_files.read_plain(path / METRICS)
        lines = [signed.parse(line) for line in data.splitlines()]
        if not all(isinstance(line, dict) for line in lines):
            raise ValueError(f"{path / METRICS} has lines that are no objects")
        return Result(summary, lines, load_run(path).model, path, config)
    except (OSError, ValueError) as error:
        problem = " ".join(str(error).split())
    where = path / CHECKPOINTS
    if not (where.is_dir() and steps(where)):
        raise ValueError(f"{problem}; there is no checkpoint to finish the run from again")
    checks.warn(f"{problem}; the run is finished again from its last checkpoint")
    return None


def start(path: str) -> nn.Module:
    """The model of another run, for ``init_from``."""
    from ..inference.run import load_run

    try:
        return load_run(path).model
    except (ValueError, OSError) as error:
        raise ValueError(f"init_from: {error}") from None


def finish(training: Training, final: dict[str, Any]) -> Result:
    """Writes final/ and, last of all, result.json."""
    config, task, splits = training.config, training.task, training.splits
    modules = {name: _merged(module) for name, module in task.modules.items()}
    seconds = training.seconds()
    energies, done, best = final["energies"], training.done, training.done.best
    summary = {
        "format": FORMAT,
        "accuracy": None,
        **final,
        "energy": sum(energies.values()),
        "step": done.step,
        "best_step": None if best is None else best["step"],
        "validation": best,
        "parameters": {"trained": sum(count_parameters(m)["total"] for m in task.modules.values())}
        | {"total": sum(p.numel() for module in modules.values() for p in module.parameters())},
        "seconds": round(seconds, 3),
        "samples_per_second": done.samples / max(seconds, 1e-9),
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
    model = main.network if isinstance(main, building.Classifier) and main.head is None else main
    if training.path is not None and training.world.is_main:
        _write(training, modules, summary)
    return Result(summary, training.history.lines, model, training.path, config)


def _merged(module: nn.Module) -> nn.Module:
    """A copy on the CPU with plain layers, in eval mode."""
    copy = deepcopy(module).cpu().eval()
    return merge(copy) if any(rotated(copy)) else copy


def _write(training: Training, modules: dict[str, nn.Module], summary: dict[str, Any]) -> None:
    assert training.path is not None
    final = training.path / FINAL
    if not safe_files.is_folder(final):
        final.mkdir()
    parts: dict[str, nn.Module] = {}
    for name, module in modules.items():
        if isinstance(module, building.Classifier):
            parts["model"] = module.network
            if module.head is not None:
                parts["head"] = module.head
        else:
            parts["model" if name == training.task.main else name] = module
    checksums: dict[str, dict[str, str]] = {}
    for name, module in parts.items():
        tensors, aliases = unshared(module.state_dict())
        sums = {key: checksum_of(value) for key, value in tensors.items()}
        # An alias has one too: which tensor it stands for is damaged as easily as the tensor.
        checksums[name] = sums | {alias: sums[key] for alias, key in aliases.items()}
        write_bytes(final / f"{name}.safetensors", save(tensors, {"aliases": json.dumps(aliases)}))
    described = {"format": FORMAT, "step": summary["best_step"] or summary["step"], "checksums": checksums}
    model = signed.signed(described | {"data": training.splits.spec.to_tree()})
    write_text(training.path / MODEL, model)
    files = {CONFIG: _config_text(training.config), MODEL: model}
    files_sums = {name: signed.checksum(text.encode()) for name, text in files.items()}
    files_sums[METRICS] = training.history.mark()["checksum"]
    write_text(training.path / RESULT, signed.signed(finite(summary) | {SUMS: files_sums}))
