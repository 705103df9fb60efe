"""Run a function in several processes on this machine, joined by gloo: with small timeouts, so that nothing hangs."""

import os
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch._dynamo  # which the first optimizer imports: here once, not in each process
import torch.distributed as dist
import torch.multiprocessing as mp

PATIENCE = 30  # seconds without an answer of another process


def _rank(rank: int, size: int, folder: str, function, arguments) -> None:
    patience = timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{size}", rank=rank, world_size=size, timeout=patience)
    torch.set_num_threads(1)
    torch.manual_seed(rank)  # nothing may depend on equal seeds
    try:
        torch.save(function(rank, size, *arguments), f"{folder}/{size}.{rank}.pt")
        dist.barrier()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    # No destructors: DDP's waits for gloo's thread while it holds the GIL, which that thread may be waiting for.
    os._exit(0)


def run(size: int, folder: Path, function, *arguments) -> list:
    """Return what function(rank, size, *arguments) returned in each of `size` processes."""
    folder.mkdir(exist_ok=True)
    mp.start_processes(_rank, (size, str(folder), function, arguments), nprocs=size, start_method="fork")
    return [torch.load(folder / f"{size}.{rank}.pt", weights_only=True) for rank in range(size)]


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
