"""Make a network train rotations of its neurons."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.utils import parametrize

from .._internal import checks
from .._internal.adapters import refuse_adapters
from .._internal.global_hooks import record_change, refuse_new_parameters
from .._internal.nearest import explain_keywords
from ..neurons import (
    Neurons,
    Selection,
    Specs,
    as_list,
    check_names,
    kept_output,
    matches,
    no_layer_error,
    select,
    select_to_change,
)
from ..orthogonal import BUILT_IN, INITS, ORTHOGONALIZERS, Orthogonalizer
from .parametrization import RESERVED, NeuronRotation, find_rotated, is_sharded, layer_label, layer_seed
from .planning import cost_warning, make_plans
from .quantized_or_tied import FrozenNeurons, attach_frozen, frozen_neurons, is_linear, is_quantized
from .rotated_class import extend_class, own_class
from .rules import APPLY, NEURONS, NONE, SIDES, RotationOptions

M = TypeVar("M", bound=nn.Module)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_NOT_NEURONS = (nn.RNNBase, nn.RNNCellBase, nn.Embedding, nn.EmbeddingBag)


@explain_keywords
def rotate(
    model: M,
    method: str | Orthogonalizer = "cayley",
    *,
    init: str = "identity",
    neurons: str = "fixed",
    blocks: int = 1,
    block_size: int | None = None,
    share_blocks: bool = False,
    sample: float | None = None,
    seed: int = 0,
    layers: Specs | None = None,
    exclude: Specs = (),
    apply: str = "auto",
    side: str = "input",
    shuffle: bool = False,
    scaled: bool = False,
    magnitude: bool = False,
    dropout: float = 0.0,
) -> M:
    """Train rotations instead of neurons: w = R v, one R per layer (OPT, 3.1), in place; return the model.

    The neurons and their energy do not change; training learns R. Any optimizer and any loop work; make the optimizer
    after this call, best from :func:`param_groups`. :func:`merge` gives the plain network back. The output layer, and
    layers that a network names in its attribute ``not_rotated``, are skipped unless `layers` matches them; recurrent
    layers and embeddings are skipped. The model changes only after all checks have passed.

    The cost of a step grows as d³ with the dimension d of a neuron, but not with the batch: if one large layer takes
    more than 60 % of it, there is a warning, once.

    Args:
        method: how R is parametrized. Orthogonal: "cayley" (the fastest), "exponential", "gram_schmidt" (also
            "modified_gram_schmidt", "iterative_gram_schmidt"), "householder", "givens", "lowdin", "canonical", "ogd"
            (for :class:`OGD`). Not or nearly: "regularized" (with :func:`rotation_penalty`), "unconstrained",
            "positive_definite", "upper", "lower", "banded", "symmetric", "skew", "hessenberg_upper",
            "hessenberg_lower", "network". "none": fixed neurons without rotation. Or an
            :class:`hypersphere.orthogonal.Orthogonalizer` of your own, which is registered by its name.
        init: "identity" does not change the network's function; "normal" is the paper's N(0, 1).
        neurons: "fixed", or "learned" together with R.
        blocks: the number of equal blocks of a block-diagonal R, each over whole channels (App. I).
        block_size: instead of `blocks`, the size of a block in elements of the flattened filter. With either, a layer
            that cannot be split stays whole, with a warning, once; if none can be split, that is an error.
        share_blocks: use the same block everywhere.
        sample: the number of dimensions to rotate at a time (an int >= 2) or their share (a float < 1): stochastic
            OPT (Sec. 4), which needs a :class:`Resampler`. The model's first layer stays whole, as in the paper,
            unless it is the only one, and so do layers that are too small.
        seed: for the draw of dimensions.
        layers, exclude: which layers, as in :func:`select`.
        apply: "weight" rotates the neurons; "activation" rotates the layer's inputs instead, which gives the same
            output and never touches the weight: for frozen, quantized and tied weights. "auto": the fewest
            multiplications; a Linear in blocks decides at each call, and with more rows of inputs than neurons it forms
            the rotated weight but never computes the gradient to it.
        side: "input": w = R v. "output": rotations mix the neurons, W = R V. "both": W = R_out V R_inᵀ. All keep the
            singular values of the weight; only "input" keeps the angles between neurons and their energy.
        shuffle: blocks of randomly chosen dimensions instead of neighbours, drawn anew by a :class:`Resampler`.
        scaled: divide the parameters by 2√(m−1), so that one learning rate serves all block sizes m.
        magnitude: learn a factor for each neuron too; it changes lengths, not the energy while it is positive.
        dropout: the probability of replacing a block by the identity in training; this keeps the energy.

    Example:
        >>> import hypersphere as hs
        >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> x = torch.randn(5, 8)
        >>> before = net(x)
        >>> torch.allclose(rotate(net)(x), before, atol=1e-6)
        True
        >>> [name for name, p in net.named_parameters() if p.requires_grad]
        ['0.bias', '0.parametrizations.weight.0.default.cayley', '2.weight', '2.bias']
        >>> optimizer = torch.optim.Adam(hs.param_groups(net))
        >>> _ = hs.merge(net)
        >>> [name for name, _ in net.named_parameters()]
        ['0.weight', '0.bias', '2.weight', '2.bias']
    """
    options = _check_options(
        method=_check_method(method),
        init=init,
        neurons=neurons,
        blocks=blocks,
        block_size=block_size,
        share_blocks=share_blocks,
        sample=sample,
        apply=apply,
        side=side,
        shuffle=shuffle,
        scaled=scaled,
        magnitude=magnitude,
        dropout=dropout,
    )
    checks.integer("seed", seed)
    by_activation = apply == "activation"
    selected = _select_layers(model, layers, exclude, by_activation=by_activation)
    frozen = {name for name, n in selected.items() if check_layer(model, name, n, by_activation=by_activation)}
    first = next(iter(select(model, output=None)), next(iter(selected)))
    with _register_method(method):
        plans = make_plans(selected, options, first=first, frozen=frozen)
        rotations = {
            name: NeuronRotation(plan, selected[name].stored, parameter_order(selected[name]), layer_seed(seed, name))
            for name, plan in plans.items()
        }
    if layers is None or len(plans) > 1:  # not for a single layer that was asked for
        warning = cost_warning(plans, selected, first)
        if warning is not None:
            checks.warn_once(warning)
    if options.method == "cayley" and init == "normal":
        checks.warn_once(
            "the Cayley transform of N(0, 1) is close to -I in high dimensions: it flips every neuron and trains "
            "slowly; use init='identity'"
        )
    refuse_new_parameters("rotate", model, [selected[name].module for name in rotations])
    attach("rotate", [(selected[name], rotation) for name, rotation in rotations.items()])
    return model


@contextmanager
def _register_method(method: str | Orthogonalizer) -> Iterator[None]:
    """Register a user's method by its name; undo that if the body raises."""
    if isinstance(method, str):
        yield
        return
    before = ORTHOGONALIZERS.get(method.name)
    ORTHOGONALIZERS[method.name] = method
    try:
        yield
    except BaseException:
        del ORTHOGONALIZERS[method.name]
        if before is not None:
            ORTHOGONALIZERS[method.name] = before
        raise


