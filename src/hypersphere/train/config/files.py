"""Read YAML and JSON files of configs as plain trees. No tag in a file can create an object."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ..._internal import checksummed_json
from ..._internal.modules import install_command
from .values import ConfigError, shown

LARGEST_FILE = 64 * 1024  # bytes; PyYAML takes some seconds for the worst of them
DEEPEST = 20
_PLAIN = re.compile(r"[A-Za-z_/][\w.+/-]*", re.ASCII)
_BOOL, _NULL = re.compile(r"true|True|TRUE|false|False|FALSE"), re.compile(r"~|null|Null|NULL|")
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)


class Tree(dict[Any, Any]):
    """A mapping in a file; `doubled` is a duplicate key, `line` its line if known."""

    doubled: Any = None
    line: int | None = None


def read_tree(path: str | os.PathLike[str]) -> Any:
    """Read a file, ``.json`` as JSON and all else as YAML. An empty YAML file is {}."""
    path = Path(path)
    text = _text(path)
    try:
        return _strip(_json(text), text) if path.suffix.lower() == ".json" else _yaml(text)
    except RecursionError:
        raise ConfigError(f"nested deeper than {DEEPEST} levels") from None


def _text(path: Path) -> str:
    if path.exists() and not path.is_file():  # a pipe would block
        raise ConfigError("not a file")
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(getattr(error, "strerror", None) or str(error)) from None
    if len(data) > LARGEST_FILE:
        raise ConfigError(f"larger than {LARGEST_FILE // 1024} KiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 text (byte {error.start})") from None


def _tree(pairs: list[tuple[Any, Any]], lines: Sequence[int] = ()) -> Tree:
    tree = Tree()
    for i, (key, value) in enumerate(pairs):
        if key in tree:
            tree.doubled, tree.line = key, lines[i] if lines else None
        tree[key] = value
    return tree


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_tree, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise ConfigError(f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None


def _strip(tree: Any, text: str) -> Any:
    """Verify and remove the checksum of a run's config.json; remove the run's id."""
    if isinstance(tree, Tree) and checksummed_json.KEY in tree and tree.doubled != checksummed_json.KEY:
        if not checksummed_json.is_whole(text.encode()):
            hint = 'if it was edited on purpose, remove its line "checksum"'
            raise ConfigError(f"damaged: the checksum does not match; {hint}")
        del tree[checksummed_json.KEY]
    if isinstance(tree, Tree) and tree.doubled != checksummed_json.RUN_ID:
        tree.pop(checksummed_json.RUN_ID, None)
    return tree


def _integer(text: str) -> int:
    if len(text) > 1000:  # parsing time is quadratic
        raise ConfigError(f"an integer of {len(text)} digits is too long")
    return int(text)


def _yaml(text: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigError(f"YAML needs PyYAML: {install_command('cli')}, or write JSON") from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Compose nodes without aliases and tags; scalars are typed as in YAML 1.2."""

        yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            if self.check_event(yaml.AliasEvent) or event.anchor is not None:
                raise ConfigError(f"line {event.start_mark.line + 1}: anchors and aliases (& and *) are not allowed")
            if getattr(event, "tag", None) is not None:
                raise ConfigError(f"line {event.start_mark.line + 1}: tags are not allowed, got {shown(event.tag)}")
            self.depth += 1
            if self.depth > DEEPEST:
                raise ConfigError(f"line {event.start_mark.line + 1}: nested deeper than {DEEPEST} levels")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    try:
        node = yaml.compose(text, Loader)
    except ConfigError:
        raise
    except (ValueError, OverflowError):  # raised by PyYAML for "\\UFFFFFFFF"
        raise ConfigError("not YAML: an escape beyond Unicode") from None
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        what = problem or getattr(error, "reason", None) or "cannot be read"
        raise ConfigError(f"{where}not YAML: {' '.join(str(what).split())}") from None
    return Tree() if node is None else _value(node)


def _value(node: Any) -> Any:
    """Return the plain value of a YAML node. Without tags there are three kinds."""
    if node.id == "mapping":
        pairs = [(_value(key), _value(value)) for key, value in node.value]
        for (key, _), (at, _) in zip(pairs, node.value, strict=True):
            if not isinstance(key, Hashable) or isinstance(key, list | dict):
                raise ConfigError(f"line {at.start_mark.line + 1}: a key must be text, got {shown(key)}")
        return _tree(pairs, [key.start_mark.line + 1 for key, _ in node.value])
    if node.id == "sequence":
        return [_value(item) for item in node.value]
    return _scalar(node.value) if node.style is None else node.value


def _scalar(text: str) -> Any:
    """Parse an unquoted scalar; NaN and infinity are rejected later, where the key is known."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        return float(text.replace(".", "", 1)) if text[-1] in "fFnN" else float(text)
    return text


def scalar(value: Any) -> str:
    """Format a value so that YAML 1.1 and 1.2 read it alike."""
    if isinstance(value, list):
        return f"[{', '.join(map(scalar, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        assert math.isfinite(value)
        digits, e, power = repr(value).partition("e")
        return digits if not e else f"{digits if '.' in digits else digits + '.0'}e{power}"
    if isinstance(value, int):
        return str(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return str(value)
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


_WORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
