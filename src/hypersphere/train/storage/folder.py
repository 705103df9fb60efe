"""Check, lock and prepare the folder of a run."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..._internal import checksummed_json, safe_files
from ..config import Config, ConfigError, derive, load_file, to_tree
from ..config.convert import flags, flatten
from ..config.values import AUTO
from ..distributed import World
from .layout import CHECKPOINTS, CONFIG, FINAL, LOCK, METRICS, MODEL, OURS, PARTS, PREDICTIONS, RESULT, weights
from .records import own_folder, read_id

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

#: fields that may differ when a run is resumed: none of them changes the weights
CHANGEABLE_ON_RESUME = (
    *("out", "resume", "keep", "log_every", "checkpoint_every"),
    *("device", "data.root", "data.workers", "compile"),
)


_AUTOMATIC = {"clip", *(flag.key for flag in flags() if flag.field.metadata.get("auto"))}


class LockedError(ValueError):
    """Raised when another process trains in the folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"out={path}: another process is training there")


def check_out(config: Config, world: World) -> None:
    """Raise ValueError if the folder `out` belongs to another run or to something else."""
    if config.out is None:
        if config.resume:
            raise ConfigError("resume needs out, the folder of the run to continue")
        return
    path, problem = Path(config.out), ""
    if world.is_main:
        try:
            _check(config, path)
            check_free(path)
        except (ValueError, OSError) as error:
            if world.size == 1:
                raise
            problem = str(error)  # all processes must raise, or the others would hang
    problem = world.broadcast_text(problem)
    if problem:
        raise ValueError(problem)


def _check(config: Config, path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise ValueError(f"out must be a folder, got the file {path}")
    names = [file.name for file in path.iterdir()] if path.is_dir() else []
    for name in (FINAL, CHECKPOINTS, PREDICTIONS):
        own_folder(path / name)
    for name in (CONFIG, METRICS, RESULT):
        if name in names:
            safe_files.check_plain(path / name)
    checkpoints = path / CHECKPOINTS
    if RESULT in names or (checkpoints.is_dir() and any(checkpoints.iterdir())):
        if not config.resume:
            raise ValueError(f"out={path} already holds a run: continue it with resume=true, or choose another folder")
        _check_same(load_file(path / CONFIG), config, path)
        return
    # A run that failed before its first checkpoint may be overwritten; other files may not.
    strange = [name for name in names if not OURS.fullmatch(name)]
    if strange:
        raise ValueError(f"out={path} is not a run folder (contains {strange[0]}): choose another folder")
    if CONFIG in names:
        load_file(path / CONFIG)


def check_free(path: Path) -> None:
    """Raise LockedError if another process trains in the folder: its checkpoints must not be read."""
    if fcntl is None:
        return
    with suppress(FileNotFoundError), open(safe_files.open_plain(path / LOCK, os.O_RDONLY)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            raise LockedError(path) from None


def with_recorded(config: Config, world: World) -> Config:
    """Return the config with what the run in `out` recorded for the fields that the config leaves open."""
    if not config.resume or config.out is None:
        return config
    file = Path(config.out, CONFIG)
    recorded = flatten(to_tree(load_file(file))) if world.is_main and file.is_file() else {}
    left_open = [key for key, value in flatten(to_tree(config)).items() if _is_open(key, value)]
    text = world.broadcast_text(json.dumps({key: recorded[key] for key in left_open if key in recorded}))
    return derive(config, json.loads(text))


def _is_open(key: str, value: Any) -> bool:
    """Return whether a training decides on this value and records what it decided."""
    return value is None if key == "channels_last" else value == AUTO and key in _AUTOMATIC


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Make a folder and lock it; LockedError if another process holds the lock."""
    path.mkdir(parents=True, exist_ok=True)
    descriptor = safe_files.open_plain(path / LOCK, os.O_RDWR | os.O_CREAT)
    with open(descriptor, "a") as file:
        if fcntl is not None:  # missing on Windows
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process ends
                taken = not os.path.samestat(os.fstat(descriptor), os.lstat(path / LOCK))
            except OSError:
                taken = True
            if taken:
                raise LockedError(path)
        try:
            yield
        finally:
            with suppress(OSError):  # the lock ends with the process; an error here would hide that of a failing disk
                (path / LOCK).unlink(missing_ok=True)


@contextmanager
def locked(config: Config, world: World) -> Iterator[str | None]:
    """Lock the run folder; enter after setup succeeded. Return the run's id in the main process."""
    if config.out is None or not world.is_main:
        yield None
        return
    path = Path(config.out)
    with lock(path):
        _check(config, path)  # again: another run may have started there since
        safe_files.remove_temporaries(path, (CONFIG, METRICS, RESULT))
        safe_files.remove_temporaries(path / FINAL, (MODEL, *map(weights, PARTS)))
        is_new = not config.resume or not (path / CONFIG).is_file()
        run_id = secrets.token_hex(16) if is_new else read_id(path)  # not from the seed: runs of one config differ
        safe_files.write_text(path / CONFIG, config_text(config, run_id))
        yield run_id


def config_text(config: Config, run_id: str | None) -> str:
    """Return the text of config.json."""
    known = {} if run_id is None else {checksummed_json.RUN_ID: run_id}
    return checksummed_json.with_checksum(known | to_tree(config) | {"resume": False})


def _check_same(old: Config, new: Config, path: Path) -> None:
    """Raise ValueError if a field differs that must not: those of :data:`CHANGEABLE_ON_RESUME` may."""
    free: tuple[str, ...] = CHANGEABLE_ON_RESUME
    free += () if new.schedule.name == "cosine" else ("steps", "epochs")
    before, now = flatten(to_tree(old)), flatten(to_tree(new))
    for key in before | now:
        if _is_open(key, before.get(key)) or _is_open(key, now.get(key)):
            continue
        if key not in free and before.get(key) != now.get(key):
            was, wanted = (json.dumps(values.get(key)) for values in (before, now))
            why = " (the cosine schedule depends on it)" if key in ("steps", "epochs") else ""
            raise ValueError(
                f"out={path} is another run: there {key} is {was}, here it is {wanted}{why}; "
                f"to start a new run from its weights use init_from={path}"
            )
