"""The verbs of the matrix: each takes a network through one verb and checks what is true, not only that nothing raises.

A verb returns what the table of docs/tested_models.md says of the cell: "ok", an error (0.0 means bit for bit), or
"refused" when the library says by name that it does not handle the network and leaves it as it is.
"""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import hypersphere as hs

from . import truth
from .networks import Network

SPHERES = (hs.SphereLinear, hs.SphereConv1d, hs.SphereConv2d, hs.SphereConv3d)


def check_select(network: Network, folder: Path) -> str:
    """The heads are the real ones, what is selected is used, and the energy's gradient reaches it."""
    model, inputs = network.build(), network.inputs()
    before, layers = copy.deepcopy(model.state_dict()), truth.layers(model)
    with truth.count_calls(model) as calls:
        selected = hs.select(model, example_inputs=inputs)
    assert len(calls) == 1, "tracing is one forward pass"
    assert not model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())

    assert {name for name, neurons in selected.items() if neurons.is_output} == set(network.heads)
    used = truth.reached(model, inputs)
    assert set(selected) == {name for name, (module, tensor) in layers.items() if getattr(module, tensor) in used}
    seen = truth.called(model, inputs)
    for name, neurons in selected.items():
        rows = neurons.matrix()
        assert (neurons.module, neurons.tensor_name) == layers[name]
        assert rows.numel() == neurons.tensor.numel()
        if name in network.shapes:
            assert rows.shape == network.shapes[name], name
        if name in seen and isinstance(neurons.module, nn.Linear | truth.Conv1D):
            x, y = seen[name]
            bias = 0 if neurons.module.bias is None else neurons.module.bias
            torch.testing.assert_close(x @ rows.flatten(0, 1).T + bias, y, rtol=1e-4, atol=1e-5)
        else:
            expected = truth.neurons(neurons.module, neurons.tensor_name).flatten(0, 1)
            assert torch.equal(rows.flatten(0, 1), expected), name
    _check_energy(model, selected, inputs)
    return "ok"


def _check_energy(model: nn.Module, selected: dict[str, hs.neurons.Neurons], inputs: truth.Inputs) -> None:
    """Groups of one neuron have a constant energy: named, and not in the sum. Everything else gets a gradient."""
    single = {name for name, neurons in selected.items() if neurons.matrix().shape[1] == 1}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        regularizer = hs.EnergyRegularizer(model, layers=hs.select(model, example_inputs=inputs))
    said = " ".join(str(warning.message) for warning in caught)
    assert all(name in said for name in single), said
    per_layer = regularizer.per_layer()
    assert set(per_layer) == set(selected)
    model.zero_grad()
    regularizer().backward()
    for name, neurons in selected.items():
        gradient = neurons.tensor.grad
        if name in single:
            assert gradient is None, name
            continue
        groups = [hs.hyperspherical_energy(rows) for rows in neurons.matrix()]
        torch.testing.assert_close(torch.as_tensor(per_layer[name]), torch.stack(groups).mean(), rtol=1e-4, atol=1e-6)
        assert gradient is not None, name
        assert bool(gradient.count_nonzero()), name
        assert bool(gradient.isfinite().all()), name


def check_spherize(network: Network, folder: Path) -> str:
    """Every layer that changed its type compares by angle; every layer that did not is an output, unused or named."""
    model, inputs = network.build(), network.inputs()
    before = truth.result(model, inputs)
    state, types = copy.deepcopy(model.state_dict()), {name: type(module) for name, module in model.named_modules()}
    layers = truth.layers(model)
    left_plain = set(network.heads) | truth.matching(layers, network.only_read) | truth.matching(layers, network.plain)
    if left_plain == set(layers):
        with pytest.raises(ValueError, match="|".join(map(re.escape, left_plain - set(network.heads)))):
            hs.spherize(model, layers=hs.select(model, example_inputs=inputs))
        assert types == {name: type(module) for name, module in model.named_modules()}
        assert torch.equal(truth.result(model, inputs), before)
        return "refused"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hs.spherize(model, layers=hs.select(model, example_inputs=inputs))
    said = " ".join(str(warning.message) for warning in caught)
    converted = {name: module for name, module in model.named_modules() if isinstance(module, SPHERES)}
    assert set(converted) == set(layers) - left_plain
    assert all(name in said for name in left_plain - set(network.heads)), said
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items() if key in state)

    after = truth.result(model, inputs)
    assert bool(after.isfinite().all())
    assert not torch.allclose(after, before), "the network computes what it computed before"
    used = truth.reached(model, inputs)
    for name, module in converted.items():
        assert module.weight in used, f"the direction of {name} does not matter"
    with torch.no_grad():  # lengths of neurons do not matter to a sphere layer; to a plain one they do
        for module in converted.values():
            module.weight.mul_(4.0)
    torch.testing.assert_close(truth.result(model, inputs), after, rtol=1e-4, atol=1e-5)
    return "ok"


