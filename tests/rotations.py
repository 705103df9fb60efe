"""What the tests of rotations share: a network, R from a state_dict alone, and errors that change nothing."""

import contextlib

import pytest
import torch
from torch import nn

from hypersphere.orthogonal import ORTHOGONALIZERS, Orthogonalizer

METHODS = list(ORTHOGONALIZERS)
NO_IDENTITY = ("canonical", "skew")
STARTS = [method for method in METHODS if method not in NO_IDENTITY]
PACKED = ("cayley", "exponential")
ORTHOGONAL = [
    "gram_schmidt",
    "modified_gram_schmidt",
    "iterative_gram_schmidt",
    "householder",
    "givens",
    "lowdin",
    "canonical",
    "cayley",
    "exponential",
    "ogd",
]


ALIASES = {  # names of one map: their training is bit-equal (test_rotation_training), the rest is tested once
    "givens": "householder",
    "modified_gram_schmidt": "gram_schmidt",
    "iterative_gram_schmidt": "gram_schmidt",
}


def mlp(dtype=torch.float64):
    """Two hidden layers and an output."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)


def inputs(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(2))


def rotation(module, method, tensor="weight", task="default"):
    """R of a layer (d, d) from its state_dict alone."""
    state = module.state_dict()
    return torch.block_diag(*ORTHOGONALIZERS[method].matrix(state[f"parametrizations.{tensor}.0.{task}.{method}"]))


def literal(module, method, tensor="weight"):
    """R v for one flattened neuron v, in words of the design."""
    if method == "none":
        return lambda v: v
    if method == "network":
        w1, w2 = module.state_dict()[f"parametrizations.{tensor}.0.default.network"][0]
        return lambda v: v + w2.T @ torch.relu(w1 @ v)
    r = rotation(module, method, tensor)
    return lambda v: r @ v


def rotated_rows(module, method, tensor="weight"):
    """The weight a rotated layer ought to have: each filter, flattened, times R."""
    neurons = module.state_dict()[f"parametrizations.{tensor}.original"]
    turn = literal(module, method, tensor)
    return torch.stack([turn(v.flatten()).view_as(v) for v in neurons])


def shake(model, by=0.3):
    """Moves every rotation a little, as a training would; ogd's matrices stay orthogonal."""
    for name, p in model.named_parameters():
        if ".parametrizations." in f".{name}" and p.requires_grad and not name.endswith("original"):
            with torch.no_grad():
                p += by * torch.randn_like(p)
                if name.endswith(".ogd"):
                    p.copy_(torch.linalg.qr(p.double())[0])
    return model


def train(model, x, steps=3, optimizer=None, lr=0.05):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return model


def close(actual, expected, atol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def snapshot(model):
    return (
        {key: value.clone() for key, value in model.state_dict().items() if not is_lazy(value)},
        list(model.state_dict()),
        [(name, type(module)) for name, module in model.named_modules()],
        [(name, p.requires_grad) for name, p in model.named_parameters()],
    )


def is_lazy(value):
    return isinstance(value, nn.parameter.UninitializedTensorMixin)


@contextlib.contextmanager
def refused(error, match, model):
    """The error, its text, and a model that is as it was."""
    values, *rest = snapshot(model)
    with pytest.raises(error, match=match) as caught:
        yield
    assert "\n" not in str(caught.value).strip()
    values_after, *rest_after = snapshot(model)
    assert rest_after == rest
    for key, value in values.items():
        assert torch.equal(values_after[key], value), key


def originals(model):
    return {name: p for name, p in model.named_parameters() if name.endswith(".original")}


@contextlib.contextmanager
def registry():
    """Takes out again what is registered inside."""
    kept = dict(ORTHOGONALIZERS)
    try:
        yield
    finally:
        ORTHOGONALIZERS.clear()
        ORTHOGONALIZERS.update(kept)


def signs(name="signs"):
    """A method of one's own: each dimension turned around or not."""
    return Orthogonalizer(
        name,
        shape=lambda m: (m,),
        start=lambda m, init: torch.ones(m) if init == "identity" else torch.randn(m),
        matrix=lambda p: torch.diag_embed(p.sign()),
        apply=lambda p, v: v * p.sign().unsqueeze(-2),
    )
