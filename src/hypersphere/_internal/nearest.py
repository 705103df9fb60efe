"""Suggest the nearest name for an unknown one, the same way for Python, configs and flags. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from typing import Any

_CLOSE = 0.5  # smallest similarity of two names, by difflib
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
    small = {each.lower(): each for each in among}
    return [small[each] for each in get_close_matches(name[:_LONGEST].lower(), small, n, _CLOSE)]


def nearest(name: str, among: Iterable[str]) -> str | None:
    """Return the nearest name; None if none is near."""
    return next(iter(nearest_few(name, among, 1)), None)


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
    near = nearest(value, names) if isinstance(value, str) else None
    rule = f"{what} must be one of {', '.join(names)}{also}"
    return f"{rule}; got {value!r}" if near is None else f"unknown {what} {value!r}, did you mean {near!r}? ({rule})"


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
    for found in (
        [each for each in known if each.endswith(f".{name}")],  # in another group
        [each for each in known if each.startswith(f"{name}.")][:1] if not group else [],  # the name of a group
    ):
        if found:
            return found
    of_group = [each for each in known if group and each.startswith(f"{group}.")]
    if of_group:
        near = nearest(name, [each.rpartition(".")[2] for each in of_group])
        return [] if near is None else [f"{group}.{near}"]

    def likeness(each: str) -> float:
        """Compare whole keys and last parts; the better one counts."""
        return max(SequenceMatcher(None, *pair).ratio() for pair in ((key, each), (name, each.rpartition(".")[2])))

    best = max(known, key=likeness, default=None)
    return [] if best is None or likeness(best) < _CLOSE else [best]
