"""Train embeddings of faces with every loss of evenness: results/evenness_*.json, for docs/embeddings.md.

    python -m tools.compare_evenness lfw|orl labels|views ROOT    # repeat the command to go on

A batch is pairs that belong together. labels: two photos of a person, and the loss is S-Softmax of both; views: two
augmentations of one photo, nobody's name is used, and the loss is the alignment of the two. Evenness is added to it.
Everything is measured on people who were not trained on. Every loss has the same budget: four settings (weights a
factor of 10 apart; without a weight four learning rates), each trained once and compared on people of its own. The best
is trained with five seeds.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tools.compare_heads import (
    ROOT,
    SIZE,
    draw_pairs,
    make_network,
    optimize,
    read,
    run_missing,
    shuffled,
    small,
)
from torch import Tensor, nn

import hypersphere as hs

FILE = "evenness_{}_{}.json"
RATE = 8e-3
RATES = (2e-3, 4e-3, 8e-3, 1.6e-2)  # without a weight
STEPS = {"lfw": 150, "orl": 100}
PAIRS = {"lfw": 32, "orl": 16}  # of a batch
#: row of the table → measure, its options, its usual weight (from its paper, where that has one); None: without
LOSSES: dict[str, tuple[str, dict[str, Any], float] | None] = {
    "not trained": None,
    "none": None,
    "KoLeo": ("koleo", {}, 0.1),
    "uniformity": ("uniformity", {}, 1.0),
    "alignment + uniformity": ("uniformity", {}, 1.0),
    "GOR": ("gor", {}, 1.0),
    "HUG": ("hug", {}, 1.0),
    "SIGReg": ("sigreg", {"slices": 256}, 0.2),
    "sphere uniformity": ("sphere_uniformity", {"slices": 256}, 0.2),
    "energy": ("energy", {}, 1.0),
    "energy, half space": ("energy", {"half_space": True}, 1.0),
    "energy, angular": ("energy", {"angular": True}, 1.0),
}
ONLY_LABELS = ("alignment + uniformity", "HUG")  # the first is "uniformity" of views; HUG needs classes


def rows_of(kind: str) -> list[str]:
    """Return the rows of a table, in its order."""
    return [name for name in LOSSES if kind == "labels" or name not in ONLY_LABELS]


def settings(name: str) -> list[dict[str, float]]:
    """Return the four settings of a loss: "lr" and "weight"."""
    if name == "not trained":
        return [{}]
    loss = LOSSES[name]
    if loss is None:
        return [{"lr": lr} for lr in RATES]
    return [{"lr": RATE, "weight": loss[2] * factor} for factor in (0.1, 1, 10, 100)]


class People:
    """Images (N, 1, 32, 32) and labels of people to train on, and of others to test."""

    def __init__(self, dataset: str, root: Path, test: bool) -> None:
        self.trained, self.tested = load_orl(root, test) if dataset == "orl" else load_lfw(root, test)
        self.pairs, self.same = draw_pairs(self.tested[1])
        self.fold = hs.openset.divide_into_folds(self.same)

    def draw(self, kind: str, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw pairs that belong together: images (B, 1, 32, 32) twice, labels (B,); labels: of different people."""
        images, labels = self.trained
        order = torch.randperm(len(labels))
        if kind == "views":
            rows = others = order[:count]
        else:
            people = torch.randperm(int(labels.max()) + 1)[:count]
            place = torch.empty_like(order)
            place[order] = torch.arange(len(order))
            own = torch.where(labels == people.unsqueeze(1), place, len(order))
            rows, others = own.topk(2, 1, largest=False).indices.unbind(1)
        change = augment if kind == "views" else flip
        return change(images[rows]), change(images[others]), labels[rows]

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """Return recall@1, of 1 bit too, and the accuracy of pairs in percent, and the effective rank of the rows."""
        x = F.normalize(network(self.tested[0]))
        pairs = hs.openset.verify_pairs(x[self.pairs[:, 0]], x[self.pairs[:, 1]], self.same, self.fold)
        share = (torch.linalg.eigvalsh(x.mT @ x) / len(x)).clamp_min(1e-12)
        figures = {
            "recall": 100 * self.recall(x),
            "pairs": 100 * pairs.accuracy,
            "recall_1bit": 100 * self.recall((x - x.mean(0)).sign()),
            "rank": float((-share * share.log()).sum().exp()),
        }
        return {name: round(value, 3) for name, value in figures.items()}

    def recall(self, x: Tensor) -> float:
        """Return the share of images whose nearest other image is of the same person."""
        cosines, labels = x @ x.mT, self.tested[1]
        nearest = cosines.fill_diagonal_(-math.inf).argmax(1)
        return float((labels[nearest] == labels).double().mean())


