"""A training that is killed, whose checkpoints are damaged or whose disk is full still ends with the same weights."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest

from hypersphere.train import derive, fit
from hypersphere.train.config import to_tree
from hypersphere.train.storage import checkpoint
from tests.runs import at_forward, same_run, stopped, tiny

ROOT = Path(__file__).parents[1]

# torch is imported once; every training is a child that the parent forks, which has no threads then.
SERVER = """
import json, os, random, resource, signal, sys, threading, time
import torch
torch.set_num_threads(1)
from hypersphere.train import checkpoint, fit
from hypersphere.train.config import from_tree
from tests import runs

def child(work):
    number = os.fork()
    if number == 0:
        code = 1
        try:
            work()
            code = 0
        except OSError as error:
            os.write(1, json.dumps({"error": str(error)}).encode() + b"\\n")
        except BaseException as error:
            os.write(1, json.dumps({"failed": repr(error)}).encode() + b"\\n")
        finally:
            os._exit(code)
    return number

def say(**what):
    os.write(1, json.dumps(what).encode() + b"\\n")

orders = json.loads(sys.stdin.read())
"""

# A training tells of its lines, flushes and renames; it is killed after a number of them, whatever time they take.
KILL = """
draw = random.Random(orders["seed"])
kills, run = 0, 0

def telling(function, tell):
    return lambda *given: (os.write(tell, b"."), function(*given))[1]

def train(config, tell):
    os.fsync, os.rename = telling(os.fsync, tell), telling(os.rename, tell)
    fit(config, callbacks=[lambda *_: os.write(tell, b".")], progress=False)

while kills < orders["kills"]:
    tree = orders["configs"][run % len(orders["configs"])]
    config = from_tree({**tree, "resume": True, "out": f"{orders['folder']}/{run}"})
    while True:
        heard, tell = os.pipe()
        number = child(lambda: train(config, tell))
        os.close(tell)
        left = draw.randrange(orders["places"]) if kills < orders["kills"] else -1
        while left and (some := os.read(heard, max(left, 1))):
            left -= len(some)
        if left == 0:
            os.kill(number, signal.SIGKILL)  # which has not been waited for, and so is there
        _, status = os.waitpid(number, 0)
        os.close(heard)
        if os.WIFSIGNALED(status):
            kills += 1
            folder = f"{config.out}/checkpoints"
            found = [each for each in os.listdir(folder) if each.isdigit()] if os.path.isdir(folder) else []
            problems = [line for each in found for line in checkpoint.verify(f"{folder}/{each}")]
            say(killed=run, steps=max(map(int, found), default=0), problems=problems)
        else:
            say(ended=run, code=os.WEXITSTATUS(status))
            break
    run += 1
"""

DISK = """
for order in orders:
    config = from_tree(order["config"])

    def callback(model, step, line, order=order):
        if step == order["step"] and line["split"] == order["split"]:
            while any(each.name == "hypersphere checkpoint" for each in threading.enumerate()):
                time.sleep(0.01)  # the checkpoint before is whole
            resource.setrlimit(resource.RLIMIT_FSIZE, (order["bytes"], order["bytes"]))

    os.waitpid(child(lambda: fit(config, callbacks=[callback], progress=False)), 0)
    say(ended=config.out)
"""


def server(body, orders):
    """What the server says, line by line."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command, said = [sys.executable, "-c", SERVER + body], b""
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, env=environment
        ) as process,
    ):
        try:
            process.stdin.write(json.dumps(orders).encode())
            process.stdin.close()
            # Not so many seconds in all: it is at work as long as it says something.
            while select.select([process.stdout], [], [], 300)[0] and (some := os.read(process.stdout.fileno(), 4096)):
                said += some
            code = process.wait(timeout=300)
        finally:
            process.kill()
        errors.seek(0)
        assert code == 0, errors.read().decode()
    return [json.loads(line) for line in said.splitlines()]


