"""Evaluate a run on a split: loss, accuracy, accuracy per class, energies; an open set by pairs or episodes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from ... import data as datasets
from ..._internal import checks
from ..._internal.checksummed_json import checksum
from ..._internal.safe_files import read_plain
from ..._internal.tables import TableResult, TextTable, percent
from ...data import Graph, Pairs
from ...openset import EpisodeAccuracy, OperatingPoint, Verification
from .. import neurons, openset
from ..config import Config
from ..distributed import World, device_of
from ..evaluation import Predictions, evaluate
from ..splits import Splits, evaluation, load, read_split
from ..storage import predictions
from ..storage.layout import FINAL, MODEL, RESULT
from ..storage.summary import read_summary
from .run import Run

MOST_CLASSES = 20  # listed; of more, the worst


@dataclass(frozen=True)
class ClassScore:
    """The samples of a class in a split, and the share of them that is predicted right; None without samples."""

    samples: int
    accuracy: float | None


@dataclass(frozen=True, eq=False, repr=False)
class Scores(TableResult):
    """The metrics of a run on a split; prints as tables.

    Attributes:
        title: what was evaluated.
        classes: by name.
        energies: by layer.
        top5: accuracy; None for up to ten classes.
    """

    title: str
    split: str
    step: int
    samples: int
    loss: float
    accuracy: float
    classes: dict[str, ClassScore]
    energies: dict[str, float]
    top5: float | None = None

    @property
    def energy(self) -> float:
        """The sum over the layers."""
        return sum(self.energies.values())

    @property
    def rows(self) -> list[tuple[str, ClassScore]]:
        """The classes; of many, the worst."""
        if len(self.classes) <= MOST_CLASSES:
            return list(self.classes.items())
        seen = [(name, score) for name, score in self.classes.items() if score.samples]
        return sorted(seen, key=lambda pair: pair[1].accuracy or 0.0)[:MOST_CLASSES]

    def tables(self) -> list[TextTable]:
        cells = {"samples": f"{self.samples:,}", "accuracy": percent(self.accuracy)}
        cells |= {} if self.top5 is None else {"top 5": percent(self.top5)}
        cells |= {"loss": f"{self.loss:.4f}", "energy": f"{self.energy:.4f}"}
        is_short = len(self.rows) == len(self.classes)
        header = "class" if is_short else f"the worst {len(self.rows)} of {len(self.classes)} classes"
        classes = [[_class_name(name), f"{score.samples:,}", percent(score.accuracy)] for name, score in self.rows]
        tables = [TextTable([*cells], [[*cells.values()]], left=0, title=self.title)]
        tables.append(TextTable([header, "samples", "accuracy"], classes))
        layers = [[name, f"{energy:.4f}"] for name, energy in self.energies.items()]
        return [*tables, TextTable(["layer", "energy"], layers)] if layers else tables

    def to_dict(self) -> Mapping[str, Any]:
        tree = {key: value for key, value in asdict(self).items() if key != "title" and value is not None}
        return tree | {"energy": self.energy}


@dataclass(frozen=True, eq=False, repr=False)
class OpenScores(TableResult):
    """The embeddings of a run on a split whose classes it was not trained on; prints as tables.

    Attributes:
        measure: pairs, episodes, identification or threshold.
        result: of :mod:`hypersphere.openset`.
        settings: of the measure: the number of pairs, or what the episodes are.
        energies: by layer.
    """

    title: str
    split: str
    step: int
    measure: str
    result: Verification | EpisodeAccuracy | openset.Identification | OperatingPoint
    settings: Mapping[str, str | int]
    energies: dict[str, float]

    @property
    def rows(self) -> list[Any]:
        """The rows of `result`."""
        return list(self.result.rows)

    def tables(self) -> list[TextTable]:
        first, *rest = self.result.tables()
        return [replace(first, title=self.title), *rest]

    def notes(self) -> list[str]:
        return list(self.result.notes())

    def to_dict(self) -> Mapping[str, Any]:
        tree = {"split": self.split, "step": self.step, "measure": self.measure}
        energies = {"energy": sum(self.energies.values()), "energies": self.energies}
        return {**tree, **self.result.to_dict(), **self.settings, **energies}


def _class_name(name: str) -> str:
    """Format a class name; in text data it may be a line end."""
    return name if name.isprintable() and name.strip() else repr(name)


def scores(
    run: Run, split: str | None = None, config: Config | None = None, *, write: bool = False
) -> Scores | OpenScores:
    """Evaluate a run on a split of its data, as the training does.

    Args:
        split: train, validation or test; None: test, or validation where there is no test.
        config: where the data are, how many are in a batch, and the device; None: as in the training.
        write: write predictions/<split>.json in the run folder, for reports, if the run has finished and the data are
            those of the training.

    Returns:
        Scores; of a split whose classes were not trained on, what :func:`open_scores` returns.
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
    return Scores(
        _title(run, split),
        split,
        run.step,
        splits.count(split),
        loss=totals.loss / sum(samples),
        accuracy=sum(correct) / sum(samples),
        classes={
            name: ClassScore(n, hits / n if n else None)
            for name, n, hits in zip(run.labels, samples, correct, strict=True)
        },
        energies=energies,
        top5=None if totals.top5 is None else totals.top5 / sum(samples),
    )


