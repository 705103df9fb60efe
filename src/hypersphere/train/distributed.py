"""One process or many: the same functions. Many means torchrun, which says in the environment who is who."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

# Short on the CPU: with the default of half an hour the others hang where one process is killed.
_PATIENCE = {"gloo": timedelta(seconds=60), "nccl": timedelta(minutes=10)}


class ProcessLost(RuntimeError):
    """Another process of the group is gone."""


@dataclass(frozen=True)
class World:
    """Which of how many processes this is, and its device."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def sums(self, *values: float) -> list[float]:
        """Each value summed over the processes."""
        if self.size == 1:
            return list(values)
        together = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(together)
        return together.tolist()

    def broadcast_text(self, text: str) -> str:
        """The first process's text, in all of them."""
        if self.size == 1:
            return text
        data = text.encode()
        length = torch.tensor([len(data)], device=self.device)
        dist.broadcast(length, 0)
        letters = torch.zeros(int(length), dtype=torch.uint8, device=self.device)
        if self.is_main:
            letters.copy_(torch.tensor(list(data), dtype=torch.uint8))
        dist.broadcast(letters, 0)
        return bytes(letters.tolist()).decode()

    def same_buffers(self, module: nn.Module) -> None:
        """Gives every process the first one's buffers: running means differ, since each has seen its own samples."""
        if self.size > 1:
            for buffer in module.buffers():
                dist.broadcast(buffer, 0)

    def wrapped(self, module: nn.Module) -> nn.Module:
        """The module whose gradients are averaged over the processes."""
        if self.size == 1 or not any(p.requires_grad for p in module.parameters()):
            return module
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=devices)


def device_of(name: str) -> torch.device:
    """The device that a config names; auto: CUDA, else MPS, else the CPU. ValueError if it is not there."""
    local = int(os.environ.get("LOCAL_RANK", 0))
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind == "cuda":
        index = int(number) if number else local
        if index >= torch.cuda.device_count():
            raise ValueError(f"device must be one that is there, got {name}: torch finds {torch.cuda.device_count()}")
        return torch.device("cuda", index)
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device must be one that is there, got mps: torch finds none")
    return torch.device(kind)


def restarts() -> int:
    """How often torchrun has started the processes anew."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


_groups = count()  # of this process


def _begin(place: torch.device) -> None:
    """Makes the group of processes, which finds itself by a name of its own in torchrun's store.

    That store outlives a group: under the same names another would find the addresses of the one before.
    """
    backend = "nccl" if place.type == "cuda" else "gloo"
    options: dict[str, Any] = {"device_id": place} if place.type == "cuda" else {}
    patience = _PATIENCE[backend]
    store, rank, size = next(rendezvous("env://", timeout=patience))
    own = PrefixStore(f"hypersphere {restarts()}.{next(_groups)}", store)
    dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=patience, **options)


@contextmanager
def session(device: str) -> Iterator[World]:
    """This process's place: alone, or of a group that torchrun has started."""
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
