"""A body split by FSDP2 and a head split by classes, with clipped gradients.

torchrun --nproc-per-node 2 examples/sharded_head_fsdp2.py --steps 100
"""

import argparse

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grad_norm_

import hypersphere as hs
from hypersphere.losses import shard_head
from hypersphere.train.distributed import World, session

parser = argparse.ArgumentParser()
parser.add_argument("--classes", type=int, default=100_000)
parser.add_argument("--steps", type=int, default=100)


def main(options: argparse.Namespace, world: World) -> None:
    rank, size, device = world.rank, world.size, world.device
    torch.manual_seed(0)
    mesh = init_device_mesh(device.type, (size,))
    body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).to(device)
    fully_shard(body, mesh=mesh)
    head = shard_head(hs.AMSoftmaxLoss(options.classes, 32, device="meta"), mesh)
    parameters = [*body.parameters(), *head.parameters()]  # all are DTensors of one mesh
    optimizer = torch.optim.AdamW(hs.param_groups(nn.ModuleList([body, head]), weight_decay=0.01), lr=1e-3)
    for step in range(options.steps):
        generator = torch.Generator().manual_seed(step * size + rank)
        y = torch.randint(options.classes, (64,), generator=generator)
        x = (y.unsqueeze(1) >> torch.arange(32)) % 2 * 2.0 - 1.0  # the code of the class
        loss = head(body(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(parameters, 5.0)
        optimizer.step()
    if rank == 0:
        print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    with session("auto") as world:
        main(parser.parse_args(), world)
