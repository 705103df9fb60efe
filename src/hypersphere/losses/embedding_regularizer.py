"""A regularizer of embeddings: one of the losses of evenness, weighted, over the batches of all processes."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from .._internal import checks
from .._internal.collectives import gather_samples
from .._internal.draws import CountedDraws
from .._internal.nearest import check_options
from ..layers.cosine import inverse_row_norm
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
INPUTS = {"alignment": ("others",), "gor": ("others",), "hug": ("labels", "weight")}
"""What losses take besides the embeddings; gor's is optional."""


class EmbeddingRegularizer(CountedDraws):
    """Evenness of embeddings as a term of the loss: weight·measure(embeddings).

    With torch.distributed initialized, the batches of all processes are one: every process computes the same value, and
    the gradient of its own embeddings is multiplied by the number of processes, over which DistributedDataParallel and
    FSDP2 then average. So training equals that of one process with the whole batch. Random directions are the same in
    every process.

    Rows that are zero have no direction. Of a batch of zeros most measures have their best value and none, but that of
    sigreg, has a gradient: a measure of directions does not see embeddings that shrink to zero. On CPU, a warning tells
    of zero rows, once.

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
            other = ("seed", "step", *INPUTS.get(measure, ()))
            own = [p for p in accepted if p.default is not p.empty and p.name not in other]
            check_options(measure, options, own)
        elif not callable(measure):
            raise TypeError(f"measure must be one of {', '.join(EVENNESS)} or a function, got {measure!r}")
        elif isinstance(measure, nn.Module):
            raise TypeError(
                f"measure must be one of {', '.join(EVENNESS)} or a function of embeddings, got the module "
                f"{type(measure).__name__} (EnergyRegularizer takes a model; of a loss module, give its forward)"
            )
        self.measure, self.gather, self.options = measure, checks.flag("gather", gather), options
        self.weight = checks.number("weight", weight, low=0.0)
        self.seed, self.draws, self._warned = checks.integer("seed", seed), 0, False

    def __call__(self, embeddings: Tensor, *more: Tensor) -> Tensor:
        """Compute the term, a scalar.

        Args:
            embeddings: (B, d).
            more: what the measure takes besides: the other view (B, d) of alignment and gor; labels (B,) and the class
                weights (C, d) of hug, of which the last are the same in all processes.
        """
        if isinstance(self.measure, str):
            _check_inputs(self.measure, more)
        rows = [embeddings, *more]
        if self.gather:
            rows = [gather_samples(x) if i < 2 else x for i, x in enumerate(rows)]
        options = dict(self.options)
        if self.measure in DRAWN:
            options |= {"seed": self.seed, "step": self.draws}
            self.draws += 1
        function = EVENNESS[self.measure] if isinstance(self.measure, str) else self.measure
        value = self.weight * function(*rows, **options)
        if isinstance(self.measure, str) and self.measure != "sigreg":
            self._warn_zero_rows_once(rows[0])
        return value

    def _warn_zero_rows_once(self, rows: Tensor) -> None:
        is_free = rows.device.type == "cpu" and not torch.compiler.is_compiling() and checks.can_read_values(rows)
        if self._warned or not is_free:
            return
        if zero := int((inverse_row_norm(rows.detach()) == 0).sum()):
            self._warned = True
            checks.warn(
                f"{zero} of {len(rows)} embeddings are zero: they have no direction, so {self.measure!r} neither sees "
                "nor prevents a collapse to zero"
            )

    def __repr__(self) -> str:
        measure = self.measure if isinstance(self.measure, str) else getattr(self.measure, "__name__", "a function")
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"EmbeddingRegularizer({measure}, weight={self.weight:g}{options})"


def _check_inputs(measure: str, more: tuple[Any, ...]) -> None:
    """Require the inputs that the measure takes besides the embeddings."""
    names = INPUTS.get(measure, ())
    if len(more) > len(names) or (len(more) < len(names) and measure != "gor"):
        count = f"{1 + len(more)} argument{'s' if more else ''}"
        raise TypeError(f"measure {measure!r} takes {', '.join(('embeddings', *names))}, got {count}")