def parameter_order(neurons: Neurons) -> list[str]:
    """Return the names of the layer's parameters in the order before any of them was rotated."""
    for layer in find_rotated(neurons.module):
        if layer.module is neurons.module:
            return layer.rotation.order
    return list(neurons.module._parameters)


def attach(verb: str, pairs: list[tuple[Neurons, NeuronRotation]]) -> None:
    """Register the parametrizations without computing a weight."""
    added = []
    for neurons, rotation in pairs:
        rotation.train(neurons.module.training)
        if rotation.plan.frozen:
            attach_frozen(neurons.module, rotation)
            continue
        weight = neurons.tensor
        assert isinstance(weight, nn.Parameter)
        own_class(neurons.module)
        parametrize.register_parametrization(neurons.module, neurons.tensor_name, rotation, unsafe=True)
        weight.requires_grad_(rotation.learned)
        extend_class(neurons.module)
        added.append((weight, tuple(rotation.task.parameters())))
    record_change(verb, [(weight, numbers) for weight, numbers in added if numbers])


def _select_layers(
    model: nn.Module, layers: Specs | None, exclude: Specs, *, by_activation: bool
) -> dict[str, Neurons]:
    """Select the layers to rotate in the model's order: plain ones, and by their activations quantized ones."""
    checks.module("model", model)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise ValueError(f"model must be rotated before wrapping, got {type(model).__name__}")
    refuse_adapters("rotate", model)
    asked: Specs | None = None if isinstance(layers, Selection) and layers.all_layers else layers
    quantized = {}
    for name, module in model.named_modules():
        if is_quantized(module) and matches(asked, name, module) and not (exclude and matches(exclude, name, module)):
            if not by_activation or not is_linear(module):
                way_out = ": apply='activation' rotates its inputs instead" if is_linear(module) else ""
                raise ValueError(
                    f"layer {layer_label(name)!r} [{type(module).__name__}] is quantized and cannot be rotated{way_out}"
                )
            quantized[name] = frozen_neurons(module)
    for spec in [] if asked is None else as_list("layers", asked):
        for name, module in model.named_modules():
            meant = name == spec if isinstance(spec, str) else isinstance(spec, type) and issubclass(spec, _NOT_NEURONS)
            if meant and isinstance(module, _NOT_NEURONS):
                raise ValueError(
                    f"layers: {layer_label(name)} [{type(module).__name__}] cannot be rotated: rotate does not support "
                    "recurrent layers and embeddings"
                )
    plain = _select_plain(model, layers, exclude, quantized)
    if asked is None:
        plain = _drop_not_rotated(model, plain)
    if not plain and not quantized:
        raise no_layer_error(plain, "rotate", kept_output(plain, "rotate"))
    outputs = [name for name, neurons in plain.everything.items() if neurons.is_output]
    if layers is None and not outputs:
        outputs = list(quantized)[-1:]
    together = dict(plain) | {name: n for name, n in quantized.items() if asked is not None or name not in outputs}
    return {name: together[name] for name, _ in model.named_modules() if name in together} | together


