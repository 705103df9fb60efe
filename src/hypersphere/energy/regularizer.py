"""Loss terms that keep neurons apart: MHE over a whole network, and alternatives (MHE, 3.3–3.7).

The measures are in :mod:`hypersphere.energy.measures`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from .._internal import checks
from .._internal.draws import CountedDraws, generator, not_traced, unwrapped_name
from .._internal.nearest import explain_keywords
from .._internal.overflow import max_root, power_of_two_divisor, rescale
from .._internal.sharding import check_in_all, mesh_of, replicate, reshard, sum_over
from ..layers.cosine import unit
from ..neurons import Neurons, Selection, Specs, check_names, no_layer_error, select
from .gradient_limit import bound_gradient
from .hyperspherical import at_least_float32, batch_energy, check_labels, estimate_energy, make_law, warn_zero_neurons
from .measures import (
    OF_DIRECTIONS,
    RANDOM,
    MeasureLike,
    apply_user_measure,
    check_measure,
    compute_measure,
    default_weights,
)
from .repulsion import Law


class EnergyRegularizer(CountedDraws):
    """Hyperspherical energy over a network (MHE, Eq. 4 and 3.7); add it to the loss.

        λ_h·Σ_hidden mean energy + λ_o·mean energy of the output layer + λ_w·mean ‖w‖

    It has no parameters and reads the model's weights at each call. The energy of fixed neurons that are rotated
    (:func:`hypersphere.rotate`) is constant: it is in per_layer(), not in the sum. So is that of depthwise
    convolutions, whose groups have one neuron each, with a warning, once. LoRA of PEFT is added to the weights that it
    adapts, and gets the gradient; other adapters are not read, with a warning.

    Weights that are sharded (FSDP2, tensor parallelism) are gathered layer by layer, and the processes share the pairs
    of 256 neurons or more: call it in all of them, outside of the model's forward pass. Labels may differ; all of them
    count.

    The gradient of a weighted term by a neuron w is clipped to a length of ‖w‖, so a step of SGD at learning rate 0.1
    turns no neuron by more than 0.1 rad, however close or short neurons are. `limit_gradient=False` gives Eq. 4's
    gradient (except for neurons nearer than 0.03, which repel as at 0.03). A measure of your own is never clipped.

    Args:
        model: the network. For grouped convolutions the mean over groups counts.
        layers, exclude: which layers, as in :func:`hypersphere.select`. The output layer always uses full space:
            opposite classes are as far apart as possible.
        head: a loss head (or layer) outside of the model that holds the class weights; then no layer of the model is
            the output.
        measure: a key of :data:`REGULARIZERS`, or a function of neurons (N, d) that returns a scalar.
        hidden_weight: λ_h; None: the measure's default, for the energy 10 in full space and 1 in half space (MHE,
            App. A). Required for a measure of your own.
        output_weight: λ_o; None: the measure's default, 1 for the energy. It is 0 for measures that do not suit classes
            (orthonormal, srip, your own) and for a loss head that adds the energy itself (`energy_weight` > 0).
        norm_weight: λ_w, the weight of the mean length of all neurons, output included (3.7).
        s, half_space, angular: the energy, as in :func:`hypersphere.hyperspherical_energy`; half space is for hidden
            layers. Other measures ignore them (polarization uses s and angular).
        minibatch: estimate the energy of a hidden layer from this many of its neurons, drawn anew at each call (3.6).
            The estimate is unbiased. The draw is a graph break for torch.compile.
        average: divide the sum of all layers' terms by their number.
        limit_gradient: clip the gradient of a weighted term by a neuron w to a length of ‖w‖.
        seed: draws depend only on the seed, the layer's name and the number of the draw.

    Example:
        >>> net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
        >>> energy = EnergyRegularizer(net, half_space=True)
        >>> energy().backward()
        >>> sorted(energy.per_layer())
        ['0', '2']
    """

    @explain_keywords
    def __init__(
        self,
        model: nn.Module,
        *,
        layers: Specs | None = None,
        exclude: Specs = (),
        head: nn.Module | None = None,
        measure: MeasureLike = "energy",
        hidden_weight: float | None = None,
        output_weight: float | None = None,
        norm_weight: float = 0.0,
        s: float = 2.0,
        half_space: bool = False,
        angular: bool = False,
        minibatch: int | None = None,
        average: bool = False,
        limit_gradient: bool = True,
        seed: int = 0,
    ) -> None:
        self.measure = check_measure(measure)
        self.law = make_law(s, half_space, angular)
        self.norm_weight = checks.number("norm_weight", norm_weight, low=0.0)
        self.minibatch = None if minibatch is None else checks.integer("minibatch", minibatch, low=2)
        if minibatch is not None and measure != "energy":
            raise ValueError(f"minibatch needs measure='energy', got measure={measure!r}")
        self.average, self.limit_gradient = bool(average), bool(limit_gradient)
        self.seed = checks.integer("seed", seed)
        self.draws = 0
        self.neurons = self._select_layers(model, layers, exclude, head)
        self._models = (model, head)
        reshard(*self._models)
        self.hidden_weight, self.output_weight = self._weights(hidden_weight, output_weight)
        self._warned: set[str] = set()
        self._single: set[str] = set()  # layers whose groups have one neuron each
        for name, neurons in self.neurons.items():
            rows = neurons.matrix()
            self._warn_zero_neurons_once(name, rows)
            if rows.shape[0] > 1 and rows.shape[1] == 1 and self.measure in OF_DIRECTIONS:
                self._single.add(name)
        if self._single:
            names = ", ".join(name or "(root)" for name in self.neurons if name in self._single)
            checks.warn_once(
                f"EnergyRegularizer leaves {names} out of the sum: depthwise convolutions have one neuron in each "
                "group, whose energy is constant"
            )

    def __call__(self, labels: Tensor | None = None) -> Tensor:
        """Compute the weighted sum over all layers, a scalar.

        Args:
            labels: (B,) the classes of the batch: the output layer's energy is that between these classes and all
                (Eq. 8), which costs B × N × d instead of N² × d. A head's `ignore_index` (else -100) is ignored.
        """
        if labels is not None and self.measure != "energy":
            raise ValueError(f"labels need measure='energy', got measure={self.measure!r}")
        if labels is not None and not any(neurons.is_output for neurons in self.neurons.values()):
            raise ValueError("labels must be None if no layer is the output (see the arguments output and head)")
        if labels is not None and (most := max(getattr(n.module, "subcenters", 1) for n in self.neurons.values())) > 1:
            raise ValueError(f"labels must be None for a head with {most} sub-centers; its energy_weight uses labels")
        reshard(*self._models)
        trainable = {name: n for name, n in self._trainable_layers().items() if name not in self._single}
        share = 1 / len(trainable) if self.average and trainable else 1.0
        terms = [self._layer_term(name, neurons, labels, share) for name, neurons in trainable.items()]
        if self.minibatch is not None or self.measure in RANDOM:
            self.draws += 1
        if not terms:
            return _zero(next(iter(self.neurons.values())))
        total = torch.stack([term.to(terms[0]) for term in terms]).sum()
        if self.norm_weight:
            total = total + self.norm_weight * self._mean_length()
        if torch.is_grad_enabled() and not total.requires_grad and not torch.compiler.is_compiling():
            checks.warn_once(
                f"EnergyRegularizer: no weight of {', '.join(name or '(root)' for name in trainable)} requires a "
                "gradient, so the energy is a constant that trains nothing"
            )
        return total

    def _trainable_layers(self) -> dict[str, Neurons]:
        """Return the layers whose energy training can change."""
        return {name: neurons for name, neurons in self.neurons.items() if not neurons.is_constant}

    def per_layer(self) -> dict[str, float]:
        """Return every layer's current measure, unweighted and over all neurons, for logging."""
        reshard(*self._models)
        for name, neurons in self.neurons.items():
            checks.has_values(name, neurons.stored)
        with torch.no_grad():
            values = [self._measure_layer(name, neurons, 1.0, sample=False) for name, neurons in self.neurons.items()]
        return {name: value.item() for name, value in zip(self.neurons, values, strict=True)}

    def _weights(self, hidden_weight: float | None, output_weight: float | None) -> tuple[float, float]:
        """Return λ_h and λ_o: the arguments, or the measure's defaults."""
        defaults = default_weights(self.measure, self.law.half_space) if isinstance(self.measure, str) else None
        if defaults is None and hidden_weight is None:
            raise ValueError("hidden_weight must be a number for a measure of your own, got None")
        hidden, output = defaults or (0.0, 0.0)
        heads = [neurons.module for neurons in self.neurons.values() if neurons.is_output]
        if any(getattr(head, "energy_weight", 0.0) for head in heads):  # the head adds the energy itself
            output = 0.0
        hidden = hidden if hidden_weight is None else checks.number("hidden_weight", hidden_weight, low=0.0)
        return hidden, output if output_weight is None else checks.number("output_weight", output_weight, low=0.0)

    def _select_layers(
        self,
        model: nn.Module,
        layers: Specs | None,
        exclude: Specs,
        head: nn.Module | None,
    ) -> dict[str, Neurons]:
        specs = layers if head is None or isinstance(layers, Selection) else select(model, layers, output=None)
        selected = select(model, specs, exclude)
        check_names("EnergyRegularizer", model, selected, layers, exclude)
        chosen = dict(selected)
        if head is not None:
            chosen = {name: replace(neurons, is_output=False) for name, neurons in chosen.items()}
            checks.module("head", head)
            of_head = select(head, output=None)
            if not of_head:
                raise no_layer_error(of_head, "EnergyRegularizer(head=...)")
            *_, last = of_head.values()
            chosen = {name: neurons for name, neurons in chosen.items() if neurons.module is not last.module}
            chosen["head" if "head" not in chosen else "(head)"] = replace(last, is_output=True)
        if not chosen:
            raise no_layer_error(selected, "EnergyRegularizer")
        for name, neurons in chosen.items():
            if torch.nn.parameter.is_lazy(neurons.stored):
                raise ValueError(f"layer {name!r} is lazy and has no weight yet: run the model once first")
        return chosen

    def _layer_term(self, name: str, neurons: Neurons, labels: Tensor | None, share: float) -> Tensor:
        weight = share * (self.output_weight if neurons.is_output else self.hidden_weight)
        if not weight:
            return _zero(neurons)
        if not neurons.is_output or labels is None:
            return self._measure_layer(name, neurons, weight, sample=not neurons.is_output)
        rows = at_least_float32(neurons.matrix().flatten(0, 1))
        ignored, mesh = getattr(neurons.module, "ignore_index", -100), mesh_of(neurons.stored)
        check_in_all(partial(check_labels, labels, len(rows), ignored), rows.detach(), mesh)
        counted = labels != ignored
        number = counted.sum() if mesh is None else sum_over(counted.sum(), mesh)
        shares = weight * counted.to(rows.dtype) / number.clamp(min=1)
        law, classes = Law(self.law.s, False, self.law.angular), torch.where(counted, labels, 0)

        def term(rows: Tensor) -> Tensor:
            if mesh is None:
                return batch_energy(rows, classes, shares, law)
            return sum_over(batch_energy(replicate(rows, mesh), classes, shares, law), mesh)

        return self._differentiate(term, rows)

    def __repr__(self) -> str:
        measure = self.measure if isinstance(self.measure, str) else getattr(self.measure, "__name__", "a function")
        layers = ", ".join(name + (" (output)" if n.is_output else "") for name, n in self.neurons.items())
        weights = f"hidden_weight={self.hidden_weight:g}, output_weight={self.output_weight:g}"
        return (
            f"EnergyRegularizer({measure} of {layers}; {weights}, s={self.law.s:g}, half_space={self.law.half_space})"
        )

    def _measure_layer(self, name: str, neurons: Neurons, weight: float, *, sample: bool) -> Tensor:
        rows = neurons.matrix()
        if rows.device.type == "cpu" and not torch.compiler.is_compiling():  # reading is free
            self._warn_zero_neurons_once(name, rows)
        mesh = None if torch.compiler.is_compiling() else mesh_of(neurons.stored)
        law = Law(self.law.s, self.law.half_space and not neurons.is_output, self.law.angular, mesh)
        if not isinstance(self.measure, str):
            return weight * apply_user_measure(self.measure, rows).mean()
        measure, rows, name = self.measure, at_least_float32(rows), unwrapped_name(name)
        if sample and self.minibatch is not None and self.minibatch < rows.shape[1]:
            index = _draw_indices(rows.shape[1], self.minibatch, self.seed, name, self.draws).to(rows.device)
            return self._differentiate(lambda r: weight * estimate_energy(r, law, index).mean(), rows)
        draw = partial(generator, self.seed, name, self.draws)
        return self._differentiate(lambda r: weight * compute_measure(measure, r, law, draw).mean(), rows)

    def _differentiate(self, term: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        return bound_gradient(term, rows) if self.limit_gradient else term(rows)

    def _warn_zero_neurons_once(self, name: str, rows: Tensor) -> None:
        if name not in self._warned and warn_zero_neurons(name, rows):
            self._warned.add(name)

    def _mean_length(self) -> Tensor:
        """Compute the mean ‖w‖ over all neurons of all layers; the gradient of a zero neuron is 0."""
        rows = [at_least_float32(neurons.matrix().flatten(0, 1)) for neurons in self._trainable_layers().values()]
        up = max(power_of_two_divisor(r, max_root(r.dtype, 4)) for r in rows)
        if up != 1:
            rows = [rescale(r, 1 / up, 1.0) for r in rows]
        mean = torch.stack([(r * unit(r)).sum() for r in rows]).sum() / sum(len(r) for r in rows)
        return mean if up == 1 else rescale(mean, up, 1.0, max_root(mean.dtype, 1) / 16)


def _zero(neurons: Neurons) -> Tensor:
    return torch.zeros((), dtype=neurons.stored.dtype, device=neurons.stored.device)


@not_traced
def _draw_indices(n: int, size: int, seed: int, name: str, draw: int) -> Tensor:
    return torch.randperm(n, generator=generator(seed, name, draw))[:size]
