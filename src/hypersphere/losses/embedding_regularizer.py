"""A regularizer of embeddings: one of the losses of evenness, weighted, over the batches of all processes."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from torch import Tensor

from .._internal import checks
from .._internal.collectives import gather_samples
from .._internal.draws import CountedDraws
from .._internal.nearest import check_options
from .evenness import alignment, energy, gor, hug, koleo, uniformity
from .slices import sigreg, sphere_uniformity

#: name → loss(embeddings (B, d), ...)
EVENNESS: dict[str, Callable[..., Tensor]] = {
    "koleo": koleo,
    "uniformity": uniformity,
    "alignment": alignment,
    "gor": gor,
    "hug": hug,
    "sigreg": sigreg,
    "sphere_uniformity": sphere_uniformity,
    "energy": energy,
}
DRAWN = ("sigreg", "sphere_uniformity")
"""Losses that draw new directions at each call."""


class EmbeddingRegularizer(CountedDraws):
    """Evenness of embeddings as a term of the loss: weight·measure(embeddings).

    With torch.distributed initialized, the batches of all processes are one: every process computes the same value, and
    the gradient of its own embeddings is multiplied by the number of processes, over which DistributedDataParallel and
    FSDP2 then average. So training equals that of one process with the whole batch. Random directions are the same in
    every process.

    Args:
        measure: a key of :data:`EVENNESS`, or a function of embeddings (B, d) that returns a scalar. "energy" is the
            mean :func:`hypersphere.hyperspherical_energy` of the rows that are not zero, with the options `s`,
            `half_space` and `angular`.
        weight: the factor.
        gather: use the batches of all processes; False: only this one's.
        seed: of random directions, which depend on it and on the number of the call.
        options: keyword arguments of the measure, such as ``t`` of uniformity or ``topk`` of koleo.

    Example:
        >>> import torch
        >>> even = EmbeddingRegularizer("uniformity", weight=0.1, t=3.0)
        >>> embeddings = torch.randn(32, 16, requires_grad=True)
        >>> even(embeddings).backward()
        >>> views = EmbeddingRegularizer("alignment")  # two views of the same samples
        >>> views(embeddings, embeddings)
        tensor(0., grad_fn=<MulBackward0>)
    """

    def __init__(
        self,
        measure: str | Callable[..., Tensor] = "uniformity",
        weight: float = 1.0,
        gather: bool = True,
        *,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if isinstance(measure, str):
            checks.choice("measure", measure, EVENNESS)
            accepted = signature(EVENNESS[measure]).parameters.values()
            own = [p for p in accepted if p.default is not p.empty and p.name not in ("seed", "step")]
            check_options(measure, options, own)
        elif not callable(measure):
            raise TypeError(f"measure must be one of {', '.join(EVENNESS)} or a function, got {measure!r}")
        self.measure, self.gather, self.options = measure, checks.flag("gather", gather), options
        self.weight = checks.number("weight", weight, low=0.0)
        self.seed, self.draws = checks.integer("seed", seed), 0

    def __call__(self, embeddings: Tensor, *more: Tensor) -> Tensor:
        """Compute the term, a scalar.

        Args:
            embeddings: (B, d).
            more: what the measure takes besides: the other view (B, d) of alignment and gor; labels (B,) and the class
                weights (C, d) of hug, of which the last are the same in all processes.
        """
        rows = [embeddings, *more]
        if self.gather:
            rows = [gather_samples(x) if i < 2 else x for i, x in enumerate(rows)]
        options = dict(self.options)
        if self.measure in DRAWN:
            options |= {"seed": self.seed, "step": self.draws}
            self.draws += 1
        function = EVENNESS[self.measure] if isinstance(self.measure, str) else self.measure
        return self.weight * function(*rows, **options)

    def __repr__(self) -> str:
        measure = self.measure if isinstance(self.measure, str) else getattr(self.measure, "__name__", "a function")
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"EmbeddingRegularizer({measure}, weight={self.weight:g}{options})"
