"""A network of all spherical layers, a batch for it, loss heads, and a check of derivatives; test files share them."""

import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import hypersphere as hs


class SphereNet(nn.Module):
    """Every kind of layer once; embeddings for a loss head."""

    def __init__(self, head: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(
            hs.SphereConv2d(3, 8, 3, padding="same", similarity="learnable", scale=True),
            nn.ReLU(),
            hs.SphereConv2d(8, 8, 2, stride=2, groups=2, padding=1, similarity="linear", padding_mode="reflect"),
            nn.Flatten(),
            hs.SphereLinear(8 * 25, 16, similarity="sigmoid(0.5)", scale=4.0),
        )
        self.head = head

    def forward(self, x, y=None):
        embeddings = self.body(x)
        return embeddings if self.head is None else self.head(embeddings, y)


def sphere_batch(size: int = 6, device="cpu"):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size, 3, 8, 8, generator=generator)
    return x.to(device), torch.randint(5, (size,), generator=generator).to(device)


def check_derivatives(module, x, *labels, second=True, atol=1e-5):
    """First and second derivatives by the input and all parameters, against differences."""
    parameters = dict(module.named_parameters())

    def f(x, *values):
        return torch.func.functional_call(module, dict(zip(parameters, values, strict=True)), (x, *labels))

    leaves = (x.requires_grad_(), *parameters.values())
    assert gradcheck(f, leaves)
    assert not second or gradgradcheck(f, leaves, atol=atol)


HEADS = {
    "w": lambda: hs.WSoftmaxLoss(5, 16, similarity="learnable"),
    "a": lambda: hs.ASoftmaxLoss(5, 16),
    "ga": lambda: hs.GASoftmaxLoss(5, 16, similarity="sigmoid"),
    "am": lambda: hs.AMSoftmaxLoss(5, 16, bias=True, class_weight=[1.0, 2.0, 3.0, 4.0, 5.0]),
    "arc": lambda: hs.ArcFaceLoss(5, 16, label_smoothing=0.1),
}