def _title(run: Run, split: str) -> str:
    return f"{run.config.model.name} on {run.config.data.name}, {split}, step {run.step}"


def _write_predictions(run: Run, splits: Splits, split: str, collected: Predictions) -> None:
    if not os.path.lexists(run.path / RESULT):
        return
    try:
        if read_summary(run.path).data.get("hash") == splits.hash():
            model = checksum(read_plain(run.path / FINAL / MODEL))
            predictions.write(run.path, split, model, collected.tree())
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
) -> OpenScores:
    """Evaluate the embeddings of a run: by pairs, by few-shot episodes, by identification, or choose a threshold.

    Args:
        split, config: as in :func:`scores`.
        measure: pairs, episodes, identification or threshold; None: pairs if the dataset has a list of them, else
            episodes.
        pairs: for the measure pairs; None: the dataset's own list, for its test set. For threshold; None: all pairs of
            the split.
        splits: the data, if they are loaded already.
        options: of the measure. Episodes: episodes=600, ways=5, shots=5, queries=15, classifier="linear" | "cosine"
            (default: cosine after an angular loss). Identification: distractors=None (all). Threshold: far.
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
    title, settings = _title(run, split), dict[str, Any]()
    result: Verification | EpisodeAccuracy | openset.Identification | OperatingPoint
    images = splits.split(split)
    if pairs is not None and datasets.has_pairs(config.data.name):  # a list may name images of any split
        with suppress(ValueError):  # a dataset of the user's own may not have such a split
            images = read_split(config.data, "all", {})
    if measure == "pairs":
        if pairs is None:
            pairs = datasets.load_pairs(config.data.name, config.data.root, split)
        result = openset.verify(embedder, images, pairs)
        settings = {"pairs": len(pairs)}
        _warn_trained(run, images, pairs)
    elif measure == "threshold":
        result = openset.choose_threshold(embedder, images, options["far"], pairs)
        if pairs is not None:
            _warn_trained(run, images, pairs)
        elif not splits.is_open(split):
            checks.warn(
                f"{run.path} was trained on the classes of the split {split}: others will be accepted more often"
            )
    elif measure == "episodes":
        episodes = replace(openset.Episodes.of(run.config), **options)
        result = openset.run_episodes(embedder, splits.split(split), episodes)
        settings = asdict(episodes)
        title += f", {episodes.ways}-way {episodes.shots}-shot, {episodes.classifier} classifier"
    else:
        result = openset.identify(embedder, splits.split(split), **options)
    energies = neurons.energies(classifier.network, classifier.head, run.config.energy)
    return OpenScores(title, split, run.step, measure, result, settings, energies)


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
