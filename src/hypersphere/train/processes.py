"""Run tasks in processes of their own, several at a time, within a budget.

A worker is a module that ends with ``sys.exit(serve(run))``: the request is JSON on stdin, the answer JSON on stdout, a
failure one line on stderr and exit code 2.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from typing import IO, Any, Generic, Protocol, TypeVar

from .._internal.interruption import Interruptions

POLL = 0.2  # seconds between looks at the processes
WAIT = 2.0  # seconds between attempts to train in a folder that another process uses
GRACE = 60.0  # seconds that a process has to write its checkpoint


class HasName(Protocol):
    """A task with the name that messages show."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=HasName)
R = TypeVar("R")


class RunFailed(RuntimeError):
    """Raised when a task cannot be run, with its one-line reason."""


@dataclass
class Status(Generic[T]):
    """How far :func:`run_all` is, for a display."""

    total: int = 0
    done: int = 0
    running: tuple[T, ...] = ()


@dataclass(frozen=True)
class Running(Generic[T]):
    """A task in its process; `errors` is the file of its stderr, not a pipe, since a full one would block."""

    task: T
    process: subprocess.Popen[str]
    errors: IO[str]


def run_all(
    module: str,
    tasks: Sequence[T],
    request: Callable[[T], Mapping[str, Any]],
    ended: Callable[[T, Mapping[str, Any]], None],
    *,
    jobs: int = 1,
    deadline: float | None = None,
    began: Callable[[T], None] = lambda task: None,
    waits_for: Callable[[T, Sequence[T]], bool] = lambda task, left: False,
    status: Status[T] | None = None,
) -> list[T]:
    """Run each task in a process of its own and return the tasks that were not finished.

    At the deadline, or when this process is interrupted, the workers get SIGTERM, so that they can write a checkpoint.

    Args:
        module: name of the worker's module.
        request: what the worker gets, beside `threads`, how many it may use, and `parent`, this process.
        ended: receives the task and the worker's answer.
        jobs: processes at a time; each has one thread if there are several.
        deadline: of time.monotonic().
        began: receives a task when it starts.
        waits_for: whether a task must wait for one of those that are left.
        status: is kept up to date.

    Raises:
        RunFailed: if a task failed: at once if none has succeeded, as when data are missing, else after the others.
    """
    waiting, running, left, failures = [*tasks], list[Running[T]](), [*tasks], list[RunFailed]()
    status = Status() if status is None else status
    with Interruptions() as interruptions:
        try:
            while (waiting or running) and interruptions.signal is None:
                for task in [*waiting]:
                    if len(running) < jobs and not waits_for(task, left):
                        waiting.remove(task)
                        running.append(_start(module, task, request(task), jobs))
                        began(task)
                status.total, status.done = len(tasks), len(tasks) - len(left)
                status.running = tuple(worker.task for worker in running)
                time.sleep(POLL)
                for worker in [worker for worker in running if worker.process.poll() is not None]:
                    running.remove(worker)
                    left.remove(worker.task)
                    try:
                        answer = _answer(worker)
                    except RunFailed as error:
                        failures.append(error)
                        if len(failures) + len(left) == len(tasks):
                            raise
                    else:
                        ended(worker.task, answer)
                if deadline is not None and time.monotonic() > deadline:
                    break
        finally:
            for worker in running:
                with suppress(ProcessLookupError):
                    worker.process.send_signal(signal.SIGTERM)
            for worker in running:
                with worker.process, worker.errors:
                    with suppress(subprocess.TimeoutExpired):
                        worker.process.wait(GRACE)
                    worker.process.kill()
    interruptions.reraise()
    if failures:
        others = f" ({len(failures) - 1} more failed)" if len(failures) > 1 else ""
        raise RunFailed(f"{failures[0]}{others}")
    return left


def _start(module: str, task: T, request: Mapping[str, Any], jobs: int) -> Running[T]:
    threads = 1 if jobs > 1 else _threads()
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with its process
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        start_new_session=True,  # Ctrl-C reaches this process only, which then stops its workers once
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it died at once; its stderr says why
        process.stdin.write(json.dumps({**request, "threads": threads, "parent": os.getpid()}))
        process.stdin.close()
    return Running(task, process, errors)


def _threads() -> int:
    """Return OMP_NUM_THREADS, of a list its first number; without it the number of cores that this process may use."""
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if threads.isdecimal() and int(threads):
        return int(threads)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _answer(worker: Running[T]) -> Mapping[str, Any]:
    """Read the answer of a process that has ended."""
    assert worker.process.stdout is not None
    with worker.process.stdout, worker.errors:
        out = worker.process.stdout.read()
        worker.errors.seek(0)
        lines = worker.errors.read().strip().splitlines()
    if code := worker.process.returncode:
        raise RunFailed(f"{worker.task.name}: {_reason(code, lines)}")
    answer: Mapping[str, Any] = json.loads(out.strip().splitlines()[-1])
    return answer


def _reason(code: int, lines: Sequence[str]) -> str:
    """Say why a process failed: its last line, unless a signal ended it; then that line is any warning."""
    if code == -signal.SIGKILL:
        return "killed by SIGKILL; the system does this when memory runs out"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return lines[-1] if lines else f"exit code {code}"


def wait_for_lock(train: Callable[[], R]) -> R:
    """Train; wait while another process trains in the same folder."""
    from .storage.folder import LockedError

    while True:
        try:
            return train()
        except LockedError:
            time.sleep(WAIT)


def _end_with(parent: int) -> None:
    """Send SIGTERM to this process when its parent has been killed, so that it leaves a checkpoint and ends."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def serve(run: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> int:
    """Answer the request of :func:`run_all` in a worker and return the exit code."""
    import torch

    from .memory import keep_memory

    request = json.loads(sys.stdin.read())
    threading.Thread(target=_end_with, args=(request["parent"],), daemon=True).start()
    torch.set_num_threads(request["threads"])
    keep_memory()
    try:
        with redirect_stdout(sys.stderr):  # what a user's code prints is no answer
            answer = run(request)
    except (ValueError, OSError, RuntimeError) as error:
        print(" ".join(str(error).split())[:500], file=sys.stderr)
        return 2
    print(json.dumps(dict(answer)))
    return 0
