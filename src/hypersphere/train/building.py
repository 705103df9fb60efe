"""Build what a config describes: network and head, rotations, optimizer, regularizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import models
from .._internal import catalog
from ..energy import EnergyRegularizer, normalize_neurons, spread
from ..energy.hyperspherical import at_least_float32, point_energies
from ..energy.repulsion import Law
from ..layers.conversion import spherize
from ..layers.cosine import unit
from ..layers.similarity import LearnableSigmoid
from ..layers.sphere import SphereOptions
from ..losses import heads
from ..neurons import from_neuron_rows, neuron_rows, select
from ..optim import OGD, param_groups
from ..rotation import rotate
from ..rotation.parametrization import find_rotated
from ..rotation.planning import estimate_seconds, make_plans
from .automatic import learning_rate
from .config import Config, Energy, Gan, Loss, Model, Rotation
from .config.groups import LAYERS
from .config.values import AUTO
from .splits import DataSpec

# LBFGS needs a closure, SparseAdam sparse gradients, Muon matrices only.
OPTIMIZERS: dict[str, Any] = {
    name.lower(): kind
    for name, kind in sorted(vars(torch.optim).items(), key=lambda pair: pair[0].lower())
    if isinstance(kind, type)
    and issubclass(kind, Optimizer)
    and name not in ("Optimizer", "LBFGS", "SparseAdam", "Muon")
} | {"ogd": OGD}
_ANNEALING = ("base", "rate", "floor")  # constants of the margin's annealing
SLOW = 20.0  # seconds per step for the rotations of a GAN that are refused on a CPU
HEAD = "head"  # a loss head's name among the layers


class Classifier(nn.Module):
    """A network and, with an angular loss, the head that holds its classes.

    ``classifier(inputs)`` returns logits, ``classifier(inputs, labels)`` (loss, network output): one call for
    training, since DistributedDataParallel and torch.compile only see calls. A graph's adjacency goes to
    :meth:`loss_of` and :meth:`logits` as `edges`.
    """

    def __init__(self, network: nn.Module, head: nn.Module | None = None, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.network, self.head, self.label_smoothing = network, head, label_smoothing

    def forward(self, inputs: Tensor, labels: Tensor | None = None, edges: Tensor | None = None) -> Any:
        given = self.network(inputs) if edges is None else self.network(inputs, edges)
        if labels is None:
            return self.logits(given)
        rows, targets = flat(given, targets_of(inputs, labels, given))
        if edges is not None:  # nodes outside the split have label -100
            rows, targets = rows[targets >= 0], targets[targets >= 0]
        if self.head is not None:
            return self.head(rows, targets), given
        return F.cross_entropy(rows.float(), targets, label_smoothing=self.label_smoothing), given

    def logits(self, given: Tensor) -> Tensor:
        """Return the logits: what the network gave, or what the head makes of it."""
        if self.head is None:
            return given
        rows: Tensor = self.head.logits(given.flatten(0, -2))  # type: ignore[operator]
        return rows.unflatten(0, given.shape[:-1])

    def embed(self, inputs: Tensor) -> Tensor:
        """Return the embeddings (B, d): the input of the last layer, or of the head."""
        if self.head is not None:
            embeddings: Tensor = self.network(inputs)
            return embeddings
        features = getattr(self.network, "embed", None) or getattr(self.network, "forward_features", None)
        if features is None:
            raise ValueError("this network has no embeddings: it has no forward_features")
        return features(inputs)


def targets_of(inputs: Tensor, labels: Tensor, given: Tensor) -> Tensor:
    """Return the labels; of text, the next character at every position (the label follows the window)."""
    if given.dim() == 3 and labels.dim() == 1:
        return torch.cat([inputs[:, 1:], labels[:, None]], 1)
    return labels


def flat(given: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Flatten to rows (n, d) and their targets (n,)."""
    return given.flatten(0, -2), targets.flatten()


def build_classifier(config: Config, spec: DataSpec) -> Classifier:
    """Build the network of a config with its head, not rotated yet; ValueError if it does not fit the data."""
    has_head = config.loss.name != "softmax"
    body = build_network(config.model, spec, num_classes=0 if has_head else len(spec.classes))
    head = _head(config.loss, spec, body) if has_head else None
    return Classifier(body, head, config.loss.label_smoothing)


