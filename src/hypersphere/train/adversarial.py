"""Losses and constraints of a GAN: d(x) is the discriminator's output, x real and y generated images."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: loss → f: the discriminator minimizes f(d(x)) + f(−d(y)), the generator f(d(y))
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "logistic": lambda output: F.softplus(-output),  # MHE, Eq. 20 with D = sigmoid(d), and −log D(y)
    "wasserstein": lambda output: -output,
}


def told_apart(loss: str, real: Tensor, fake: Tensor) -> Tensor:
    """Return the share of images that are classified correctly; wasserstein, which has no threshold: of pairs."""
    if loss == "wasserstein":
        return (real > fake).float()
    return ((real > 0).float() + (fake < 0).float()) / 2


def gradient_penalty(discriminator: nn.Module, real: Tensor, fake: Tensor, shares: Tensor) -> Tensor:
    """Return the mean of (‖∇d(z)‖ − 1)² at z = share·x + (1 − share)·y.

    Args:
        real, fake: (B, C, H, W).
        shares: (B,) from 0 to 1.
    """
    between = torch.lerp(fake, real, shares.view(-1, 1, 1, 1)).requires_grad_()
    (slopes,) = torch.autograd.grad(discriminator(between).float().sum(), between, create_graph=True)
    return (slopes.flatten(1).norm(dim=1) - 1).square().mean()


@torch.no_grad()
def clip_weights(module: nn.Module, limit: float) -> None:
    """Clip all matrices and filters to ± limit, in place; biases and norms stay."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            parameter.clamp_(-limit, limit)
