"""A small rotated network, its rotations as matrices and its gradients; several test files use them."""

import torch
from torch import nn
from torch.nn import functional as F

import hypersphere as hs

ROTATED = ("conv", "fc1")


class Net(nn.Module):
    """A convolution with overlapping patches, a hidden and an output layer; (B, 3, 6, 6) in, four classes out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.fc1 = nn.Linear(8 * 9, 12)
        self.fc2 = nn.Linear(12, 4)

    def forward(self, x):
        x = F.max_pool2d(self.norm(self.conv(x)).relu(), 2).flatten(1)
        return self.fc2(self.fc1(x).relu())


def rotated_net(method="cayley", **options):
    torch.manual_seed(5)
    return hs.rotate(Net(), method, init="normal" if method == "canonical" else "identity", **options)


def turned(model, method="cayley"):
    """A model whose rotations are not the identity any more."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(f".{method}"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def rotated_batch(size=8):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, 3, 6, 6, generator=generator), torch.randint(4, (size,), generator=generator)


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


def matrix_of(layer):
    """R (d, d): the rotation of the identity's rows is Rᵀ; read without looking into the parametrization."""
    weights = layer.parametrizations.weight
    shape, d = weights.original.shape, weights.original[0].numel()
    with torch.no_grad():
        return weights[0](torch.eye(d, dtype=weights.original.dtype).view(d, *shape[1:])).flatten(1).T.clone()


def error(r):
    """max|RᵀR − I| of matrices (..., m, m), free of the rounding of a float32 product."""
    r = r.detach().double()
    return (r.mT @ r - torch.eye(r.shape[-1], dtype=r.dtype, device=r.device)).abs().max().item()


def optimizer_of(model, method="cayley", lr=0.02):
    groups = hs.param_groups(model, weight_decay=0.01, ogd=method == "ogd")
    return hs.OGD(groups, lr=lr) if method == "ogd" else torch.optim.AdamW(groups, lr=lr)


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


class Tied(nn.Module):
    """A head that shares its weight with an embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.hidden = nn.Embedding(20, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(self.embedding(ids)))
