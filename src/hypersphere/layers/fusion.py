"""fuse_bn: fold BatchNorm into the layer before it, for inference.

In eval mode BatchNorm is a·x + c per channel with a = γ/√(σ² + ε) and c = β − a·μ. A sphere layer is scale·g(cos) +
bias (SphereNorm, 2.5 of SphereNet), so its scale becomes a·scale and its bias a·bias + c; its weight does not change.
A plain layer's weight and bias are multiplied instead.

Which BatchNorm follows which layer is read from a graph: of torch.fx, or of one forward pass of example inputs.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .._internal import checks
from ..neurons import arguments_of
from .sphere import SphereOptions

M = TypeVar("M", bound=nn.Module)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_PLAIN = (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED)
Pairs = dict[str, tuple[str, str]]  # BatchNorm → (layer before it, "" or why it cannot be folded)


class FoldedBatchNorm(nn.Identity):
    """In the place of a BatchNorm that was folded into the layer before it; checks the input's dimensions."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() != self.dim:  # BatchNorm1d would take another dimension for the channels
            raise ValueError(f"BatchNorm was folded for inputs of {self.dim} dimensions, got {tuple(input.shape)}")
        return input


def fuse_bn(model: M, *, example_inputs: Any = None) -> M:
    """Fold every BatchNorm that follows a sphere, Linear or Conv layer into that layer, in place; return the model.

    For inference: the output in eval mode is the same up to rounding. A sphere layer keeps its `weight`; `scale` and
    `bias` become parameters of one number per filter, keys ``<layer>.scale`` and ``<layer>.bias``. A plain layer gets
    a new `weight` and `bias`. The BatchNorm becomes a :class:`FoldedBatchNorm` without parameters, so that its keys are
    gone. A BatchNorm that cannot be folded exactly stays, and a warning says why: for example if something else reads
    the layer's output, if the layer is called twice, has hooks, or is rotated and plain (merge first). The model
    changes only after all checks have passed.

    Args:
        model: in eval mode.
        example_inputs: a tensor, a tuple of arguments or a dict of keyword arguments of a forward pass to trace. None:
            :func:`torch.fx.symbolic_trace`, which cannot trace a forward pass that depends on values.

    Example:
        >>> import hypersphere as hs
        >>> net = nn.Sequential(hs.SphereConv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()).eval()
        >>> x = torch.randn(2, 3, 6, 6)
        >>> expected = net(x)
        >>> torch.allclose(hs.fuse_bn(net)(x), expected, atol=1e-6), list(net.state_dict())
        (True, ['0.weight', '0.bias', '0.scale'])
    """
    checks.module("model", model)
    norms = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    if not norms:
        raise ValueError("fuse_bn: the model has no BatchNorm")
    if training := [name for name, norm in norms.items() if norm.training]:
        raise ValueError(f"fuse_bn folds the statistics of eval mode, but {training[0]!r} is in training mode")
    pairs = _trace_symbolically(model) if example_inputs is None else _trace_inputs(model, example_inputs)
    reasons = {name: _reason(model, name, *pairs.get(name, ("", ""))) for name in norms}
    if left := [f"{name} ({why})" for name, why in reasons.items() if why]:
        message = f"fuse_bn leaves {', '.join(left)}"
        if len(left) == len(norms):
            raise ValueError(message)
        checks.warn(message)
    folded: dict[nn.Module, nn.Module] = {}
    for name, why in reasons.items():
        if not why:
            layer: Any = model.get_submodule(pairs[name][0])
            _fold(layer, norms[name])
            folded[norms[name]] = FoldedBatchNorm(_batch_dim(layer))
    for name, module in list(model.named_modules(remove_duplicate=False)):  # a module may have several names
        if module in folded:
            model.set_submodule(name, folded[module])
    return model