def build_network(model: Model, spec: DataSpec, **fixed: Any) -> nn.Module:
    """Build the network alone; `fixed` are options it must take, all others are given where it has them."""
    known = models.preset(model.name).accepted()
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    handled = ("name", "similarity", "scale", "init", "k_per")  # every other field is an option of the network
    options = {key: value for key, value in vars(model).items() if key not in handled and value is not None}
    if model.init is not None and "init" in known:
        options["init"] = model.init
    if model.fc == 0:
        options["fc"] = None
    of_data = {key: value for key, value in _of_data(spec).items() if key in known}
    by_itself = model.similarity is not None and ("similarity" in known or open_ended)
    papers_own = model.scale == "auto" and "." in model.name  # such as cnn9.spherenet, which has no scale
    scale = None if papers_own else model.scale
    if by_itself:
        options |= {"similarity": model.similarity, "scale": scale}
    if fixed.get("num_classes") is not None and "num_classes" not in known and not open_ended:
        raise ValueError(f"model.name={model.name} takes no num_classes and cannot classify")
    try:
        made = models.create(model.name, **(of_data | options | fixed))
    except (TypeError, ValueError) as error:
        raise ValueError(f"model.name={model.name}: {error}") from None
    if model.init is not None and "init" not in known:
        models.initialize(made, model.init)
    if model.similarity is not None and not by_itself:
        spherize(made, model.similarity, scale=scale)
    if model.k_per in ("layer", "network"):
        _share_k(made, whole=model.k_per == "network")
    return made


def _share_k(network: nn.Module, whole: bool) -> None:
    """Give every layer one learned k, or the `whole` network one, in place of one per filter."""
    shared: LearnableSigmoid | None = None
    for layer in network.modules():
        if isinstance(layer, SphereOptions) and isinstance(layer.similarity, LearnableSigmoid):
            if shared is None or not whole:
                shared = LearnableSigmoid(k=layer.similarity.start, dtype=layer.similarity.log_k.dtype)
            layer.similarity = shared


def _of_data(spec: DataSpec) -> dict[str, Any]:
    """Return the options of a network that depend on the data."""
    if spec.kind == "images":
        channels, height, width = spec.shape
        return {"in_channels": channels, "out_channels": channels, "input_size": (height, width)}
    if spec.kind == "points":
        return {"in_channels": spec.shape[1]}
    if spec.kind == "graph":
        return {"in_features": spec.shape[0]}
    if spec.kind == "text":
        return {"vocabulary": len(spec.classes), "context": spec.shape[0]}
    return {"in_channels": 1, "input_size": (1, torch.Size(spec.shape).numel())}


def _head(loss: Loss, spec: DataSpec, body: nn.Module) -> nn.Module:
    size = getattr(body, "num_features", None)
    if not isinstance(size, int):
        raise ValueError(f"loss.name={loss.name} needs a network with num_features, the size of its embeddings")
    options = {key: value for key, value in vars(loss).items() if key != "name" and value is not None}
    constants = {key: options.pop(f"annealing_{key}") for key in _ANNEALING if f"annealing_{key}" in options}
    if constants:
        options["annealing"] = partial(heads.sphereface_annealing, **constants)
    return heads.create(loss.name, len(spec.classes), size, **options)


