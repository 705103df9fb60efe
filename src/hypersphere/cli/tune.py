"""Tune hyperparameters by successive halving."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .._internal.modules import import_extra
from .._internal.safe_files import write_text
from .._internal.tables import NOTHING, TextTable, percent
from ..train.config import Config, ConfigError, apply, derive, to_tree, to_yaml
from ._loading import load_recipe
from ._output import integer, print_table, say, user_errors
from ._runs import add_run_arguments, shown
from ._settings import add_base_arguments, add_settings, base_config, expand_switches, folder_name

if TYPE_CHECKING:
    from ..train.tune import Search, TrialResult

__all__ = ["add_arguments", "expand_switches", "run"]

BEST = "best.yaml"
DRAWS = 16  # trials of a space with a range


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [RECIPE | --config FILE] [--a.b=value ...] [--try a.b=A,B,... | --try a.b=LOW..HIGH ...]"
    add_base_arguments(parser)
    parser.add_argument(
        "--try",
        dest="tries",
        metavar="KEY=VALUES",
        action="append",
        default=[],
        help="values of a setting: a list, a range LOW..HIGH (logarithmic), or both, as in "
        "model.similarity=cosine,sigmoid(0.1..1); may be repeated (default: similarity and k, s of s_softmax, weight "
        "of the energy, where the config has them, and optimizer.lr)",
    )
    parser.add_argument(
        "--trials", metavar="N", type=integer(2, 10_000), help="number of trials (default: all, 16 with a range)"
    )
    parser.add_argument(
        "--folds",
        metavar="K",
        type=integer(2, 1000),
        help="folds of the cross-validation (default: 3; one held-out split with data.validation and for graphs)",
    )
    parser.add_argument(
        "--rounds", metavar="R", type=integer(1, 10), default=3, help="number of halving rounds (default: 3)"
    )
    add_run_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--quiet", action="store_true", help="hide the progress")
    add_settings(parser)


class Trial(NamedTuple):
    """One trial; `number` is that of a stopped one, which continues."""

    name: str
    number: int | None


def run(options: argparse.Namespace) -> int:
    from ..train.processes import RunFailed, run_all
    from ..train.storage.folder import lock
    from ..train.tune import TrialResult

    with user_errors(options, RunFailed), ExitStack() as stack:
        import_extra("optuna", "Optuna", "tuning", "tune")  # before a folder is made
        search, base = _prepare(options)
        stack.enter_context(lock(Path(search.folder)))
        numbers = search.prepare()

        def report(trial: Trial, answer: Mapping[str, Any]) -> None:
            result = TrialResult(**answer)
            end = result.failed or f"{percent(result.accuracy)} at step {result.step} of {result.total}"
            if not options.quiet:
                say(f"{trial.name}: {' '.join(result.settings.values())}: {end}")

        try:
            with shown("tune", enabled=not options.quiet) as status:
                left = run_all(
                    "hypersphere.cli.tune",
                    [Trial(f"trial {i}", number) for i, number in enumerate(numbers, search.trials - len(numbers))],
                    lambda trial: {"search": asdict(search), "number": trial.number},
                    report,
                    jobs=options.jobs,
                    deadline=None if options.budget is None else time.monotonic() + 60 * options.budget,
                    status=status,
                )
        except (KeyboardInterrupt, SystemExit):
            say("hypersphere tune: stopped; run the command again to continue")
            raise
        trials, best = search.ranking(), Path(search.folder, BEST)
        if not left:
            if trials[0].failed:
                raise ConfigError(f"every trial failed, the first with: {trials[0].failed}")
            write_text(best, to_yaml(apply(base, trials[0].settings)))
    _print(options, trials, None if left else best)
    if left:
        say("hypersphere tune: budget used up before the last trial; run the command again to continue")
    return 0


def _prepare(options: argparse.Namespace) -> tuple[Search, Config]:
    """Read the flags; return the search and the config that its trials change."""
    from ..train import tune

    if "WORLD_SIZE" in os.environ:
        raise ConfigError("tune starts processes of its own: run it without torchrun, with --jobs")
    base = apply(base_config(options), options.changes)
    out = base.out or Path("runs", "tune", folder_name(base.model.name, base.data.name, options.recipe))
    base, folder = derive(base, out=None, resume=False), Path(out).expanduser()
    tries = options.tries or tune.default_space(base)
    space, folds = tune.read_space(base, tries), tune.folds_of(base, options.folds)
    combinations = math.prod(map(len, space.values()))
    trials = options.trials or DRAWS if tune.has_range(space) else min(options.trials or combinations, combinations)
    recipe = options.recipe if options.recipe is not None and ".py" in options.recipe else None
    return tune.Search(str(folder), to_tree(base), tries, folds, options.rounds, trials, recipe), base


def _print(options: argparse.Namespace, trials: Sequence[TrialResult], best: Path | None) -> None:
    settings = None if best is None else trials[0].settings
    if options.json:
        rows = [{"rank": rank, **asdict(trial)} for rank, trial in enumerate(trials, 1)]
        config = None if best is None else str(best)
        print(json.dumps({"trials": rows, "best": settings, "config": config, "finished": best is not None}, indent=2))
        return
    header = ["rank", *(trials[0].settings if trials else ()), "validation accuracy", "steps", "seconds"]
    print_table(TextTable(header, [[str(rank), *_cells(trial)] for rank, trial in enumerate(trials, 1)], left=0))
    if best is None or settings is None:
        return
    command = ["--config", str(best)]
    if options.recipe is not None and ".py" in options.recipe:  # only its file knows what it registers
        command = [options.recipe, *(f"--{key}={text}" for key, text in {**options.changes, **settings}.items())]
    print(f"best: {shlex.quote(str(best))}\nnext: hypersphere train {shlex.join(command)}")


def _cells(trial: TrialResult) -> list[str]:
    if trial.failed is not None:
        return [*trial.settings.values(), trial.failed, NOTHING, NOTHING]
    spread = "" if trial.deviation is None else f" ± {percent(trial.deviation)}"
    steps = f"{trial.step} of {trial.total}"
    return [*trial.settings.values(), f"{percent(trial.accuracy)}{spread}", steps, f"{trial.seconds:.1f}"]


def work(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run one trial in a process of its own, started by :func:`~hypersphere.train.processes.run_all`."""
    from ..train.tune import Search, run_trial

    search = Search(**request["search"])
    if search.recipe is not None:
        load_recipe(search.recipe)  # its file may register data or a network
    return asdict(run_trial(search, request["number"]))


if __name__ == "__main__":
    from ..train.processes import serve

    sys.exit(serve(work))
