"""Successive halving: all trials train a part of their steps, the best third goes on to three times as many."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from .. import __version__
from ..reproduce import results
from ..reproduce.results import Entry, settings, short_hash
from ..reproduce.statistics import mean_and_deviation
from ..train.config import Config, derive, to_tree
from ..train.processes import Status, run_all
from .space import Point, named

FACTOR = 3  # of steps from rung to rung, and one in so many trials goes on
RUNGS = 3
FILE = "tune"  # name of the results file

K = TypeVar("K")
Score = tuple[float, float]  # accuracy and minus loss, means over the folds: more is better


@dataclass(frozen=True, eq=False)
class Trial:
    """A point of the space, its config and the hash of that, which names its folder."""

    point: Mapping[str, str]
    config: Config
    key: str

    @staticmethod
    def of(point: Point, config: Config, recipe: str = "") -> Trial:
        """Make a trial; `recipe` is the text of the user's file, which may define the network or the data."""
        further = [each for each in (config.data.root, recipe) if each]
        return Trial(point, config, short_hash(__version__, config.seed, settings(config), *further))


@dataclass(frozen=True)
class Run:
    """A trial with one fold, to 1/part of its steps."""

    trial: Trial
    fold: str | None
    part: int

    @property
    def name(self) -> str:
        return named(self.trial.point) + ("" if self.fold is None else f" fold {self.fold}")

    @property
    def key(self) -> tuple[str, int, str]:
        """The key of its entry in the results file."""
        return self.trial.key, int((self.fold or "0").partition("/")[0]), f"{self.fold or 'validation'} 1/{self.part}"


def parts(trials: int, rungs: int = RUNGS) -> list[int]:
    """Return the rungs: divisors of the full length, so many that the last rung has one trial or more.

    Example:
        >>> parts(12), parts(2), parts(100), parts(12, rungs=1)
        ([9, 3, 1], [1], [9, 3, 1], [1])
    """
    most = 1
    while FACTOR**most <= trials:
        most += 1
    return [FACTOR**i for i in reversed(range(min(rungs, most)))]


def best(scores: Mapping[K, Score | None], keep: int) -> list[K]:
    """Return the best trials, the best first; None is a trial that failed, and never among them.

    Example:
        >>> best({"a": (0.5, -1.0), "b": None, "c": (0.5, -0.9), "d": (0.4, 0.0)}, 2)
        ['c', 'a']
    """
    scored = [(score, trial) for trial, score in scores.items() if score is not None]
    return [trial for _, trial in sorted(scored, key=lambda pair: pair[0], reverse=True)][:keep]


def halve(
    trials: Sequence[K], rungs: Sequence[int], measure: Callable[[Sequence[K], int], Mapping[K, Score | None] | None]
) -> bool:
    """Measure all trials at the first rung, and at each further one the best third of those before.

    Args:
        rungs: as :func:`parts` returns them.
        measure: returns the scores of the trials at 1/part of their steps; None if it was stopped.

    Returns:
        Whether it came to the end.
    """
    alive = [*trials]
    for part in rungs:
        scores = measure(alive, part)
        if scores is None:
            return False
        alive = best(scores, math.ceil(len(alive) / FACTOR))
    return True