PLAIN = {"steps": 20, "checkpoint_every": 2, "optimizer.name": "adam", "data.validation": 30, "optimizer.lr": 0.03}
SAMPLED = {"steps": 20, "checkpoint_every": 3, "rotation.sample": 4, "rotation.inner": 4, "energy.minibatch": 4}
ANGULAR = {"steps": 20, "eval_every": 2, "loss.name": "a_softmax", "model.name": "cnn3", "model.widths": (4, 4, 6)}


def test_killed_at_thirty_points(tmp_path):
    configs = [tiny(**changes) for changes in (PLAIN, SAMPLED, ANGULAR)]
    whole = [fit(derive(config, out=str(tmp_path / f"whole{i}")), progress=False) for i, config in enumerate(configs)]
    orders = {
        "seed": 0,
        "kills": 30,
        "folder": str(tmp_path),
        "configs": [to_tree(config) for config in configs],
        "places": 40,  # a whole run has 57 to 82
    }
    said = server(KILL, orders)
    kills = [line for line in said if "killed" in line]
    ends = [line for line in said if "ended" in line]
    assert len(kills) == 30
    assert [line for line in said if "failed" in line or "error" in line] == []
    assert [line["problems"] for line in kills if line["problems"]] == []
    assert len({line["steps"] for line in kills}) > 3  # they were killed at different places
    assert {line["code"] for line in ends} == {0}
    for line in ends:
        same_run(whole[line["ended"] % 3].path, tmp_path / str(line["ended"]))


ALONE = """
import sys
import torch
torch.set_num_threads(1)
from hypersphere.train import fit
from tests.runs import tiny
workers = {"data.workers": 2, "data.name": "slow_digits"}
fit(tiny(out=sys.argv[1], steps=100_000, eval_every=100_000, log_every=1, **workers), progress=False)
"""


# The first worker of a later epoch sends the signal when it has torch's handlers and not yet its own.
STARTING = """
import os, pathlib, sys
from hypersphere.data import sampling
prepare = sampling._leave_signals_to_the_parent
def signal_first(worker):
    history = pathlib.Path(sys.argv[1], "metrics.jsonl")
    if worker == 0 and history.exists() and history.read_bytes().count(b"\\n") > 4:
        os.killpg(0, int(sys.argv[2]))
    prepare(worker)
sampling._leave_signals_to_the_parent = signal_first
"""


