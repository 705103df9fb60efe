"""Select the tensors of a model that hold neurons, and find its output layers.

All functions that walk a model take the same two arguments, ``layers`` and ``exclude``: a name, an fnmatch pattern, a
type, a predicate(name, module), or a list of these; ``layers=None`` means all eligible layers. ``layers`` may also be
what :func:`select` returned, which alone takes ``output`` and ``example_inputs``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import nn

from .._internal import checks
from .._internal.adapters import has_adapters
from .._internal.nearest import nearest_few
from .._internal.sharding import reshard
from .._internal.text import escaped
from .eligible import eligible_layers, uncalled_linears, unknown_weights, unwrapped, why_not_eligible
from .layouts import Layout, find_layout
from .matching import Specs, as_list, matches
from .neurons import Neurons
from .output import output_names
from .selection import Selection
from .tracing import Trace, trace


def select(
    model: nn.Module,
    layers: Specs | None = None,
    exclude: Specs = (),
    output: str | None = "auto",
    *,
    example_inputs: Any = None,
) -> Selection:
    """Return the neurons of a model by layer name, in the model's order; {} if nothing matches. Print it for a table.

    Eligible are Linear (classes of others with this name and form too, as in torch_geometric), convolutions and
    transposed convolutions, nn.MultiheadAttention (``name`` for its in_proj_weight, or ``name.q_proj_weight`` and so
    on), the loss heads of this package, and of transformers Conv1D and the stacked weights of experts
    (``name.gate_up_proj``, ``name.down_proj``); not recurrent layers and embeddings.

    Args:
        layers, exclude: a name, an fnmatch pattern, a type, a predicate(name, module), or a list of these; None: all.
            A selection as `layers` keeps its output marks.
        output: the name of the output layer, None if no layer is the output, or "auto": what the model's
            ``get_classifier()`` or ``get_output_embeddings()`` returns (an Identity means none), else the last loss
            head, else the last Linear, with a warning where this is doubtful. A model that is a single layer has no
            output.
        example_inputs: what the model is called with: a tensor, a tuple of arguments or a dict of keyword arguments.
            Then the model runs once, in eval mode and without gradients; modes, buffers and random state stay as they
            are. "auto" means the layers whose results leave the model and reach no other layer, alone or combined with
            each other. A sum with a layer that others use (a residual stream) is no output, nor is a pooler, nor
            anything if ``get_classifier()`` returns an Identity. A loss head that is not called is the output. Modules
            of unknown classes are eligible too if their matrix ``weight`` multiplies activations.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10))
        >>> {name: (tuple(n.matrix().shape), n.is_output) for name, n in select(net).items()}
        {'0': ((1, 8, 27), False), '2': ((1, 16, 8), False), '4': ((1, 10, 16), True)}
        >>> print(select(net, exclude="0"))
        layer  type    neurons × dim  output
        2      Linear  16 × 8
        4      Linear  10 × 16        yes
        0      Conv2d                         passed over: in exclude
    """
    checks.module("model", model)
    if isinstance(layers, Selection):
        return _select_again(model, layers, exclude, output, example_inputs)
    reshard(model)
    wanted = None if layers is None else as_list("layers", layers)
    unwanted = as_list("exclude", exclude)
    everything, traced = _all_neurons(model, example_inputs)
    outputs = output_names(model, output, {name: n.module for name, n in everything.items()}, traced)
    everything = {name: replace(n, is_output=True) if name in outputs else n for name, n in everything.items()}
    known = uncalled_linears(model)
    uncalled = {name for name, n in everything.items() if n.module in known} | (traced.read if traced else set())

    selected: dict[str, Neurons] = {}
    passed_over: dict[str, tuple[nn.Module, str]] = {}
    for name, neurons in everything.items():
        if not matches(wanted, name, neurons.module):
            passed_over[name] = neurons.module, "not in layers"
        elif matches(unwanted, name, neurons.module):
            passed_over[name] = neurons.module, "in exclude"
        else:
            selected[name] = neurons
    remarks = dict.fromkeys(everything.keys() - traced.called, "not called with the example inputs") if traced else {}
    remarks |= dict.fromkeys(uncalled, "read, not called: its weight is used without calling it")
    passed_over |= why_not_eligible(model, [n.module for n in everything.values()])
    return Selection(selected, everything, passed_over, remarks, uncalled, all_layers=layers is None)


def _all_neurons(model: nn.Module, example_inputs: Any) -> tuple[dict[str, Neurons], Trace | None]:
    """Return all layers that hold neurons in the model's order, and the trace of a forward pass if there are inputs."""
    parents = {child: module for module in model.modules() for child in module.children()}
    wrappers = {module: parent for module, parent in parents.items() if has_adapters(parent)}
    layers = {
        name: Neurons(
            module, tensor, False, find_layout(module, tensor, name, parents.get(module)), wrappers.get(module)
        )
        for name, module, tensor in eligible_layers(model)
    }
    if example_inputs is None:
        return layers, None
    unknown = unknown_weights(model, [n.module for n in layers.values()])
    others = {name: Neurons(module, "weight", False, Layout()) for name, module in unknown.items()}
    traced = trace(unwrapped(model), layers, others, example_inputs)
    reshard(model)  # after the forward pass
    layers |= {name: replace(others[name], layout=layout) for name, layout in traced.linears.items()}
    place = {module: i for i, module in enumerate(model.modules())}
    return dict(sorted(layers.items(), key=lambda item: place[item[1].module])), traced


