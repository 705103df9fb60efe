"""Run a model once and see which layers are called, which weights are read, and whose results leave the model.

Every storage has a set of sources: the layers whose results it holds without another layer in between. The result of
an operation has the sources of all its inputs; the result of a layer has that layer alone. Storages, not tensors,
because views and in-place operations share them.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module as hooks
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils._python_dispatch import TorchDispatchMode

from .layouts import Layout
from .neurons import Neurons

# Not neurons, but a result that passes them is theirs.
_OTHER_LAYERS = (nn.RNNBase, nn.RNNCellBase, nn.Bilinear, nn.Embedding, nn.EmbeddingBag)
_INPUT = "(input)"
_LOOKUP = "(rows of a weight)"
_NONE: frozenset[str] = frozenset()
_PRODUCTS = {  # the place of the left factor among the arguments
    torch.ops.aten.mm: 0,
    torch.ops.aten.bmm: 0,
    torch.ops.aten.mv: 0,
    torch.ops.aten.addmm: 1,
    torch.ops.aten.baddbmm: 1,
    torch.ops.aten.addmv: 1,
}
_LEAVES = (str, bytes, int, float, complex, torch.dtype, torch.device, type, nn.Module)


@dataclasses.dataclass(frozen=True)
class Trace:
    """What one forward pass did with the layers, by their names."""

    called: frozenset[str]
    """Layers that were called; their weights may be read elsewhere, too."""
    read: frozenset[str]
    """Layers whose weights an operation outside of the layer used."""
    outputs: frozenset[str] | None
    """Layers whose results leave the model and reach no other layer, alone or combined with others of the kind; None if
    no tensor leaves, so that nothing could be followed."""
    linears: Mapping[str, Layout]
    """Layers of `others` whose weights multiplied activations, and their layouts."""


def trace(model: nn.Module, layers: Mapping[str, Neurons], others: Mapping[str, Neurons], example_inputs: Any) -> Trace:
    """Run the model once on example inputs, in eval mode and without gradients; nothing of it changes.

    Args:
        layers: all layers with neurons, by name.
        others: matrices of unknown modules, each may be that of a Linear; their layouts are not used.
        example_inputs: a tensor, a tuple of arguments or a dict of keyword arguments.
    """
    args, kwargs = arguments_of(example_inputs)
    if lazy := [name for name, parameter in model.named_parameters() if is_lazy(parameter)]:
        raise ValueError(f"{lazy[0]!r} is lazy and has no values yet: run the model once first")
    recorder = _Recorder(model, layers, others)
    # compiled parts run eagerly; without torch._dynamo, whose import is slow, there are none
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    with _unchanged(model), torch.no_grad(), eager, warnings.catch_warnings(), recorder.hooks(), recorder:
        recorder.mark_inputs((args, kwargs))
        warnings.filterwarnings("ignore", "Using `torch.compile", UserWarning)  # our hooks may fire twice
        try:
            results = model(*args, **kwargs)
        except Exception as error:
            raise ValueError(
                f"example_inputs: the forward pass fails: {type(error).__name__}: {str(error)[:500]}"
            ) from error
        outputs = recorder.outputs(results)
    return Trace(frozenset(recorder.called), frozenset(recorder.read), outputs, recorder.linears)


def arguments_of(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, tuple):
        return example_inputs, {}
    if isinstance(example_inputs, Mapping) and all(isinstance(key, str) for key in example_inputs):
        return (), dict(example_inputs)
    raise TypeError(
        "example_inputs must be a tensor, a tuple of arguments or a dict of keyword arguments, got "
        f"{type(example_inputs).__name__}"
    )


class _Recorder(TorchDispatchMode):
    """Follow the sources of all storages through a forward pass."""

    def __init__(self, model: nn.Module, layers: Mapping[str, Neurons], others: Mapping[str, Neurons]) -> None:
        super().__init__()
        self.others, self.unknown = others, frozenset(others)
        self.linears: dict[str, Layout] = {}
        self.layers = layers
        self.names: dict[nn.Module, set[str]] = {}  # of a module's tensors of neurons
        self.result_of: dict[nn.Module, str] = {}  # the source of all that a module returns
        for name, neurons in {**layers, **others}.items():
            self.names.setdefault(neurons.module, set()).add(name)
            if name in layers and neurons.tensor_name == "weight":
                self.result_of[neurons.module] = name
        for name, module in model.named_modules():
            if isinstance(module, _OTHER_LAYERS):
                self.result_of[module] = f"{name} "  # no layer has this name
            elif isinstance(module, nn.MultiheadAttention) and module.out_proj in self.result_of:
                self.result_of[module] = self.result_of[module.out_proj]
        self.owners = _owners(model, {**layers, **others})
        self.weights = {key: frozenset(name for name, _ in owners) for key, owners in self.owners.items()}
        """The layers whose weights a storage holds, as they are or computed from."""
        self.by_storage: dict[StorageWeakRef, frozenset[str]] = {}
        self.stack: list[nn.Module] = []
        self.called: set[str] = set()
        self.read: set[str] = set()
        self.used: set[str] = set()

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Hook all module calls. Hooks of single modules would change the path of nn.TransformerEncoderLayer."""
        handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        self.stack.append(module)
        self.called |= self.names.get(module, set())

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        self.stack.pop()
        if module in self.result_of:
            for tensor in _tensors(result):
                key = _key(tensor)
                if key is not None and key not in self.owners:
                    self.weights.pop(key, None)
                    self.by_storage[key] = frozenset({self.result_of[module]})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [(key, tensor) for tensor in _tensors((args, kwargs)) if (key := _key(tensor)) is not None]
        keys = [key for key, _ in tensors]
        result = func(*args, **kwargs)
        weights = {self.weights[key] for key in keys if key in self.weights}
        activations = _NONE.union(*(self.by_storage.get(key, _NONE) for key in keys))
        if activations and not self._is_product(func, args):  # only a product makes an unknown matrix a layer
            weights = {names - self.unknown for names in weights} - {_NONE}
        applied = _NONE.union(*weights)
        if applied and all(_is_index(tensor) for key, tensor in tensors if key in self.by_storage) and activations:
            applied = frozenset({_LOOKUP})  # an embedding; the head that is tied to it computes nothing here
        for key in keys:
            for name, module in self.owners.get(key, ()):
                if module not in self.stack and not any(other in self.stack for _, other in self.owners[key]):
                    self.read.add(name)
        inside = self.result_of.get(self.stack[-1]) if self.stack else None
        if inside is not None or applied:
            self.used |= activations - {inside}
        if activations and len(weights) > 1:  # an operation of several layers: which comes last is unknown
            self.used |= applied
        results = (key for tensor in _tensors(result) if (key := _key(tensor)) is not None)
        for key in results:
            if key in self.owners:
                continue
            if applied and activations:
                self.by_storage[key] = applied
            elif applied:
                self.weights[key] = applied | self.weights.get(key, _NONE)
            elif activations:
                self.by_storage[key] = activations | self.by_storage.get(key, _NONE)
        return result

    def _is_product(self, func: Any, args: Any) -> bool:
        """Return whether the operation is a product of matrices; note the unknown ones among its factors."""
        left = _PRODUCTS.get(func.overloadpacket)
        if left is None:
            return False
        for tensor, output in ((args[left], -2), (args[left + 1], -1)):
            key = _key(tensor)
            for name in self.unknown & self.weights.get(key, _NONE) if key is not None else ():
                shape = self.others[name].stored.shape
                if sorted(tensor.shape[-2:]) == sorted(shape):
                    self.linears.setdefault(name, _product_layout(tensor, output, shape))
        return True

    def sources(self, tensor: Tensor) -> frozenset[str]:
        key = _key(tensor)
        return _NONE if key is None else self.by_storage.get(key) or self.weights.get(key, _NONE)

    def mark_inputs(self, values: Any) -> None:
        for tensor in _tensors(values):
            if (key := _key(tensor)) is not None and key not in self.owners:
                self.by_storage[key] = frozenset({_INPUT})

    def outputs(self, results: Any) -> frozenset[str] | None:
        """Return the layers whose results leave, except where they leave in a sum with a layer that others use."""
        used = self.used - {_INPUT}
        leaving = [self.sources(tensor) for tensor in _tensors(results)]
        if not leaving:
            return None
        known = self.layers.keys() | self.linears
        return frozenset(name for sources in leaving if not sources & used for name in sources if name in known)


