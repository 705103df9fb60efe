"""Select the tensors of a model that hold neurons, and find its output layer.

All functions that walk a model take the same three arguments:

- ``layers``, ``exclude``: a name, an fnmatch pattern, a type, a predicate(name, module), or a list of these;
  ``layers=None`` means all eligible layers.
- ``output``: "auto", the name of the output layer, or None when no layer is the output. "auto" is what the model's
  ``get_classifier()`` returns (an Identity means none), else the last loss head, else the last Linear. If the model
  is a single layer, that is never the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase

from torch import nn

from .._internal import checks
from .._internal.other_tools import adapter_modules
from .layouts import CONVOLUTIONS, TRANSPOSED, find_experts, find_layout, is_transformers_conv1d
from .neurons import Neurons

Spec = str | type | Callable[[str, nn.Module], bool]
Specs = Spec | Iterable[Spec]

_WITH_WEIGHT = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)


def select(
    model: nn.Module, layers: Specs | None = None, exclude: Specs = (), output: str | None = "auto"
) -> dict[str, Neurons]:
    """Return the neurons of a model by layer name, in the model's order; {} if nothing matches.

    Eligible are Linear, convolutions and transposed convolutions, nn.MultiheadAttention (``name`` for its
    in_proj_weight, or ``name.q_proj_weight`` and so on) and the loss heads of this package; not recurrent layers and
    embeddings.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10))
        >>> {name: (tuple(n.matrix().shape), n.is_output) for name, n in select(net).items()}
        {'0': ((1, 8, 27), False), '2': ((1, 16, 8), False), '4': ((1, 10, 16), True)}
        >>> list(select(net, layers=nn.Linear, exclude="4"))
        ['2']
    """
    checks.module("model", model)
    wanted = None if layers is None else as_list("layers", layers)
    unwanted = as_list("exclude", exclude)
    eligible = {name: (module, tensor) for name, module, tensor in _eligible_layers(model)}
    outputs = _output_names(model, output, {name: module for name, (module, _) in eligible.items()})
    parents = {child: module for module in model.modules() for child in module.children()}
    return {
        name: Neurons(module, tensor, name in outputs, find_layout(module, tensor, name, parents.get(module)))
        for name, (module, tensor) in eligible.items()
        if (wanted is None or _matches(wanted, name, module)) and not _matches(unwanted, name, module)
    }


def select_to_change(
    verb: str, model: nn.Module, layers: Specs | None, exclude: Specs, output: str | None
) -> dict[str, Neurons]:
    """Select for a verb that changes neurons: the output layer is skipped unless `layers` matches it.

    Every name and pattern must match something.
    """
    found = select_strictly(verb, model, layers, exclude, output)
    return {name: n for name, n in found.items() if layers is not None or not n.is_output}


def select_strictly(
    verb: str, model: nn.Module, layers: Specs | None, exclude: Specs, output: str | None
) -> dict[str, Neurons]:
    """Select, but raise for a name or pattern in `layers`, or a name in `exclude`, that matches nothing."""
    found = select(model, layers, exclude, output)
    everything = select(model) if layers is not None else {}
    for spec in [] if layers is None else as_list("layers", layers):
        if isinstance(spec, str) and not any(_matches([spec], name, n.module) for name, n in everything.items()):
            raise no_layer_error(model, verb, f" named {spec!r}")
    names = {name for name, _ in model.named_modules()} | set(select(model))
    for spec in as_list("exclude", exclude):
        if isinstance(spec, str) and not any(sign in spec for sign in "*?[") and spec not in names:
            raise ValueError(f"{verb}: unknown layer {spec!r} in exclude")
    return found


def no_layer_error(model: nn.Module, verb: str, why: str = "") -> ValueError:
    """Return the error of a verb without a layer to work on; it lists the model's layers."""
    there = ", ".join(
        f"{name or '(root)'} [{type(n.module).__name__}{', the output' if n.is_output else ''}]"
        for name, n in select(model).items()
    )
    return ValueError(f"{verb}: no layer to work on{why}; the model's layers with neurons are: {there or 'none'}")


def _eligible_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    added = adapter_modules(model)
    for name, module in model.named_modules():
        if module in added:
            continue
        if isinstance(module, nn.MultiheadAttention):
            if module._qkv_same_embed_dim:
                yield name, module, "in_proj_weight"
            else:
                for tensor in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
                    yield f"{name}.{tensor}" if name else tensor, module, tensor
        elif isinstance(module, _WITH_WEIGHT) or is_loss_head(module) or is_transformers_conv1d(module):
            yield name, module, "weight"
        else:
            for tensor in find_experts(module):
                yield name if tensor == "weight" else f"{name}.{tensor}" if name else tensor, module, tensor


def is_loss_head(module: nn.Module) -> bool:
    """Return whether the module is a loss of this package with class weights."""
    return getattr(module, "is_loss_head", False) is True


def uncalled_linears(model: nn.Module) -> set[nn.Module]:
    """Return Linears whose weights torch reads without calling the layer, at least in eval mode."""
    found: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            found.add(module.out_proj)
        elif isinstance(module, nn.TransformerEncoderLayer):
            found |= {module.linear1, module.linear2}
    return found


def _output_names(model: nn.Module, output: str | None, eligible: dict[str, nn.Module]) -> set[str]:
    """Return the name of the output layer, if any; several only if get_classifier() returns several heads."""
    if output is None:
        return set()
    if not isinstance(output, str):
        raise TypeError(f"output must be 'auto', a layer's name or None, got {output!r}")
    if output != "auto":
        if output not in eligible:
            raise ValueError(f"output must be 'auto', None or one of {', '.join(map(repr, eligible))}; got {output!r}")
        return {output}
    candidates = [(name, module) for name, module in eligible.items() if module is not model]
    get_classifier = getattr(unwrapped(model), "get_classifier", None)
    if callable(get_classifier):
        given = get_classifier()
        heads = [head for head in (given if isinstance(given, tuple | list) else [given]) if head is not None]
        wanted: list[Callable[[nn.Module], bool]] = [set(head.modules()).__contains__ for head in heads]
        return {name for inside in wanted for name in _last_matching(candidates, inside)}
    uncalled = uncalled_linears(model)
    last_linear = _last_matching(candidates, lambda module: isinstance(module, nn.Linear) and module not in uncalled)
    return set(_last_matching(candidates, is_loss_head) or last_linear)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside torch's wrappers: DDP, DataParallel, torch.compile."""
    while True:
        inside = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inside = model.module
        if not isinstance(inside, nn.Module):
            return model
        model = inside


def _last_matching(candidates: list[tuple[str, nn.Module]], wanted: Callable[[nn.Module], bool]) -> list[str]:
    return [name for name, module in candidates if wanted(module)][-1:]


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
    return specs is None or _matches(as_list("layers", specs), name, module)


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
