"""Save and load checkpoints: ``<folder>/<step>/`` holds tensors.safetensors and state.json, which cannot run code.

A checkpoint is written atomically: under a temporary name, flushed, then renamed. state.json has a checksum of itself
and of every tensor, and the format version.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ... import __version__
from ..._internal import checks
from ..._internal.safe_files import temporary_name
from ..._internal.tensors import checksum_of, unshared
from ..._internal.text import one_line
from .layout import CHECKPOINT_FORMAT, REPLACED, STATE, STEP, TENSORS, UNFINISHED
from .nested import flatten, unflatten
from .reading import State, checksum, find, is_best, read, steps, warn_damaged

__all__ = ["Saver", "flatten", "latest", "load", "unflatten"]

_DTYPES = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    *(torch.bool, torch.complex64),
}
_writing = threading.Lock()  # a temporary found at the start of a save is then of a dead process

Folder = str | os.PathLike[str]


class Saver:
    """Write ``folder/<step>/`` in a background thread, so that training only waits for a copy of the tensors.

    Tensors that share memory are stored once, and share it again when loaded. An existing step is replaced, and stays
    marked if it was the best. On an error, such as a full disk, the other checkpoints stay intact and no files are left
    behind; a failed write is an OSError that names the checkpoint. Only one process may save to a folder; not to be
    called in a signal handler.
    """

    def __init__(self) -> None:
        self._job: Future[None] | None = None

    def save(
        self, folder: Folder, step: int, tensors: dict[str, Tensor], state: State, *, keep: int = 3, best: bool = False
    ) -> None:
        """Wait for the last write and begin this one; it is on disk after :meth:`wait` or a normal end of the process.

        Args:
            folder: created if missing.
            step: >= 0.
            tensors: by name, dense ones on any device.
            state: a dict that survives JSON unchanged; :func:`flatten` makes one from a nested state.
            keep: how many checkpoints up to this one stay, >= 1; the best stays too.
            best: marks this one as the best so far, which stays until another is marked.
        """
        self.wait()
        _check(step, tensors, state, keep)
        stored, aliases = unshared(tensors)
        theirs = {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
        copies = {k: v.clone() if v.untyped_storage().data_ptr() in theirs else v for k, v in stored.items()}
        place, copy = Path(folder).absolute(), json.loads(json.dumps(state))
        thread = ThreadPoolExecutor(1, "hypersphere checkpoint")
        self._job = thread.submit(_write, place, step, copies, aliases, copy, keep, best)
        thread.shutdown(wait=False)  # it ends after the write: no idle thread is there when a data loader forks

    def wait(self) -> None:
        """Wait for the write to finish; raise the error of a failed one."""
        if self._job is not None:
            error = self._job.exception()
            self._job = None
            if error is not None:
                raise error


def load(path: Folder) -> tuple[dict[str, Tensor], State]:
    """Load the tensors, on the CPU, and the state of a checkpoint. ValueError in one line if it is damaged."""
    return read(Path(path))


def latest(folder: Folder, *, best: bool = False) -> Path | None:
    """Return the newest intact checkpoint, with a warning for damaged newer ones. None if there is none.

    Args:
        best: of those that were marked as the best.
    """
    path, damaged = find(Path(folder), marked=best)
    warn_damaged(damaged)
    return path


# ------------------------------------------------------------------------------------------------------- writing


def _check(step: Any, tensors: Any, state: Any, keep: Any) -> None:
    checks.integer("step", step, low=0)
    checks.integer("keep", keep, low=1)
    if not isinstance(tensors, dict):
        raise TypeError(f"tensors must be a dict of Tensors, got {type(tensors).__name__}")
    for name, value in tensors.items():
        if not isinstance(name, str) or name == "__metadata__":  # reserved by safetensors
            raise ValueError(f"names of tensors must be text other than '__metadata__', got {name!r}")
        if not isinstance(value, Tensor):
            raise TypeError(f"tensors[{name!r}] must be a Tensor, got {type(value).__name__}")
        if value.layout is not torch.strided or value.is_meta or value.dtype not in _DTYPES:
            kind = "meta" if value.is_meta else f"{value.layout}, {value.dtype}"
            raise TypeError(f"tensors[{name!r}] must be dense and of a type that safetensors has, got {kind}")
    try:
        same = isinstance(state, dict) and json.loads(json.dumps(state, allow_nan=False)) == state
    except (TypeError, ValueError, RecursionError) as error:
        raise type(error)(f"state must be a dict for JSON (flatten makes one): {error}") from None
    if not same:  # JSON turns tuples and keys that are not str into something else
        raise TypeError("state must survive JSON unchanged (flatten makes such a dict)")


def _write(
    folder: Path,
    step: int,
    tensors: dict[str, Tensor],
    aliases: dict[str, str],
    state: State,
    keep: int,
    best: bool,
) -> None:
    target, aside = folder / str(step), folder / f"{step}{REPLACED}"
    with _writing:
        temporary, placed = temporary_name(target), False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _tidy(folder)
            best = best or is_best(target)
            temporary.mkdir()
            _fill(temporary, tensors, {"step": step, "best": best, "aliases": aliases, "state": state})
            # A folder cannot be renamed onto a non-empty one. Readers use `aside` in between.
            if target.exists():
                os.rename(target, aside)
            os.rename(temporary, target)
            placed = True
            _flush(folder)
        except BaseException as error:
            with suppress(OSError):  # on a failing disk this fails too, and would hide the first error
                if placed:
                    os.rename(target, temporary)
                shutil.rmtree(temporary, ignore_errors=True)
                if aside.exists() and not target.exists():
                    os.rename(aside, target)
            if isinstance(error, OSError | SafetensorError):
                why = getattr(error, "strerror", None) or one_line(error)  # an OSError names the temporary file too
                raise OSError(f"checkpoint {target} could not be written: {why}") from error
            raise
        _tidy(folder)
        _prune(folder, step, keep)


def _fill(folder: Path, tensors: dict[str, Tensor], header: Mapping[str, Any]) -> None:
    errors: list[BaseException] = []

    def describe() -> None:
        try:
            versions = {"hypersphere": __version__, "torch": torch.__version__, "python": platform.python_version()}
            sums = {key: checksum_of(value) for key, value in tensors.items()}
            body = {**header, "versions": versions, "checksums": sums}
            text = json.dumps({"format": CHECKPOINT_FORMAT, "checksum": checksum(body), **body}, allow_nan=False)
            (folder / STATE).write_text(text, encoding="utf-8")
            _flush(folder / STATE)
        except BaseException as error:
            errors.append(error)

    # In parallel: checksums, writing and flushing release the GIL.
    thread = threading.Thread(target=describe)
    thread.start()
    try:
        save_file(tensors, folder / TENSORS)
        _flush(folder / TENSORS)
    finally:
        thread.join()
    if errors:
        raise errors[0]
    _flush(folder)


def _flush(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # not possible on Windows
        return
    file = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _tidy(folder: Path) -> None:
    """Clean up after a killed process: remove temporaries, restore a checkpoint that was being replaced."""
    for path in folder.iterdir():
        if UNFINISHED.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
        elif path.suffix == REPLACED and STEP.fullmatch(path.name):
            if path.with_suffix("").exists():
                _remove(path)
            else:
                os.rename(path, path.with_suffix(""))


def _prune(folder: Path, step: int, keep: int) -> None:
    numbered = steps(folder)
    older = sorted(number for number in numbered if number <= step)  # later ones are of an earlier run
    best = next((number for number in sorted(numbered, reverse=True) if is_best(numbered[number])), None)
    for number in older[:-keep]:
        if number != best:
            _remove(numbered[number])


def _remove(path: Path) -> None:
    """Remove a checkpoint: renamed first, so that no part of it is taken for one. An error must not fail the save."""
    try:
        away = path.rename(temporary_name(path.with_name(path.name.removesuffix(REPLACED))))
        shutil.rmtree(away)
    except OSError as error:
        checks.warn(f"checkpoint {path} could not be removed: {one_line(error)}")
