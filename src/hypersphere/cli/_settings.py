"""The flags of a config: one per field, `--a.b=value` or `--a.b value`, kept as text until they are applied."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from .._internal import catalog
from ..train.config import Config, ConfigError, Flag, flags, load_file
from ..train.config.config import group_of
from ..train.config.convert import OFF, names_of
from ..train.config.values import kinds_of
from ..train.storage.layout import CONFIG
from . import Help
from ._loading import load_recipe

#: the flags of `--help`; `--help-all` has them all
COMMON = {
    *("seed", "steps", "epochs", "out", "resume", "init_from", "device", "model.name", "model.similarity"),
    *("data.name", "data.root", "data.batch_size", "data.augment", "loss.name", "loss.margin", "energy", "rotation"),
    *("optimizer.name", "optimizer.lr"),
}
FOLDERS = ("out", "init_from", "data.root")
#: what follows a switch and is not its value: another flag or a recipe; numbers are values
_NO_VALUE = rf"-(?![0-9.])|({'|'.join(catalog.RECIPES)})$|.*\.py"


class Setting(argparse.Action):
    """Add the flag's text to `changes`; a shell completes it with `names`.

    A later flag replaces an earlier one, and one that turns a group off replaces the group's flags before it.
    """

    names: tuple[str, ...] = ()
    is_rare = False

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        key = self.option_strings[0][2:]
        turned_off = "." not in key and values in OFF
        earlier = {
            name: text
            for name, text in namespace.changes.items()
            if name != key and not (turned_off and name.startswith(f"{key}."))
        }
        namespace.changes = {**earlier, key: values}


def add_base_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what a config starts from: a recipe or a file."""
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        nargs="?",
        help=f"recipe to start from: {', '.join(catalog.RECIPES)}, or your own file, my.py or my.py:function",
    )
    parser.add_argument("--config", metavar="FILE", help="start from a config file, YAML or JSON, instead")


def base_config(options: argparse.Namespace) -> Config:
    """Return the config that the flags change."""
    if options.recipe is not None and options.config is not None:
        raise ConfigError("give RECIPE or --config, not both")
    if options.recipe is not None:
        return load_recipe(options.recipe)
    if options.config is not None:
        return load_file(options.config)
    return started_config(options) or Config()


def started_config(options: argparse.Namespace) -> Config | None:
    """Return the config of the run that the flags resume; None if there is none."""
    if options.changes.get("resume") == "true" and "out" in options.changes:
        started = Path(options.changes["out"], CONFIG)
        if started.exists():
            return load_file(started)
    return None


def folder_name(network: str, dataset: str, recipe: str | None) -> str:
    """Name a run folder after the recipe, or after network and dataset."""
    name = f"{network}-{dataset}"
    if recipe is not None:
        file, _, function = recipe.partition(".py")
        name = f"{Path(file).name}{function.replace(':', '-')}"
    return re.sub(r"[^\w.+-]+", "_", name)


def add_settings(
    parser: argparse.ArgumentParser, examples: str = "", defaults: Mapping[str, str] | None = None
) -> None:
    """Add a flag for every field, grouped as in the config; :func:`config.apply` takes `options.changes`.

    Args:
        defaults: what the help says instead of the defaults of a config, by key.
    """
    parser.add_argument("--help-all", action=Help, help=f"print the help of all {len(flags())} settings and exit")
    titles = {}
    for field in fields(Config):
        if group_of(field.name)[0] is not None:
            help = field.metadata["help"].partition(";")[0]
            titles[field.name] = field.name if help == field.name else f"{field.name} - {help}"
    groups: dict[str, Any] = {}
    for flag in flags():
        title = titles.get(flag.key.partition(".")[0], "training")
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        switch = _is_switch(flag)
        added = groups[title].add_argument(
            flag.flag,
            action=Setting,
            dest="changes",
            default=argparse.SUPPRESS,
            metavar=_metavar(flag),
            nargs="?" if switch else None,
            const="true" if switch else None,
            help=_help(flag, (defaults or {}).get(flag.key)).replace("%", "%%"),
        )
        added.is_rare = flag.key not in COMMON
        names = names_of(flag.field)
        added.names = ("true", "false", *names) if switch else names
    parser.epilog = (
        (f"examples:\n{examples}\n" if examples else "")
        + "A flag without a default is null unless it is given; --flag=null resets it.\n"
        f"`hypersphere list` has the names that flags take, `{parser.prog} --help-all` every setting."
    )
    parser.set_defaults(changes={})


def expand_switches(argv: Sequence[str]) -> list[str]:
    """Turn `--resume` without a value into `--resume=true`, also before another flag or a recipe: `--resume opt`."""
    switches = {flag.flag: flag for flag in flags() if _is_switch(flag)}
    return [
        f"{word}=true" if word in switches and re.match(_NO_VALUE, following) else word
        for word, following in zip(argv, [*argv, "--"][1:], strict=True)
    ]


def _help(flag: Flag, default: str | None) -> str:
    return flag.help if default is None else f"{flag.help.partition(' (default: ')[0]} (default: {default})"


def _is_switch(flag: Flag) -> bool:
    return flag.kind is None or bool in kinds_of(flag.kind)


def _metavar(flag: Flag) -> str:
    kinds = kinds_of(flag.kind)
    if flag.key in FOLDERS:
        return "DIR"
    words = {None: "on|off", bool: "true|false", str: "NAME", float: "X", int: "N"}
    if tuple[str, ...] in kinds:
        return "NAME,..."
    shown = [word for kind, word in words.items() if kind in kinds and not (kind is int and float in kinds)]
    return "|".join(shown) or ("X,X" if flag.key == "optimizer.betas" else "N,...")
