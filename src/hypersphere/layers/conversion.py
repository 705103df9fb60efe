"""spherize: convert a network to a SphereNet, in place."""

from __future__ import annotations

from typing import TypeVar

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from .._internal import checks
from .._internal.adapters import refuse_adapters
from .._internal.global_hooks import record_change, refuse_new_parameters
from .._internal.nearest import explain_keywords
from .._internal.quantized import is_quantized_tensor
from .._internal.sharding import is_sharded
from ..neurons import (
    Neurons,
    Selection,
    Specs,
    as_list,
    is_loss_head,
    kept_output,
    matches,
    no_layer_error,
    select_to_change,
)
from .similarity import resolve
from .sphere import (
    Scale,
    SimilarityLike,
    SphereConv1d,
    SphereConv2d,
    SphereConv3d,
    SphereLinear,
    SphereOptions,
    check_scale,
)

_CONVERTIBLE = " (only nn.Linear, nn.Conv1d, nn.Conv2d and nn.Conv3d can be converted)"
M = TypeVar("M", bound=nn.Module)

SPHERE_CLASS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: SphereLinear,
    nn.Conv1d: SphereConv1d,
    nn.Conv2d: SphereConv2d,
    nn.Conv3d: SphereConv3d,
}


def _is_variant(neurons: Neurons) -> bool:
    """Return whether the layer is not of the types that are converted, but a variant of them."""
    return not (isinstance(neurons.module, nn.MultiheadAttention) or is_loss_head(neurons.module))


@explain_keywords
def spherize(
    model: M,
    similarity: SimilarityLike = "cosine",
    *,
    scale: Scale = "auto",
    layers: Specs | None = None,
    exclude: Specs = (),
) -> M:
    """Convert the Linear and Conv layers of a model to sphere layers, in place (SphereNet, 1), and return the model.

    Only the class of a layer changes: parameters, names, hooks, references and device stay. The output layer stays
    plain unless `layers` matches it: with logits in [-1, 1] and ten classes, the softmax loss stays above 0.8. Layers
    whose weights are read without calling them are skipped with a warning: ``out_proj`` of nn.MultiheadAttention,
    ``linear1`` and ``linear2`` of nn.TransformerEncoderLayer, ``qkv`` of timm's BEiT, EVA and Swin v2, and those that
    :func:`select` finds with `example_inputs`. Subclasses of the four types stay plain, with a warning. The model
    changes only after all checks have passed.

    Args:
        similarity: as in :class:`SphereConv2d`; one module given here is shared by all layers.
        scale: "auto" is for ordinary networks: √(d/3) for Linear, max(1, √d/6) for Conv, d the dimension of a neuron.
            None is the paper's 1, for networks with BatchNorm after every layer; True and numbers as in
            :class:`SphereConv2d`.
        layers, exclude: which layers, as in :func:`select`.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 10))
        >>> spherize(net, "sigmoid(0.3)")
        Sequential(
          (0): SphereConv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), similarity=sigmoid(0.3), scale=1.0)
          (1): ReLU()
          (2): Flatten(start_dim=1, end_dim=-1)
          (3): Linear(in_features=7200, out_features=10, bias=True)
        )
    """
    check_scale(scale)
    by_name = [] if layers is None or isinstance(layers, Selection) else as_list("layers", layers)
    checks.module("model", model)
    refuse_adapters("spherize", model)
    selected = select_to_change("spherize", model, layers, exclude)
    parametrized = [
        name or "(root)"
        for name, module in model.named_modules()
        if is_parametrized(module) and not (exclude and matches(exclude, name, module))
    ]
    if parametrized:
        raise ValueError(
            f"spherize needs plain layers, but {', '.join(parametrized)} is parametrized: call spherize first, or "
            "exclude it"
        )
    skipped = [name for name in selected if name in selected.uncalled]
    refused = [name for name in skipped if name in by_name]
    if isinstance(layers, Selection) and not layers.all_layers and len(skipped) == len(selected):
        refused = skipped
    if refused:
        raise ValueError(
            f"layers: {', '.join(refused)} cannot be converted: the weight is read without calling the layer"
        )
    chosen = {name: n for name, n in selected.items() if type(n.module) in SPHERE_CLASS and name not in skipped}
    if sharded := [name for name, n in selected.items() if name not in chosen and is_sharded(n.stored)]:
        raise ValueError(f"spherize: layer {sharded[0]!r} is sharded: call spherize before fully_shard")
    others = {name: n for name, n in selected.items() if name not in chosen and not isinstance(n.module, SphereOptions)}
    if wrong := [name for name in others if name in by_name]:
        raise no_layer_error(selected, "spherize", f" in {', '.join(wrong)}{_CONVERTIBLE}")
    if not chosen and not skipped and not any(name in by_name for name in selected):
        raise no_layer_error(selected, "spherize", _CONVERTIBLE + kept_output(selected, "convert"))
    variants = {name: n.module for name, n in others.items() if name not in skipped and _is_variant(n)}
    resolved = {}
    for name, neurons in chosen.items():
        weight = neurons.tensor
        checks.floating(f"the weight of {name!r}", weight)
        if is_quantized_tensor(weight):
            raise ValueError(f"layer {name!r} is {neurons.unwritable}, but leave sphere layers out; or exclude it")
        checks.finite_weight(name, weight)
        if taken := {"similarity", "scale"}.intersection(dir(neurons.module)):
            raise ValueError(
                f"layer {name!r} already has an attribute {', '.join(sorted(taken))}: rename or exclude it"
            )
        resolved[name] = resolve(similarity, len(weight), device=weight.device, dtype=weight.dtype)
        if isinstance(similarity, str) and isinstance(g := resolved[name], nn.Module):
            g.train(neurons.module.training)

    before = set(model.parameters())
    if scale is True or any(
        isinstance(g, nn.Module) and not before.issuperset(g.parameters()) for g in resolved.values()
    ):
        refuse_new_parameters("spherize with learned numbers", model, [n.module for n in chosen.values()])
    for name, neurons in chosen.items():
        layer = neurons.module
        layer.__class__ = SPHERE_CLASS[type(layer)]
        assert isinstance(layer, SphereOptions)
        layer._set_sphere(resolved[name], scale, len(neurons.tensor))
    learned = [(n.tensor, [p for p in n.module.parameters() if p not in before]) for n in chosen.values()]
    record_change("spherize", [(weight, added) for weight, added in learned if added])
    if skipped:
        done = f"skipped {', '.join(skipped)}"
        if not chosen:
            done = f"converted nothing: it {done}"
            hint = "; use a network that calls its Linear layers, such as hypersphere.models.create('transformer')"
        checks.warn(f"spherize {done}: their weights are read without calling the layers" + ("" if chosen else hint))
    if variants:
        listed = ", ".join(f"{name} [{type(module).__name__}]" for name, module in variants.items())
        checks.warn(f"spherize left {listed} plain{_CONVERTIBLE}")
    if scale is None and (bounded := [name for name, n in chosen.items() if n.is_output]):
        checks.warn_once(
            f"the logits of layer {bounded[0]!r} are now in [-1, 1], so a softmax loss stays large: use scale=30, "
            "or SSoftmaxLoss; if the layer outputs embeddings, pass layers=select(model, output=None)"
        )
    return model
