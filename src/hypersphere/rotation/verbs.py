"""rotate and merge: an existing network learns rotations of its neurons, and is the plain network again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.utils import parametrize

from .._internal import checks
from .._internal.guards import record_change
from ..orthogonal import BUILT_IN, INITS, ORTHOGONALIZERS, Orthogonalizer
from ..selection import Neurons, Specs, as_list, matches, no_layer_error, select, select_to_change
from . import guard
from .parametrization import NONE, RESERVED, Rotated, Rotation, mixed, rotated, rotated_strictly, shown
from .plans import costly, dimension, plans

M = TypeVar("M", bound=nn.Module)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_NOT_NEURONS = (nn.RNNBase, nn.RNNCellBase, nn.Embedding, nn.EmbeddingBag)


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
    output: str | None = "auto",
) -> M:
    """Train rotations instead of neurons: w = R v, one R a layer (OPT, 3.1), in place; returns the model.

    The neurons stay as they are, with their energy, and training learns R. Any optimizer and any loop will do; make
    the optimizer after this call, best from :func:`param_groups`. :func:`merge` gives the plain network back. The
    output layer is left alone unless `layers` matches it, as are layers that a network names in its attribute
    ``not_rotated``; recurrent layers and embeddings are passed over. All is checked before anything changes.

    The work of a step grows as d³, d being the numbers that a neuron sees, and not with the batch: where one layer of
    many dimensions takes more than 60 % of it, a warning says so, once.

    Args:
        method: how R is made of free numbers. Orthogonal: "cayley" (the fastest), "exponential", "gram_schmidt" (also
            "modified_gram_schmidt", "iterative_gram_schmidt"), "householder", "givens", "lowdin", "canonical", "ogd"
            (for :class:`OGD`). Nearly, or not: "regularized" (with :func:`rotation_penalty`), "unconstrained",
            "positive_definite", "upper", "lower", "banded", "symmetric", "skew", "hessenberg_upper",
            "hessenberg_lower", "network". "none": fixed random neurons. Or an
            :class:`hypersphere.orthogonal.Orthogonalizer` of your own, which is registered by its name.
        init: "identity" leaves the network's function as it is; "normal" is the paper's N(0, 1).
        neurons: "fixed", or "learned" together with R.
        blocks: R is block-diagonal with so many blocks of the same size, each over whole channels (App. I). A layer
            that cannot be split stays whole.
        block_size: in place of `blocks`, the size of one block in numbers of the flattened filter.
        share_blocks: one block for all.
        sample: rotate only so many dimensions at a time (an int from 2 on) or such a share of them (a float below
            one): stochastic OPT (Sec. 4), which needs a :class:`Resampler`. The model's first layer stays whole, as
            in the paper, unless it is the only one that is rotated.
        seed: of the dimensions that are drawn.
        layers, exclude, output: which layers, as in :func:`select`.

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
    chosen_method = _checked_method(method)
    checks.choice("init", init, INITS)
    checks.choice("neurons", neurons, ("fixed", "learned"))
    checks.integer("seed", seed)
    found = _selected(model, layers, exclude, output)
    for name, each in found.items():
        check_layer(model, name, each)
    first = next(iter(select(model, output=output)))
    made = plans(
        found,
        chosen_method,
        init=init,
        learned=neurons == "learned",
        blocks=blocks,
        block_size=block_size,
        share_blocks=share_blocks,
        sample=sample,
        first=first,
    )
    if layers is None or len(made) > 1:  # who asks for a single layer knows it
        costs = costly(made, found, first)
        if costs is not None:
            checks.warn_once(costs)
    if chosen_method == "cayley" and init == "normal":
        checks.warn_once(
            "the Cayley transform of N(0, 1) is close to -I in high dimensions: such a start turns every neuron around "
            "and learns slowly; init='identity' begins at the neurons themselves"
        )
    with _registered(method):
        rotations = {
            name: Rotation(plan, _parameter(found[name]), order(found[name]), mixed(seed, name))
            for name, plan in made.items()
        }
    attach("rotate", [(found[name], rotation) for name, rotation in rotations.items()])
    return model


def merge(model: M) -> M:
    """Gives every rotated layer the weight it has learned and takes the rotation away, in place; returns the model.

    What is left is the plain network: the same module types, keys, order of parameters and requires_grad as before
    :func:`rotate`, and the same output. Of several tasks the active one is taken. To go on, rotate again (progressive
    training, App. H), with a new optimizer.

    Example:
        >>> net = rotate(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
        >>> merge(net)[0]
        Linear(in_features=8, out_features=16, bias=True)
    """
    found = rotated_strictly("merge", model)
    for each in found:
        _check_mergeable(each)
    gone = [task.parameter for each in found for task in each.rotation.tasks.values()]
    for each in found:
        _detach(each)
    record_change("merge", [(numbers, ()) for numbers in gone if numbers is not None])
    return model


@contextmanager
def _registered(method: str | Orthogonalizer) -> Iterator[None]:
    """A method of the user's own is known by its name from here on, unless what follows fails."""
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


def order(neurons: Neurons) -> list[str]:
    """The names of the layer's parameters in their order, as it was before any of them was rotated."""
    for each in rotated(neurons.module):
        if each.module is neurons.module:
            return each.rotation.order
    return list(neurons.module._parameters)


