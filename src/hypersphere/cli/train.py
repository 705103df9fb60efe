"""Train a network from a recipe, a config file or flags."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from traceback import walk_tb
from typing import Any, NoReturn

from .._internal.tables import NOTHING, TextTable, percent
from ..train.config import Config, ConfigError
from ..train.config import convert as configs
from ..train.config.values import kind_of_data
from ._output import one_line, print_table, say
from ._settings import add_base_arguments, add_settings, base_config, expand_switches, folder_name

__all__ = ["add_arguments", "expand_switches", "run", "train"]

TERMINATED = 143  # what a shell reports for SIGTERM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [RECIPE | --config FILE] [--a.b=value ...]"
    add_base_arguments(parser)
    add_train_arguments(parser, EXAMPLES)


EXAMPLES = """\
  hypersphere train                                              a small CNN on the digits that come along
  hypersphere train opt --seed=1                                 a recipe with a change
  hypersphere train --data.name=image_folder --data.root=pets    your own images, one folder per class
  hypersphere train --model.name=resnet20 --data.name=cifar10 --model.similarity='sigmoid(0.7)'
  hypersphere train --loss.name=arcface --loss.margin=0.3        a loss with an angular margin
  hypersphere train --energy --energy.s=1                        evenly spread neurons (MHE)
  hypersphere train --rotation --rotation.method=householder     learned rotations (OPT)
  hypersphere train --out=runs/opt --resume                      continue an interrupted run
"""


def add_train_arguments(
    parser: argparse.ArgumentParser, examples: str, defaults: Mapping[str, str] | None = None
) -> None:
    """Add what every training takes: how to print, and a flag for every field, with these defaults in the help."""
    parser.add_argument("--json", action="store_true", help="print the results as JSON only")
    parser.add_argument("--print_config", action="store_true", help="print the whole config as YAML and exit")
    parser.add_argument("--quiet", action="store_true", help="hide the progress bar")
    add_settings(parser, examples, defaults)


def run(options: argparse.Namespace) -> int:
    return train(options, base_config)


def train(options: argparse.Namespace, base_of: Callable[[argparse.Namespace], Config]) -> int:
    """Train the config that `base_of` makes of the options, changed by the flags."""
    try:
        resumed = options.changes.get("resume", "")
        if "/" in resumed or os.path.isdir(resumed):
            raise ConfigError(f"--resume takes no folder; write --resume --out={resumed}")
        base = base_of(options)
        values = configs.read_changes(base, options.changes)
        if options.print_config:
            if _rank() == 0:
                print(configs.to_yaml(configs.derive(base, values)), end="")
            return 0
        config = configs.derive(base, values | {"out": os.path.expanduser(_folder(base, values, options.recipe))})
    except ValueError as error:
        _fail(options, error, everyone=False)
    result = _fit(config, options)
    if _rank() != 0:
        return 0
    if options.json:
        print(json.dumps({**result.to_dict(), "path": str(result.path)}, indent=2))
    else:
        _print(result, options.recipe)
        if base_of is base_config:
            _tell_how_to_compare(result, options)
    return 0


def _folder(base: Config, values: dict[str, Any], recipe: str | None) -> str:
    """Return the run folder: `out`, or a new one in runs/."""
    out = values.get("out", base.out)
    if out is not None:
        return str(out)
    if values.get("resume", base.resume):
        raise ConfigError("--resume needs --out, the folder of the run")
    if "WORLD_SIZE" in os.environ:
        raise ConfigError("give --out, so that all processes and restarts share a folder")
    network, dataset = values.get("model.name", base.model.name), values.get("data.name", base.data.name)
    name = folder_name(network, dataset, recipe)
    folder, number = Path("runs", name), 1
    while folder.exists() or folder.is_symlink():
        number += 1
        folder = Path("runs", f"{name}-{number}")
    return str(folder)


def _fit(config: Config, options: argparse.Namespace) -> Any:
    from ..papers import gan as gan  # registers it
    from ..train import TrainingError, fit, keep_memory
    from ..train.distributed import ProcessLost

    keep_memory()
    try:
        return fit(config, progress=not options.quiet and not options.json)
    except KeyboardInterrupt:
        _tell_how_to_resume(config, options)
        raise
    except SystemExit as stop:
        if stop.code == TERMINATED:
            _tell_how_to_resume(config, options)
        raise
    except (ValueError, OSError, TrainingError, ProcessLost) as error:
        _fail(options, error)
    except (TypeError, ImportError) as error:
        if not _ours(error):  # a mistake in a program, which its author wants to see whole
            raise
        _fail(options, error)


def _ours(error: BaseException) -> bool:
    """Return whether hypersphere itself raised it, as it does for invalid arguments and missing packages."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return bool(frame.f_globals.get("__name__", "").partition(".")[0] == "hypersphere")


