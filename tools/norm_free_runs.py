"""One run of the study of optimizers: a Transformer of characters, or an MLP of MNIST, and what its weights became."""

from __future__ import annotations

import math
import time
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

import hypersphere as hs
from hypersphere.train import TrainingError, derive, fit, recipes

CONTEXT, BATCH, WARMUP, CLIP = 64, 8, 20, 1.0
REST = 3e-3  # AdamW's rate of embedding and output, for all methods
CHANCE = math.log(65)
Row = dict[str, Any]


class Series(Optimizer):
    """Pion with Q ≈ I + A + A²/2, as its authors released it: literal, and with dense A."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.95)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for w in group["params"]:
                sides = {"in": w.T @ w.grad - w.grad.T @ w, "out": w.grad @ w.T - w @ w.grad.T}
                a = {}
                for side, gradient in sides.items():
                    m, v = self.state[w].setdefault(side, (torch.zeros_like(gradient), torch.zeros_like(gradient)))
                    m.lerp_(gradient, 1 - group["betas"][0])
                    v.lerp_(gradient.square(), 1 - group["betas"][1])
                    a[side] = -m / (v.sqrt() + 1e-8)
                length = (a["out"] @ w + w @ a["in"]).norm()
                alpha = group["lr"] * w.norm() / length.clamp_min(1e-30)
                w.copy_(_series(alpha * a["out"]) @ w @ _series(alpha * a["in"]))


def _series(a: Tensor) -> Tensor:
    return torch.eye(len(a)) + a + a @ a / 2


ADAM = {"betas": (0.9, 0.95)}
METHODS: dict[str, Any] = {
    "AdamW": lambda matrices, lr: torch.optim.AdamW(matrices, lr=lr, **ADAM),
    "Muon": lambda matrices, lr: torch.optim.Muon(matrices, lr=lr, weight_decay=0.0),
    "AdamH": lambda matrices, lr: hs.Hyperball(torch.optim.Adam(matrices, lr=lr, **ADAM)),
    "MuonH": lambda matrices, lr: hs.Hyperball(torch.optim.Muon(matrices, lr=lr, weight_decay=0.0)),
    "Pion": lambda matrices, lr: hs.Pion([{"params": matrices, "rotated": True}], lr=lr),
    "Pion, input": lambda matrices, lr: hs.Pion([{"params": matrices, "rotated": True}], lr=lr, side="input"),
    "Pion, series": lambda matrices, lr: Series(matrices, lr),
    "Pion, heads": lambda groups, lr: hs.Pion(groups, lr=lr),
}


@cache
def characters(split: str) -> Tensor:
    """Return all characters of a split as one row of indices: training, validation or test."""
    text = hs.data.load("text", split="train" if split == "train" else "test").inputs
    return {"train": text, "validation": text[: len(text) // 2], "test": text[len(text) // 2 :]}[split]


def batch(seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Draw windows of the training text: the same for every method."""
    text = characters("train")
    starts = torch.randint(len(text) - CONTEXT, (BATCH,), generator=torch.Generator().manual_seed(1000 * seed + step))
    windows = torch.stack([text[i : i + CONTEXT + 1] for i in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


@torch.no_grad()
def evaluate(model: nn.Module, split: str = "validation", windows: int = 256) -> float:
    """Return the loss a character over evenly spaced windows."""
    text, losses = characters(split), []
    starts = torch.linspace(0, len(text) - CONTEXT - 1, windows).long().tolist()
    for part in range(0, windows, 64):
        rows = torch.stack([text[i : i + CONTEXT + 1] for i in starts[part : part + 64]])
        losses.append(F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()))
    return float(torch.stack(losses).mean())


def factor(step: int, steps: int) -> float:
    """Linear warm-up, then linear decay to zero."""
    return min((step + 1) / WARMUP, (steps - step) / (steps - WARMUP), 1.0)


def measure(matrices: list[Tensor]) -> list[tuple[Tensor, float, float]]:
    """Return singular values, norm and energy (s = 1) of every matrix, in float64."""
    return [
        (torch.linalg.svdvals(w), float(w.norm()), float(hs.hyperspherical_energy(w, s=1.0)))
        for w in (matrix.detach().double() for matrix in matrices)
    ]


def changes(before: list[Any], now: list[Any]) -> Row:
    """Return the largest relative change over all matrices."""
    pairs = list(zip(before, now, strict=True))
    return {
        "singular": short(max(float((b[0] - a[0]).abs().max() / a[0].max()) for a, b in pairs)),
        "norm": short(max(abs(b[1] / a[1] - 1) for a, b in pairs)),
        "energy": short(max(abs(b[2] / a[2] - 1) for a, b in pairs)),
    }


def short(value: float) -> float:
    return float(f"{value:.3g}")


def train(method: str, depth: int, lr: float, seed: int, steps: int, part: str = "rates") -> Row:
    """Train the Transformer of a part of the study; the loss is None if it diverged. "kept" has a trace."""
    gated, norm, traced = part == "swiglu", part in ("normed", "kept", "heads"), part == "kept"
    torch.manual_seed(seed)
    model = hs.models.create("decoder", 65, width=64, depth=depth, heads=4, context=CONTEXT, norm=norm, gated=gated)
    matrices = [neurons.tensor for neurons in hs.select(model).values() if not neurons.is_output]
    stepped = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in stepped]
    stepping: list[Any] = matrices
    if method.endswith(", heads"):
        groups = hs.param_groups(model, pion=True, split_heads=True)
        stepping = [group for group in groups if group["name"] == "matrices"]
    optimizers = [METHODS[method](stepping, lr), torch.optim.AdamW(rest, lr=REST, **ADAM)]
    bases = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    start, trace, last = measure(matrices) if traced else [], [], []
    began = time.process_time()
    for step in range(steps):
        for optimizer, rates in zip(optimizers, bases, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor(step, steps)
        inputs, targets = batch(seed, step)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        last = [*last[-9:], float(loss.detach())]
        if not math.isfinite(last[-1]) or (step > WARMUP + 10 and sum(last) / len(last) > CHANCE):
            return {"loss": None, "diverged": step, "seconds": round(time.process_time() - began, 1)}
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        if not bool(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).isfinite()):
            return {"loss": None, "diverged": step, "seconds": round(time.process_time() - began, 1)}
        for optimizer in optimizers:
            optimizer.step()
        if traced and (step + 1) % (steps // 10) == 0:
            trace.append({"step": step + 1, **changes(start, measure(matrices))})
    value = evaluate(model)
    row: Row = {"loss": round(value, 4) if value < CHANCE else None}
    if row["loss"] is None:
        row["diverged"] = steps
    if traced:
        row["trace"] = trace
    return row | {"seconds": round(time.process_time() - began, 1)}


@cache
def digits(split: str) -> tuple[Tensor, Tensor]:
    """Return images and labels of MNIST; of the test split the first 2,000."""
    data = hs.data.load("mnist", split=split)
    count = 2000 if split == "test" else len(data.labels)
    return data.inputs[:count].flatten(1).float() / 255 - 0.13, data.labels[:count].long()


def train_mlp(method: str, width: int, lr: float, seed: int, steps: int) -> Row:
    """Train an MLP with two hidden layers on MNIST; the loss is that of 2,000 test images."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    matrices = [model[0].weight, model[2].weight]
    kept = {id(matrix) for matrix in matrices}
    rest = [p for p in model.parameters() if id(p) not in kept]
    stepping: list[Any] = matrices
    if method.endswith(", heads"):
        groups = hs.param_groups(model, pion=True, split_heads=True)
        stepping = [group for group in groups if group["name"] == "matrices"]
    optimizers = [METHODS[method](stepping, lr), torch.optim.AdamW(rest, lr=REST, **ADAM)]
    images, labels = digits("train")
    generator, began = torch.Generator().manual_seed(seed), time.process_time()
    for step in range(steps):
        optimizers[0].param_groups[0]["lr"] = lr * (steps - step) / steps
        rows = torch.randint(len(images), (128,), generator=generator)
        loss = F.cross_entropy(model(images[rows]), labels[rows])
        if not math.isfinite(float(loss.detach())):
            return {"loss": None, "diverged": step, "seconds": round(time.process_time() - began, 1)}
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    with torch.no_grad():
        value = float(F.cross_entropy(model(digits("test")[0]), digits("test")[1]))
    return {"loss": round(value, 5) if math.isfinite(value) else None, "seconds": round(time.process_time() - began, 1)}


def train_recipe(name: str, lr: float, seed: int, steps: int) -> Row:
    """Train a recipe of the package at a learning rate; POET's is that of its rotations."""
    changes = {"optimizer.rotation_lr" if name == "text_poet" else "optimizer.lr": lr, "steps": steps, "seed": seed}
    began = time.process_time()
    try:
        summary = fit(derive(recipes.load(name), changes), progress=False).summary
    except TrainingError:
        return {"loss": None, "seconds": round(time.process_time() - began, 1)}
    loss = summary.validation["loss"]
    return {
        "loss": round(loss, 4) if math.isfinite(loss) and loss < CHANCE else None,
        "test": round(summary.loss, 4),
        "trained": summary.parameters["trained"],
        "seconds": round(time.process_time() - began, 1),
    }