def load_orl(root: Path, test: bool) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """ORL: 16 of 40 people are tested; of the others 8 are for validation."""
    data = hs.data.load("orl", root, "all")
    people, images = shuffled(torch.arange(40)), small(data.inputs)
    trained, tested = (people[16:], people[:16]) if test else (people[24:], people[16:24])
    return choose(images, data.labels, trained), choose(images, data.labels, tested)


def load_lfw(root: Path, test: bool) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """LFW: people with 2 to 10 images, those of View 1's train and test list; a fifth of train is for validation."""
    several = {}
    for split in ("train", "test") if test else ("train",):
        data = hs.data.load("lfw", root, split)
        counts = data.labels.bincount()
        people = ((counts >= 2) & (counts <= 10)).nonzero().squeeze(1)
        rows = torch.isin(data.labels, people).nonzero().squeeze(1)
        several[split] = read(data, rows), data.labels[rows], shuffled(people)
    images, labels, people = several["train"]
    if test:
        return choose(images, labels, people), choose(*several["test"])
    return choose(images, labels, people[len(people) // 5 :]), choose(images, labels, people[: len(people) // 5])


def choose(images: Tensor, labels: Tensor, people: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.isin(labels, people)
    return images[rows], labels[rows].unique(return_inverse=True)[1]


def flip(images: Tensor) -> Tensor:
    flipped = torch.rand(len(images)) < 0.5
    return torch.where(flipped.view(-1, 1, 1, 1), images.flip(3), images)


def augment(images: Tensor) -> Tensor:
    """Flip, turn, shift and zoom at random; change brightness and contrast."""
    n = len(images)
    draw = torch.rand(5, n) * 2 - 1
    zoom, angle = 0.85 + 0.15 * draw[0], 0.2 * draw[1]
    rows = [zoom * angle.cos(), -zoom * angle.sin(), 0.15 * draw[2]]
    rows += [zoom * angle.sin(), zoom * angle.cos(), 0.15 * draw[3]]
    grid = F.affine_grid(torch.stack(rows, 1).view(n, 2, 3), list(images.shape), align_corners=False)
    moved = F.grid_sample(flip(images), grid, padding_mode="reflection", align_corners=False)
    contrast, brightness = (1 + 0.4 * draw[4]).view(n, 1, 1, 1), 0.3 * torch.randn(n, 1, 1, 1)
    return contrast * moved + brightness


def make_loss(name: str, weight: float, kind: str, head: nn.Module) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return loss(x, y, labels) of embeddings (B, d) of pairs that belong together."""
    loss = LOSSES[name]
    align = hs.losses.EmbeddingRegularizer("alignment")
    even = None if loss is None else hs.losses.EmbeddingRegularizer(loss[0], weight, **loss[1])

    def compute(x: Tensor, y: Tensor, labels: Tensor) -> Tensor:
        both = torch.cat([x, y])
        value: Tensor = align(x, y) if kind == "views" else head(both, labels.repeat(2))
        if even is None:
            return value
        if name == "GOR":
            return value + even(x, y)
        if name == "HUG":
            return value + even(both, labels.repeat(2), head.weight)
        if name == "alignment + uniformity":
            value = value + weight * align(x, y)
        return value + (even(x) + even(y)) / 2

    return compute


def train(data: People, name: str, setting: dict[str, float], seed: int, dataset: str, kind: str) -> dict[str, float]:
    """Train and evaluate; return the figures."""
    torch.manual_seed(seed)
    layers = make_network() if kind == "labels" else make_network()[:-1]  # a last BatchNorm would hide the collapse
    network = layers.to(memory_format=torch.channels_last)
    head = hs.SSoftmaxLoss(int(data.trained[1].max()) + 1, SIZE, scale=7.5)  # the best in docs/losses.md
    compute = make_loss(name, setting.get("weight", 0.0), kind, head)

    def loss_at(step: int) -> Tensor:
        first, second, labels = data.draw(kind, PAIRS[dataset])
        x, y = network(torch.cat([first, second]).to(memory_format=torch.channels_last)).chunk(2)
        return compute(x, y, labels)

    if setting:
        optimize(nn.ModuleList([network, head]), setting["lr"], STEPS[dataset], loss_at)
    network.eval()
    with torch.no_grad():
        return data.evaluate(network)


def measure(dataset: str, kind: str, root: Path) -> None:
    """Run what is missing; a setting is chosen by recall and pairs together."""
    data = {test: People(dataset, root, test) for test in (False, True)}
    run_missing(
        ROOT / "results" / FILE.format(dataset, kind),
        {name: settings(name) for name in rows_of(kind)},
        lambda name, setting, seed, test: train(data[test], name, setting, seed, dataset, kind),
        lambda figures: figures["recall"] + figures["pairs"],
    )


def main() -> None:
    torch.set_num_threads(1)
    measure(sys.argv[1], sys.argv[2], Path(sys.argv[3]))


if __name__ == "__main__":
    main()