def _fail(options: argparse.Namespace, error: BaseException, *, everyone: bool = True) -> NoReturn:
    """Print one line and exit with code 2; only the main process reports what every process finds."""
    rank = _rank()
    if rank != 0 and not everyone:
        raise SystemExit(2)
    line = one_line(error)
    options.error(f"{line} (process {rank})" if rank else line)
    raise AssertionError  # error() never returns


def _rank() -> int:
    """Return the rank of this process under torchrun."""
    text = os.environ.get("RANK", "0") if "WORLD_SIZE" in os.environ else "0"
    return int(text) if text.isdecimal() else 0


def _tell_how_to_resume(config: Config, options: argparse.Namespace) -> None:
    if _rank() != 0:
        return
    name = _words(options)[0]
    if "WORLD_SIZE" in os.environ:
        say(f"hypersphere {name}: to resume, repeat the command with --resume")
        return
    say(f"hypersphere {name}: to resume: {_command(options, out=config.out, resume='true')}")


def _command(options: argparse.Namespace, **changes: Any) -> str:
    """Return the command of the options with these changes; None removes one."""
    changes = {**options.changes, **changes}
    flags = [f"--{key}={text}" for key, text in changes.items() if text is not None]
    return shlex.join(["hypersphere", *_words(options), *flags])


def _words(options: argparse.Namespace) -> list[str]:
    """Return the command and what it starts from, as typed."""
    if (model := getattr(options, "model", None)) is not None:
        return ["finetune", model, *(["--weights", options.weights] if options.weights is not None else [])]
    start = [options.recipe] if options.recipe is not None else []
    return ["train", *start, *(["--config", options.config] if options.config is not None else [])]


def _tell_how_to_compare(result: Any, options: argparse.Namespace) -> None:
    """Of a plain classifier: print how to train it with the energy and see both."""
    from ..train.networks import ideas_of

    path, was_resumed = str(result.path), "resume" in options.changes
    own = ["--recipe", options.recipe] if options.recipe is not None and ".py" in options.recipe else []
    if result.config.model.is_generator or was_resumed or ideas_of(result.config, result.model):
        return
    other = f"{path}-energy"
    command = _command(options, energy="on", out=other)
    print(f"compare: {command} && {shlex.join(['hypersphere', 'report', path, other, *own])}")


def _print(result: Any, recipe: str | None) -> None:
    from ..train.storage.summary import selection  # imports torch

    summary = result.summary
    cells = {
        f"{summary.split} accuracy": percent(summary.accuracy),
        "loss": _cell(summary.loss, ".4f"),
        "energy (sum of layers)": _cell(summary.energy, ".4f"),
        "parameters trained": _cell(summary.parameters.get("trained"), ","),
        "seconds": _cell(summary.seconds, ".1f"),
    }
    print_table(TextTable([*cells], [[*cells.values()]], left=0))
    if selected := selection(summary, result.metrics):
        print(f"accuracy: {selected}; selected on the same data")
    path = shlex.quote(str(result.path))
    print(f"run: {path}\nnext: hypersphere {_next(result.config, path, recipe)}")


def _next(config: Config, path: str, recipe: str | None) -> str:
    """Return the command to try next."""
    own = f" --recipe {shlex.quote(recipe)}" if recipe is not None and ".py" in recipe else ""
    if config.model.is_generator:
        return f"export {path}{own}"
    # What is of another kind than images has no files to predict.
    return f"predict {path} FILE...{own}" if kind_of_data(config.data.name) == "images" else f"evaluate {path}{own}"


def _cell(value: float | None, form: str) -> str:
    return NOTHING if value is None else f"{value:{form}}"
