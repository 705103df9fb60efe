"""Choose settings by validation accuracy: trials in rungs, of which the best third goes on."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._internal.safe_files import write_text
from ..train.config import Config, ConfigError, apply, derive, to_yaml
from ._output import integer, print_table, say, user_errors
from ._runs import add_run_arguments, shown
from ._settings import add_base_arguments, add_settings, base_config, expand_switches, folder_name

__all__ = ["add_arguments", "expand_switches", "run"]

BEST = "best.yaml"


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
        "--trials", metavar="N", type=integer(2, 10_000), help="points to try (default: all, 16 of a range)"
    )
    parser.add_argument(
        "--folds",
        metavar="K",
        type=integer(2, 1000),
        help="folds of the cross-validation (default: 3; one held-out split with data.validation and for graphs)",
    )
    parser.add_argument(
        "--rungs",
        metavar="R",
        type=integer(1, 10),
        default=3,
        help="at most so many; 3: to 1/9, 1/3 and all of the steps; 1: train every trial to the end (default: 3)",
    )
    add_run_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--quiet", action="store_true", help="hide the progress")
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    from ..train.processes import RunFailed

    with user_errors(options, RunFailed):
        try:
            base, search, rungs = _prepare(options)
            folder, tell = search.folder, (lambda line: None) if options.quiet else say
            with shown("tune", enabled=not options.quiet) as status:
                finished = search.run(rungs, jobs=options.jobs, budget=options.budget, tell=tell, status=status)
            rows = search.ranking(rungs)
            if finished and rows[0]["accuracy"] is None:
                raise ConfigError(f"every trial failed, the first with: {rows[0]['failed']}")
            if finished:
                write_text(folder / BEST, to_yaml(apply(base, rows[0]["settings"])))
        except (KeyboardInterrupt, SystemExit):
            say("hypersphere tune: stopped; repeat the command to go on")
            raise
    _print(options, rows, folder, finished)
    if not finished:
        say("hypersphere tune: the time is up before the last rung, so no best is known; repeat the command to go on")
    return 0


def _prepare(options: argparse.Namespace) -> tuple[Config, Any, list[int]]:
    """Read the flags; return the config that the trials change, the search, and its rungs."""
    from ..tune import space
    from ..tune.search import Search, Trial, parts

    if "WORLD_SIZE" in os.environ:
        raise ConfigError("tune starts processes of its own: run it without torchrun, with --jobs")
    base = apply(base_config(options), options.changes)
    out = base.out or Path("runs", "tune", folder_name(base.model.name, base.data.name, options.recipe))
    base = derive(base, out=None, resume=False)
    folder = Path(os.path.expanduser(out))
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"out must be a folder, got the file {folder}")
    folds = space.folds_of(base, options.folds)
    found = space.read_space(base, options.tries or space.default_space(base))
    points = space.points(found, base.seed, options.trials)
    recipe = _own_recipe(options)
    text = "" if recipe is None else Path(recipe.partition(".py")[0] + ".py").expanduser().read_text(encoding="utf-8")
    trials = [Trial.of(*pair, text) for pair in zip(points, space.configs(base, points), strict=True)]
    _check_different(trials)
    if (folder / BEST).is_dir():
        raise ConfigError(f"{folder / BEST} must be a file, got a folder")
    return base, Search(trials, folds, folder, recipe), parts(len(trials), options.rungs)


def _check_different(trials: Sequence[Any]) -> None:
    """Raise ConfigError if two trials are the same config: their texts may differ (0.1 and 0.10)."""
    from ..tune.space import named

    seen: dict[str, Any] = {}
    for trial in trials:
        if (other := seen.setdefault(trial.key, trial)) is not trial:
            raise ConfigError(f"--try has a point twice: {named(other.point)} and {named(trial.point)}")


def _own_recipe(options: argparse.Namespace) -> str | None:
    """Return the recipe if it is the user's file."""
    return options.recipe if options.recipe is not None and ".py" in options.recipe else None


def _print(options: argparse.Namespace, rows: list[dict[str, Any]], folder: Path, finished: bool) -> None:
    from ..tune.space import short_names

    best = rows[0]["settings"] if finished else None
    file = None if best is None else str(folder / BEST)
    if options.json:
        print(json.dumps({"trials": rows, "best": best, "config": file, "finished": finished}, indent=2))
        return
    names = short_names([*rows[0]["settings"]])
    header = ["rank", *names, "validation accuracy", "steps", "seconds"]
    print_table(header, [_cells(row) for row in rows])
    if best is None:
        return
    command = ["--config", file]
    if _own_recipe(options) is not None:  # only its file knows what it registers
        command = [options.recipe, *(f"--{key}={text}" for key, text in {**options.changes, **best}.items())]
    print(f"best: {shlex.quote(str(file))}\nnext: hypersphere train {shlex.join(map(str, command))}")


def _cells(row: dict[str, Any]) -> list[str]:
    if row["accuracy"] is None:
        figures = [row["failed"] or "-", "-", "-"]
        return [str(row["rank"]), *row["settings"].values(), *figures]
    spread = "" if row["deviation"] is None else f" ± {row['deviation']:.2%}"
    figures = [f"{row['accuracy']:.2%}{spread}", f"{row['step']} of {row['total']}", f"{row['seconds']:.1f}"]
    return [str(row["rank"]), *row["settings"].values(), *figures]
