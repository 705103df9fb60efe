"""The energy in machine code by torch.compile: here because compiling takes half a minute."""

import torch

import hypersphere as hs


def test_the_energy():
    weight = torch.randn(9, 5, requires_grad=True)
    compiled = torch.compile(hs.hyperspherical_energy, fullgraph=True)
    value, expected = compiled(weight), hs.hyperspherical_energy(weight)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=0)
    gradients = [torch.autograd.grad(energy, weight)[0] for energy in (value, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)