def _convert(network: Network) -> tuple[nn.Module, truth.Inputs]:
    """Return the network spherized where it can be, and rotated."""
    model, inputs = network.build(), network.inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if truth.matching(truth.layers(model), network.plain) | set(network.heads) != set(truth.layers(model)):
            hs.spherize(model, layers=hs.select(model, example_inputs=inputs))
        hs.rotate(model, layers=hs.select(model, example_inputs=inputs), apply="weight", **network.rotation)
    return model, inputs


def _train(network: Network, model: nn.Module, inputs: truth.Inputs) -> None:
    """Make two steps."""
    optimizer = torch.optim.SGD(hs.param_groups(model), lr=0.05)
    if "sample" in network.rotation:
        hs.Resampler(model, optimizer)  # draws after 750 steps
    model.train()
    for _ in range(2):
        optimizer.zero_grad()
        truth.run(model, inputs).square().mean().backward()
        optimizer.step()
    model.eval()


def _rotated(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return the layers with a parametrization, under the names of truth.layers."""
    return {
        name if tensor == "weight" else f"{name}.{tensor}": (module, tensor)
        for name, module in model.named_modules()
        if parametrize.is_parametrized(module)
        for tensor in module.parametrizations
    }


def check_rotate(network: Network, folder: Path) -> str:
    """The function stays; every layer but the heads is rotated, each rotation acts, and angles between neurons stay."""
    model, inputs = network.build(), network.inputs()
    before, layers = truth.result(model, inputs), truth.layers(model)
    angles = {name: truth.angles(*layer) for name, layer in layers.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hs.rotate(model, layers=hs.select(model, example_inputs=inputs), apply="weight", **network.rotation)
    torch.testing.assert_close(truth.result(model, inputs), before, rtol=1e-4, atol=1e-5)
    rotated = _rotated(model)
    assert set(rotated) == set(layers) - set(network.heads)
    numbers = _rotations(model)
    assert len(numbers) == len(rotated)
    assert numbers <= truth.reached(model, inputs), "a rotation that nothing depends on"
    with torch.no_grad():
        for rotation in numbers:
            rotation.add_(torch.randn_like(rotation), alpha=0.3)
    assert not torch.allclose(truth.result(model, inputs), before)
    for name, layer in rotated.items():
        torch.testing.assert_close(truth.angles(*layer), angles[name], rtol=0, atol=1e-5)
    return "ok"


def _rotations(model: nn.Module) -> set[nn.Parameter]:
    groups = {group["name"]: group["params"] for group in hs.param_groups(model)}
    return set(groups["rotations"])


def check_step(network: Network, folder: Path) -> str:
    """Steps move every rotation and every head, the neurons stay, and what training computes is finite."""
    model, inputs = _convert(network)
    rotations, start = _rotations(model), copy.deepcopy(model.state_dict())
    loss = truth.run(model, inputs).square().mean().item()
    moved = {parameter: parameter.detach().clone() for parameter in rotations}
    angles = {name: truth.angles(*layer) for name, layer in _rotated(model).items()}
    _train(network, model, inputs)
    assert all(not torch.equal(parameter, was) for parameter, was in moved.items())
    for name in network.heads:
        assert not torch.equal(model.get_submodule(name).weight, start[f"{name}.weight"]), name
    for key, value in model.state_dict().items():
        assert bool(value.isfinite().all()), key
        if key.endswith(".original"):
            assert torch.equal(value, start[key]), key
    for name, layer in _rotated(model).items():
        torch.testing.assert_close(truth.angles(*layer), angles[name], rtol=0, atol=1e-5)
    assert truth.run(model, inputs).square().mean().item() != loss
    return "ok"


def check_merge(network: Network, folder: Path) -> str:
    """Merging changes no bit of the result; types and keys are those of the network before it was rotated."""
    model, inputs = _convert(network)
    plain = network.build()
    _train(network, model, inputs)
    before = truth.result(model, inputs)
    merged = hs.merge(model)
    assert merged is model
    assert not any(parametrize.is_parametrized(module) for module in model.modules())
    assert list(dict(model.named_parameters())) == list(dict(plain.named_parameters()))
    return _error(before, truth.result(model, inputs))


def check_save(network: Network, folder: Path) -> str:
    """A rotated network's state_dict, pickle and copy give the same results, bit for bit; a file is read in between."""
    model, inputs = _convert(network)
    _train(network, model, inputs)
    before = truth.result(model, inputs)
    torch.save(model.state_dict(), folder / "state.pt")
    fresh, _ = _convert(network)
    assert not torch.equal(truth.result(fresh, inputs), before)
    fresh.load_state_dict(torch.load(folder / "state.pt", weights_only=True))
    copies = [fresh, copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    torch.save(model, folder / "model.pt")
    copies.append(torch.load(folder / "model.pt", weights_only=False))
    for other in copies:
        assert set(_rotated(other)) == set(_rotated(model))
    return _error(before, *(truth.result(other, inputs) for other in copies))


def check_load(network: Network, folder: Path) -> str:
    """A file of rotations, a merged state_dict and, for transformers, a saved folder load into the same results."""
    model, inputs = _convert(network)
    _train(network, model, inputs)
    before = truth.result(model, inputs)
    hs.rotation.save_rotations(model, folder / "rotations.safetensors")
    fresh = hs.merge(_convert(network)[0])
    hs.rotation.load_rotations(fresh, folder / "rotations.safetensors")
    merged = hs.merge(_convert(network)[0])
    merged.load_state_dict(hs.rotation.merge_state_dict(model.state_dict()))
    loaded = [fresh, merged]
    if network.library == "transformers":
        cls = type(model)
        hs.integrations.huggingface.save_pretrained(model, folder / "rotated")
        loaded.append(hs.integrations.huggingface.from_pretrained(cls, folder / "rotated").eval())
        assert set(_rotated(loaded[-1])) == set(_rotated(model))
        _check_plain_loading(cls, folder / "rotated", inputs, before)
        hs.integrations.huggingface.save_pretrained(hs.merge(copy.deepcopy(model)), folder / "merged")
        loaded.append(hs.integrations.huggingface.from_pretrained(cls, folder / "merged").eval())
        assert not _rotated(loaded[-1])
    return _error(before, *(truth.result(other, inputs) for other in loaded))


def _check_plain_loading(cls: type[nn.Module], folder: Path, inputs: truth.Inputs, before: torch.Tensor) -> None:
    """transformers' own from_pretrained must fail, or give the network that was saved."""
    try:
        other = cls.from_pretrained(folder)  # type: ignore[attr-defined]
    except (ValueError, RuntimeError, OSError, TypeError, ImportError):
        return
    assert torch.equal(truth.result(other, inputs), before), "from_pretrained gives another network without a word"


def _error(before: torch.Tensor, *after: torch.Tensor) -> str:
    """Return the largest difference, which must be 0."""
    error = max((output - before).abs().max().item() for output in after)
    assert error == 0.0, f"error {error}"
    return str(error)


CELLS = {
    "select": check_select,
    "spherize": check_spherize,
    "rotate": check_rotate,
    "step": check_step,
    "merge": check_merge,
    "save": check_save,
    "load": check_load,
}