def prepare(body: nn.Module, head: nn.Module | None, settings: Rotation | None, seed: int) -> None:
    """Initialize the neurons and rotate them, in place (OPT)."""
    if settings is None:
        return
    asked, exclude = _listed(settings.layers), _listed(settings.exclude)
    named = [each for each in asked if each not in LAYERS]
    _check_layers(body, head, {"rotation.layers": named, "rotation.exclude": exclude})
    if settings.spread:
        _spread(body, settings, seed)
    if settings.normalize:
        normalize_neurons(body)
    if settings.freeze:
        body.requires_grad_(False)
        for each in select(body).values():
            each.module.requires_grad_(each.is_output and head is None)
    options: dict[str, Any] = {
        key: getattr(settings, key)
        for key in ("method", "init", "neurons", "blocks", "block_size", "share_blocks", "sample", "apply", "scaled")
    }
    options |= {"seed": seed, "exclude": [each for each in exclude if select(body, each)]}
    if not {"hidden", "all"}.isdisjoint(asked):
        rotate(body, **options)
    if not {"output", "all"}.isdisjoint(asked):
        outputs = [name for name, neurons in select(body).items() if neurons.is_output]
        if head is None and not outputs:
            raise ValueError(f"rotation.layers={','.join(asked)}: this network has no output layer")
        named += [HEAD] if head is not None else outputs
    if head is not None and _matches(named, HEAD) and not _matches(exclude, HEAD):
        rotate(head, **options | {"exclude": ()})
    done = {each.name for each in find_rotated(body)}
    if rest := [name for name in select(body, named, exclude) if name not in done]:
        rotate(body, layers=rest, **options)


def _spread(body: nn.Module, settings: Rotation, seed: int) -> None:
    """Spread the hidden neurons. Half space by default: in full space neurons may end in opposite pairs."""
    measure, half_space = settings.spread_measure or "energy", settings.spread_half_space
    if half_space is None:
        half_space = "half_space" in catalog.MEASURES.get(measure, ())
    steps: dict[str, Any] = {} if settings.spread_steps is None else {"steps": settings.spread_steps}
    spread(body, measure=measure, half_space=half_space, seed=seed, **steps)


