"""Start a network from the weights of another run or of a file (``init_from``)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..neurons import select
from .config import Config
from .networks import Classifier, build_network
from .splits import DataSpec


def start_from(target: Classifier, source: nn.Module, path: str) -> None:
    """Copy the weights of another run's model into `target` (``init_from``); the classes too if their number is equal.

    Softmax after an angular loss, or the other way round: the last layer's matrix and the head's are interchangeable.
    """
    trained = source if isinstance(source, Classifier) else Classifier(source)
    if target.head is not None and type(target.head) is type(trained.head):
        initial = target.head.state_dict()  # annealing restarts, and so do tensors of another number of classes
        same = {key: value for key, value in trained.head.state_dict().items() if key != "step" and key in initial}
        target.head.load_state_dict({k: v for k, v in same.items() if v.shape == initial[k].shape}, strict=False)
    mine, theirs = _classes_of(target), _classes_of(trained)
    load_fitting(target.network, trained.network.state_dict(), f"init_from={path}", exclude=(mine[0], theirs[0]))
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
        stored = tensors.get(f"{name}.{key}")
        if name and tensor is not None and stored is not None and stored.shape == tensor.shape:
            with torch.no_grad():
                tensor.copy_(stored)


def _classes_of(model: Classifier) -> tuple[str, Tensor | None, Tensor | None]:
    """Return the name of the network's last layer ("" if the head classifies), and the classes' matrix and bias."""
    outputs = [(name, neurons.module) for name, neurons in select(model.network).items() if neurons.is_output]
    name, module = outputs[-1] if outputs and model.head is None else ("", model.head)
    return name, getattr(module, "weight", None), getattr(module, "bias", None)


def check_fits(
    target: nn.Module, shapes: Mapping[str, tuple[int, ...]], where: str, exclude: tuple[str, ...] = ()
) -> None:
    """Raise ValueError unless tensors of these shapes fit the module, except for the layers named in `exclude`."""
    mine = {name: value for name, value in target.state_dict().items() if _is_loaded(name, exclude)}
    theirs = {name: tuple(shape) for name, shape in shapes.items() if _is_loaded(name, exclude)}
    for name, value in mine.items():
        if name in theirs and theirs[name] != tuple(value.shape):
            raise ValueError(f"{where} does not fit: {name} is {theirs[name]} there and {tuple(value.shape)} here")
    if unexpected := [name for name in theirs if name not in mine]:
        raise ValueError(f"{where} does not fit: unexpected tensor {unexpected[0]}")


def load_fitting(target: nn.Module, state: dict[str, Tensor], where: str, exclude: tuple[str, ...] = ()) -> None:
    """Load a state into a module, except for the layers named in `exclude`; ValueError if it does not fit."""
    check_fits(target, {name: value.shape for name, value in state.items()}, where, exclude)
    theirs = {name: value for name, value in state.items() if _is_loaded(name, exclude)}
    missing = [name for name in target.load_state_dict(theirs, strict=False).missing_keys if _is_loaded(name, exclude)]
    if missing:
        raise ValueError(f"{where} does not fit: it has no {missing[0]}")


def _is_loaded(name: str, exclude: tuple[str, ...]) -> bool:
    return not any(layer and name.startswith(f"{layer}.") for layer in exclude)
