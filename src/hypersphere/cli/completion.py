"""Print a script that completes commands, flags and names in your shell."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import NamedTuple

from .. import catalog
from . import parser_of
from ._shells import bash, fish, zsh

SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}

_HOW = """put this line where your shell begins:
  bash  ~/.bashrc                    source <(hypersphere completion bash)
  zsh   ~/.zshrc                     source <(hypersphere completion zsh)
  fish  ~/.config/fish/config.fish   hypersphere completion fish | source
"""
_FILES = re.compile(r"FILE|DIR|PATH|FOLDER|RUN")  # in a metavar


class Word(NamedTuple):
    """A flag or an argument of a command, as a shell needs to know it."""

    flags: tuple[str, ...]  # none for an argument
    value: str  # "none", "optional", "one" or "many"
    names: tuple[str, ...]  # what it can be
    files: bool  # or may be a file
    help: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=[*SHELLS], help=", ".join(SHELLS))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _HOW


def run(options: argparse.Namespace) -> int:
    print(SHELLS[options.shell](catalog.COMMANDS, {command: words_of(command) for command in catalog.COMMANDS}), end="")
    return 0


def words_of(command: str) -> list[Word]:
    """The flags and arguments of a command, read from its parser."""
    found: list[Word] = []
    for action in parser_of(command)[1]._actions:
        names = tuple(getattr(action, "names", ()) or map(str, action.choices or ()))
        if (command, action.dest) == ("train", "recipe"):
            names = tuple(catalog.RECIPES)
        files = action.type is Path or bool(_FILES.search(str(action.metavar or "")))
        if not action.option_strings and not action.choices and action.type in (None, str):
            files = True
        value = {"?": "optional", "*": "many", "+": "many"}.get(str(action.nargs), "one")
        if action.nargs == 0:
            value, files = "none", False
        help = re.sub(r" \(.*", "", (action.help or "").replace("%%", "%"))
        found.append(Word(tuple(action.option_strings), value, names, files, help))
    return found