def _owners(model: nn.Module, layers: Mapping[str, Neurons]) -> dict[StorageWeakRef, list[tuple[str, nn.Module]]]:
    """Return the layers of every storage of neurons, each with a module whose call may read it."""
    owners: dict[StorageWeakRef, list[tuple[str, nn.Module]]] = {}
    for name, neurons in layers.items():
        parts = neurons.parametrizations
        for tensor in parts.parameters() if len(parts) else [neurons.tensor]:
            if (key := _key(tensor)) is not None:
                owners.setdefault(key, []).append((name, neurons.module))
    for module in model.modules():  # a tied embedding reads it too
        for parameter in module._parameters.values():
            key = None if parameter is None else _key(parameter)
            if key in owners and not isinstance(module, ParametrizationList):
                owners[key] += [(name, module) for name in {name for name, _ in owners[key]}]
    return owners


def _product_layout(tensor: Tensor, output: int, shape: tuple[int, ...]) -> Layout:
    """Return the layout of a weight (of this shape) that is a factor, with its outputs along a dimension."""
    inputs = -3 - output  # -1 and -2
    rows = tensor.shape[output] == shape[0]
    if shape[0] == shape[1]:
        rows = tensor.stride(output) > tensor.stride(inputs)
    return Layout(transposed=not rows)


def _key(tensor: Tensor) -> StorageWeakRef | None:
    """Return the storage as a key that stays unique after the storage is gone; None for a sparse tensor."""
    try:
        return StorageWeakRef(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):
        return None


def _is_index(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _tensors(value: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Yield the tensors in nested containers, dataclasses and other objects."""
    if isinstance(value, Tensor):
        yield value
    elif value is None or isinstance(value, _LEAVES):
        return
    else:
        seen = set() if seen is None else seen
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Mapping):
            inside: Iterable[Any] = value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            inside = value
        else:
            inside = getattr(value, "__dict__", {}).values()
        for item in inside:
            yield from _tensors(item, seen)


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Set eval mode; afterwards restore each module's mode, the buffers and the random state."""
    modules = list(model.modules())
    training = [module.training for module in modules]
    buffers = [dict(module._buffers) for module in modules]
    values = [(b, b.clone(), b._version) for own in buffers for b in own.values() if b is not None]
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        for module in modules:
            module.training = False
        try:
            yield
        finally:
            for module, mode, own in zip(modules, training, buffers, strict=True):
                module.training = mode
                module._buffers.clear()
                module._buffers.update(own)
            with torch.no_grad():
                for buffer, value, version in values:
                    if buffer._version != version:
                        buffer.copy_(value)
