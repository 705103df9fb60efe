"""Print a script that completes commands, flags and names in your shell."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from .._internal import catalog
from .._internal.modules import install_command
from . import add_commands, top_parser

SHELLS = ("bash", "zsh", "fish")

_HOW = """Add this line to the startup file of your shell:
  bash  ~/.bashrc                    eval "$(hypersphere completion bash)"
  zsh   ~/.zshrc, after compinit     eval "$(hypersphere completion zsh)"
  fish  ~/.config/fish/config.fish   hypersphere completion fish | source
"""
_FILES = re.compile(r"FILE|DIR|RUN")  # in a metavar
_RECIPES = " ".join(catalog.RECIPES)
#: what completes RECIPE: a name or a file
RECIPE = {
    "bash": "_hypersphere_recipe_or_file",
    "zsh": "_hypersphere_recipe_or_file",
    "fish": f"{_RECIPES} (__fish_complete_path (commandline -ct))",
    "preamble": {
        "bash": f"_hypersphere_recipe_or_file() {{ compgen -W '{_RECIPES}' -- $1; compgen -f -- $1; }}",
        "zsh": f"_hypersphere_recipe_or_file() {{ compadd -- {_RECIPES}; _files; }}",
    },
}
# bash splits --flag=value into three words, where shtab expects two.
_BASH = """
_hypersphere() {
  local index cursor=$COMP_CWORD
  local -a joined=()
  for index in "${!COMP_WORDS[@]}"; do
    if [[ ${COMP_WORDS[index]} != = ]]; then
      joined+=("${COMP_WORDS[index]}")
    elif (( index < COMP_CWORD )); then
      (( cursor -= 1 ))
    elif (( index == COMP_CWORD )); then
      joined+=("")
    fi
  done
  local -a COMP_WORDS=("${joined[@]}")
  local COMP_CWORD=$cursor
  _shtab_hypersphere
}
complete -o bashdefault -F _hypersphere hypersphere
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    parser.epilog = _HOW


def run(options: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        options.error(f"completion needs shtab: {install_command('cli')}")
    parser = top_parser()
    for command in add_commands(parser):
        for action in command._actions:
            _describe(action, shtab.FILE)
    script = shtab.complete(parser, options.shell)
    if options.shell == "bash":
        script += _BASH
    if options.shell == "zsh":  # --flag=value as well as --flag value
        script = re.sub(r'^(  "--[\w.]+)(?=\[.*\]:)', r"\1=", script, flags=re.MULTILINE)
    print(script)
    return 0


def _describe(action: Any, file: Any) -> None:
    """Tell shtab what a flag or an argument takes."""
    if action.dest == "recipe" and not action.option_strings:
        action.complete = RECIPE
    elif names := getattr(action, "names", ()):
        action.choices = names
    elif action.type is Path or _FILES.search(str(action.metavar or "")):
        action.complete = file
