"""The examples of heads whose classes are split run, at tiny size, in two processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
TORCHRUN += ["--rdzv-endpoint", "localhost:0"]
TINY = ["--classes", "50", "--steps", "12"]
#: what torchrun would tell one process alone; Lightning starts its own processes only without it
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}


def run(*command: str, **environment: str) -> str:
    done = finished(*command, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def finished(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, *command)
    environment = os.environ | environment
    return subprocess.run(command, cwd=EXAMPLES.parent, env=environment, capture_output=True, text=True, timeout=300)


def losses(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"loss (\d+\.\d+)$", text, re.MULTILINE)]


def test_million_classes_resumes_with_another_number_of_processes(tmp_path: Path) -> None:
    command = [str(EXAMPLES / "million_classes.py"), "--classes", "50", "--embedding", "8", "--batch", "16"]
    command += ["--sample", "0.5", "--every", "4", "--out", str(tmp_path)]
    assert len(losses(run(*TORCHRUN, *command, "--steps", "8"))) == 2
    assert len(losses(run(*command, "--steps", "12", **ALONE))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["12"]
    command[command.index("50")] = "51"
    wrong = finished(*command, **ALONE)
    line = f"{tmp_path}/12: Size mismatch between saved torch.Size([50, 8]) and current: torch.Size([51, 8])"
    assert wrong.returncode != 0
    assert wrong.stderr.count(line) == 1, wrong.stderr


def test_fsdp2() -> None:
    assert len(losses(run(*TORCHRUN, str(EXAMPLES / "sharded_head_fsdp2.py"), *TINY))) == 1


def test_accelerate() -> None:
    assert len(losses(run(*TORCHRUN, str(EXAMPLES / "sharded_head_accelerate.py"), "--cpu", *TINY))) == 1


def test_lightning() -> None:
    command = [str(EXAMPLES / "sharded_head_lightning.py"), "--accelerator", "cpu"]
    assert len(losses(run(*command, "--classes", "50", "--steps", "6"))) == 1