def _reason(model: nn.Module, name: str, before: str, why: str) -> str:
    """Return why a BatchNorm cannot be folded; "" if it can."""
    norm: Any = model.get_submodule(name)
    if why or not before:
        return why or "follows no layer that it can be folded into"
    layer: Any = model.get_submodule(before)
    own = {id(p): key for key, p in layer.named_parameters()}
    holders = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    channels = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    if type(norm) not in _NORMS:
        return f"{type(norm).__name__} is not a plain BatchNorm"
    if norm.running_mean is None or norm.running_var is None:
        return "has no running statistics"
    if norm.num_features != channels:
        return f"has {norm.num_features} channels, but {before!r} has {channels}"
    if is_parametrized(norm) or (is_parametrized(layer) and not isinstance(layer, SphereOptions)):
        return f"{before!r} is parametrized, maybe rotated: merge it first"
    if is_parametrized(layer, "bias") or is_parametrized(layer, "scale"):
        return f"scale or bias of {before!r} is parametrized"
    if any(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module) for module in (layer, norm)):
        return f"{before!r} or the BatchNorm has hooks"
    if not isinstance(layer, SphereOptions) and any(holders[tensor] > 1 for tensor in own):
        return f"{before!r} has tied parameters"
    if any(
        holders[id(tensor)] > 1 for tensor in (layer.bias, getattr(layer, "scale", None)) if isinstance(tensor, Tensor)
    ):
        return f"{before!r} has a tied scale or bias"
    if not layer.weight.is_floating_point() or layer.weight.is_meta:
        return f"{before!r} has no floating point weight"
    return ""


def _fold(layer: Any, norm: Any) -> None:
    """Multiply the layer's output by a and add c, in float64, rounded once."""
    with torch.no_grad():
        a = (norm.running_var.double() + norm.eps).rsqrt()
        a = a if norm.weight is None else a * norm.weight.double()
        c = -a * norm.running_mean.double()
        c = c if norm.bias is None else c + norm.bias.double()
        bias = c if layer.bias is None else a * layer.bias.double() + c
        learned = layer.weight.requires_grad or any(p.requires_grad for p in norm.parameters())

        def new(value: Tensor) -> nn.Parameter:
            return nn.Parameter(value.to(layer.weight.dtype), learned)

        if isinstance(layer, SphereOptions):
            scale: Any = 1.0 if layer.scale is None else layer.scale
            scale = a * (scale.double() if isinstance(scale, Tensor) else scale)
            del layer.scale
            setattr(layer, "bias", new(bias))  # noqa: B010 (of the torch class beside SphereOptions)
            layer.scale = new(scale)
        else:
            weight = layer.weight.double()
            if isinstance(layer, _TRANSPOSED):  # (C, O/G, ...)
                groups = a.view(layer.groups, 1, -1, *[1] * (weight.dim() - 2))
                weight = (weight.unflatten(0, (layer.groups, -1)) * groups).flatten(0, 1)
            else:
                weight = weight * a.view(-1, *[1] * (weight.dim() - 1))
            layer.weight, layer.bias = new(weight), new(bias)


def _is_foldable(module: nn.Module) -> bool:
    plain = type(module).__bases__[0] if is_parametrized(module) else type(module)
    return plain in _PLAIN or (isinstance(module, SphereOptions) and isinstance(module, (nn.Linear, *_CONVOLUTIONS)))


