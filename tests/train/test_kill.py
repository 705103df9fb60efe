"""A training that is killed, whose checkpoints are damaged or whose disk is full still ends with the same weights."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

from hypersphere.train import derive, fit
from hypersphere.train.config import to_tree
from hypersphere.train.storage import checkpoint
from tests.runs import at_forward, checkpoint_problems, same_run, stopped, tiny

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

# torch is imported once; every training is a child that the parent forks, which has no threads then.
SERVER = """
import json, os, pathlib, random, resource, signal, sys, threading, time
import torch, torch._dynamo  # which the first step of an optimizer imports
torch.set_num_threads(1)
from hypersphere.train import fit
from hypersphere.train.storage import checkpoint
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
            say(error=str(error))
        except BaseException as error:
            say(failed=repr(error))
        finally:
            os._exit(code)
    return number

def say(**what):
    os.write(1, json.dumps(what | {"part": part}).encode() + b"\\n")

everything = json.loads(sys.stdin.read())
"""

# A training tells of its lines, flushes and renames; it is killed after a number of them, whatever time they take.
KILL = """
part, orders = "kill", everything["kill"]
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
            found = [entry for entry in os.listdir(folder) if entry.isdigit()] if os.path.isdir(folder) else []
            problems = [line for entry in found for line in runs.checkpoint_problems(f"{folder}/{entry}")]
            say(killed=run, steps=max(map(int, found), default=0), problems=problems)
        else:
            say(ended=run, code=os.WEXITSTATUS(status))
            break
    run += 1
"""

DISK = """
part = "disk"
for order in everything["disk"]:
    config = from_tree(order["config"])

    def callback(model, step, line, order=order):
        if step == order["step"] and line["split"] == order["split"]:
            while any(entry.name.startswith("hypersphere checkpoint") for entry in threading.enumerate()):
                time.sleep(0.01)  # the checkpoint before is whole
            resource.setrlimit(resource.RLIMIT_FSIZE, (order["bytes"], order["bytes"]))

    os.waitpid(child(lambda: fit(config, callbacks=[callback], progress=False)), 0)
    say(ended=config.out)
"""


# To the whole group of a training: while its workers run, or from the first worker of a later epoch when it has
# torch's handlers and not yet its own.
SIGNALS = """
from hypersphere.data import batching
part = "signals"
ignore = batching._ignore_signals

def is_under_way(folder):
    history = pathlib.Path(folder, "metrics.jsonl")
    return history.exists() and history.read_bytes().count(b"\\n") > 4

def train(config, number, starting):
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def signal_first(worker):
        if worker == 0 and is_under_way(config.out):
            os.killpg(0, number)
        ignore(worker)

    if starting:
        batching._ignore_signals = signal_first
    fit(config, progress=False)

for order in everything["signals"]:
    config = from_tree(order["config"])
    number = child(lambda: train(config, order["number"], order["starting"]))
    while not order["starting"] and not is_under_way(config.out):
        assert os.waitpid(number, os.WNOHANG) == (0, 0)
        time.sleep(0.02)
    if not order["starting"]:
        os.killpg(number, order["number"])
    os.waitpid(number, 0)
    say(ended=order["name"])
"""


def serve(orders):
    """What the server says of each part, line by line."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command, said = [sys.executable, "-c", SERVER + KILL + DISK + SIGNALS], b""
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
    found = {part: [] for part in orders}
    for line in map(json.loads, said.splitlines()):
        found[line.pop("part")].append(line)
    return found


PLAIN = {"steps": 20, "checkpoint_every": 2, "optimizer.name": "adam", "data.validation": 30, "optimizer.lr": 0.03}
SAMPLED = {"steps": 20, "checkpoint_every": 3, "rotation.sample": 4, "rotation.every": 4, "energy.minibatch": 4}
ANGULAR = {"steps": 20, "eval_every": 2, "loss.name": "a_softmax", "model.name": "cnn3", "model.widths": (4, 4, 6)}
KILLED = (PLAIN, SAMPLED, ANGULAR)
WIDE = {"model.widths": (48, 48), "checkpoint_every": 4, "keep": 3, "log_every": 1}
HELD = {**WIDE, "data.validation": 30}
# from the line of this step and split on no file can grow beyond so many bytes; the file that is named then
DISKS = {
    "checkpoint": (WIDE, 6, "train", 16384, "checkpoints/8"),
    "history": (WIDE, 6, "train", 300, "metrics.jsonl"),
    "final": (HELD, 12, "test", 8192, "final/model.safetensors"),
    "start": (WIDE, 0, "train", 10, "metrics.jsonl"),
}


def signalled(which, starting):
    return f"{signal.Signals(which).name} {'starting' if starting else 'running'}"


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """The folder of all trainings that are killed, and what was said of them."""
    folder = tmp_path_factory.mktemp("killed")
    long = {"steps": 100_000, "eval_every": 100_000, "log_every": 1, "data.workers": 2, "data.name": "slow_digits"}
    signals = [(which, starting) for which in (signal.SIGINT, signal.SIGTERM) for starting in (False, True)]
    orders = {
        "kill": {
            "seed": 0,
            "kills": 24,
            "folder": str(folder),
            "configs": [to_tree(tiny(**changes)) for changes in KILLED],
            "places": 40,  # a whole run has 57 to 82
        },
        "disk": [
            {"config": to_tree(tiny(out=str(folder / name), **changes)), "step": step, "split": split, "bytes": size}
            for name, (changes, step, split, size, _) in DISKS.items()
        ],
        "signals": [
            {
                "name": signalled(which, starting),
                "config": to_tree(tiny(out=str(folder / signalled(which, starting)), **long)),
                "number": which,
                "starting": starting,
            }
            for which, starting in signals
        ],
    }
    return folder, serve(orders)


