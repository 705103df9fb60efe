"""Compare plain and sphere layers on grey photos, centred and not: the table of docs/layers.md.

    python examples/grey_photos.py --data DIR [--seeds 2]

CIFAR-10 (DIR/cifar-10-batches-py or -bin) as grey images, 4,000 for training, 2 epochs, batch 64, accuracy on 2,000
test images. Ten minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from ordinary_networks import OPTIMIZERS, Images, accuracy
from torch import nn

import hypersphere as hs


def lenet() -> nn.Module:
    first = (nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2))
    hidden = (nn.LazyLinear(120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())
    return nn.Sequential(*first, nn.Flatten(), *hidden, nn.Linear(84, 10))


def wide() -> nn.Module:
    layers: list[nn.Module] = []
    for channels, filters in ((1, 16), (16, 32)):
        layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(256), nn.ReLU(), nn.Linear(256, 10))


NETWORKS = {"LeNet": lenet, "two Conv-BN-ReLU-pool, Linear(2048, 256), Linear(256, 10)": wide}
LAYERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda network: network,
    "`spherize`": hs.spherize,
    "`exclude` the first convolution": partial(hs.spherize, exclude="0"),
}


def load(root: str | None, split: str, size: int, centred: bool) -> Images:
    data = hs.data.load("cifar10", root, split)
    grey = (data.inputs[:size].float() / 255).mean(1, keepdim=True)
    return (grey - 0.5) / 0.5 if centred else grey, data.labels[:size]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="holds CIFAR-10; default: HYPERSPHERE_DATA")
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| network | pixels | optimizer | {' | '.join(LAYERS)} |\n|---|---|---|{'---|' * len(LAYERS)}")
    for name, make in NETWORKS.items():
        for centred in (False, True):
            sets = [load(options.data, "train", 4000, centred), load(options.data, "test", 2000, centred)]
            for optimizer, make_optimizer in OPTIMIZERS.items():
                cells = []
                for convert in LAYERS.values():
                    total = 0.0
                    for seed in range(options.seeds):
                        torch.manual_seed(seed)
                        network = make()
                        network(sets[0][0][:2])  # creates the lazy layer
                        total += accuracy(convert(network), make_optimizer, seed, sets)
                    cells.append(f"{total / options.seeds:.1f}")
                pixels = "[−1, 1]" if centred else "[0, 1]"
                print(f"| {name} | {pixels} | {optimizer} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