def _listed(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _matches(names: Iterable[str], layer: str) -> bool:
    return any(fnmatchcase(layer, name) for name in names)


def _check_layers(body: nn.Module, head: nn.Module | None, names: dict[str, Iterable[str]]) -> None:
    """Raise ValueError if a config names a layer that the network does not have."""
    there = [*select(body), *([] if head is None else [HEAD])]
    for key, each in ((key, each) for key, those in names.items() for each in those):
        if not any(_matches([each], layer) for layer in there):
            also = f"{', '.join(LAYERS)} or " if key == "rotation.layers" else ""
            raise ValueError(f"{key} must be {also}layers of the network, {', '.join(there)}; got {each!r}")


@torch.no_grad()
def renormalize(module: nn.Module, *_: Any) -> None:
    """Scale the neurons under all rotations to norm one; a hook of an optimizer's step."""
    for each in find_rotated(module):
        weight, layout = each.neurons, each.rotation.plan.layout
        weight.copy_(from_neuron_rows(unit(neuron_rows(weight, layout)), weight.shape, layout))


def build_optimizer(module: nn.Module, config: Config) -> Optimizer:
    """Build the optimizer of a module; no weight decay on scale-invariant weights."""
    settings = config.optimizer
    uses_ogd = config.rotation is not None and config.rotation.method == "ogd"
    groups = param_groups(module, settings.weight_decay, ogd=uses_ogd)
    if not groups:
        raise ValueError("no parameters to train: every parameter is fixed")
    if settings.decay_layers:
        groups = _decay_only(module, groups, _listed(settings.decay_layers))
    name = "sgd" if settings.name == AUTO else settings.name
    taken = [key for key in catalog.OPTIMIZERS[name] if key != "weight_decay"]  # which is in the groups
    options = {k: getattr(settings, k) for k in taken if getattr(settings, k) is not None or k == "iterations"}
    if name == "sgd":
        options = {"momentum": 0.9} | options
    options["lr"] = learning_rate(config) if settings.lr == AUTO else settings.lr
    made: Optimizer = OPTIMIZERS[name](groups, **options)
    return made


def _decay_only(module: nn.Module, groups: list[dict[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Split the groups that decay: only the layers named so still do."""
    body = module.network if isinstance(module, Classifier) else module
    _check_layers(body, None, {"optimizer.decay_layers": names})
    chosen: set[Tensor] = {p for each in select(body, names).values() for p in each.module.parameters()}
    split = []
    for group in groups:
        kept = [p for p in group["params"] if group["weight_decay"] and p in chosen]
        rest = [p for p in group["params"] if not group["weight_decay"] or p not in chosen]
        for params, decay in ((kept, group["weight_decay"]), (rest, 0.0)):
            if params:
                split.append({**group, "params": params, "weight_decay": decay})
    return split


def build_regularizer(body: nn.Module, head: nn.Module | None, settings: Energy, seed: int) -> EnergyRegularizer:
    """Build the regularizer that a config adds to the loss."""
    head, exclude, options = _with_neurons(head), _listed(settings.exclude), dict(vars(settings))
    _check_layers(body, head, {"energy.exclude": exclude})
    options["exclude"] = [each for each in exclude if select(body, each)]
    if head is not None and _matches(exclude, HEAD):
        options["output_weight"] = 0.0
    return EnergyRegularizer(body, head=head, seed=seed, **options)


def energies(body: nn.Module, head: nn.Module | None, settings: Energy | None) -> dict[str, float]:
    """Return the hyperspherical energy of every layer, for the logs; with the config's options if it has energy."""
    head = _with_neurons(head)
    if head is None and not select(body):
        return {}
    kind = {} if settings is None else {name: getattr(settings, name) for name in ("s", "half_space", "angular")}
    return EnergyRegularizer(body, head=head, **kind).per_layer()


@torch.no_grad()
def pair_energies(body: nn.Module, head: nn.Module | None, settings: Energy | None) -> dict[str, float]:
    """Return Σ_i Σ_{j≠i} ‖ŵ_i − ŵ_j‖⁻¹ of the rotated or regularized layers, without the output (OPT, App. K).

    Of a network with neither: of every hidden layer.
    """
    if not select(body):
        return {}
    exclude = () if settings is None else _listed(settings.exclude)
    found = EnergyRegularizer(body, head=_with_neurons(head), exclude=[each for each in exclude if select(body, each)])
    hidden = {name: neurons for name, neurons in found.neurons.items() if not neurons.is_output}
    rotated = {each.module for each in find_rotated(body)}
    law = Law(1.0, False, False)
    return {
        name: float(point_energies(unit(at_least_float32(neurons.matrix())), law).sum())
        for name, neurons in hidden.items()
        if not rotated or neurons.module in rotated
    }


def _with_neurons(head: nn.Module | None) -> nn.Module | None:
    """Return the head if its class weights are rows that have an energy; those of pytorch-metric-learning are not."""
    return head if head is not None and select(head, output=None) else None


def build_gan(config: Config, spec: DataSpec) -> tuple[nn.Module, nn.Module]:
    """Build a generator and the discriminator of the same paper; similarity and model.widths are the latter's."""
    model, gan = config.model, config.gan or Gan()
    known = models.preset(model.name).accepted()
    options = {"batch_norm": model.batch_norm, "init": model.init, "widths": gan.widths} | _of_data(spec)
    try:
        maker = models.create(model.name, **{k: v for k, v in options.items() if k in known and v is not None})
    except (TypeError, ValueError) as error:
        raise ValueError(f"model.name={model.name}: {error}") from None
    critic = replace(model, name="discriminator" + model.name.removeprefix("generator"))
    norm = {} if gan.norm is None else {"norm": gan.norm}
    return maker, build_network(critic, spec, num_classes=1, **norm)


def check_gan_cost(generator: nn.Module, discriminator: nn.Module, settings: Rotation | None) -> None:
    """Raise ValueError if the rotations of a GAN would take more than SLOW seconds of a step on a CPU."""
    if settings is None:
        return
    total, largest = 0.0, (0, "")
    # a step calls the generator twice and the discriminator twice
    for name, network in (("generator", generator), ("discriminator", discriminator)):
        found = {layer: neurons for layer, neurons in select(network).items() if not neurons.is_output}
        options = {key: getattr(settings, key) for key in ("init", "blocks", "block_size", "share_blocks", "sample")}
        plans = make_plans(found, settings.method, learned=False, first=next(iter(found)), **options)
        total += 2 * estimate_seconds(plans.values())
        largest = max(largest, *((plan.size, f"{layer} of the {name}") for layer, plan in plans.items()))
    if total > SLOW:
        raise ValueError(
            f"rotation: a step would take about {total:.0f} s on one core of this CPU, since {largest[1]} has "
            f"{largest[0]} dimensions: set rotation.block_size=64 or rotation.sample=0.25, or use a GPU"
        )


def start_from(target: Classifier, source: nn.Module, path: str) -> None:
    """Copy the weights of another run's model into `target` (``init_from``); the classes too if their number is equal.

    Softmax after an angular loss, or the other way round: the last layer's matrix and the head's are interchangeable.
    """
    given = source if isinstance(source, Classifier) else Classifier(source)
    if target.head is not None and type(target.head) is type(given.head):
        kept = target.head.state_dict()  # annealing restarts, and so do tensors of another number of classes
        same = {key: value for key, value in given.head.state_dict().items() if key != "step" and key in kept}
        target.head.load_state_dict({k: v for k, v in same.items() if v.shape == kept[k].shape}, strict=False)
    mine, theirs = _classes_of(target), _classes_of(given)
    load_fitting(target.network, given.network.state_dict(), f"init_from={path}", exclude=(mine[0], theirs[0]))
    for tensor, other in zip(mine[1:], theirs[1:], strict=True):
        if tensor is not None and other is not None and tensor.shape == other.shape:
            with torch.no_grad():
                tensor.copy_(other)


def start_from_tensors(target: Classifier, tensors: dict[str, Tensor], config: Config, spec: DataSpec) -> None:
    """Copy the tensors of a file into the network of `target` (``init_from``); the classes too if they are as many.

    The file's output layer is that of the config's network with classes, also where a loss head takes its place.
    """
    name, weight, bias = _classes_of(target)
    if target.head is not None:
        with torch.device("meta"):
            name = _classes_of(Classifier(build_network(config.model, spec, num_classes=len(spec.classes))))[0]
    load_fitting(target.network, tensors, f"init_from={config.init_from}", exclude=(name,))
    for key, tensor in (("weight", weight), ("bias", bias)):
        given = tensors.get(f"{name}.{key}")
        if name and tensor is not None and given is not None and given.shape == tensor.shape:
            with torch.no_grad():
                tensor.copy_(given)


def _classes_of(model: Classifier) -> tuple[str, Tensor | None, Tensor | None]:
    """Return the name of the network's last layer ("" if the head classifies), and the classes' matrix and bias."""
    named = [(name, each.module) for name, each in select(model.network).items() if each.is_output]
    name, module = named[-1] if named and model.head is None else ("", model.head)
    return name, getattr(module, "weight", None), getattr(module, "bias", None)


def check_fits(
    target: nn.Module, shapes: Mapping[str, tuple[int, ...]], where: str, exclude: tuple[str, ...] = ()
) -> None:
    """Raise ValueError unless tensors of these shapes fit the module, except for the layers named in `exclude`."""
    mine = {name: value for name, value in target.state_dict().items() if _is_kept(name, exclude)}
    theirs = {name: tuple(shape) for name, shape in shapes.items() if _is_kept(name, exclude)}
    for name, value in mine.items():
        if name in theirs and theirs[name] != tuple(value.shape):
            got = f"{theirs[name]} there and {tuple(value.shape)} here"
            raise ValueError(f"{where} does not fit: {name} is {got}")
    more = [name for name in theirs if name not in mine]
    if more:
        raise ValueError(f"{where} does not fit: unexpected tensor {more[0]}")


def load_fitting(target: nn.Module, state: dict[str, Tensor], where: str, exclude: tuple[str, ...] = ()) -> None:
    """Load a state into a module, except for the layers named in `exclude`; ValueError if it does not fit."""
    check_fits(target, {name: value.shape for name, value in state.items()}, where, exclude)
    theirs = {name: value for name, value in state.items() if _is_kept(name, exclude)}
    missing = [name for name in target.load_state_dict(theirs, strict=False).missing_keys if _is_kept(name, exclude)]
    if missing:
        raise ValueError(f"{where} does not fit: it has no {missing[0]}")


def _is_kept(name: str, exclude: tuple[str, ...]) -> bool:
    return not any(layer and name.startswith(f"{layer}.") for layer in exclude)
