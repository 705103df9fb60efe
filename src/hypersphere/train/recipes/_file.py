"""Load a recipe from a user's file: executed like a script; every failure is one line."""

from __future__ import annotations

import inspect
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any

from ..._internal.nearest import nearest_few, unknown_name
from ..config import Config

DEFAULT = "recipe"  # the function that is taken where there are several


def split(text: str) -> tuple[Path, str | None] | None:
    """Split ``my.py:function`` into file and function, None in ``my.py``; return None if it names no file."""
    file, colon, function = text.rpartition(":")
    if colon and file.endswith(".py") and function.isidentifier():
        return Path(file), function
    return (Path(text), None) if text.endswith(".py") else None


def load_file(path: Path, function: str | None) -> Config:
    """Return the config that a function of the file returns. Raise ValueError in one line if anything fails."""
    where = str(path) if str(path).isprintable() else ascii(str(path))
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ValueError("not a file")
        source = path.read_bytes()
    except (OSError, ValueError) as error:
        raise ValueError(f"{where}: {getattr(error, 'strerror', None) or error}") from None
    name = f"_recipe_{path.stem}_{zlib.crc32(os.fsencode(path.absolute())):08x}"
    module = ModuleType(name)
    module.__file__ = str(path.absolute())
    sys.modules[name] = module  # dataclasses look up the types of their fields there
    try:
        with _as_a_script(path, where):
            exec(compile(source, module.__file__, "exec", dont_inherit=True), module.__dict__)
        chosen = _choose(where, module, function)
        with _as_a_script(path, where):
            config = getattr(module, chosen)()
        if not isinstance(config, Config):
            got = "None" if config is None else type(config).__name__
            raise ValueError(f"{where}: {chosen}() must return a Config, got {got}")
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return config


@contextmanager
def _as_a_script(path: Path, where: str) -> Iterator[None]:
    """Put its folder first in sys.path, as Python does; turn what it raises into one line with the line number."""
    folder = str(path.absolute().parent)
    sys.path.insert(0, folder)
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        line = _line(error, str(path.absolute()))
        words = " ".join(str(error).split())
        if isinstance(error, SyntaxError):
            words = words.removesuffix(f" ({path.name}, line {line})")
        what = f"{type(error).__name__}: {words[:300]}" if words else type(error).__name__
        raise ValueError(f"{where}{f', line {line}' if line else ''}: {what}") from None
    finally:
        with suppress(ValueError):  # the file may have taken it away itself
            sys.path.remove(folder)


def _line(error: BaseException, file: str) -> int | None:
    """Return the line number of the innermost frame in `file`."""
    own = [error.lineno] if isinstance(error, SyntaxError) and error.filename == file else [None]
    frames = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return [*own, *frames][-1]


def _choose(where: str, module: ModuleType, function: str | None) -> str:
    """Choose the function by name, or the only one that qualifies."""
    ours = {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    if function is not None:
        if not callable(getattr(module, function, None)):
            near, listed = nearest_few(function, ours, 1), f"it has {', '.join(ours) or 'none'}"
            raise ValueError(f"{where}: {unknown_name('function', function, near, listed)}")
        return function
    free = [name for name, value in ours.items() if _takes_nothing(value)]
    if DEFAULT in free or len(free) == 1:
        return DEFAULT if DEFAULT in free else free[0]
    if free:
        raise ValueError(f"{where} has several functions: {', '.join(free)}; name one, as in {where}:{free[0]}")
    raise ValueError(f"{where} has no function without arguments; a recipe is one that returns a Config")


def _takes_nothing(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    return True
