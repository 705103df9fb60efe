"""The command `hypersphere`. Each subcommand is a module here, imported when it is called, so that help needs no torch.

A command's module has `add_arguments(parser)` and `run(options)`, which returns the exit code: 0, or 2 for a user
error, after one line on stderr; 130 when interrupted. An optional `expand_switches(argv)` edits the arguments
before they are parsed.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from .. import __version__
from .._internal import catalog
from .._internal.nearest import nearest_few, nearest_keys, unknown, unknown_name
from ._output import one_line, printable, say

INTERRUPTED, BROKEN_PIPE = 130, 141  # what a shell reports for SIGINT and SIGPIPE

#: heading of `hypersphere --help` → its commands; those named nowhere come under "other"
GROUPS = {
    "train": ("train", "finetune", "evaluate", "predict", "export", "tune"),
    "look": ("inspect", "report"),
    "papers": ("reproduce", "figure", "landscape", "thomson"),
    "other": ("list", "verify", "completion"),
}


class Help(argparse.Action):
    """Print the help and exit; of flags that have `is_rare`, only `--help-all` tells."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        for action in parser._actions:
            if option != "--help-all" and getattr(action, "is_rare", False):
                action.help = argparse.SUPPRESS
        parser.print_help()
        parser.exit()


class Parser(argparse.ArgumentParser):
    """Report an error in one line, without the usage; help as :class:`Help` prints it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, add_help=False, allow_abbrev=False)
        self.formatter_class = argparse.RawDescriptionHelpFormatter
        self.add_argument("-h", "--help", action=Help, help="print this help and exit")

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (\S+): expected one argument$", r"\1 needs a value", message)
        self.exit(2, printable(f"{self.prog}: {message}") + "\n")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse as parse_args does; for an unknown flag, suggest the nearest."""
        options, strange = self.parse_known_args(argv)
        if strange:
            self.error(self._cause(options, strange))
        return options

    def _cause(self, options: argparse.Namespace, strange: Sequence[str]) -> str:
        flag = next((word.partition("=")[0] for word in strange if word.startswith("-")), None)
        if flag is None:
            for last in self._get_positional_actions()[-1:]:
                if last.nargs != "+":
                    return f"one {last.metavar} only, got {getattr(options, last.dest)} and {' and '.join(strange)}"
            return f"unknown argument {strange[0]!r}"
        known = [name for name in self._option_string_actions if name.startswith("--")]
        near = [f"--{name}" for name in nearest_keys(flag.lstrip("-"), (name[2:] for name in known))]
        of_group = [name for name in known if name.startswith(flag.partition(".")[0] + ".")]
        otherwise = f"must be one of {', '.join(of_group)}" if of_group else f"see `{self.prog} --help`"
        return unknown_name("flag", flag, near, otherwise)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check as argparse does; suggest the nearest of the choices."""
        if action.choices is not None and value not in action.choices:
            what = "/".join(action.option_strings) or str(action.metavar or action.dest)
            self.error(unknown(what, value, action.choices))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names that the terminal has no letters for
    try:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _warn
                code = _main(sys.argv[1:] if argv is None else argv)
        except SystemExit as stop:  # argparse's way out
            code = stop.code if isinstance(stop.code, int) else 0
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a closed pipe can still be dealt with
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe (`| head`)
        _give_up_stdout()
        return BROKEN_PIPE
    except OSError as error:
        _give_up_stdout()
        say(f"hypersphere: {error}")
        return 2


def _warn(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Print a warning in one line, without its place in our code; skip deprecations inside torch."""
    if not issubclass(category, DeprecationWarning | FutureWarning):
        say(f"hypersphere: {one_line(message)}")


def _give_up_stdout() -> None:
    """Redirect stdout to nowhere: the interpreter flushes it once more at exit and would fail again."""
    with suppress(OSError, ValueError, AttributeError):  # a stdout that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _main(argv: Sequence[str]) -> int:
    if argv and not argv[0].startswith("-"):
        name, *rest = argv
        if name not in catalog.COMMANDS:
            otherwise = f"must be one of {', '.join(catalog.COMMANDS)}"
            near = nearest_few(name, catalog.COMMANDS, 1)
            Parser(prog="hypersphere").error(unknown_name("command", name, near, otherwise))
        command, parser = parser_of(name)
        expand = getattr(command, "expand_switches", None)
        return int(command.run(parser.read(rest if expand is None else expand(rest))))
    parser = top_parser()
    parser.read(argv)
    parser.print_help(sys.stderr)  # without a command, as uv, ruff and click do
    return 2


def top_parser() -> Parser:
    """Build the parser of `hypersphere` without a command."""
    parser = Parser(
        prog="hypersphere",
        usage="hypersphere [--version] [--help] COMMAND ...",
        description="Learning on hyperspheres in PyTorch.",
        epilog=f"{_commands()}\n`hypersphere COMMAND --help` lists the arguments of a command.",
    )
    parser.add_argument("--version", action="version", version=f"hypersphere {__version__}", help="print the version")
    return parser


def _commands() -> str:
    """List the commands by group."""
    width, text = max(map(len, catalog.COMMANDS)), ""
    grouped = {name for names in GROUPS.values() for name in names}
    for heading, names in GROUPS.items():
        more = [name for name in catalog.COMMANDS if name not in grouped] if heading == "other" else []
        text += f"{heading}:\n"
        text += "".join(f"  {name:{width}}  {catalog.COMMANDS[name]}\n" for name in (*names, *more))
    return text


def add_commands(parser: Parser) -> list[Parser]:
    """Add every command to the parser and return their parsers."""
    commands = parser.add_subparsers()
    parsers = []
    for name, text in catalog.COMMANDS.items():
        parsers.append(commands.add_parser(name, help=text, description=text))
        import_module(f".{name}", __name__).add_arguments(parsers[-1])
    return parsers


def parser_of(name: str) -> tuple[ModuleType, Parser]:
    """Import a command and build its parser."""
    command = import_module(f".{name}", __name__)
    parser = Parser(prog=f"hypersphere {name}", description=catalog.COMMANDS[name])
    command.add_arguments(parser)
    parser.set_defaults(error=parser.error)
    return command, parser
