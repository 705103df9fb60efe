"""torch.export and ONNX of every spherical layer: the values of eager mode."""

import onnxruntime
import pytest
import torch
from torch import nn

import hypersphere as hs
from tests.sphere_nets import SphereNet, sphere_batch

pytestmark = pytest.mark.slow


def test_export():
    net = SphereNet().eval()
    x, _ = sphere_batch()
    exported = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    more, _ = sphere_batch(9)
    assert torch.allclose(exported.module()(more), net(more), atol=1e-6)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # checks of shapes
@pytest.mark.parametrize("rotated", [False, True])
def test_trace(rotated, tmp_path):
    net = SphereNet().eval()
    x, _ = sphere_batch()
    if rotated:
        hs.rotate(net, layers="*")
    torch.jit.trace(net, x).save(tmp_path / "net.pt")
    more = 1e3 * sphere_batch(9)[0]
    assert torch.allclose(torch.jit.load(tmp_path / "net.pt")(more), net(more), atol=1e-6)


class Many(nn.Module):
    """Several layers on the same input, one graph to export."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        outputs = [layer(x) for layer in self.layers]
        return tuple(y[0] if isinstance(y, tuple) else y for y in outputs)


def test_onnx(tmp_path):
    layers = (
        *(hs.SphereConv2d(3, 4, 3, padding=1, similarity=name) for name in hs.similarity.SIMILARITIES),
        hs.SphereConv2d(3, 6, 2, stride=2, dilation=2, groups=3, padding="valid", scale=True, bias=False),
        hs.SphereConv2d(3, 6, (3, 2), padding=1, padding_mode="circular"),
        nn.Sequential(nn.Flatten(), hs.SphereLinear(192, 5, similarity="sigmoid(0.1)", scale=True)),
        nn.Sequential(nn.Flatten(2), hs.SphereConv1d(3, 4, 5, padding="same", similarity="linear(-0.5, 0.8)")),
    )
    x, _ = sphere_batch()
    x[0, :, :4, :4] = 0  # zero patches too
    check_onnx(Many(*layers), x, tmp_path)


def test_onnx_recurrent(tmp_path):
    check_onnx(
        Many(*(cell(4, 5) for cell in (hs.SphereRNN, hs.SphereGRU, hs.SphereLSTM))), torch.randn(2, 2, 4), tmp_path
    )


def check_onnx(module, x, tmp_path):
    path = tmp_path / "layers.onnx"
    torch.onnx.export(module.eval(), (x,), path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path)
    results = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    for result, expected in zip(results, module(x), strict=True):
        assert torch.allclose(torch.from_numpy(result), expected, atol=1e-5)
