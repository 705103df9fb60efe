"""accelerate: the body in its DistributedDataParallel, the head split by classes.

torchrun --nproc-per-node 2 examples/sharded_head_accelerate.py --steps 100
"""

import argparse

import accelerate
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import hypersphere as hs
from hypersphere.losses import shard_head

parser = argparse.ArgumentParser()
parser.add_argument("--classes", type=int, default=100_000)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--cpu", action="store_true")


def main() -> None:
    options = parser.parse_args()
    accelerator = accelerate.Accelerator(cpu=options.cpu)
    accelerate.utils.set_seed(0)
    body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    head = shard_head(hs.AMSoftmaxLoss(options.classes, 32, device="meta"), mesh)  # not given to prepare: it is split
    optimizer = torch.optim.AdamW(hs.param_groups(nn.ModuleList([body, head]), weight_decay=0.01), lr=1e-3)
    labels = torch.randint(options.classes, (64 * options.steps * accelerator.num_processes,))
    inputs = (labels.unsqueeze(1) >> torch.arange(32)) % 2 * 2.0 - 1.0  # the code of the class
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, labels), batch_size=64)
    model, optimizer, loader = accelerator.prepare(body, optimizer, loader)
    for x, y in loader:
        loss = head(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    accelerator.print(f"loss {loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
