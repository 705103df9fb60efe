"""torch.fx.symbolic_trace: sphere layers and loss heads are leaves, as the layers of torch.nn are."""

import pytest
import torch
from torch import fx, nn

import hypersphere as hs


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = hs.SphereConv2d(3, 8, 3, padding=1, padding_mode="reflect", similarity="learnable", scale=True)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), hs.SphereLinear(8, 6))
        self.rnn = hs.SphereGRU(6, 5, batch_first=True)
        self.head = hs.ASoftmaxLoss(4, 5)

    def forward(self, x, labels):
        maps = torch.relu(self.conv(x)).flatten(2).mT
        states, _ = self.rnn(self.body(maps))
        return self.head(states.mean(1), labels)


def test_a_network():
    torch.manual_seed(0)
    net = Net()
    traced = fx.symbolic_trace(net)
    called = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    assert called == ["conv", "body.0", "body.1", "body.2", "rnn", "head"]
    assert traced.conv is net.conv
    assert list(traced.state_dict()) == list(net.state_dict())
    x, labels = torch.randn(2, 3, 4, 4), torch.tensor([1, 3])
    net.eval()
    value = net(x, labels)
    assert torch.equal(traced.eval()(x, labels), value)
    value.backward()
    expected = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    traced(x, labels).backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(traced.parameters(), expected, strict=True))


def test_converted_and_rotated_networks():
    plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    net, x = hs.rotate(hs.spherize(plain)), torch.randn(2, 6)
    assert torch.equal(fx.symbolic_trace(net)(x), net(x))


def test_a_leaf_alone():
    with pytest.raises(TypeError, match=r"SphereLinear.*nn\.Sequential"):
        fx.symbolic_trace(hs.SphereLinear(3, 4))