def _select_plain(
    model: nn.Module, layers: Specs | None, exclude: Specs, quantized: dict[str, FrozenNeurons]
) -> Selection:
    """Select the plain layers; a name or pattern that matches a quantized layer need not match a plain one."""
    if layers is None or isinstance(layers, Selection) or not quantized:
        return select_to_change("rotate", model, layers, exclude)
    specs = as_list("layers", layers)
    rest = [spec for spec in specs if not any(matches(spec, name, n.module) for name, n in quantized.items())]
    plain = select(model, specs, exclude)
    check_names("rotate", model, plain, rest, exclude)
    return plain


def _drop_not_rotated(model: nn.Module, selection: Selection) -> Selection:
    """Drop the layers that a network names in ``not_rotated``, with a warning."""
    skipped = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in getattr(module, "not_rotated", ())
    }
    for name in skipped.intersection(selection):
        checks.warn_once(
            f"rotate skips layer {name!r} with {selection[name].dimension} dimensions (not_rotated of its network): "
            f"use layers={name!r} to rotate it (on the command line rotation.layers=hidden,{name})"
        )
    return selection.keep(lambda name, _: name not in skipped, "in not_rotated of its network")


def check_layer(model: nn.Module, name: str, neurons: Neurons, *, by_activation: bool = False) -> bool:
    """Raise if a layer cannot be rotated; return whether its weight has to stay where it is."""
    layer = f"layer {layer_label(name)!r}"
    if len(neurons.parametrizations):
        if isinstance(neurons.parametrizations[0], NeuronRotation):
            raise ValueError(f"{layer} is already rotated: merge first, or exclude it")
        raise ValueError(f"{layer} is already parametrized: rotate needs plain layers, exclude it")
    if isinstance(neurons, FrozenNeurons):
        return True
    weight = neurons.tensor
    if nn.parameter.is_lazy(weight):
        raise ValueError(f"{layer} is lazy and has no weight yet: run the model once first")
    if not isinstance(weight, nn.Parameter) or weight.dtype not in _DTYPES:
        kind = str(weight.dtype) if isinstance(weight, torch.Tensor) else type(weight).__name__
        kind = neurons.unwritable or kind
        raise ValueError(f"{layer} must have a floating point nn.Parameter as its weight to be rotated, got {kind}")
    if not weight.numel():
        raise ValueError(f"{layer} must not be empty, got the shape {tuple(weight.shape)}")
    if is_sharded(weight):
        _check_split(layer, neurons)
    holders = [
        f"{prefix}.{key}" if prefix else key
        for prefix, module in model.named_modules()
        for key, parameter in module._parameters.items()
        if parameter is weight
    ]
    if len(holders) > 1 and is_sharded(weight):
        raise ValueError(
            f"{layer} has a tied weight ({' and '.join(holders)}) that is split over processes: exclude it"
        )
    if len(holders) > 1 and not by_activation:
        raise ValueError(
            f"{layer} has a tied weight ({' and '.join(holders)}): rotating it would untie it; apply='activation' "
            "rotates the layer's inputs instead"
        )
    checks.finite_weight(layer_label(name), weight)
    return len(holders) > 1


