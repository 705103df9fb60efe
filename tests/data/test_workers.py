"""Workers hand over errors in one line, ignore a SIGTERM to all processes and end with their parent."""

import multiprocessing
import os
import signal
import subprocess
import traceback
from pathlib import Path

import pytest
import torch

from hypersphere.data import batches


class Failing(torch.utils.data.Dataset):
    """Sample 5 raises."""

    def __init__(self, error=None):
        self.error, self.labels = error, torch.arange(12) % 3

    def __len__(self):
        return 12

    def __getitem__(self, i):
        if i == 5 and self.error is not None:
            raise self.error
        return torch.tensor([float(i)]), int(self.labels[i])


class TwoArguments(ValueError):
    """An error that pickle cannot rebuild."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def started(*given, **options):
    """Return the batches and the workers that make them."""
    before = set(multiprocessing.active_children())
    loaded = batches(*given, **options)
    return loaded, set(multiprocessing.active_children()) - before


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("photos/cat.png is cut"), ValueError),
        (TwoArguments("one", "two"), ValueError),
        (FileNotFoundError(2, "no file", "cat.png"), OSError),
    ],
)
def test_an_error_is_one_line_as_without_workers(error, kind):
    loaded, workers = started(Failing(error), 4, shuffle=False, workers=1)
    assert next(loaded)[0].flatten().tolist() == [0, 1, 2, 3]
    with pytest.raises(kind) as raised:
        next(loaded)
    assert str(raised.value) == str(error)
    assert "in __getitem__" in "".join(traceback.format_exception(raised.value))  # where the worker raised it
    assert len(workers) == 1
    assert not any(worker.is_alive() for worker in workers)


def test_other_errors_have_the_traceback_in_their_message():
    with pytest.raises(TypeError, match=r"in __getitem__[\s\S]*a mistake in a program"):
        list(batches(Failing(TypeError("a mistake in a program")), 4, shuffle=False, workers=1))


@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="this system does not tell who sent a signal")
def test_only_the_parent_ends_a_worker():
    loaded, (worker,) = started(Failing(), 2, shuffle=False, workers=1)
    next(loaded)
    subprocess.run(["kill", "-INT", str(worker.pid)], check=True)
    subprocess.run(["kill", "-TERM", str(worker.pid)], check=True)
    status = Path(f"/proc/{worker.pid}/status")
    while "ShdPnd:\t0000000000000000" not in status.read_text():  # the worker has not got it
        os.sched_yield()
    assert sum(len(labels) for _, labels in loaded) == 10
    loaded, (worker,) = started(Failing(), 2, shuffle=False, workers=1)
    next(loaded)
    worker.terminate()  # as multiprocessing does at exit, whoever holds the batches
    worker.join(60)
    assert worker.exitcode == 0
