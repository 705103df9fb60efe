"""Kill processes of examples/million_classes.py under torchrun: `python -m tests.losses.kill_ranks KILLS STEPS DIR`.

The last checkpoint is compared, bit for bit, with that of a run that nobody killed.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).parents[2]
SIZES = {"classes": 101, "embedding": 8, "batch": 16}


def launch(out: Path, steps: int, every: int, restarts: int) -> subprocess.Popen:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    command += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--monitor-interval"]
    command += ["0.2", str(ROOT / "examples/million_classes.py"), "--out", str(out)]
    options = SIZES | {"steps": steps, "every": every}
    command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
    with (out.parent / f"{out.name}.log").open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})


def workers(launcher: subprocess.Popen) -> list[int]:
    """Return the processes that torchrun has started."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    lines = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children if Path(f"/proc/{pid}").exists()}
    return [pid for pid, line in lines.items() if b"million_classes" in line]


def steps_done(out: Path) -> int:
    return max((int(path.parent.name) for path in out.glob("*/.metadata")), default=0)


def kill_often(launcher: subprocess.Popen, out: Path, kills: int, seed: int, limit: float = 90.0) -> int:
    """Kill one of two processes again and again, half of the times once it has saved a checkpoint; return how often."""
    chance, done, previous = random.Random(seed), 0, set()
    while done < kills and launcher.poll() is None:
        both = workers(launcher)
        if len(both) < 2 or previous & set(both):
            time.sleep(0.1)
            continue
        before, late = steps_done(out), time.monotonic() + limit
        if done % 2 == 0:  # in the middle of the training; otherwise at any time, while it starts too
            while steps_done(out) == before and launcher.poll() is None and time.monotonic() < late:
                time.sleep(0.05)
        time.sleep(chance.uniform(0, 2 if done % 2 == 0 else 10) if kills > 1 else 0)
        previous = set(both)
        if launcher.poll() is None and set(workers(launcher)) == previous:
            os.kill(chance.choice(both), signal.SIGKILL)
            done += 1
    return done


def final_state(out: Path, steps: int) -> list:
    path = out / "whole.pt"
    dcp_to_torch_save(out / str(steps), path)
    return tree_leaves(torch.load(path, weights_only=True))


def check(folder: Path, kills: int, steps: int, every: int, seed: int = 0, patience: float = 600.0) -> int:
    """Train twice, once with kills; assert that the results are equal to the last bit. Return the number of kills."""
    folder.mkdir(parents=True, exist_ok=True)
    done, launcher = 0, launch(folder / "killed", steps, every, restarts=kills)
    try:
        done = kill_often(launcher, folder / "killed", kills, seed)
        assert launcher.wait(patience) == 0, (folder / "killed.log").read_text()[-2000:]
        launcher = launch(folder / "alone", steps, every, restarts=0)
        assert launcher.wait(patience) == 0, (folder / "alone.log").read_text()[-2000:]
    finally:
        launcher.terminate()
    results = (final_state(folder / name, steps) for name in ("killed", "alone"))
    for got, expected in zip(*results, strict=True):
        assert torch.equal(got, expected) if isinstance(got, torch.Tensor) else got == expected
    return done


if __name__ == "__main__":
    kills, steps, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    print(f"{check(folder, kills, steps, every=50, patience=1800)} kills: equal to the last bit")
