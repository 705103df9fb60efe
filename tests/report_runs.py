"""Run folders for the tests of reports: config and metrics without a network, or a small trained one."""

import json
from pathlib import Path

from hypersphere.train import Config, Data, Loss, Model, fit


def write_run(path: Path, lines: list[dict], seed: int = 0, **settings) -> Path:
    """Write a run folder that has not finished: settings and metrics."""
    path.mkdir(parents=True)
    config = {"seed": seed, "out": str(path), "model": {"name": "cnn3"}, "data": {"name": "digits"}, **settings}
    (path / "config.json").write_text(json.dumps(config))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def curve(values, split="train", **more):
    return [{"step": 10 * i, "split": split, "loss": value, **more} for i, value in enumerate(values)]


def train_small(path: Path, seed: int = 0, steps: int = 3, data: dict | None = None, **settings) -> Path:
    """Train a network with 3-D features, class weights in a head and a learned k, for a moment."""
    model = Model(name="mlp", widths=(16, 3), similarity="learnable")
    settings |= {"model": model, "loss": Loss(name="w_softmax"), "data": Data(**data or {})}
    return fit(Config(steps=steps, seed=seed, out=str(path), **settings), progress=False).path
