"""Evaluate a run on a split: loss, accuracy, accuracy per class, energies; an open set by pairs or episodes."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from ... import data as datasets
from ..._internal import checks
from ...data import Graph, Pairs
from .. import neurons, openset
from ..config import Config
from ..distributed import World, device_of
from ..evaluation import Predictions, evaluate
from ..splits import Splits, evaluation, load
from ..storage import predictions
from ..storage.layout import RESULT
from ..storage.summary import read_summary
from .run import Run


def scores(run: Run, split: str | None = None, config: Config | None = None, *, write: bool = False) -> dict[str, Any]:
    """Evaluate a run on a split of its data, as the training does.

    Args:
        split: train, validation or test; None: test, or validation where there is no test.
        config: where the data are, how many are in a batch, and the device; None: as in the training.
        write: write predictions/<split>.json in the run folder, for reports, if the run has finished and the data are
            those of the training.

    Returns:
        split, samples, loss, accuracy, classes (name → samples and accuracy, None where there are no samples),
        energies (layer → energy), energy (their sum), step; top5 with more than ten classes. Of a split whose classes
        were not trained on, what :func:`open_scores` returns.

    Example:
        >>> import tempfile
        >>> from hypersphere.train import Config, fit, load_run
        >>> result = fit(Config(steps=2, out=tempfile.mkdtemp()), progress=False)
        >>> scores(load_run(result.path))["accuracy"] == result.summary.accuracy
        True
    """
    config = run.config if config is None else config
    splits, split = load_split(run, split, config)
    if splits.is_open(split):
        return open_scores(run, split, config, splits=splits)
    classifier, world = run.classifier, World(device_of(config.device))
    classifier.to(world.device)
    batches = (batch.to(world.device) for batch in evaluation(splits, split, config.data, world))
    whole = splits.split(split)
    edges = whole.adjacency.to(world.device) if isinstance(whole, Graph) else None
    collected = Predictions(run.spec) if write else None
    totals = evaluate(classifier, batches, len(run.labels), edges, collected=collected)
    assert totals is not None  # nothing interrupts it
    if not math.isfinite(totals.loss):
        raise ValueError(f"the loss of {run.path} is not finite")
    if collected is not None:
        _write_predictions(run, splits, split, collected)
    samples, correct = totals.samples.tolist(), totals.correct.tolist()
    energies = neurons.energies(classifier.network, classifier.head, run.config.energy)
    return {
        "split": split,
        "step": run.step,
        "samples": splits.count(split),
        "loss": totals.loss / sum(samples),
        "accuracy": sum(correct) / sum(samples),
        **({} if totals.top5 is None else {"top5": totals.top5 / sum(samples)}),
        "classes": {
            name: {"samples": n, "accuracy": hits / n if n else None}
            for name, n, hits in zip(run.labels, samples, correct, strict=True)
        },
        "energy": sum(energies.values()),
        "energies": energies,
    }


def _write_predictions(run: Run, splits: Splits, split: str, collected: Predictions) -> None:
    if not os.path.lexists(run.path / RESULT):
        return
    try:
        if read_summary(run.path).data.get("hash") == splits.hash():
            predictions.write(run.path, split, predictions.model_checksum(run.path), collected.tree())
    except (OSError, ValueError) as error:  # such as a folder that may only be read
        checks.warn(f"the predictions for reports were not written: {error}")


def open_scores(
    run: Run,
    split: str | None = None,
    config: Config | None = None,
    *,
    measure: str | None = None,
    pairs: Pairs | None = None,
    splits: Splits | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Evaluate the embeddings of a run: by pairs, by few-shot episodes, or by identification.

    Args:
        split, config: as in :func:`scores`.
        measure: pairs, episodes or identification; None: pairs if the dataset has a list of them, else episodes.
        pairs: for the measure pairs; None: the dataset's own list, for its test set.
        splits: the data, if they are loaded already.
        options: of the measure. Episodes: episodes=600, ways=5, shots=5, queries=15, classifier="linear" | "cosine"
            (default: cosine after an angular loss). Identification: distractors=None (all).

    Returns:
        split, step, measure and its values, energies (layer → energy) and energy (their sum).
    """
    config = run.config if config is None else config
    if splits is None:
        splits, split = load_split(run, split, config)
    assert split is not None
    measure = measure or ("episodes" if splits.pairs is None else "pairs")
    if splits.spec.kind == "graph":
        raise ValueError(f"{measure} needs separate samples, and {config.data.name} is a graph")
    classifier, world = run.classifier, World(device_of(config.device))
    classifier.to(world.device)
    embedder = openset.Embedder(classifier, splits, config, lambda batch: batch.to(world.device))
    if measure == "pairs":
        images = splits.split(split)
        if pairs is None:
            pairs = datasets.load_pairs(config.data.name, config.data.root, split)
        elif datasets.has_pairs(config.data.name):  # a list may name images of any split
            with suppress(ValueError):  # a dataset of the user's own may not have such a split
                images = datasets.load(config.data.name, config.data.root, "all")
        values = {"pairs": len(pairs), **openset.verify(embedder, images, pairs).to_dict()}
        _warn_trained(run, images, pairs)
    elif measure == "episodes":
        settings = replace(openset.Episodes.of(run.config), **options)
        result = openset.run_episodes(embedder, splits.split(split), settings)
        values = asdict(settings) | {"accuracy": result.accuracy, "interval": result.interval, "loss": result.loss}
    else:
        values = asdict(openset.identify(embedder, splits.split(split), **options))
    energies = neurons.energies(classifier.network, classifier.head, run.config.energy)
    measured = {"split": split, "step": run.step, "measure": measure, **values}
    return measured | {"energy": sum(energies.values()), "energies": energies}


def _warn_trained(run: Run, images: Any, pairs: Pairs) -> None:
    """Warn if pairs show classes that the run was trained on."""
    trained = set(run.labels)
    known = [images.classes[i] in trained for i in images.labels[pairs.locate(images)].flatten().tolist()]
    if many := sum(a or b for a, b in zip(known[::2], known[1::2], strict=True)):
        checks.warn(f"{many} of {len(pairs)} pairs show classes that {run.path} was trained on")


def load_split(run: Run, split: str | None, config: Config) -> tuple[Splits, str]:
    """Load the data of a run and choose the split: test, or validation where there is no test."""
    run.check_labels()
    splits = load(config.data, run.config.seed)
    _check_same(run, splits)
    return splits, split or ("test" if splits.count("test") else "validation")


def _check_same(run: Run, splits: Splits) -> None:
    """Raise ValueError unless the data have the classes and shape that the run was trained on."""
    theirs, ours = splits.spec.classes, run.labels
    if theirs != ours:
        at = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), None)
        what = f"{len(theirs)} in place of {len(ours)}" if at is None else f"{theirs[at]!r} in place of {ours[at]!r}"
        raise ValueError(f"the data must have the classes of {run.path}, got {what}")
    if splits.spec.shape != run.spec.shape:
        raise ValueError(f"the data must have samples of shape {run.spec.shape}, got {splits.spec.shape}")
