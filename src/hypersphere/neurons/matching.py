"""Match layers by name, pattern, type or predicate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from torch import nn

Spec = str | type | Callable[[str, nn.Module], bool]
Specs = Spec | Iterable[Spec]


def as_list(argument: str, specs: Specs) -> list[Spec]:
    """Return `layers` or `exclude` as a list."""
    many = isinstance(specs, Iterable) and not isinstance(specs, str | type | nn.Module)
    listed: list[Spec] = list(specs) if many else [specs]  # type: ignore[arg-type, list-item]
    for spec in listed:
        if isinstance(spec, nn.Module) or not (isinstance(spec, str | type) or callable(spec)):
            raise TypeError(f"{argument} must hold names, patterns, types or predicates(name, module), got {spec!r}")
    return listed


def matches(specs: Specs | None, name: str, module: nn.Module) -> bool:
    """Return whether `layers` or `exclude` matches this module; None matches all."""

    def match(spec: Spec) -> bool:
        if isinstance(spec, str):
            return name == spec or fnmatchcase(name, spec)
        return isinstance(module, spec) if isinstance(spec, type) else bool(spec(name, module))

    return specs is None or any(map(match, as_list("layers", specs)))
