"""Run the same code in one process or in many, started by torchrun."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

# Short on the CPU: with the default of 30 minutes the others would hang after one process is killed.
_PATIENCE = {"gloo": timedelta(seconds=60), "nccl": timedelta(minutes=10)}


class ProcessLost(RuntimeError):
    """Raised when another process of the group is gone."""


@dataclass(frozen=True)
class World:
    """This process's rank, the number of processes, and its device."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Return whether this is the main process, which writes and prints."""
        return self.rank == 0

    def all_sum(self, *values: float) -> list[float]:
        """Sum each value over the processes."""
        if self.size == 1:
            return list(values)
        together = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(together)
        return together.tolist()

    def broadcast_text(self, text: str) -> str:
        """Return the main process's text in all processes."""
        if self.size == 1:
            return text
        texts = [text]
        dist.broadcast_object_list(texts, 0, device=self.device)
        return texts[0]

    def broadcast_buffers(self, module: nn.Module) -> None:
        """Broadcast the main process's buffers: running means differ, since each process sees its own samples."""
        if self.size > 1:
            for buffer in module.buffers():
                dist.broadcast(buffer, 0)

    def wrap_ddp(self, module: nn.Module) -> nn.Module:
        """Wrap a module so that its gradients are averaged over the processes."""
        if self.size == 1 or not any(p.requires_grad for p in module.parameters()):
            return module
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=devices)


def device_of(name: str) -> torch.device:
    """Return the device that a config names; auto: CUDA, else MPS, else the CPU. ValueError if it is missing."""
    local = int(os.environ.get("LOCAL_RANK", 0))
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind == "cuda":
        index = int(number) if number else local
        if index >= torch.cuda.device_count():
            raise ValueError(f"device={name} not found: torch finds {torch.cuda.device_count()} CUDA devices")
        return torch.device("cuda", index)
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device=mps not found")
    return torch.device(kind)


def restarts() -> int:
    """Return how often torchrun has restarted the processes."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


_groups = count()  # made by this process


def _begin(place: torch.device) -> None:
    """Initialize the process group, under a prefix of its own in torchrun's store.

    The store outlives a group: without the prefix the next group would find the addresses of the previous one.
    """
    backend = "nccl" if place.type == "cuda" else "gloo"
    options: dict[str, Any] = {"device_id": place} if place.type == "cuda" else {}
    patience = _PATIENCE[backend]
    store, rank, size = next(rendezvous("env://", timeout=patience))
    own = PrefixStore(f"hypersphere {restarts()}.{next(_groups)}", store)
    dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=patience, **options)


def _wait_for_threads() -> None:
    """Wait, a second at most, until gloo's threads have freed the tensors of their last call.

    They may outlive the group, and freeing a tensor after the interpreter has ended aborts the process
    (github.com/pytorch/pytorch/issues/190489).
    """
    for _ in range(20):
        time.sleep(0.05)  # without the GIL, which they need
        if not any(_runs_gloo(path) for path in Path("/proc/self/task").glob("*/stat")):
            return


def _runs_gloo(path: Path) -> bool:
    try:
        name, _, state = path.read_text().rpartition(") ")
    except OSError:  # the thread has ended
        return False
    return "gloo" in name and state.startswith("R")


@contextmanager
def session(device: str) -> Iterator[World]:
    """Enter the process group that torchrun has started, or run alone."""
    place = device_of(device)
    begun = dist.is_initialized()
    if begun or int(os.environ.get("WORLD_SIZE", 1)) > 1:
        if not begun:
            _begin(place)
        world = World(place, dist.get_rank(), dist.get_world_size())
    else:
        world = World(place)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    try:
        yield world
    except RuntimeError as error:
        # gloo and NCCL have no error type of their own in torch: this is the one place that reads their text
        text = " ".join(str(error).split())
        if world.size > 1 and re.search("gloo|nccl|connection|timed out", text, re.IGNORECASE):
            raise ProcessLost(f"another process is gone: {text}") from error
        raise
    finally:
        if not begun and world.size > 1:
            dist.destroy_process_group()
            _wait_for_threads()
