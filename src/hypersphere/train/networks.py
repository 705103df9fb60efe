"""Build the network of a config and, for an angular loss, the head that holds its classes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import models
from ..integrations.pytorch_metric_learning import PREFIX, MetricLoss
from ..layers.conversion import spherize
from ..layers.similarity import LearnableSigmoid
from ..layers.sphere import SphereOptions
from ..losses import heads
from .config import Config, Loss, Model
from .splits import DataSpec

_ANNEALING = ("base", "rate", "floor")  # constants of the margin's annealing


class Classifier(nn.Module):
    """A network and, with an angular loss, the head that holds its classes.

    ``classifier(inputs)`` returns logits, ``classifier(inputs, labels)`` (loss, network output): one call for
    training, since DistributedDataParallel and torch.compile only see calls. A graph's adjacency goes to
    :meth:`forward` as `edges`.
    """

    def __init__(self, network: nn.Module, head: nn.Module | None = None, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.network, self.head, self.label_smoothing = network, head, label_smoothing

    def forward(self, inputs: Tensor, labels: Tensor | None = None, edges: Tensor | None = None) -> Any:
        output = self.network(inputs) if edges is None else self.network(inputs, edges)
        if labels is None:
            return self.logits(output)
        rows, targets = labelled_rows(inputs, labels, output, edges)
        if self.head is not None:
            return self.head(rows, targets), output
        return F.cross_entropy(rows.float(), targets, label_smoothing=self.label_smoothing), output

    def logits(self, output: Tensor) -> Tensor:
        """Return the logits of the network's output."""
        if self.head is None:
            return output
        rows: Tensor = self.head.logits(output.flatten(0, -2))  # type: ignore[operator]
        return rows.unflatten(0, output.shape[:-1])

    def embed(self, inputs: Tensor, edges: Tensor | None = None) -> Tensor:
        """Return the embeddings (B, d): the input of the last layer, or of the head."""
        features: Any = self.network
        if self.head is None:
            features = getattr(self.network, "embed", None) or getattr(self.network, "forward_features", None)
        if features is None:
            raise ValueError("this network has no embeddings: it has no forward_features")
        embeddings: Tensor = features(inputs) if edges is None else features(inputs, edges)
        return embeddings


def ideas_of(config: Config, network: nn.Module) -> list[str]:
    """Return what makes a training spherical; nothing for a plain network and loss."""
    ideas = {
        "sphere layers": any(isinstance(layer, SphereOptions) for layer in network.modules()),
        "normalized weights": config.model.name == "ngpt",
        f"loss {config.loss.name}": config.loss.name != "softmax",
        "energy": config.energy is not None,
        "rotations": config.rotation is not None,
    }
    return [idea for idea, is_on in ideas.items() if is_on]


def targets_of(inputs: Tensor, labels: Tensor, output: Tensor) -> Tensor:
    """Return the labels; of text, the next character at every position (the label follows the window)."""
    if output.dim() == 3 and labels.dim() == 1:
        return torch.cat([inputs[:, 1:], labels[:, None]], 1)
    return labels


def labelled_rows(inputs: Tensor, labels: Tensor, output: Tensor, edges: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the outputs (N, d) that have a label, and the labels (N,)."""
    rows, targets = output.flatten(0, -2), targets_of(inputs, labels, output).flatten()
    if edges is not None:  # nodes outside the split have label -100
        rows, targets = rows[targets >= 0], targets[targets >= 0]
    return rows, targets


def build_classifier(config: Config, spec: DataSpec) -> Classifier:
    """Build the network of a config with its head, not rotated yet; ValueError if it does not fit the data."""
    has_head = config.loss.name != "softmax"
    body = build_network(config.model, spec, num_classes=0 if has_head else len(spec.classes))
    head = _head(config.loss, spec, body, config.seed) if has_head else None
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
    of_data = {key: value for key, value in options_of_data(spec).items() if key in known}
    by_itself = model.similarity is not None and ("similarity" in known or open_ended)
    papers_own = model.scale == "auto" and "." in model.name  # such as cnn9.spherenet, which has no scale
    scale = None if papers_own else model.scale
    if by_itself:
        options |= {"similarity": model.similarity, "scale": scale}
    if fixed.get("num_classes") is not None and "num_classes" not in known and not open_ended:
        raise ValueError(f"model.name={model.name} takes no num_classes and cannot classify")
    try:
        network = models.create(model.name, **(of_data | options | fixed))
    except (TypeError, ValueError) as error:
        raise ValueError(f"model.name={model.name}: {error}") from None
    if model.init is not None and "init" not in known:
        models.initialize(network, model.init)
    if model.similarity is not None and not by_itself:
        spherize(network, model.similarity, scale=scale)
    if model.k_per in ("layer", "network"):
        _share_k(network, whole=model.k_per == "network")
    return network


def _share_k(network: nn.Module, whole: bool) -> None:
    """Give every layer one learned k, or the `whole` network one, in place of one per filter."""
    shared: LearnableSigmoid | None = None
    for layer in network.modules():
        if isinstance(layer, SphereOptions) and isinstance(layer.similarity, LearnableSigmoid):
            if shared is None or not whole:
                shared = LearnableSigmoid(k=layer.similarity.start, dtype=layer.similarity.log_k.dtype)
            layer.similarity = shared


def options_of_data(spec: DataSpec) -> dict[str, Any]:
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


def _head(loss: Loss, spec: DataSpec, body: nn.Module, seed: int) -> nn.Module:
    size = getattr(body, "num_features", None)
    if not isinstance(size, int):
        raise ValueError(f"loss.name={loss.name} needs a network with num_features, the size of its embeddings")
    options = {key: value for key, value in vars(loss).items() if key != "name" and value is not None}
    constants = {key: options.pop(f"annealing_{key}") for key in _ANNEALING if f"annealing_{key}" in options}
    if constants:
        options["annealing"] = partial(heads.sphereface_annealing, **constants)
    if loss.sample is not None:
        options["seed"] = seed
    if loss.name.startswith(PREFIX):
        return MetricLoss(loss.name.removeprefix(PREFIX), len(spec.classes), size, **options)
    return heads.create(loss.name, len(spec.classes), size, **options)
