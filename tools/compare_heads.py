"""Train one small network with every head on LFW and ORL: results/heads_lfw.json, heads_orl.json, for docs/losses.md.

    python -m tools.compare_heads lfw|orl ROOT    # the folder with lfw64 and att_faces; repeat the command to go on

Every head has the same budget: four settings (two learning rates × the default scale and a quarter of it; without a
scale four learning rates), each trained once and compared on validation data. The best is trained with five seeds.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hypersphere as hs
from hypersphere._internal.safe_files import write_text

ROOT = Path(__file__).parents[1]
FILE, MARKER = "heads_{}.json", "heads"
SEEDS = range(5)
RATES = (2e-3, 8e-3)
MORE_RATES = (1e-3, 2e-3, 4e-3, 8e-3)  # of heads without a scale
STEPS = {"lfw": 120, "orl": 100}
BATCH = {"lfw": 64, "orl": 40}
SIZE = 64  # of an embedding
#: row of the table → head, its settings, its scale (None: the embedding's length)
HEADS: dict[str, tuple[type[nn.Module], dict[str, Any], float | None]] = {
    "W-Softmax": (hs.WSoftmaxLoss, {}, None),
    "GA-Softmax, linear": (hs.GASoftmaxLoss, {}, None),
    "A-Softmax": (hs.ASoftmaxLoss, {}, None),
    "SphereFace+": (hs.SphereFacePlusLoss, {}, None),
    "S-Softmax": (hs.SSoftmaxLoss, {}, 30),
    "AM-Softmax": (hs.AMSoftmaxLoss, {}, 30),
    "ArcFace": (hs.ArcFaceLoss, {}, 64),
    "ArcFace, 3 sub-centers": (hs.ArcFaceLoss, {"subcenters": 3}, 64),
    "AdaFace": (hs.AdaFaceLoss, {}, 64),
    "MagFace": (hs.MagFaceLoss, {}, 64),
    "CurricularFace": (hs.CurricularFaceLoss, {}, 64),
    "ElasticFace-Arc": (hs.ElasticFaceLoss, {}, 64),
    "ElasticFace-Cos+": (hs.ElasticFaceLoss, {"kind": "cos", "plus": True}, 64),
    "SphereFace-R v0": (hs.SphereFaceRLoss, {"version": "v0"}, 30),
    "SphereFace-R v1": (hs.SphereFaceRLoss, {"version": "v1"}, 30),
    "SphereFace-R v2": (hs.SphereFaceRLoss, {"version": "v2"}, 30),
    "SphereFace2": (hs.SphereFace2Loss, {}, 40),
    "UniFace": (hs.UniFaceLoss, {}, 64),
}


def settings(name: str) -> list[dict[str, float]]:
    """Return the four settings of a head: "lr" and "scale"."""
    scale = HEADS[name][2]
    if scale is None:
        return [{"lr": lr} for lr in MORE_RATES]
    return [{"lr": lr, "scale": s} for s in (scale, scale / 4) for lr in RATES]


class Data:
    """Images (N, 1, 32, 32) and labels to train on, and `evaluate(network, head)` in percent."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels.unique(return_inverse=True)[1]


class Faces(Data):
    """LFW: people with 2 to 10 images; evaluated by pairs of people who were not trained on."""

    def __init__(self, root: Path, test: bool) -> None:
        people = hs.data.load("lfw", root, "train")
        counts = people.labels.bincount()
        several = ((counts >= 2) & (counts <= 10)).nonzero().squeeze(1)
        held_out = shuffled(several)[: len(several) // 5]
        if test:
            images = hs.data.load("lfw", root, "all")
            pairs = hs.data.load_pairs("lfw", root, "test")
            index = pairs.locate(images)
            self.same, self.fold = pairs.same, hs.openset.divide_into_folds(pairs.same)
        else:
            images, used = people, torch.isin(people.labels, held_out).nonzero().squeeze(1)
            places, self.same = draw_pairs(people.labels[used])
            index, self.fold = used[places], hs.openset.divide_into_folds(self.same)
        rows = torch.isin(people.labels, several)
        rows &= ~torch.isin(people.labels, held_out) if not test else torch.ones_like(rows)
        trained = rows.nonzero().squeeze(1)
        super().__init__(read(people, trained), people.labels[trained])
        names, self.places = index.unique(return_inverse=True)
        self.tested = read(images, names)

    def evaluate(self, network: nn.Module, head: nn.Module) -> float:
        x = torch.cat([network(self.tested), network(self.tested.flip(3))], 1)[self.places]
        return 100 * hs.openset.verify_pairs(x[:, 0], x[:, 1], self.same, self.fold).accuracy


class People(Data):
    """ORL: 40 people, images 1 to 4 (in the test 1 to 5) of each; evaluated on image 5 (6 to 10)."""

    def __init__(self, root: Path, test: bool) -> None:
        train, of_test = (hs.data.load("orl", root, split) for split in ("train", "test"))
        images, self.tested, self.expected = small(train.inputs), small(of_test.inputs), of_test.labels
        labels = train.labels
        if not test:
            fifth = torch.arange(len(labels)) % 5 == 4
            self.tested, self.expected, images, labels = images[fifth], labels[fifth], images[~fifth], labels[~fifth]
        super().__init__(images, labels)

    def evaluate(self, network: nn.Module, head: nn.Module) -> float:
        guesses = head.logits(network(self.tested)).argmax(1)  # type: ignore[operator]
        return 100 * (guesses == self.expected).double().mean().item()


def shuffled(items: Tensor) -> Tensor:
    """Return the items in a random order, always the same."""
    return items[torch.randperm(len(items), generator=torch.Generator().manual_seed(0))]


def draw_pairs(labels: Tensor, most: int = 1000) -> tuple[Tensor, Tensor]:
    """Return pairs of rows (P, 2), half of them of the same person, `most` of each kind, and which those are (P,)."""
    pairs = torch.combinations(torch.arange(len(labels)))
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    draw = torch.Generator().manual_seed(1)
    equal, others = (s.nonzero().squeeze(1) for s in (same, ~same))
    equal = equal[torch.randperm(len(equal), generator=draw)][:most]
    others = others[torch.randperm(len(others), generator=draw)][: len(equal)]
    chosen = torch.cat([equal, others])
    return pairs[chosen], same[chosen]


def read(data: Any, rows: Tensor) -> Tensor:
    return torch.cat([small(data[i][0].unsqueeze(0)) for i in rows.tolist()])


def small(images: Tensor) -> Tensor:
    """Return images as (N, 1, 32, 32), gray, with mean 0."""
    gray = images.float().mean(1, keepdim=True) / 127.5 - 1
    return F.interpolate(gray, (32, 32), mode="area")


def make_network() -> nn.Sequential:
    """Make four convolutions with stride 2 and BatchNorm, and an embedding with BatchNorm: 0.1 million parameters."""
    widths, layers = (1, 16, 32, 64, 96), []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(384, SIZE, bias=False), nn.BatchNorm1d(SIZE))


