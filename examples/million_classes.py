"""Train a network and a head with very many classes on any number of processes, which may die and be restarted.

    torchrun --nproc-per-node 2 --max-restarts 3 examples/million_classes.py --classes 1000000 --out runs/million

The body is in DistributedDataParallel, the classes of the head are split over the processes, and a checkpoint of both
is resumed by any number of them. Images are made up: each class has a binary code, hidden in noise.
"""

import argparse
import shutil
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh

import hypersphere as hs
from hypersphere.losses import shard_head
from hypersphere.train.distributed import World, session

parser = argparse.ArgumentParser()
parser.add_argument("--classes", type=int, default=1_000_000)
parser.add_argument("--embedding", type=int, default=128, help="its size")
parser.add_argument("--batch", type=int, default=256, help="samples of a step, over all processes")
parser.add_argument("--sample", type=float, help="the share of the classes that take part in a step (default: all)")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
parser.add_argument("--out", type=Path, required=True)


def batch(step: int, options: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Make the samples of a step for all processes: a function of the step alone, so that a resumed run has them."""
    generator = torch.Generator().manual_seed(step)
    labels = torch.randint(options.classes, (options.batch,), generator=generator)
    bits = (labels.unsqueeze(1) >> torch.arange(32)) % 2 * 2.0 - 1.0
    return bits + 0.3 * torch.randn(options.batch, 32, generator=generator), labels


def main(options: argparse.Namespace, world: World) -> None:
    rank, size, device = world.rank, world.size, world.device
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, options.embedding)).to(device)
    model = world.wrap_ddp(body)
    # on the meta device, so that no process ever holds the whole weight
    head = hs.ArcFaceLoss(options.classes, options.embedding, sample=options.sample, device="meta")
    shard_head(head, init_device_mesh(device.type, (size,)))
    modules = nn.ModuleDict({"body": body, "head": head})
    optimizer = torch.optim.SGD(hs.param_groups(modules, weight_decay=5e-4), lr=0.1, momentum=0.9)

    def state() -> dict:
        return {"model": modules.state_dict(), "optimizer": get_optimizer_state_dict(modules, optimizer)}

    start = max((int(path.parent.name) for path in options.out.glob("*/.metadata")), default=0)  # written last
    if start:
        saved = state()
        try:
            dcp.load(saved, checkpoint_id=options.out / str(start))
        except dcp.CheckpointException as error:  # of a head with other classes, for example
            raise SystemExit(f"{options.out / str(start)}: {next(iter(error.failures.values()))[0]}") from None
        modules.load_state_dict(saved["model"])
        set_optimizer_state_dict(modules, optimizer, saved["optimizer"])
    for step in range(start + 1, options.steps + 1):
        x, y = (part.tensor_split(size)[rank].to(device) for part in batch(step, options))
        loss = head(model(x), y)  # of the samples of all processes
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % options.every == 0 or step == options.steps:
            dcp.save(state(), checkpoint_id=options.out / str(step))
            if rank == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
                shutil.rmtree(options.out / str(step - options.every), ignore_errors=True)


if __name__ == "__main__":
    with session("auto") as world:  # torchrun's process group; after a restart it does not meet the previous one
        main(parser.parse_args(), world)
