"""Check one value of a config, from a tree or from the text of a flag."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import types
import unicodedata
from collections.abc import Iterable
from operator import ge, gt, le, lt
from typing import Any, get_args, get_origin

from ..._internal import catalog
from ..._internal.nearest import nearest_few

LARGEST = 2**63 - 1
AUTO: Any = "auto"  # which no field declares among its types
MATRIX_OPTIMIZERS = ("pion", "muon", "muonh")  # they step matrices, and Adam everything else
_NONE: Any = type(None)
_INTEGER = re.compile(r"[-+]?[0-9]{1,25}")  # a longer one is read as a float
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)

#: what `setting(names=...)` may be → its table in the catalog
TABLES: dict[str, Iterable[str]] = {
    "model": catalog.MODELS,
    "data": catalog.DATA,
    "augmentation": catalog.AUGMENTATIONS,
    "imbalance": catalog.IMBALANCES,
    "similarity": catalog.SIMILARITIES,
    "loss": catalog.LOSSES,
    "measure": catalog.MEASURES,
    "evenness": catalog.EVENNESS,
    "method": catalog.METHODS,
    "init": catalog.INITS,
    "optimizer": catalog.OPTIMIZERS,
    "schedule": catalog.SCHEDULES,
}
# What `hypersphere list` calls them, if not by the plural with s; "": not at all.
_LISTS = {"data": "data", "similarity": "similarities", "loss": "losses", "init": "", "imbalance": ""}
_LISTS |= {"evenness": "evenness"}
# Where users register names of their own. Only read if the module is imported already.
_LIVE = {
    "model": ("hypersphere.models._registry", "PRESETS"),
    "data": ("hypersphere.data._registry", "DATASETS"),
    "augmentation": ("hypersphere.data.augment", "AUGMENTATIONS"),
    "similarity": ("hypersphere.layers.similarity", "SIMILARITIES"),
    "loss": ("hypersphere.losses.margins", "MARGINS"),
    "measure": ("hypersphere.energy.measures", "REGULARIZERS"),
    "method": ("hypersphere.orthogonal", "ORTHOGONALIZERS"),
}


def known(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a table, with those that the user has registered; a tuple of names as it is."""
    if not isinstance(names, str):
        return names
    return tuple(dict.fromkeys((*TABLES[names], *_live(*_LIVE.get(names, ("", ""))))))


def kind_of_data(name: str) -> str | None:
    """Return images | points | text | graph; None for a user's dataset that does not declare it."""
    return catalog.DATA.get(name) or getattr(_live(*_LIVE["data"]).get(name), "kind", None)


def _live(module: str, table: str) -> dict[str, Any]:
    return getattr(sys.modules.get(module), table, {})


class ConfigError(ValueError):
    """Raised for an invalid config: one line that names the key; `hint` only for a name that is in no table."""

    __module__ = "hypersphere.train.config"

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}, {hint}")
        self.message, self.hint = message, hint


def setting(default: Any, help: str, **rule: Any) -> Any:
    """Define a field of a config.

    The rules are

    - names: the allowed values, or their kind: a key of :data:`TABLES`.
    - others: whether other names may be known where the value is used.
    - auto: whether it may be "auto", which a training replaces when its data are known (train.automatic).
    - low, high, above, below: the range, of each number in a list too; above and below are not in it.
    - pattern: a regular expression of the whole text.
    - words: what is allowed, for messages, where the type and the range do not say it.
    """
    return dataclasses.field(default=default, metadata={"help": help, **rule})


def shown(value: Any) -> str:
    """Format a value of any type for a message: short, on one line."""
    if isinstance(value, dict):
        return "a group"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    return repr(value) if value is None or isinstance(value, bool | int | float) else type(value).__name__


def kinds_of(kind: Any) -> tuple[Any, ...]:
    """Return the alternatives of a type: ``int | None`` has two."""
    return get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def read(key: str, kind: Any, rule: Any, value: Any) -> Any:
    """Convert `value` to the field's type: 1 to 1.0 for a float, a list to a tuple."""
    kinds = kinds_of(kind)
    if (value is None and _NONE in kinds) or (isinstance(value, str) and value == AUTO and rule.get("auto")):
        return value
    if str in kinds and tuple[str, ...] in kinds and isinstance(value, str | list | tuple):
        return _texts(key, kind, rule, value)
    if isinstance(value, bool):
        if bool in kinds:
            return value
    elif isinstance(value, int) and int in kinds:
        if abs(value) > LARGEST:
            raise ConfigError(f"{key} must fit in 64 bits, got {shown(value)}")
        return _within(key, kind, rule, int(value))
    elif isinstance(value, int | float) and float in kinds:
        return _within(key, kind, rule, float(value))
    elif isinstance(value, str):
        if str in kinds and not ((bool in kinds or float in kinds) and value not in known(rule["names"])):
            return _text(key, rule, value)
    elif isinstance(value, list | tuple):
        for option in kinds:
            if get_origin(option) is tuple:
                return _list(key, option, rule, value)
    raise ConfigError(f"{key} must be {allowed(kind, rule)}, got {shown(value)}{_hint(kinds, value)}")


def _texts(key: str, kind: Any, rule: Any, value: Any) -> str | tuple[str, ...]:
    """Read one text or several; "a, b" are two, and a list of one is that one."""
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    for part in parts:
        if not isinstance(part, str):
            raise ConfigError(f"{key} must be {allowed(kind, rule)}, got {shown(part)} in a list")
    if not parts and "names" in rule:
        raise ConfigError(f"{key} must not be empty; give {allowed(kind, rule)}")
    texts = tuple(_text(key, rule, part) for part in parts)
    return texts[0] if len(texts) == 1 else texts


