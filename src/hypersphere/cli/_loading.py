"""Load the run that evaluate, predict, export and landscape work on, and its data."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from ._output import integer

if TYPE_CHECKING:
    from ..train.config import Config
    from ..train.inference.run import Run


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run folder, or the folder of one of its checkpoints")
    add_recipe(parser, "run")


def add_recipe(parser: argparse.ArgumentParser, of: str) -> None:
    what = f"recipe file of the {of}, needed if it registers the dataset or the network"
    parser.add_argument("--recipe", metavar="FILE", help=what)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the flags of split, dataset folder, batch size and device."""
    parser.add_argument(
        "--split",
        choices=("test", "validation", "train"),
        help="split to evaluate (default: test, or validation if there is no test split)",
    )
    parser.add_argument("--data.root", metavar="DIR", dest="root", help="dataset folder (default: as in training)")
    size = "batch size (default: as in training)"
    parser.add_argument("--batch_size", metavar="N", type=integer(1, 10**7), help=size)
    device = "device (auto, cpu, mps, cuda or cuda:N) (default: auto)"
    parser.add_argument("--device", metavar="NAME", default="auto", help=device)


def load_recipe(recipe: str) -> Config:
    """Return the config of a recipe, of a row of a paper's table, or of a file, which may print to stderr only."""
    from ..papers import tables
    from ..train import recipes

    with redirect_stdout(sys.stderr):
        return tables.load_row(recipe) or recipes.load(recipe)


def load_options_run(options: argparse.Namespace) -> Run:
    """Load the run of the options. Raise ValueError in one line if that fails."""
    from ..papers import gan as gan  # registers it
    from ..train.config import ConfigError
    from ..train.inference.run import load_run

    if options.recipe is not None:
        load_recipe(options.recipe)
    try:
        return load_run(options.run)
    except ConfigError as error:
        if options.recipe is not None or error.hint is None:
            raise
        raise ValueError(f"{error.message}; if it is your own, pass the recipe file with --recipe") from None


def load_data_run(options: argparse.Namespace) -> tuple[Run, Config]:
    """Load the run of the options, and its config with those of :func:`add_data`."""
    from ..train.config import derive

    loaded = load_options_run(options)
    if options.root is not None and loaded.config.data.name == "digits":
        raise ValueError("this run uses digits, which needs no files: remove --data.root")
    given = {"data.root": options.root, "data.batch_size": options.batch_size, "device": options.device}
    return loaded, derive(loaded.config, {key: value for key, value in given.items() if value is not None})