class Search:
    """Trials and what has been measured of them, in a folder from which it goes on when it was stopped.

    Args:
        folds: the `data.fold` of the runs of each trial.
        recipe: a recipe file that the workers execute.
    """

    def __init__(self, trials: Sequence[Trial], folds: Sequence[str | None], folder: Path, recipe: str | None) -> None:
        self.trials, self.folds, self.folder, self.recipe = trials, folds, folder, recipe
        self.entries = {entry.key: entry for entry in results.read(folder, FILE)}

    def run(
        self,
        rungs: Sequence[int],
        *,
        jobs: int = 1,
        budget: float | None = None,
        tell: Callable[[str], None] = lambda line: None,
        status: Status[Run] | None = None,
    ) -> bool:
        """Run what is missing and return whether all is done.

        Args:
            budget: minutes; at their end running trials write a checkpoint and stop.
            tell: receives a line for every run and rung.
        """
        deadline = None if budget is None else time.monotonic() + 60 * budget
        request = partial(self._request, first=rungs[0])

        def measure(alive: Sequence[Trial], part: int) -> dict[Trial, Score | None] | None:
            length = "all" if part == 1 else f"1/{part} of the"
            each = "" if self.folds == [None] else f", {len(self.folds)} folds each"
            tell(f"rung {rungs.index(part) + 1} of {len(rungs)}: {len(alive)} trials to {length} steps{each}")
            wanted = [Run(trial, fold, part) for fold in self.folds for trial in alive]
            missing = [run for run in wanted if run.key not in self.entries]
            ended = self._recorder(tell)
            worker = f"{__package__}.worker"
            if run_all(worker, missing, request, ended, jobs=jobs, deadline=deadline, status=status):
                return None
            return {trial: self.score(trial, part) for trial in alive}

        return halve(self.trials, rungs, measure)

    def _request(self, run: Run, first: int) -> dict[str, Any]:
        """Return what a worker is to train, in a folder for each first rung: one that began later may be beyond it."""
        place = self.folder / "runs" / run.trial.key / f"first{first}" / (run.fold or "validation").replace("/", "of")
        config = derive(run.trial.config, {"out": str(place), "resume": True, "keep": 1, "data.fold": run.fold})
        return {"config": to_tree(config), "part": run.part, "recipe": self.recipe}

    def _recorder(self, tell: Callable[[str], None]) -> Callable[[Run, dict[str, Any]], None]:
        def ended(run: Run, answer: dict[str, Any]) -> None:
            row, number, form = run.key
            figures = {str(name): answer.pop(name) for name in ("accuracy", "loss") if name in answer}
            entry = Entry(row, number, form, named(run.trial.point), figures, answer)
            results.add(self.folder, FILE, entry)
            self.entries[entry.key] = entry
            accuracy, steps = figures.get("accuracy", 0), f"step {answer.get('step')} of {answer.get('total')}"
            tell(f"{run.name}: {answer.get('failed') or f'{accuracy:.2%} at {steps}'}")

        return ended

    def measured(self, trial: Trial, part: int) -> list[Entry]:
        """Return the entries of a trial at a rung, one a fold; none if any is missing."""
        found = [self.entries.get(Run(trial, fold, part).key) for fold in self.folds]
        there = [entry for entry in found if entry is not None]
        return there if len(there) == len(found) else []

    def score(self, trial: Trial, part: int) -> Score | None:
        """Return the mean accuracy and minus the mean loss; None if a fold failed."""
        found = self.measured(trial, part)
        if not found or any("failed" in entry.facts for entry in found):
            return None
        mean = [mean_and_deviation([entry.figures[name] for entry in found])[0] for name in ("accuracy", "loss")]
        return mean[0], -mean[1]

    def ranking(self, rungs: Sequence[int]) -> list[dict[str, Any]]:
        """Return a row for every trial, the best first: those that trained longer before those that were stopped."""
        rows = []
        for trial in self.trials:
            reached = [part for part in rungs if self.measured(trial, part)]
            found = self.measured(trial, reached[-1]) if reached else []
            score = self.score(trial, reached[-1]) if reached else None
            accuracies = [] if score is None else [entry.figures["accuracy"] for entry in found]
            facts = [entry.facts for entry in found]
            row = {
                "settings": dict(trial.point),
                "accuracy": None if score is None else score[0],
                "deviation": mean_and_deviation(accuracies)[1] if accuracies else None,
                "loss": None if score is None else -score[1],
                "folds": accuracies,
                "step": facts[0]["step"] if score is not None else None,
                "total": facts[0]["total"] if score is not None else None,
                "seconds": round(sum(fact["seconds"] for fact in facts), 1) if score is not None else None,
                "failed": next((fact["failed"] for fact in facts if "failed" in fact), None),
            }
            order = score is None, reached[-1] if reached else math.inf, tuple(-each for each in score or ())
            rows.append((order, row))
        ordered = [row for _, row in sorted(rows, key=lambda pair: pair[0])]
        return [{"rank": rank, **row} for rank, row in enumerate(ordered, 1)]