def train(data: Data, name: str, setting: dict[str, Any], seed: int, kind: str) -> float:
    """Train and evaluate; return the figure in percent."""
    torch.manual_seed(seed)
    make_head, own, _ = HEADS[name]
    scale = {key: value for key, value in setting.items() if key != "lr"}
    network = make_network().to(memory_format=torch.channels_last)
    head = make_head(int(data.labels.max()) + 1, SIZE, **own, **scale)
    order = torch.cat(
        [torch.randperm(len(data.labels)) for _ in range(STEPS[kind] * BATCH[kind] // len(data.labels) + 1)]
    )

    def loss_at(step: int) -> Tensor:
        rows = order[step * BATCH[kind] :][: BATCH[kind]]
        images = data.images[rows]
        flipped = torch.rand(len(rows)) < 0.5
        images = torch.where(flipped.view(-1, 1, 1, 1), images.flip(3), images)
        images = images.to(memory_format=torch.channels_last)
        return head(network(images), data.labels[rows])  # type: ignore[no-any-return]

    optimize(nn.ModuleList([network, head]), setting["lr"], STEPS[kind], loss_at)
    network.eval()
    with torch.no_grad():
        return round(data.evaluate(network, head), 3)  # type: ignore[attr-defined]


def optimize(modules: nn.Module, lr: float, steps: int, loss_at: Callable[[int], Tensor]) -> None:
    """Train the modules by AdamW in one cycle; `loss_at(step)` is the loss."""
    optimizer = torch.optim.AdamW(hs.param_groups(modules, weight_decay=5e-4), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps, pct_start=0.1)
    for step in range(steps):
        loss = loss_at(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def run_missing(
    path: Path,
    options: dict[str, list[dict[str, Any]]],
    run: Callable[[str, dict[str, Any], int, bool], Any],
    rank: Callable[[Any], float] = float,
) -> None:
    """Run what is missing of each row: its settings on validation data, then the best with every seed.

    Args:
        path: of the results, written after each run.
        options: row → its settings.
        run: (row, setting, seed, test) → the figures of a run.
        rank: figures → the number to choose a setting by.
    """
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name, settings_ in options.items():
        entry = results.setdefault(name, {"validation": [], "test": [], "seconds": 0.0})
        while (tried := len(entry["validation"])) < len(settings_) or len(entry["test"]) < len(SEEDS):
            start = time.process_time()
            if tried < len(settings_):
                entry["validation"].append(run(name, settings_[tried], 100, False))
            else:
                entry["test"].append(run(name, entry["setting"], len(entry["test"]), True))
            best = settings_[max(range(len(entry["validation"])), key=lambda i: rank(entry["validation"][i]))]
            if best != entry.get("setting"):
                entry["setting"], entry["test"] = best, []
            entry["seconds"] = round(entry["seconds"] + time.process_time() - start, 1)
            write_text(path, json.dumps(results, indent=1) + "\n")


def measure(kind: str, root: Path) -> None:
    make = {"orl": People, "lfw": Faces}[kind]
    data = {test: make(root, test) for test in (False, True)}
    options = {name: settings(name) for name in HEADS}
    run_missing(
        ROOT / "results" / FILE.format(kind),
        options,
        lambda name, setting, seed, test: train(data[test], name, setting, seed, kind),
    )


def markdown(root: Path) -> str:
    """Return the table."""
    paths = {kind: root / "results" / FILE.format(kind) for kind in ("lfw", "orl")}
    results = {k: json.loads(p.read_text(encoding="utf-8")) if p.exists() else {} for k, p in paths.items()}
    lines = ["| head | LFW, pairs % | with | ORL, images % | with |", "|---|---|---|---|---|"]
    for name in HEADS:
        cells = [name]
        for entries in results.values():
            entry = entries.get(name, {"test": []})
            if len(entry["test"]) < len(SEEDS):
                cells += ["not run", ""]
                continue
            cells.append(f"{statistics.mean(entry['test']):.1f} ± {statistics.stdev(entry['test']):.1f}")
            cells.append(", ".join(f"{key} {value:g}" for key, value in entry["setting"].items()))
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    measure(sys.argv[1], Path(sys.argv[2]))


if __name__ == "__main__":
    main()