class _Tracer(fx.Tracer):
    """Sphere layers are leaves, as torch's own modules are; parameters that are read are nodes of the graph."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, SphereOptions | _BatchNorm) or super().is_leaf_module(m, module_qualified_name)


def _trace_symbolically(model: nn.Module) -> Pairs:
    if _is_foldable(model) or isinstance(model, _BatchNorm):
        raise ValueError("fuse_bn: the model is a single layer")
    try:
        graph = _Tracer().trace(model)
    except Exception as error:
        raise ValueError(
            f"fuse_bn: torch.fx cannot trace {type(model).__name__} ({type(error).__name__}: {error}); pass "
            "example_inputs, a tensor or a tuple of a forward pass's arguments"
        ) from None
    modules = dict(model.named_modules(remove_duplicate=False))
    first = {module: name for name, module in reversed(modules.items())}
    calls = Counter(modules[str(node.target)] for node in graph.nodes if node.op == "call_module")
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    pairs: Pairs = {}
    for node in graph.nodes:
        if node.op != "call_module" or not isinstance(norm := modules[str(node.target)], _BatchNorm):
            continue
        source = node.args[0] if node.args else next(iter(node.kwargs.values()), None)
        if not isinstance(source, fx.Node) or source.op != "call_module":
            continue
        layer = modules[str(source.target)]
        if _is_foldable(layer):
            several = calls[layer] > 1 or calls[norm] > 1 or len(source.users) > 1
            touched = not read.isdisjoint(name for name, module in modules.items() if module in (layer, norm))
            why = f"{first[layer]!r} has other readers, or is called more than once" if several or touched else ""
            pairs[first[norm]] = (first[layer], why)
    return pairs


# functions of a tensor that do not read its values
_METADATA = frozenset(
    {Tensor.dim, Tensor.size, Tensor.shape.__get__, Tensor.ndim.__get__, Tensor.dtype.__get__, Tensor.device.__get__}  # type: ignore[attr-defined]
)


class _Readers(TorchFunctionMode):
    """Note which of the watched tensors are read by torch functions outside of a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: dict[int, Tensor] = {}  # by id; holding them keeps ids from being used again
        self.read: set[int] = set()
        self.in_norm = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.in_norm and func not in _METADATA:
            self.note((args, kwargs))
        return func(*args, **(kwargs or {}))

    def note(self, tree: Any) -> None:
        self.read.update(id(leaf) for leaf in pytree.tree_leaves(tree) if id(leaf) in self.watched)


def _trace_inputs(model: nn.Module, example_inputs: Any) -> Pairs:
    """Run the model once and see which BatchNorm is given a layer's output, and who else reads it."""
    names = {module: name for name, module in model.named_modules()}
    readers, calls, outputs = _Readers(), Counter[nn.Module](), dict[int, nn.Module]()
    sources: dict[nn.Module, int] = {}
    dimensions: dict[nn.Module, int] = {}

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        argument: Any = next(iter((*args, *kwargs.values())), None)
        if id(argument) in outputs:
            sources[module] = id(argument)
            dimensions[module] = argument.dim()
        readers.in_norm = True

    def after(module: nn.Module, args: Any, output: Any) -> None:
        calls[module] += 1
        if isinstance(module, _BatchNorm):
            readers.in_norm = False
        elif isinstance(output, Tensor):
            outputs[id(output)] = module
            readers.watched[id(output)] = output

    handles = []
    args, kwargs = arguments_of(example_inputs)
    try:
        for module in names:
            if isinstance(module, _BatchNorm):
                handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            if isinstance(module, _BatchNorm) or _is_foldable(module):
                handles.append(module.register_forward_hook(after))
        with torch.no_grad(), readers:
            result = model(*args, **kwargs)
    except Exception as error:
        raise ValueError(f"example_inputs: the forward pass fails: {type(error).__name__}: {error}") from error
    finally:
        for handle in handles:
            handle.remove()
    readers.note(result)
    uses = Counter(sources.values())
    pairs: Pairs = {}
    for norm, source in sources.items():
        layer = outputs[source]
        several = calls[layer] > 1 or calls[norm] > 1 or uses[source] > 1 or source in readers.read
        why = f"{names[layer]!r} has other readers, or is called more than once" if several else ""
        if dimensions[norm] != _batch_dim(layer):
            why = why or f"its channels are not those of {names[layer]!r}: the input has {dimensions[norm]} dimensions"
        pairs[names[norm]] = (names[layer], why)
    return pairs


def _batch_dim(layer: Any) -> int:
    """Return the dimensions of a batch of the layer's outputs whose channels are dimension 1."""
    return 2 if isinstance(layer, nn.Linear) else int(layer.weight.dim())
