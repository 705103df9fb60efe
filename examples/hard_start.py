"""Train a start that plain training hardly leaves, with each idea: the table of docs/layers.md.

    python examples/hard_start.py --data DIR [--seeds 3]

MNIST (DIR/MNIST/raw), 4,000 training images, 2 epochs, accuracy on 2,000 test images. Four minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hypersphere as hs


def network() -> nn.Module:
    layers: list[nn.Module] = []
    for i in range(5):
        layers += [nn.Conv2d(16 if i else 1, 16, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if i in (1, 3) else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 49, 10))


METHODS: dict[str, Callable[[nn.Module], object]] = {
    "plain": lambda net: None,
    "`EnergyRegularizer`": hs.EnergyRegularizer,
    "`rotate`": hs.rotate,
    "`spherize`": hs.spherize,
    '`spherize(exclude="0")`': partial(hs.spherize, exclude="0"),
}


def load(root: str | None, split: str, size: int) -> tuple[Tensor, Tensor]:
    data = hs.data.load("mnist", root, split)
    return (data.inputs[:size].float() / 255 - 0.1307) / 0.3081, data.labels[:size]


def accuracy(method: Callable[[nn.Module], object], seed: int, sets: list[tuple[Tensor, Tensor]]) -> float:
    (images, labels), (test_images, test_labels) = sets
    torch.manual_seed(seed)
    net, order = network(), torch.Generator().manual_seed(seed)
    energy = method(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for _ in range(2):
        for batch in torch.randperm(len(labels), generator=order).split(64):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images[batch]), labels[batch])
            (loss + energy() if isinstance(energy, hs.EnergyRegularizer) else loss).backward()
            optimizer.step()
    with torch.no_grad():
        return 100 * (net(test_images).argmax(1) == test_labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="holds MNIST/raw; default: HYPERSPHERE_DATA")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sets = [load(options.data, "train", 4000), load(options.data, "test", 2000)]
    print("| | accuracy % |\n|---|---|")
    for name, method in METHODS.items():
        print(f"| {name} | {', '.join(f'{accuracy(method, s, sets):.1f}' for s in range(options.seeds))} |", flush=True)


if __name__ == "__main__":
    main()