def parse(key: str, kind: Any, rule: Any, text: str) -> Any:
    """Parse the text of a flag."""
    kinds = kinds_of(kind)
    return read(key, kind, rule, _parsed(kinds, text.strip() if str not in kinds else text))


def _parsed(kinds: tuple[Any, ...], text: str) -> Any:
    """Parse `text` as one of the kinds; return the text itself if it is none of them."""
    if _NONE in kinds and text in ("null", "none"):
        return None
    value = parse_scalar(text)
    if value not in (None, text) and (type(value) in kinds or (isinstance(value, int) and float in kinds)):
        return value
    for option in kinds:
        if get_origin(option) is tuple:
            inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
            return [_parsed(get_args(option)[:1], part.strip()) for part in inner.split(",")] if inner.strip() else []
    return text


def parse_scalar(text: str) -> Any:
    """Parse an unquoted scalar as YAML 1.2 does; NaN and infinity are rejected later, where the key is known."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text.lower() == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text.replace(".", "", 1)) if text[-1] in "fFnN" else float(text)
    return text


def allowed(kind: Any, rule: Any) -> str:
    """Describe the values that a field takes: "a number > 0, auto or null"."""
    if "words" in rule:
        return str(rule["words"])
    words: list[str] = []
    kinds = kinds_of(kind)
    for option in kinds:
        if option is int and float in kinds:
            continue
        if get_origin(option) is tuple:
            words.append("a list of " + {int: "integers", str: "texts"}.get(get_args(option)[0], "numbers"))
        elif option is str and "names" in rule:
            words += [*known(rule["names"]), *(["another name"] if rule.get("others") else [])]
        elif option is bool:
            words += ["true", "false"]
        else:
            words.append(_WORDS[option] + (_range(rule) if option in (int, float) else ""))
    if rule.get("auto"):
        words.insert(len(words) - (words[-1] == "null"), AUTO)
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


_BOUNDS = {"low": (">=", ge), "above": (">", gt), "high": ("<=", le), "below": ("<", lt)}
_WORDS = {int: "an integer", float: "a number", str: "text", _NONE: "null"}


def _range(rule: Any) -> str:
    if "low" in rule and "high" in rule:
        return f" from {rule['low']:,} to {rule['high']:,}"
    parts = [f"{sign} {rule[name]:g}" for name, (sign, _) in _BOUNDS.items() if name in rule]
    return f" {' and '.join(parts)}" if parts else ""


def _hint(kinds: tuple[Any, ...], value: Any) -> str:
    if isinstance(value, str) and str not in kinds:
        parsed = _parsed(kinds, value.strip())
        if not isinstance(parsed, str | list) and parsed is not None:
            return " (remove the quotes)"
    return ""


def _within(key: str, kind: Any, rule: Any, value: Any) -> Any:
    if not math.isfinite(value):
        raise ConfigError(f"{key} must be a finite number, got {shown(value)}")
    if not all(holds(value, rule[name]) for name, (_, holds) in _BOUNDS.items() if name in rule):
        raise ConfigError(f"{key} must be {allowed(kind, rule)}, got {shown(value)}")
    return value


def _list(key: str, kind: Any, rule: Any, values: Any) -> tuple[Any, ...]:
    element, *rest = get_args(kind)
    if rest != [...] and len(values) != 1 + len(rest):
        numbers = ",".join(map(shown, values[:5])) or "none"
        raise ConfigError(f"{key} must be {allowed(kind, rule)}, got {numbers}")
    rule = {name: limit for name, limit in rule.items() if name != "words"}  # which are of the whole list
    return tuple(read(f"{key}[{i}]", element, rule, value) for i, value in enumerate(values))


def _text(key: str, rule: Any, value: str) -> str:
    bad = next((c for c in value if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")), None)
    if bad is not None:
        raise ConfigError(f"{key} must not hold the character U+{ord(bad):04X}")
    if not value:
        raise ConfigError(f"{key} must not be empty")
    kind = rule.get("names")
    if kind == "similarity":
        return _similarity(key, value)
    of_timm = kind == "model" and value.startswith("timm/") and len(value) > len("timm/")
    if kind is not None and not rule.get("others") and not of_timm and value not in known(kind):
        raise unknown_name(key, kind, value)
    if "pattern" in rule and not re.fullmatch(rule["pattern"], value):
        raise ConfigError(f"{key} must be {rule['words']}, got {shown(value)}")
    return value


def unknown_name(key: str, names: str | tuple[str, ...], value: str) -> ConfigError:
    near = nearest_few(value, known(names), 1)
    listed = _LISTS.get(names, f"{names}s") if isinstance(names, str) else ""
    where = f" (`hypersphere list {listed}`)" if listed else ""
    hint = f"did you mean {near[0]!r}?{where}" if near else f"must be one of {', '.join(known(names))}"
    return ConfigError(f"unknown {key} {shown(value)}", hint)


def _similarity(key: str, value: str) -> str:
    """Check a name, or one with numbers as in "sigmoid(0.7)"."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*", value)
    name = match[1] if match else value
    if match is None or name not in known("similarity"):
        raise unknown_name(key, "similarity", value)
    numbers = [part.strip() for part in match[2].split(",")] if (match[2] or "").strip() else []
    for number in numbers:
        if not _FLOAT.fullmatch(number) or not math.isfinite(parse_scalar(number)):
            raise ConfigError(f"{key} takes finite numbers in parentheses, as in sigmoid(0.7); got {shown(value)}")
    most = catalog.SIMILARITIES.get(name)
    if most is not None and len(numbers) > most:
        raise ConfigError(f"{key}: {name} takes at most {most} numbers in parentheses, got {shown(value)}")
    return value
