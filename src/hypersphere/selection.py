"""Which tensors of a model are neurons, and which layer is its output: the one place that says so.

Everything that walks a model (spherize, rotate, EnergyRegularizer, diagnose, ...) takes the same three arguments:

- ``layers``, ``exclude``: a name, an fnmatch pattern, a type, a predicate(name, module), or a list of these;
  ``layers=None`` means all that are eligible.
- ``output``: "auto", the name of the output layer, or None when no layer is the output. "auto" is what the model's
  ``get_classifier()`` gives (an Identity means none), else the last loss head, else the last Linear. A layer that is
  itself the root is never the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn

from . import _checks

Spec = str | type | Callable[[str, nn.Module], bool]
Specs = Spec | Iterable[Spec]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Neurons:
    """One tensor of neurons: where it lives, and whether it is the model's output layer."""

    module: nn.Module
    tensor_name: str
    is_output: bool

    @property
    def tensor(self) -> Tensor:
        """The tensor as the module sees it now (a parametrized weight is evaluated)."""
        tensor: Tensor = getattr(self.module, self.tensor_name)
        return tensor

    def matrix(self) -> Tensor:
        """The neurons as rows, (groups, N, d): output channels, for transposed convolutions too."""
        weight = self.tensor
        groups = getattr(self.module, "groups", 1)
        if isinstance(self.module, _TRANSPOSED):  # (C, O/G, ...)
            return weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(2)
        return weight.flatten(1).unflatten(0, (groups, -1))


def select(
    model: nn.Module, layers: Specs | None = None, exclude: Specs = (), output: str | None = "auto"
) -> dict[str, Neurons]:
    """The neurons of a model by layer name, in the model's order; {} when nothing matches.

    Eligible are Linear, convolutions (transposed ones too), nn.MultiheadAttention (``name`` for its in_proj_weight, or
    ``name.q_proj_weight`` and so on) and the loss heads of this package; recurrent layers and embeddings are not.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10))
        >>> {name: (tuple(n.matrix().shape), n.is_output) for name, n in select(net).items()}
        {'0': ((1, 8, 27), False), '2': ((1, 16, 8), False), '4': ((1, 10, 16), True)}
        >>> list(select(net, layers=nn.Linear, exclude="4"))
        ['2']
    """
    _checks.module("model", model)
    wanted = None if layers is None else as_list("layers", layers)
    unwanted = as_list("exclude", exclude)
    eligible = {name: (module, tensor) for name, module, tensor in _eligible(model)}
    last = _output_name(model, output, {name: module for name, (module, _) in eligible.items()})
    return {
        name: Neurons(module, tensor, name == last)
        for name, (module, tensor) in eligible.items()
        if (wanted is None or _matches(wanted, name, module)) and not _matches(unwanted, name, module)
    }


def select_to_change(model: nn.Module, layers: Specs | None, exclude: Specs, output: str | None) -> dict[str, Neurons]:
    """:func:`select` for verbs that change neurons: the output layer is left alone unless `layers` matches it."""
    found = select(model, layers, exclude, output)
    return {name: n for name, n in found.items() if layers is not None or not n.is_output}


def nothing_found(model: nn.Module, verb: str, why: str = "") -> ValueError:
    """The error of a verb that has nothing to work on: it lists what there is."""
    there = ", ".join(f"{name or '(root)'} [{type(n.module).__name__}]" for name, n in select(model).items())
    return ValueError(f"{verb}: no layer to work on{why}; the model's layers with neurons are: {there or 'none'}")


def _eligible(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            if module.in_proj_weight is not None:
                yield name, module, "in_proj_weight"
            else:
                for tensor in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
                    yield f"{name}.{tensor}" if name else tensor, module, tensor
        elif isinstance(module, (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED)) or is_loss_head(module):
            yield name, module, "weight"


def is_loss_head(module: nn.Module) -> bool:
    """A loss of this package that holds class weights."""
    return getattr(module, "is_loss_head", False) is True


def _output_name(model: nn.Module, output: str | None, eligible: dict[str, nn.Module]) -> str | None:
    if output is None:
        return None
    if not isinstance(output, str):
        raise TypeError(f"output must be 'auto', a layer's name or None, got {output!r}")
    if output != "auto":
        if output not in eligible:
            raise ValueError(f"output must be 'auto', None or one of {', '.join(map(repr, eligible))}; got {output!r}")
        return output
    candidates = {name: module for name, module in eligible.items() if module is not model}
    get_classifier = getattr(model, "get_classifier", None)
    if callable(get_classifier):
        inside = set(get_classifier().modules())
        return next((name for name, module in reversed(candidates.items()) if module in inside), None)
    never_called = {m.out_proj for m in model.modules() if isinstance(m, nn.MultiheadAttention)}
    for is_candidate in (is_loss_head, lambda m: isinstance(m, nn.Linear) and m not in never_called):
        for name, module in reversed(candidates.items()):
            if is_candidate(module):
                return name
    return None


def as_list(argument: str, specs: Specs) -> list[Spec]:
    """`layers` or `exclude` as a list, whether one or many were given."""
    one = isinstance(specs, str | type) or callable(specs)
    listed: list[Spec] = [specs] if one else list(specs)  # type: ignore[list-item, arg-type]
    for spec in listed:
        if not (isinstance(spec, str | type) or callable(spec)):
            raise TypeError(f"{argument} must hold names, patterns, types or predicates(name, module), got {spec!r}")
    return listed


def _matches(specs: list[Spec], name: str, module: nn.Module) -> bool:
    for spec in specs:
        if isinstance(spec, str):
            hit = name == spec or fnmatchcase(name, spec)
        elif isinstance(spec, type):
            hit = isinstance(module, spec)
        else:
            hit = spec(name, module)
        if hit:
            return True
    return False