def _check_split(layer: str, neurons: Neurons) -> None:
    """Raise unless tensor parallelism split the layer, and in a way that rotations support."""
    weight: Any = neurons.tensor
    if getattr(neurons.module, "_is_fsdp_managed_module", False):
        raise ValueError(f"{layer} is sharded: rotate before the model is sharded")
    if not isinstance(neurons.module, nn.Linear) or weight.device_mesh.ndim != 1 or weight.placements[0].is_partial():
        raise ValueError(
            f"{layer} is split over processes: rotate supports nn.Linear on a mesh of one dimension, got "
            f"{type(neurons.module).__name__} on {weight.device_mesh.ndim} with the placements {weight.placements}"
        )


def _check_options(**options: Any) -> RotationOptions:
    """Check the type of each option, then which go together."""
    for name, choices in {"init": INITS, "neurons": NEURONS, "apply": APPLY, "side": SIDES}.items():
        checks.choice(name, options[name], choices)
    checks.integer("blocks", options["blocks"], low=1)
    if options["block_size"] is not None:
        checks.integer("block_size", options["block_size"], low=1)
    for name in ("share_blocks", "shuffle", "scaled", "magnitude"):
        if not isinstance(options[name], bool):
            raise TypeError(f"{name} must be True or False, got {options[name]!r}")
    options["dropout"] = checks.number("dropout", options["dropout"])
    sample = options["sample"]
    if isinstance(sample, bool) or not isinstance(sample, Real | None):
        raise TypeError(f"sample must be an int >= 2 or a share between 0 and 1, got {sample!r}")
    if sample is not None:
        options["sample"] = int(sample) if isinstance(sample, Integral) else float(sample)
    checked = RotationOptions(**options)
    checked.check()
    return checked


def _check_method(method: Any) -> str:
    if isinstance(method, Orthogonalizer):
        if not isinstance(method.name, str) or not method.name.isidentifier():
            raise ValueError(f"method: the name of an Orthogonalizer must be an identifier, got {method.name!r}")
        if method.name in (NONE, *BUILT_IN, *RESERVED) and ORTHOGONALIZERS.get(method.name) is not method:
            raise ValueError(f"method: the name {method.name!r} is taken; give the Orthogonalizer another one")
        return method.name
    if not isinstance(method, str):
        raise TypeError(f"method must be a name or an Orthogonalizer, got {method!r}")
    checks.choice("method", method, (*ORTHOGONALIZERS, NONE))
    return method
