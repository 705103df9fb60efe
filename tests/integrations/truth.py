"""What a network does, found out without the library: by running it, by its gradients, by changing its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from .networks import Inputs

LAYERS = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, Conv1D)


def run(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return all results that are numbers, in one row; a cache of keys and values is none."""
    out = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return torch.cat([item.flatten() for item in _tensors(out)])


def _tensors(out: Any) -> Iterator[Tensor]:
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, Mapping | tuple | list):
        for item in out.values() if isinstance(out, Mapping) else out:
            yield from _tensors(item)


def result(model: nn.Module, inputs: Inputs) -> Tensor:
    """Run without gradients in eval mode; the mode stays what it was."""
    training = model.training
    with torch.no_grad():
        out = run(model.eval(), inputs)
    model.train(training)
    return out


def layers(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return every layer whose weight is neurons; stacked experts under the names of their tensors."""
    weights = {
        name: (module, "weight")
        for name, module in model.named_modules()
        if isinstance(module, LAYERS) or type(module).__name__.endswith("Router")
    }
    for name, module in model.named_modules():
        for tensor, value in module._parameters.items():
            if type(module).__name__.endswith("Experts") and value is not None and value.dim() == 3:
                weights[f"{name}.{tensor}"] = module, tensor
    return weights


def reached(model: nn.Module, inputs: Inputs) -> set[nn.Parameter]:
    """Return the parameters that the network's result depends on: those with a gradient other than 0."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(run(model, inputs).square().mean(), parameters, allow_unused=True)
    return {p for p, g in zip(parameters, gradients, strict=True) if g is not None and bool(g.count_nonzero())}


def called(model: nn.Module, inputs: Inputs) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the first input and output of every layer that is called."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def remember(name: str, x: tuple[Tensor, ...], y: Tensor) -> None:
        seen.setdefault(name, (x[0], y))

    hooks = [
        module.register_forward_hook(lambda _, x, y, name=name: remember(name, x, y))
        for name, (module, _) in layers(model).items()
        if isinstance(module, LAYERS)
    ]
    result(model, inputs)
    for hook in hooks:
        hook.remove()
    return seen


def neurons(module: nn.Module, tensor: str) -> Tensor:
    """Return the neurons as rows (groups that are rotated alike, N, d), from the definition of each layer."""
    weight = getattr(module, tensor).detach()
    if isinstance(module, Conv1D):
        return weight.T[None]
    if isinstance(module, nn.ConvTranspose2d):
        assert module.groups == 1
        return weight.transpose(0, 1).flatten(1)[None]
    if weight.dim() == 3:
        return weight
    return weight.flatten(1)[None]


def angles(module: nn.Module, tensor: str) -> Tensor:
    """Return the cosines between all neurons of a layer."""
    unit = nn.functional.normalize(neurons(module, tensor).double(), dim=-1)
    return unit @ unit.mT


def matching(names: Any, patterns: tuple[str, ...]) -> set[str]:
    """Return the names that match; every pattern must match one."""
    for pattern in patterns:
        assert any(fnmatchcase(name, pattern) for name in names), f"{pattern} matches none of {list(names)}"
    return {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}


@contextmanager
def count_calls(model: nn.Module) -> Iterator[list[int]]:
    """Count how often the model itself is called."""
    calls: list[int] = []
    hook = model.register_forward_hook(lambda *_: calls.append(1))
    yield calls
    hook.remove()
