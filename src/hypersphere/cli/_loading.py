"""Load the run that evaluate, predict and export work on."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..train.inference.run import Run


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run folder, or the folder of one of its checkpoints")
    parser.add_argument(
        "--recipe", metavar="FILE", help="recipe file of the run, if that registers the dataset or the network"
    )


def load_options_run(options: argparse.Namespace) -> Run:
    """Load the run of the options. Raise ValueError in one line if that fails."""
    from .. import recipes
    from ..train.config import ConfigError
    from ..train.inference.run import load_run

    if options.recipe is not None:
        with redirect_stdout(sys.stderr):  # what the file prints is not our output
            recipes.load(options.recipe)
    try:
        return load_run(options.run)
    except ConfigError as error:
        if options.recipe is not None or error.hint is None:
            raise
        raise ValueError(f"{error.message}; if it is your own, pass the recipe file with --recipe") from None