@pytest.mark.parametrize("script", [ALONE, STARTING + ALONE], ids=["running", "starting"])
@pytest.mark.parametrize(("which", "code"), [(signal.SIGINT, -2), (signal.SIGTERM, 143)])
def test_a_signal_to_the_process_and_its_workers(which, code, script, tmp_path):
    """Ctrl-C goes to all processes of a terminal, and batch systems end all of a job."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, str(tmp_path / "run"), str(int(which))]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    history = tmp_path / "run" / "metrics.jsonl"
    try:
        deadline = time.monotonic() + 100
        while not (history.exists() and history.read_bytes().count(b"\n") > 4):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        if script == ALONE:
            os.killpg(process.pid, which)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, errors.decode()
    assert int(checkpoint.latest(tmp_path / "run" / "checkpoints").name) >= 4


# ------------------------------------------------------------------------------------------------------- damage


def cut(path):
    os.truncate(path / "tensors.safetensors", (path / "tensors.safetensors").stat().st_size // 2)


def cut_state(path):
    os.truncate(path / "state.json", (path / "state.json").stat().st_size // 2)


def flip(path):
    data = bytearray((path / "tensors.safetensors").read_bytes())
    data[-3] ^= 1
    (path / "tensors.safetensors").write_bytes(data)


def empty(path):
    for each in path.iterdir():
        each.unlink()


@pytest.mark.parametrize(("damage", "how_many"), [(cut, 1), (cut_state, 1), (flip, 1), (empty, 1), (cut, 2)])
def test_damaged_checkpoints_are_passed_over(tmp_path, damage, how_many):
    """The newest, and the two newest."""
    config = tiny(checkpoint_every=2, keep=3)
    whole, parts = (derive(config, out=str(tmp_path / name)) for name in ("whole", "parts"))
    fit(whole, progress=False)
    assert stopped(parts, at_forward(7)) == 7
    folder = Path(parts.out) / "checkpoints"
    newest = sorted(folder.iterdir(), key=lambda each: -int(each.name))
    assert [int(each.name) for each in newest] == [7, 6, 4]
    for each in newest[:how_many]:
        damage(each)
    with pytest.warns(UserWarning, match=f"{newest[0].name}"):
        fit(derive(parts, resume=True), progress=False)
    same_run(whole.out, parts.out)
    assert all(checkpoint.verify(each) == [] for each in folder.iterdir())


def test_a_run_none_of_whose_checkpoints_can_be_read_is_left_as_it_is(tmp_path):
    config = tiny(out=str(tmp_path), checkpoint_every=2)
    stopped(config, at_forward(7))
    folder = tmp_path / "checkpoints"
    for each in folder.iterdir():
        cut(each)
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    with (
        warnings.catch_warnings(action="error"),  # one line says it
        pytest.raises(ValueError, match=r"none of the checkpoints can be read, .*/7/.*to start over"),
    ):
        fit(derive(config, resume=True), progress=False)
    assert before == {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}


def test_a_damaged_best_checkpoint_is_said(tmp_path):
    config = tiny(out=str(tmp_path), eval_every=2, keep=1, **{"data.validation": 30, "optimizer.lr": 0.5})
    stopped(config, at_forward(7))
    folder = tmp_path / "checkpoints"
    best = checkpoint.best_of(folder)
    assert int(best.name) < 7
    cut(best)
    with (
        pytest.warns(UserWarning, match="best checkpoint is missing"),
        pytest.warns(UserWarning, match="skipping damaged"),
    ):
        result = fit(derive(config, resume=True), progress=False)
    assert result.summary["best_step"] >= 8


# ------------------------------------------------------------------------------------------------------- full disk

WIDE = {"model.widths": (48, 48), "checkpoint_every": 4, "keep": 3, "log_every": 1}
HELD = {**WIDE, "data.validation": 30}
# from the line of this step and split on no file can grow beyond so many bytes; the file that is named then
DISKS = {
    "checkpoint": (WIDE, 6, "train", 16384, "checkpoints/8"),
    "history": (WIDE, 6, "train", 300, "metrics.jsonl"),
    "final": (HELD, 12, "test", 8192, "final/model.safetensors"),
    "start": (WIDE, 0, "train", 10, "metrics.jsonl"),
}


@pytest.fixture(scope="module")
def full_disks(tmp_path_factory):
    """Every training of DISKS, which its disk has stopped, and what it said."""
    folder = tmp_path_factory.mktemp("disks")
    configs = {name: tiny(out=str(folder / name), **case[0]) for name, case in DISKS.items()}
    orders = [
        {"config": to_tree(config), "step": DISKS[name][1], "split": DISKS[name][2], "bytes": DISKS[name][3]}
        for name, config in configs.items()
    ]
    said = server(DISK, orders)
    assert [list(line) for line in said] == [["error"], ["ended"]] * len(DISKS)
    return {name: (config, said[2 * i]["error"]) for i, (name, config) in enumerate(configs.items())}


@pytest.mark.parametrize("name", DISKS)
def test_a_full_disk(name, full_disks, tmp_path):
    config, _ = full_disks[name]
    path = Path(config.out)
    assert not (path / "result.json").exists()
    folder = path / "checkpoints"
    left = sorted(folder.iterdir()) if folder.exists() else []
    assert [checkpoint.verify(each) for each in left] == [[]] * len(left)
    assert bool(left) == (name != "start")
    fit(derive(config, resume=True), progress=False)
    whole = fit(tiny(out=str(tmp_path), **DISKS[name][0]), progress=False)
    same_run(whole.path, path)


@pytest.mark.parametrize("name", DISKS)
def test_a_full_disk_is_said_in_a_line(name, full_disks):
    config, error = full_disks[name]
    assert "\n" not in error
    assert "File too large" in error
    assert f"{config.out}/{DISKS[name][4]}" in error
