"""A small causal language model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._internal import checks
from ._parts import Network
from ._registry import register


class Block(nn.Module):
    """Causal attention, then an MLP; each after a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False, is_causal=True)[0]
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


def _embedding(count: int, width: int) -> nn.Embedding:
    weight = torch.empty(count, width)
    if not weight.is_meta:  # see initialize
        nn.init.normal_(weight, 0.0, 0.02)
    return nn.Embedding.from_pretrained(weight, freeze=False)


class Transformer(Network):
    """Tokens (B, T) int64 → logits of the next token (B, T, num_classes).

    Args:
        num_classes: the number of tokens; 0: the network returns embeddings (B, T, width).
        vocabulary: the number of input tokens; None: num_classes, or 65 without a classifier.
        context: the largest T.
    """

    data_kind = "text"

    def __init__(
        self,
        num_classes: int = 65,
        *,
        vocabulary: int | None = None,
        context: int = 128,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if checks.integer("width", width, low=1) % checks.integer("heads", heads, low=1):
            raise ValueError(f"width must be a multiple of heads, got {width} and {heads}")
        tokens = (checks.integer("num_classes", num_classes, low=0) or 65) if vocabulary is None else vocabulary
        self.context = checks.integer("context", context, low=1)
        self.tokens = _embedding(checks.integer("vocabulary", tokens, low=1), width)
        self.places = _embedding(context, width)
        checks.number("dropout", dropout, low=0.0, high=1.0)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(checks.integer("depth", depth, low=1)))
        self.norm = nn.LayerNorm(width)
        self.set_classifier(width, num_classes, bias=False)

    def forward_features(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.shape[1] > self.context:
            raise ValueError(f"tokens must be (B, T) with T <= {self.context}, got {tuple(x.shape)}")
        length = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=x.device, dtype=self.norm.weight.dtype)
        y = self.tokens(x) + self.places(torch.arange(length, device=x.device))
        for block in self.blocks:
            y = block(y, mask)
        features: Tensor = self.norm(y)
        return features


register("transformer", Transformer)
