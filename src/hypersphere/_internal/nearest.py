"""Suggest the nearest name for an unknown one, the same way for Python, configs and flags. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Any

_CLOSE = 0.6  # smallest likeness of two names
_LONGEST = 100  # number of characters compared

#: names that other programs use for settings and that difflib would not find
ALIASES = {
    "learning_rate": "optimizer.lr",
    "wd": "optimizer.weight_decay",
    "optim": "optimizer.name",
    "batch": "data.batch_size",
    "bs": "data.batch_size",
    "dataset": "data.name",
    "image_size": "data.size",
    "num_workers": "data.workers",
    "arch": "model.name",
    "network": "model.name",
    "output": "out",
    "gpu": "device",
    "fp16": "amp",
    "bf16": "amp",
}


def nearest_few(name: str, among: Iterable[str], n: int = 3) -> list[str]:
    """Return at most `n` names similar to `name`, the nearest first, ignoring case."""
    likeness = {each: _likeness(each.lower(), name[:_LONGEST].lower()) for each in among}
    return sorted((each for each in likeness if likeness[each] >= _CLOSE), key=lambda each: -likeness[each])[:n]


def _likeness(one: str, other: str) -> float:
    """Return difflib's similarity, and a little more for every letter of a common prefix."""
    prefix = sum(other.startswith(one[: i + 1]) for i in range(len(one)))
    return SequenceMatcher(None, one, other).ratio() + 0.03 * prefix


def unknown_name(what: str, value: str, near: list[str], otherwise: str) -> str:
    """Return the error message for an unknown name: the near ones as a question, or `otherwise` if there are none."""
    return f"unknown {what} {value!r}, " + (f"did you mean {' or '.join(map(repr, near))}?" if near else otherwise)


def unknown(what: str, value: Any, allowed: Iterable[Any], also: str = "") -> str:
    """Return the error message for a value that is not allowed, with the nearest name if one is near.

    Args:
        what: the argument.
        also: what else is allowed, such as " or a callable".

    Example:
        >>> unknown("method", "caley", ["cayley", "givens"])
        "unknown method 'caley', did you mean 'cayley'? (method must be one of cayley, givens)"
        >>> unknown("method", 3, ["cayley", "givens"])
        'method must be one of cayley, givens; got 3'
    """
    names = list(map(str, allowed))
    near = nearest_few(value, names, 1) if isinstance(value, str) else []
    rule = f"{what} must be one of {', '.join(names)}{also}"
    return f"{unknown_name(what, value, near, '')} ({rule})" if near else f"{rule}; got {value!r}"


def nearest_keys(key: str, known: Iterable[str]) -> list[str]:
    """Return the settings that `key` may mean, dotted as in ``optimizer.lr``; empty if none is near.

    Example:
        >>> nearest_keys("optimizer.learning_rate", ["seed", "optimizer.name", "optimizer.lr"])
        ['optimizer.lr']
        >>> nearest_keys("sed", ["seed", "optimizer.name", "optimizer.lr"])
        ['seed']
    """
    known = list(known)
    key = key[:_LONGEST].lower().replace("-", "_")
    group, _, name = key.rpartition(".")
    alias = ALIASES.get(name)
    if alias in known:
        return [alias]
    if others := [each for each in known if each.endswith(f".{name}")]:  # in another group
        return [f"{each}.{name}" for each in nearest_few(group, [e.rpartition(".")[0] for e in others], 1)] or others
    if not group and (found := [each for each in known if each.startswith(f"{name}.")]):  # the name of a group
        return found[:1]
    of_group = [each for each in known if group and each.startswith(f"{group}.")]
    if of_group:
        return [f"{group}.{each}" for each in nearest_few(name, [e.rpartition(".")[2] for e in of_group], 1)]

    def likeness(each: str) -> float:
        """Compare whole keys and last parts; the better one counts."""
        return max(_likeness(each, key), _likeness(each.rpartition(".")[2], name))

    best = max(known, key=likeness, default=None)
    return [] if best is None or likeness(best) < _CLOSE else [best]