def test_killed_at_many_points(tmp_path, said):
    configs = [tiny(**changes) for changes in KILLED]
    whole = [fit(derive(config, out=str(tmp_path / f"whole{i}")), progress=False) for i, config in enumerate(configs)]
    folder, lines = said
    said = lines["kill"]
    kills = [line for line in said if "killed" in line]
    ends = [line for line in said if "ended" in line]
    assert len(kills) == 24
    assert [line for line in said if "failed" in line or "error" in line] == []
    assert [line["problems"] for line in kills if line["problems"]] == []
    assert len({line["steps"] for line in kills}) > 3  # they were killed at different places
    assert {line["code"] for line in ends} == {0}
    for line in ends:
        same_run(whole[line["ended"] % 3].path, folder / str(line["ended"]))


@pytest.mark.parametrize("starting", [False, True], ids=["running", "starting"])
@pytest.mark.parametrize(
    ("which", "raised"), [(signal.SIGINT, "KeyboardInterrupt()"), (signal.SIGTERM, "SystemExit(143)")]
)
def test_a_signal_to_the_process_and_its_workers(which, raised, starting, said):
    """Ctrl-C goes to all processes of a terminal, and batch systems end all of a job."""
    folder, lines = said
    name = signalled(which, starting)
    at = next(i for i, line in enumerate(lines["signals"]) if line.get("ended") == name)
    assert lines["signals"][at - 1].get("failed") == raised, lines["signals"]
    assert int(checkpoint.latest(folder / name / "checkpoints").name) >= 4


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
    for entry in path.iterdir():
        entry.unlink()


@pytest.mark.parametrize(("damage", "how_many"), [(cut, 1), (cut_state, 1), (flip, 1), (empty, 1), (cut, 2)])
def test_damaged_checkpoints_are_passed_over(tmp_path, damage, how_many):
    """The newest, and the two newest."""
    config = tiny(checkpoint_every=2, keep=3)
    whole, parts = (derive(config, out=str(tmp_path / name)) for name in ("whole", "parts"))
    fit(whole, progress=False)
    assert stopped(parts, at_forward(7)) == 7
    folder = Path(parts.out) / "checkpoints"
    newest = sorted(folder.iterdir(), key=lambda entry: -int(entry.name))
    assert [int(entry.name) for entry in newest] == [7, 6, 4]
    for entry in newest[:how_many]:
        damage(entry)
    with pytest.warns(UserWarning, match=f"{newest[0].name}"):
        fit(derive(parts, resume=True), progress=False)
    same_run(whole.out, parts.out)
    assert all(checkpoint_problems(entry) == [] for entry in folder.iterdir())


def test_a_run_none_of_whose_checkpoints_can_be_read_is_left_as_it_is(tmp_path):
    config = tiny(out=str(tmp_path), checkpoint_every=2)
    stopped(config, at_forward(7))
    folder = tmp_path / "checkpoints"
    for entry in folder.iterdir():
        cut(entry)
    before = {entry: entry.read_bytes() for entry in tmp_path.rglob("*") if entry.is_file()}
    with (
        warnings.catch_warnings(action="error"),  # one line says it
        pytest.raises(ValueError, match=r"none of the checkpoints can be read, .*/7/.*to start over"),
    ):
        fit(derive(config, resume=True), progress=False)
    assert before == {entry: entry.read_bytes() for entry in tmp_path.rglob("*") if entry.is_file()}


def test_a_damaged_best_checkpoint_is_said(tmp_path):
    config = tiny(out=str(tmp_path), eval_every=2, keep=1, **{"data.validation": 30, "optimizer.lr": 0.5})
    stopped(config, at_forward(7))
    folder = tmp_path / "checkpoints"
    best = checkpoint.latest(folder, best=True)
    assert int(best.name) < 7
    cut(best)
    with (
        pytest.warns(UserWarning, match="best checkpoint is missing"),
        pytest.warns(UserWarning, match="skipping damaged"),
    ):
        result = fit(derive(config, resume=True), progress=False)
    assert result.summary.best_step >= 8


# ------------------------------------------------------------------------------------------------------- full disk


@pytest.fixture
def full_disk(said, name):
    """The config of a training of DISKS, which its disk has stopped, and what it said."""
    folder, lines = said
    assert [set(line) for line in lines["disk"]] == [{"error"}, {"ended"}] * len(DISKS)
    error = lines["disk"][2 * list(DISKS).index(name)]["error"]
    return tiny(out=str(folder / name), **DISKS[name][0]), error


@pytest.mark.parametrize("name", DISKS)
def test_a_full_disk(name, full_disk, tmp_path):
    config, _ = full_disk
    path = Path(config.out)
    assert not (path / "result.json").exists()
    folder = path / "checkpoints"
    left = sorted(folder.iterdir()) if folder.exists() else []
    assert [checkpoint_problems(entry) for entry in left] == [[]] * len(left)
    assert bool(left) == (name != "start")
    fit(derive(config, resume=True), progress=False)
    whole = fit(tiny(out=str(tmp_path), **DISKS[name][0]), progress=False)
    same_run(whole.path, path)


@pytest.mark.parametrize("name", DISKS)
def test_a_full_disk_is_said_in_a_line(name, full_disk):
    config, error = full_disk
    assert "\n" not in error
    assert "File too large" in error
    assert f"{config.out}/{DISKS[name][4]}" in error