def _select_again(
    model: nn.Module, selection: Selection, exclude: Specs, output: str | None, example_inputs: Any
) -> Selection:
    """Return a selection of this model without the layers of `exclude`."""
    if output != "auto" or example_inputs is not None:
        raise TypeError("output and example_inputs have no effect on layers that are a selection; select again")
    modules = set(model.modules())
    if foreign := [name for name, neurons in selection.items() if neurons.module not in modules]:
        raise ValueError(f"layers: the selection is of another model, which has the layer {foreign[0]!r}")
    unwanted = as_list("exclude", exclude)
    return selection.keep(lambda name, n: not matches(unwanted, name, n.module), "in exclude")


def select_to_change(verb: str, model: nn.Module, layers: Specs | None, exclude: Specs) -> Selection:
    """Select for a verb that changes neurons: the output layers are skipped unless `layers` matches them.

    Every name and pattern must match something.
    """
    selection = select(model, layers, exclude)
    check_names(verb, model, selection, layers, exclude)
    return selection.keep(lambda _, n: not n.is_output, "the output") if selection.all_layers else selection


def check_names(verb: str, model: nn.Module, selection: Selection, layers: Specs | None, exclude: Specs) -> None:
    """Raise for a name or pattern in `layers`, or a name in `exclude`, that matches nothing."""
    for spec in [] if layers is None or isinstance(layers, Selection) else as_list("layers", layers):
        if isinstance(spec, str) and not any(matches(spec, k, n.module) for k, n in selection.everything.items()):
            if near := _nearest_layers(spec, selection.everything):
                raise ValueError(f"{verb}: no layer named {spec!r}, did you mean {near[0]!r}?")
            raise no_layer_error(selection, verb, f" named {spec!r}")
    modules = {name for name, _ in model.named_modules()}
    for spec in as_list("exclude", exclude):
        if isinstance(spec, str) and not _is_pattern(spec) and spec not in selection.everything:
            near = _nearest_layers(spec, selection.everything)
            if spec not in modules or near == [f"{spec}.*"]:
                hint = f", did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"{verb}: unknown layer {spec!r} in exclude{hint}")


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _nearest_layers(name: str, layers: Iterable[str]) -> list[str]:
    """Return the layer or pattern that `name` may mean, in a list; empty if none is near, and for a pattern."""
    if _is_pattern(name):
        return []
    return [f"{name}.*"] if any(layer.startswith(f"{name}.") for layer in layers) else nearest_few(name, layers, 1)


def no_layer_error(selection: Selection, verb: str, why: str = "") -> ValueError:
    """Return the error of a verb without a layer to work on; it lists the model's layers."""
    available = ", ".join(
        f"{escaped(name) or '(root)'} [{type(n.module).__name__}{', the output' if n.is_output else ''}]"
        for name, n in selection.everything.items()
    )
    return ValueError(f"{verb}: no layer to work on{why}; the model's layers with neurons are: {available or 'none'}")


def kept_output(selection: Selection, verb: str) -> str:
    """Return the hint for a verb that selected nothing but output layers, which it skips; else an empty string."""
    outputs = [name for name, (_, reason) in selection.passed_over.items() if reason == "the output"]
    return f"; {outputs[0]!r} is the output layer: {verb} it with layers={outputs[0]!r}" if outputs else ""
