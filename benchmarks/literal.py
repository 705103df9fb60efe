"""The formulas with plain torch operations and autograd, for comparison."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from tests import reference
from torch import Tensor, nn

from hypersphere import LearnableSigmoid


def conv2d(layer: nn.Conv2d, g: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Compute the norm of every patch as a convolution of x² with ones over all channels."""
    ones = torch.ones_like(layer.weight[:1])
    patch_norm = F.conv2d(x * x, ones, None, layer.stride, layer.padding).sqrt()
    product = F.conv2d(x, layer.weight, None, layer.stride, layer.padding)
    cosine = product / (patch_norm * layer.weight.flatten(1).norm(dim=1).view(-1, 1, 1))
    return g(cosine) + layer.bias.view(-1, 1, 1)


def linear(layer: nn.Linear, g: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return g(F.linear(F.normalize(x), F.normalize(layer.weight))) + layer.bias


def lstm(layer: nn.LSTM, xs: Tensor) -> Tensor:
    """Run a cosine cell step by step."""
    h = c = xs.new_zeros(xs.shape[1], layer.hidden_size)
    outputs = []
    for x in xs:
        gates = F.linear(F.normalize(x), F.normalize(layer.weight_ih_l0), layer.bias_ih_l0)
        gates = gates + F.linear(F.normalize(h), F.normalize(layer.weight_hh_l0), layer.bias_hh_l0)
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs)


def gram_schmidt(matrix: Tensor) -> Tensor:
    """Orthonormalize column by column (OPT, Algorithm 2), into the rows of a growing matrix."""
    done = matrix[:0]
    for column in matrix.T:
        rest = column - (done @ column) @ done
        done = torch.cat([done, (rest / rest.norm()).unsqueeze(0)])
    return done.T


def qr(matrix: Tensor) -> Tensor:
    """Orthonormalize by a QR factorization with positive diagonal."""
    q, r = torch.linalg.qr(matrix)
    return q * r.diagonal().sign()


def similarity(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the layer's g as a function of the cosine, through θ = arccos (Eq. 2 and 4), with its learned k."""
    g = layer.similarity
    if isinstance(g, LearnableSigmoid):
        return lambda c: reference.sigmoid(_angle(c), g.log_k.exp().view(-1, *[1] * (c.dim() - 2)))
    if g.name == "cosine":
        return lambda c: c
    return lambda c: reference.SIMILARITIES[g.name](_angle(c))


def _angle(c: Tensor) -> Tensor:
    return torch.acos(c.clamp(-1 + 1e-6, 1 - 1e-6))  # at ±1 the gradient would be infinite
