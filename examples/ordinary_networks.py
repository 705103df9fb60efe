"""Compare spherize with and without its default scale on ordinary networks: the table of docs/layers.md.

    python examples/ordinary_networks.py --data DIR [--seeds 3]

Fashion-MNIST (DIR/FashionMNIST/raw), 6,000 training images, 2 epochs, batch 64, accuracy on 2,000 test images.
A quarter of an hour on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hypersphere as hs


def cnn(batch_norm: bool) -> nn.Module:
    layers: list[nn.Module] = []
    for channels, filters in ((1, 16), (16, 32)):
        norm = [nn.BatchNorm2d(filters)] if batch_norm else []
        layers += [nn.Conv2d(channels, filters, 3, padding=1), *norm, nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1568, 64), nn.ReLU(), nn.Linear(64, 10))


def mlp() -> nn.Module:
    hidden = (nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(128, 10))


def deep_cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for i in range(9):
        layers += [nn.Conv2d(16 if i else 1, 16, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if i % 3 == 2 else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(144, 10))


class Residual(nn.Module):
    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False), nn.BatchNorm2d(filters)
        self.conv2, self.norm2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False), nn.BatchNorm2d(filters)
        narrow = nn.Sequential(nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))
        self.shortcut = nn.Identity() if channels == filters else narrow

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet() -> nn.Module:
    root = (nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    units = (Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2))
    return nn.Sequential(*root, *units, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """16 patches of 7 × 7 pixels."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed, self.position = nn.Linear(49, width), nn.Parameter(0.02 * torch.randn(1, 16, width))
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = x.unfold(2, 7, 7).unfold(3, 7, 7).reshape(len(x), 16, 49)
        return self.head(self.norm(self.blocks(self.embed(patches) + self.position)).mean(1))


def layer_norm() -> nn.Module:
    first = (nn.Linear(784, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU())
    return nn.Sequential(nn.Flatten(), *first, nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 10))


def cnn_1d() -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten(1, 2)]  # a row is a channel
    for channels in (28, 64):
        layers += [nn.Conv1d(channels, 64, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(448, 64), nn.ReLU(), nn.Linear(64, 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "two Conv-BN-ReLU-pool, Linear(1568, 64), Linear(64, 10)": partial(cnn, True),
    "the same without BN": partial(cnn, False),
    "MLP 784-256-128-10": mlp,
    "nine 16-filter convolutions without BN": deep_cnn,
    "ResNet, three units of 16, 32, 64 filters, BN": resnet,
    "Transformer, two blocks of width 64: its MLPs and embedding": Transformer,
    "MLP with LayerNorm and GELU": layer_norm,
    "1-d CNN, two Conv1d of 64 filters": cnn_1d,
}
OPTIMIZERS = {"SGD": partial(torch.optim.SGD, lr=0.05, momentum=0.9), "Adam": partial(torch.optim.Adam, lr=1e-3)}
LAYERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda network: network,
    "scale=None": partial(hs.spherize, scale=None),
    'scale="auto"': hs.spherize,
}
Images = tuple[Tensor, Tensor]


def load(root: str, split: str, size: int) -> Images:
    data = hs.data.load("fashion_mnist", root, split)
    return (data.inputs[:size] / 255 - 0.286) / 0.353, data.labels[:size]


def accuracy(
    network: nn.Module, make_optimizer: Callable[..., torch.optim.Optimizer], seed: int, sets: list[Images]
) -> float:
    (images, labels), (test_images, test_labels) = sets
    optimizer, order = make_optimizer(network.parameters()), torch.Generator().manual_seed(seed)
    for _ in range(2):
        for batch in torch.randperm(len(labels), generator=order).split(64):
            optimizer.zero_grad()
            F.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()
    network.eval()
    with torch.no_grad():
        right = torch.cat([network(part).argmax(1) for part in test_images.split(500)]) == test_labels
    return 100 * right.float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="holds FashionMNIST/raw; default: HYPERSPHERE_DATA")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sets = [load(options.data, "train", 6000), load(options.data, "test", 2000)]
    print(f"| network | optimizer | {' | '.join(LAYERS)} |\n|---|---|{'---|' * len(LAYERS)}")
    for name, make in NETWORKS.items():
        for optimizer, make_optimizer in OPTIMIZERS.items():
            cells = []
            for convert in LAYERS.values():
                values = []
                for seed in range(options.seeds):
                    torch.manual_seed(seed)
                    values.append(accuracy(convert(make()), make_optimizer, seed, sets))
                cells.append(f"{sum(values) / len(values):.1f}")
            print(f"| {name} | {optimizer} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
