"""nGPT, a Transformer on the sphere (Loshchilov et al. 2024): all vectors and all weights have length one.

Letters: D width, N(x) = x/‖x‖; s_… and α_… are learned, element by element.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._internal import checks
from ._registry import register
from .decoder import Attention, SwiGLU, TokenNetwork, Turn

_Weighted = nn.Linear | nn.Embedding
ALPHA = 0.05  # first length of a step towards what a branch says


class Scale(nn.Module):
    """Factors, `start` at first, that are stored and learned as `stored`: the ratio multiplies the rate (Sec. 2.5)."""

    def __init__(self, size: int, start: float, stored: float) -> None:
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.full((size,), stored)), start / stored

    def forward(self) -> Tensor:
        return self.weight * self.factor


class ScaledLinear(nn.Linear):
    """Return s_z·(W x), the logits (Eq. 3)."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)
        self.scale = Scale(out_features, 1.0, in_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits * self.scale().to(logits.dtype)


class ScaledSwiGLU(SwiGLU):
    """Return W_down (silu(√D·s_v·W_gate x) · √D·s_u·W_up x) (Eq. 20, 21)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden)
        self.up_scale, self.gate_scale = Scale(hidden, 1.0, 1.0), Scale(hidden, 1.0, 1.0)
        self.root = width**0.5

    def forward(self, x: Tensor) -> Tensor:
        up, gate = self.up(x), self.gate(x)
        up, gate = (
            y * (self.root * scale()).to(y.dtype) for y, scale in ((up, self.up_scale), (gate, self.gate_scale))
        )
        out: Tensor = self.down(F.silu(gate) * up)
        return out


class SphereBlock(nn.Module):
    """h ← N(h + |α|·(N(f(h)) − h)) with f the attention, then the MLP (Eq. 10, 11)."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        stored = width**-0.5
        self.attention = Attention(width, heads, Scale(width, 1.0, stored))
        self.mlp = ScaledSwiGLU(width, hidden)
        self.attention_step, self.mlp_step = (Scale(width, ALPHA, stored) for _ in range(2))

    def forward(self, x: Tensor, turn: Turn) -> Tensor:
        x = _step(x, self.attention(x, turn), self.attention_step)
        return _step(x, self.mlp(x), self.mlp_step)


def _step(x: Tensor, target: Tensor, step: Scale) -> Tensor:
    x, target = F.normalize(x, dim=-1), F.normalize(target, dim=-1)
    return F.normalize(x + step().abs().to(x.dtype) * (target - x), dim=-1)


class NGPT(TokenNetwork):
    """Tokens (B, T) int64 → logits of the next token (B, T, num_classes), all inside on the unit sphere (nGPT).

    Rows of the embedding, the classifier, queries, keys, values and the MLP's inner layers have length one, and columns
    of the two projections at a block's end, at the start and after every :meth:`normalize_weights`. There are no norm
    layers and no biases; the authors use neither weight decay nor warm-up.

    As the authors train it, by Adam and a normalization after every step:

    >>> net = NGPT(65, width=32, depth=2, heads=2)
    >>> optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    >>> handle = optimizer.register_step_post_hook(net.normalize_weights)

    On the sphere all the way, the angle of every neuron's step being the learning rate:

    >>> import hypersphere as hs
    >>> optimizer = hs.Hyperball(torch.optim.Adam(net.param_groups(), lr=0.02), radius=1.0, per="neuron")

    Args:
        num_classes: the number of tokens; 0: the network returns embeddings (B, T, width) of length one.
        vocabulary: the number of input tokens; None: num_classes, or 65 without a classifier.
        context: the largest T.
        heads: of attention; width must be a multiple of twice their number.
        hidden: neurons of the SwiGLU; None: four times the width, as the authors'.
    """

    def __init__(
        self,
        num_classes: int = 65,
        *,
        vocabulary: int | None = None,
        context: int = 128,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
        hidden: int | None = None,
    ) -> None:
        super().__init__(num_classes, vocabulary, context, width, depth, heads)
        hidden = 4 * width if hidden is None else checks.integer("hidden", hidden, low=1)
        self.blocks.extend(SphereBlock(width, heads, hidden) for _ in range(depth))
        self._start()
        self.normalize_weights()

    def set_classifier(self, num_features: int, num_classes: int, bias: bool = False) -> None:
        super().set_classifier(num_features, num_classes, bias)
        if num_classes:
            self.classifier = classifier = ScaledLinear(num_features, num_classes)
            _normalize(classifier, 0)

    def _layers(self) -> dict[_Weighted, int]:
        """Return the layers with unit weights and the dimension that counts their units: 1 for columns."""
        blocks = [block for block in self.modules() if isinstance(block, SphereBlock)]
        ends = {layer for block in blocks for layer in (block.attention.out, block.mlp.down)}
        return {layer: int(layer in ends) for layer in self.modules() if isinstance(layer, nn.Linear | nn.Embedding)}

    def normalize_weights(self, *_: Any) -> None:
        """Scale all rows and columns to length one; rotated weights, which keep their lengths, stay as they are.

        Extra arguments are ignored, so that it is a hook for ``optimizer.register_step_post_hook``.
        """
        for layer, dim in self._layers().items():
            _normalize(layer, dim)

    def param_groups(self) -> list[dict[str, Any]]:
        """Make the groups for :class:`hypersphere.Hyperball` with ``per="neuron"``, without weight decay.

        "rows" and "columns" are kept, along the `neuron_dim` of each; "scales" are all other parameters.
        """
        dims = {layer.weight: dim for layer, dim in self._layers().items()}
        trained = [p for p in self.parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = [
            {"name": name, "params": [p for p in trained if dims.get(p) == dim], "neuron_dim": dim}
            for dim, name in enumerate(("rows", "columns"))
        ]
        groups.append({"name": "scales", "params": [p for p in trained if p not in dims]})
        return [{**group, "weight_decay": 0.0, "hyperball": "neuron_dim" in group} for group in groups]


@torch.no_grad()
def _normalize(layer: _Weighted, dim: int) -> None:
    if not parametrize.is_parametrized(layer, "weight") and not layer.weight.is_meta:
        lengths = torch.linalg.vector_norm(layer.weight, dim=1 - dim, keepdim=True)
        layer.weight.div_(lengths.clamp_min(torch.finfo(lengths.dtype).tiny))  # zeros, such as pruned rows, stay zeros


register("ngpt", NGPT, paper="nGPT")
