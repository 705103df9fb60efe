"""Features of two and three dimensions with the classifier's neurons (MHE, Fig. 4 and 8; OPT, Fig. 7)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ...report.networks import feature_chart, features
from ...train.inference.run import load_run
from .drawing import Drawing
from .runs import run_names


def imbalance(inputs: Sequence[Path]) -> Drawing:
    """Draw 2-D features of the whole training set and of the test set, one line a run (MHE, Fig. 4 and 8)."""
    runs = [load_run(path) for path in inputs]
    panels, rows = {}, []
    for run, name in zip(runs, run_names(inputs), strict=True):
        for split, title in (("train", "whole training set"), ("test", "test set")):
            panels[f"{name}: {title}"] = panel = features(run, split, 2)
        angles = torch.rad2deg(torch.acos((panel.neurons @ panel.neurons.mT).clamp(-1, 1)))
        angles.fill_diagonal_(180)
        rows += [
            {"run": name, "class": label, "nearest class": run.labels[int(row.argmin())], "degrees": float(row.min())}
            for label, row in zip(run.labels, angles, strict=True)
        ]
    return Drawing(feature_chart(panels, runs[0].labels, "Features and the directions of the classes"), rows)


def features3d(inputs: Sequence[Path]) -> Drawing:
    """Draw 3-D features of the test set (OPT, Fig. 7)."""
    runs = [load_run(path) for path in inputs]
    panels = {name: features(run, "test", 3) for run, name in zip(runs, run_names(inputs), strict=True)}
    title = "Features in three dimensions and the directions of the classes"
    turnable = [feature_chart({name: panel}, runs[0].labels) for name, panel in panels.items()]
    return Drawing(feature_chart(panels, runs[0].labels, title), panels=turnable)
