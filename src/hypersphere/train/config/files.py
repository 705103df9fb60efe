"""Read YAML and JSON files of configs as plain trees. No tag in a file can create an object."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from ..._internal import checksummed_json
from ..._internal.modules import install_command
from .values import ConfigError, parse_scalar, shown

_PLAIN = re.compile(r"[A-Za-z_/][\w.+/-]*", re.ASCII)
_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str")}  # of values without a tag


def read_tree(path: str | os.PathLike[str]) -> Any:
    """Read a file, ``.json`` as JSON and all else as YAML. An empty YAML file is {}."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
        return _strip(_json(text), text) if Path(path).suffix.lower() == ".json" else _yaml(text)
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(error.strerror or str(error)) from None
    except RecursionError:
        raise ConfigError("nested too deeply") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_int=parse_scalar)
    except json.JSONDecodeError as error:
        raise ConfigError(f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if doubled := [key for key in keys if keys.count(key) > 1]:
        raise ConfigError(f"{doubled[0]} is given twice")
    return dict(pairs)


def _strip(tree: Any, text: str) -> Any:
    """Verify and remove the checksum of a run's config.json; remove the run's id."""
    if isinstance(tree, dict) and checksummed_json.KEY in tree and not checksummed_json.is_whole(text.encode()):
        hint = 'if it was edited on purpose, remove its line "checksum"'
        raise ConfigError(f"damaged: the checksum does not match; {hint}")
    if isinstance(tree, dict):
        for key in (checksummed_json.KEY, checksummed_json.RUN_ID):
            tree.pop(key, None)
    return tree


def _yaml(text: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigError(f"YAML needs PyYAML: {install_command('cli')}, or write JSON") from None
    loader = type("Loader", (yaml.SafeLoader,), {"yaml_implicit_resolvers": {}})  # scalars are typed by parse_scalar
    try:
        node = yaml.compose(text, loader)
    except (ValueError, OverflowError):  # raised by PyYAML for "\\UFFFFFFFF"
        raise ConfigError("not YAML: an escape beyond Unicode") from None
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        what = problem or getattr(error, "reason", None) or "cannot be read"
        raise ConfigError(f"{where}not YAML: {' '.join(str(what).split())}") from None
    return {} if node is None else _value(node)


def _value(node: Any) -> Any:
    """Return the plain value of a YAML node."""
    if node.tag not in _TAGS:
        raise ConfigError(f"line {node.start_mark.line + 1}: tags are not allowed, got {shown(node.tag)}")
    if node.id == "mapping":
        tree: dict[str, Any] = {}
        for key, value in node.value:
            if key.id != "scalar":
                raise ConfigError(f"line {key.start_mark.line + 1}: a key must be text")
            if key.value in tree:
                raise ConfigError(f"line {key.start_mark.line + 1}: {key.value} is given twice")
            tree[key.value] = _value(value)
        return tree
    if node.id == "sequence":
        return [_value(item) for item in node.value]
    return parse_scalar(node.value) if node.style is None else node.value


def format_scalar(value: Any) -> str:
    """Format a value so that YAML 1.1 and 1.2 read it alike."""
    if isinstance(value, list):
        return f"[{', '.join(map(format_scalar, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        digits, e, power = repr(value).partition("e")
        return digits if not e else f"{digits if '.' in digits else digits + '.0'}e{power}"
    if isinstance(value, int):
        return str(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return str(value)
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


_WORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