def attach(verb: str, pairs: list[tuple[Neurons, Rotation]]) -> None:
    """Puts the parametrizations in place; nothing is computed."""
    added = [(_parameter(neurons), rotation.task.parameter) for neurons, rotation in pairs]
    for (neurons, rotation), (weight, _) in zip(pairs, added, strict=True):
        rotation.train(neurons.module.training)
        parametrize.register_parametrization(neurons.module, neurons.tensor_name, rotation, unsafe=True)
        weight.requires_grad_(rotation.learned)
        guard.ROTATED.add(neurons.module)
    record_change(verb, [(weight, (numbers,)) for weight, numbers in added if numbers is not None])


def _detach(each: Rotated) -> None:
    module, name, rotation, neurons = each.module, each.tensor_name, each.rotation, each.neurons
    with torch.no_grad():
        neurons.copy_(rotation(neurons))
    del module.parametrizations[name]  # type: ignore[operator, union-attr]
    # Deepcopies share the class that parametrize made: what the layer gets is the class before it, or one of its own
    # without this property, so that they stay as they are.
    made, (plain, *_) = type(module), type(module).__bases__
    if len(module.parametrizations) == 0:  # type: ignore[arg-type]
        del module.parametrizations
        module.__class__ = plain
    else:
        left = {key: value for key, value in vars(made).items() if key not in (name, "__dict__", "__weakref__")}
        module.__class__ = type(made.__name__, (plain,), left)
    module.register_parameter(name, neurons)
    neurons.requires_grad_(rotation.required_grad)
    parameters = module._parameters
    for key in [key for key in rotation.order if key in parameters]:
        parameters[key] = parameters.pop(key)  # to the end, one after the other: the order they had


def _selected(model: nn.Module, layers: Specs | None, exclude: Specs, output: str | None) -> dict[str, Neurons]:
    checks.module("model", model)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise ValueError(f"model must be rotated before it is wrapped, got {type(model).__name__}")
    for name, module in model.named_modules():
        if _is_quantized(module) and matches(layers, name, module) and not matches(exclude, name, module):
            raise ValueError(f"layer {shown(name)!r} [{type(module).__name__}] is quantized and cannot be rotated")
    for spec in [] if layers is None else as_list("layers", layers):
        for name, module in model.named_modules():
            asked = name == spec if isinstance(spec, str) else isinstance(spec, type) and issubclass(spec, _NOT_NEURONS)
            if asked and isinstance(module, _NOT_NEURONS):
                raise ValueError(
                    f"layers: {shown(name)} [{type(module).__name__}] cannot be rotated: recurrent layers and "
                    "embeddings have no neurons that see one input"
                )
    found = select_to_change("rotate", model, layers, exclude, output)
    if layers is None:
        found = _without_plain(model, found)
    if not found:
        kept = [name for name, n in select(model, layers, exclude, output=output).items() if n.is_output]
        left = f"; {kept[0]!r} is taken for the output layer: rotate it with layers= or output=None" if kept else ""
        raise no_layer_error(model, "rotate", left)
    return found


def _without_plain(model: nn.Module, found: dict[str, Neurons]) -> dict[str, Neurons]:
    """Without the layers that a network itself names in ``not_rotated``."""
    plain = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in getattr(module, "not_rotated", ())
    }
    for name in plain.intersection(found):
        checks.warn_once(
            f"rotate leaves layer {name!r} with its {dimension(found[name])} dimensions plain, as its network says: "
            f"layers={name!r} rotates it (on the command line rotation.layers=hidden,{name})"
        )
    return {name: neurons for name, neurons in found.items() if name not in plain}


def _is_quantized(module: nn.Module) -> bool:
    of_torch = type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.sparse.quantized"))
    return of_torch and hasattr(module, "weight")


def check_layer(model: nn.Module, name: str, neurons: Neurons) -> None:
    layer = f"layer {shown(name)!r}"
    if len(neurons.parametrizations):
        if isinstance(neurons.parametrizations[0], Rotation):
            raise ValueError(f"{layer} is rotated already: merge first, or leave it out with exclude")
        raise ValueError(f"{layer} is parametrized already: rotate plain layers only, or leave it out with exclude")
    weight = neurons.tensor
    if nn.parameter.is_lazy(weight):
        raise ValueError(f"{layer} has no weight yet (lazy): run the model once first")
    if not isinstance(weight, nn.Parameter) or weight.dtype not in _DTYPES:
        kind = str(weight.dtype) if isinstance(weight, torch.Tensor) else type(weight).__name__
        raise ValueError(f"{layer} must have a floating point nn.Parameter as its weight to be rotated, got {kind}")
    if not weight.numel():
        raise ValueError(f"{layer} must not be empty, got the shape {tuple(weight.shape)}")
    if is_sharded(weight):
        raise ValueError(f"{layer} is sharded: rotate before the model is sharded")
    holders = [
        f"{prefix}.{key}" if prefix else key
        for prefix, module in model.named_modules()
        for key, parameter in module._parameters.items()
        if parameter is weight
    ]
    if len(holders) > 1:
        raise ValueError(f"{layer} has a tied weight ({' and '.join(holders)}): rotating it would untie it")
    checks.finite_weight(shown(name), weight)


def is_sharded(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "device_mesh")


def _check_mergeable(each: Rotated) -> None:
    layer = f"layer {shown(each.name)!r}"
    if len(each.parametrizations) > 1:
        last = type(each.parametrizations[-1]).__name__
        raise ValueError(f"merge: {layer} has a further parametrization over its rotation ({last}): remove that first")
    if is_sharded(each.neurons):
        raise ValueError(
            f"merge: {layer} is sharded; gather the model's full state_dict and call hypersphere.merge_state_dict"
        )


def _checked_method(method: Any) -> str:
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


def _parameter(neurons: Neurons) -> nn.Parameter:
    weight = neurons.tensor
    assert isinstance(weight, nn.Parameter)
    return weight
