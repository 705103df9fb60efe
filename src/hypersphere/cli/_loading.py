"""The run that evaluate, predict and export are about."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..train.inference.run import Run


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a run, or of one of its checkpoints")
    parser.add_argument(
        "--recipe", metavar="FILE", help="the recipe's file it was trained from, if that registers the data or network"
    )


def loaded(options: argparse.Namespace) -> Run:
    """The run of the options. ValueError in one line if it cannot be had."""
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
        raise ValueError(f"{error.message}; if it is your own, give the recipe's file with --recipe") from None
