"""The folder of a run: whose it is, what it may hold besides, and that one process trains there at a time."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hypersphere.train.config import derive
from hypersphere.train.distributed import World
from hypersphere.train.storage import folder
from tests.runs import one_line, quiet, tiny


def test_what_is_somebody_else_s_is_left_alone(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert "unknown setting 'model_type'" in one_line(tiny(out=str(tmp_path)))
    (tmp_path / "model.safetensors").write_text("w")
    assert "is not a run folder (contains model.safetensors)" in one_line(tiny(out=str(tmp_path)))
    assert (tmp_path / "config.json").read_text() == '{"model_type": "bert"}'


def test_notes_in_the_folder_of_a_run_do_not_keep_it_from_going_on(tmp_path):
    quiet(tiny(out=str(tmp_path), steps=6))
    (tmp_path / "notes.txt").write_text("mine")
    assert quiet(tiny(out=str(tmp_path), steps=12, resume=True)).summary.step == 12
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_is_one_process_s_at_a_time(tmp_path):
    config = tiny(out=str(tmp_path))
    with folder.locked(config, World(torch.device("cpu"))):
        assert one_line(config) == f"out={tmp_path}: another process is training there"
    assert quiet(config).summary.step == 12
    assert not (tmp_path / ".lock").exists()


def test_what_another_process_trains_is_not_read(tmp_path, monkeypatch):
    """Its checkpoints come and go: whoever reads them finds one that is gone, or goes on from an old one."""
    config = tiny(out=str(tmp_path), steps=6, resume=True)
    quiet(config)
    (tmp_path / "result.json").unlink()  # as if it were at step 6 of more
    monkeypatch.setattr("hypersphere.train.training.Training.resume", lambda *_: pytest.fail("it was read"))
    with folder.locked(config, World(torch.device("cpu"))):
        assert one_line(derive(config, steps=12)) == f"out={tmp_path}: another process is training there"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_a_worker_ends_with_its_parent():
    """Also if the parent is killed and cannot tell it."""
    worker = "import time; from hypersphere.train.processes import serve; serve(lambda request: time.sleep(300))"
    parent = (
        "import json, os, subprocess, sys, time\n"
        f"worker = subprocess.Popen([sys.executable, '-c', {worker!r}], stdin=subprocess.PIPE, text=True)\n"
        "worker.stdin.write(json.dumps({'threads': 1, 'parent': os.getpid()}))\n"
        "worker.stdin.close()\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(300)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    begin = time.monotonic()
    while is_alive(pid) and time.monotonic() - begin < 120:
        time.sleep(0.1)
    assert not is_alive(pid)


def is_alive(pid):
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"  # a process that nobody has waited for
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_run_cannot_be_made_shorter(tmp_path):
    quiet(tiny(out=str(tmp_path), steps=9))
    assert "is already at step 9, beyond the requested 5" in one_line(tiny(out=str(tmp_path), steps=5, resume=True))
    assert json.loads((tmp_path / "config.json").read_text())["steps"] == 9


def test_a_folder_that_became_another_run_s_meanwhile_is_left_alone(tmp_path, monkeypatch):
    from hypersphere.train import splits

    load = splits.load

    def slow(*given, **options):
        monkeypatch.setattr(splits, "load", load)
        quiet(tiny(out=str(tmp_path), seed=1))
        return load(*given, **options)

    monkeypatch.setattr(splits, "load", slow)
    assert "already holds a run" in one_line(tiny(out=str(tmp_path), seed=2))
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 1
    assert json.loads((tmp_path / "result.json").read_text())["seed"] == 1
