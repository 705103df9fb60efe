"""A causal language model of today: RMSNorm, rotary positions, SwiGLU; also without any norm.

Letters: B batch, T tokens, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._internal import checks
from ._parts import Network
from ._registry import register

Turn = Callable[[Tensor], Tensor]  # of queries and keys (B, H, T, d), by their places


def rotary_angles(places: int, dimension: int, device: torch.device) -> Tensor:
    """Compute t·10000^(−2i/d) for the places t and the pairs i of a vector of d numbers, (T, d/2) (RoPE, Eq. 34)."""
    rates = 10000.0 ** (-torch.arange(0, dimension, 2, device=device) / dimension)
    return torch.outer(torch.arange(places, device=device), rates)


def turn_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (x_i, x_{i+d/2}) of vectors x (B, H, T, d) by the angles with these cos and sin (T, d/2).

    By rotary angles: the inner product of two turned vectors depends on their places only by the difference.
    """
    cos, sin, (first, second) = cos.to(x.dtype), sin.to(x.dtype), x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


class Attention(nn.Module):
    """Causal attention with rotary positions, without biases.

    With `qk_scale`, queries and keys are scaled to length one and then element by element, and the softmax has the
    scale √d instead of 1/√d (nGPT, Eq. 15 to 18).
    """

    def __init__(self, width: int, heads: int, qk_scale: nn.Module | None = None) -> None:
        super().__init__()
        self.heads, self.softmax_scale = heads, None if qk_scale is None else (width / heads) ** 0.5
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.qk_scale = qk_scale

    def forward(self, x: Tensor, turn: Turn) -> Tensor:
        query, key, value = (layer(x).unflatten(-1, (self.heads, -1)) for layer in (self.query, self.key, self.value))
        query, key = turn(query.transpose(1, 2)), turn(key.transpose(1, 2))
        if self.qk_scale is not None:
            scale = self.qk_scale().to(query.dtype).unflatten(0, (self.heads, 1, -1))
            query, key = F.normalize(query, dim=-1) * scale, F.normalize(key, dim=-1) * scale
        y = F.scaled_dot_product_attention(query, key, value.transpose(1, 2), is_causal=True, scale=self.softmax_scale)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


class SwiGLU(nn.Module):
    """W_down (silu(W_gate x) · W_up x), without biases."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class FeedForward(nn.Module):
    """W_down gelu(W_up x), without biases: it grows as its input, where SwiGLU grows as the square."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x)))
        return out


class DecoderBlock(nn.Module):
    """x ← x + s·attention(norm(x)), then x ← x + s·mlp(norm(x))."""

    def __init__(self, width: int, heads: int, mlp: nn.Module, norm: bool, branch_scale: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.RMSNorm(width) if norm else nn.Identity() for _ in range(2))
        self.attention, self.mlp = Attention(width, heads), mlp
        self.branch_scale = branch_scale

    def forward(self, x: Tensor, turn: Turn) -> Tensor:
        x = x + self.branch_scale * self.attention(self.norm1(x), turn)
        out: Tensor = x + self.branch_scale * self.mlp(self.norm2(x))
        return out


class TokenNetwork(Network):
    """Base of the networks of tokens with rotary positions: embedding, blocks, classifier.

    A subclass appends its blocks and then calls :meth:`_start`.
    """

    data_kind = "text"

    def __init__(
        self, num_classes: int, vocabulary: int | None, context: int, width: int, depth: int, heads: int
    ) -> None:
        super().__init__()
        if checks.integer("width", width, low=1) % (2 * checks.integer("heads", heads, low=1)):
            raise ValueError(f"width must be a multiple of 2·heads, got width={width} and heads={heads}")
        tokens = (checks.integer("num_classes", num_classes, low=0) or 65) if vocabulary is None else vocabulary
        self.context = checks.integer("context", context, low=1)
        self.depth = checks.integer("depth", depth, low=1)
        self.tokens = nn.Embedding(checks.integer("vocabulary", tokens, low=1), width)
        self.head_size = width // heads
        self.blocks = nn.ModuleList()
        self.norm: nn.Module = nn.Identity()
        self.set_classifier(width, num_classes, bias=False)

    def _start(self) -> None:
        """Draw all matrices from N(0, 1/inputs); the classifier from N(0, 1/inputs²), for small logits at first."""
        for module in self.modules():
            if isinstance(module, nn.Linear) and not module.weight.is_meta:  # see initialize
                power = -1.0 if module is self.classifier else -0.5
                nn.init.normal_(module.weight, 0.0, module.in_features**power)

    def forward_features(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.shape[1] > self.context:
            raise ValueError(f"tokens must be (B, T) with T <= {self.context}, got {tuple(x.shape)}")
        y = self.tokens(x)
        angles = rotary_angles(x.shape[1], self.head_size, x.device)  # no buffer, which to_empty would leave undefined
        turn = partial(turn_pairs, cos=angles.cos(), sin=angles.sin())
        for block in self.blocks:
            y = block(y, turn)
        features: Tensor = self.norm(y)
        return features


class Decoder(TokenNetwork):
    """Tokens (B, T) int64 → logits of the next token (B, T, num_classes).

    Matrices start from N(0, 1/inputs), the embedding from N(0, 1), the classifier from N(0, 1/inputs²).

    Args:
        num_classes: the number of tokens; 0: the network returns embeddings (B, T, width).
        vocabulary: the number of input tokens; None: num_classes, or 65 without a classifier.
        context: the largest T.
        heads: of attention; width must be a multiple of twice their number.
        gated: SwiGLU; False: a plain MLP with GELU, which grows no faster than its input.
        hidden: neurons of the MLP; None: 8/3 of the width, rounded up to a multiple of 16, or not gated 4 times.
        norm: RMSNorm before every branch and before the classifier; False: no norm layer at all.
        branch_scale: a fixed factor of every branch; None: 1/√(2·depth), with which the sum does not grow with depth.

    Example:
        >>> net = Decoder(65, width=32, depth=2, heads=2, norm=False)
        >>> net(torch.zeros(1, 10, dtype=torch.long)).shape
        torch.Size([1, 10, 65])
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
        gated: bool = True,
        hidden: int | None = None,
        norm: bool = True,
        branch_scale: float | None = None,
    ) -> None:
        super().__init__(num_classes, vocabulary, context, width, depth, heads)
        checks.flag("gated", gated)
        checks.flag("norm", norm)
        if hidden is None:
            hidden = 16 * -(-width // 6) if gated else 4 * width
        checks.integer("hidden", hidden, low=1)
        scale = (2 * depth) ** -0.5 if branch_scale is None else checks.number("branch_scale", branch_scale, low=0.0)
        for _ in range(depth):
            mlp = SwiGLU(width, hidden) if gated else FeedForward(width, hidden)
            self.blocks.append(DecoderBlock(width, heads, mlp, norm, scale))
        if norm:
            self.norm = nn.RMSNorm(width)
        self._start()


register("decoder", Decoder)
