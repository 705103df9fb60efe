"""The same layers and losses inside torch's own machinery: compile, export, ONNX, DDP, copies, parametrizations."""

import copy
import subprocess
import sys
from itertools import product

import onnxruntime
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.utils import parametrizations

import hypersphere as hs


class Net(nn.Module):
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


def batch(size: int = 6, device="cpu"):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size, 3, 8, 8, generator=generator)
    return x.to(device), torch.randint(5, (size,), generator=generator).to(device)


HEADS = {
    "w": lambda: hs.WSoftmaxLoss(5, 16, similarity="learnable"),
    "a": lambda: hs.ASoftmaxLoss(5, 16),
    "ga": lambda: hs.GASoftmaxLoss(5, 16, similarity="sigmoid"),
    "am": lambda: hs.AMSoftmaxLoss(5, 16, bias=True, class_weight=[1.0, 2.0, 3.0, 4.0, 5.0]),
    "arc": lambda: hs.ArcFaceLoss(5, 16, label_smoothing=0.1),
}


def check_compiled(net, backend, *inputs):
    torch.compiler.reset()
    other = copy.deepcopy(net)
    compiled = torch.compile(other, fullgraph=True, backend=backend)
    for _ in range(2):  # an annealing step moves in both
        loss, expected = compiled(*inputs).sum(), net(*inputs).sum()
        assert torch.allclose(loss, expected, rtol=1e-4)
    loss.backward()
    expected.backward()
    for (key, a), b in zip(net.named_parameters(), other.parameters(), strict=True):
        assert (a.grad - b.grad).abs().max() <= 1e-4 * a.grad.abs().max(), key
    return other


def test_compile_to_machine_code(device):
    layer = hs.SphereConv2d(3, 8, 3, padding=1, similarity="learnable", device=device)
    check_compiled(layer, "inductor", batch(device=device)[0])


@pytest.mark.parametrize("name", HEADS)
def test_compile_fullgraph(name, device):
    """The graph that torch.compile captures, with its own backward pass, run by the eager kernels."""
    net = check_compiled(Net(HEADS[name]()).to(device), "aot_eager", *batch(device=device))
    if name in ("a", "ga"):
        assert net.head.step == 2


def test_compile_with_sizes_and_numbers_that_vary():
    """Two layers share one code: what differs between them must not become a variable of the graph."""
    layers = [hs.SphereLinear(6, 6, similarity=g, scale=s) for g, s in (("sigmoid(0.3)", 2.0), ("sigmoid(0.9)", 3.0))]
    layers += [hs.SphereLinear(6, 6, similarity="linear"), hs.SphereLinear(6, 6, similarity="learnable", scale=True)]
    for nets in (layers[:2], layers[2:], [nn.Sequential(*layers)], [hs.ArcFaceLoss(5, 6)], [hs.ASoftmaxLoss(5, 6)]):
        for dynamic in (None, True):
            torch.compiler.reset()
            for net, size in product(nets, (3, 5)):
                compiled = torch.compile(net.eval(), fullgraph=True, backend="aot_eager", dynamic=dynamic)
                inputs = (torch.randn(size, 6), torch.randint(5, (size,)))[: 2 if hasattr(net, "num_classes") else 1]
                assert torch.allclose(compiled(*inputs), net(*inputs), atol=1e-4)


def test_compile_does_not_check_labels_but_eager_does():
    head = hs.ArcFaceLoss(5, 16)
    with pytest.raises(ValueError, match="labels must be in"):
        head(torch.randn(2, 16), torch.tensor([0, 9]))
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    assert compiled(torch.randn(2, 16), torch.tensor([0, 1])).isfinite()


@pytest.mark.parametrize("cell", [hs.SphereRNN, hs.SphereGRU, hs.SphereLSTM])
def test_compile_recurrent(cell):
    torch.compiler.reset()
    layer = cell(4, 5, bidirectional=True, similarity="learnable")
    x = torch.randn(2, 2, 4)
    output = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)[0]
    assert torch.allclose(output, layer(x)[0], atol=1e-6)


def test_export():
    net = Net().eval()
    x, _ = batch()
    exported = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    more, _ = batch(9)
    assert torch.allclose(exported.module()(more), net(more), atol=1e-6)


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
    x, _ = batch()
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


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.parallel.DistributedDataParallel(Net(hs.ASoftmaxLoss(5, 16)))
    x, y = batch(8)
    for _ in range(2):
        net.zero_grad()
        net(x[rank::2], y[rank::2]).backward()
    if rank == 0:
        grads = {name: p.grad for name, p in net.module.named_parameters()}
        torch.save({"grads": grads, "step": net.module.head.step}, f"{folder}/rank0.pt")
    dist.destroy_process_group()


def test_distributed_data_parallel(tmp_path):
    mp.spawn(_rank, args=(str(tmp_path),), nprocs=2)
    torch.manual_seed(0)
    net = Net(hs.ASoftmaxLoss(5, 16))
    x, y = batch(8)
    for _ in range(2):
        net.zero_grad()
        net(x, y).backward()
    saved = torch.load(tmp_path / "rank0.pt", weights_only=True)
    assert saved["step"] == 2
    for name, p in net.named_parameters():
        assert torch.allclose(p.grad, saved["grads"][name], atol=1e-6), name


def test_deepcopy_and_state_dict():
    net = Net(hs.ASoftmaxLoss(5, 16))
    x, y = batch()
    net(x, y)
    other = copy.deepcopy(net)
    assert torch.equal(net.eval()(x, y), other.eval()(x, y))
    with torch.no_grad():
        other.body[0].weight.add_(1)
    assert not torch.equal(net(x, y), other(x, y))
    other.load_state_dict(net.state_dict())
    assert torch.equal(net(x, y), other(x, y))


def test_parametrized_weights():
    layer = hs.SphereLinear(6, 4, similarity="sigmoid", dtype=torch.float64)
    x = torch.randn(3, 6, dtype=torch.float64)
    parametrizations.weight_norm(layer)
    y = layer(x)
    y.sum().backward()
    g, v = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1
    assert torch.allclose(g.grad, torch.zeros_like(g), atol=1e-12)  # the length of a neuron does not matter
    assert v.grad.abs().max() > 0
    conv = parametrizations.spectral_norm(hs.SphereConv2d(3, 4, 3))
    conv(torch.randn(1, 3, 5, 5)).sum().backward()


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # clamp_ has no batching rule; it works
def test_per_sample_gradients_and_vmap():
    net, (x, _) = Net(), batch(4)
    parameters = dict(net.named_parameters())

    def loss(parameters, one):
        return torch.func.functional_call(net, parameters, one[None]).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for i in range(4):
        alone = torch.func.grad(loss)(parameters, x[i])
        assert all(torch.allclose(each[k][i], alone[k], atol=1e-5) for k in parameters)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_per_sample_gradients_of_heads(name):
    head, x, y = HEADS[name]().eval(), torch.randn(4, 16), torch.randint(5, (4,))
    weights = dict(head.named_parameters())

    def loss(weights, one, label):
        return torch.func.functional_call(head, weights, (one[None], label[None]))

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, x, y)
    for i in range(4):
        alone = torch.func.grad(loss)(weights, x[i], y[i])
        assert all(torch.allclose(each[k][i], alone[k], atol=1e-5) for k in weights)


@pytest.mark.parametrize("name", hs.similarity.SIMILARITIES)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vectorized_jacobian(name):
    for layer, shape in ((hs.SphereConv2d(2, 3, 2, similarity=name), (1, 2, 3, 3)), (hs.SphereLinear(4, 3), (2, 4))):
        x = torch.randn(shape)
        slow = torch.autograd.functional.jacobian(layer, x)
        assert torch.allclose(torch.autograd.functional.jacobian(layer, x, vectorize=True), slow, atol=1e-5)


def test_meta_device_and_moving():
    with torch.device("meta"):
        net = Net(hs.ArcFaceLoss(5, 16))
    assert all(p.is_meta for p in net.parameters())
    net = net.to_empty(device="cpu")
    assert not any(p.is_meta for p in net.parameters())


def test_gradient_checkpointing_gives_the_same_gradients():
    net, (x, _) = Net(), batch()
    x.requires_grad_()
    (expected,) = torch.autograd.grad(net(x).square().sum(), x)
    (again,) = torch.autograd.grad(torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False).square().sum(), x)
    assert torch.allclose(expected, again)


def test_called_as_pytorch_metric_learning_trainers_call_a_loss():
    from pytorch_metric_learning import losses, miners

    x, y = torch.randn(12, 16, requires_grad=True), torch.arange(12) % 4
    mined = miners.MultiSimilarityMiner()(x, y)
    combined = losses.MultipleLosses([hs.ArcFaceLoss(5, 16), losses.TripletMarginLoss()])
    combined(x, y, mined).backward()
    assert x.grad.isfinite().all()


def test_importing_the_package_does_not_import_torch():
    code = "import sys, hypersphere as hs; assert 'torch' not in sys.modules; hs.select; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_resolved_lazily_are_the_names_that_type_checkers_see():
    import ast
    from pathlib import Path

    branch = next(node for node in ast.parse(Path(hs.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {alias.asname for node in branch.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    seen |= {target.id for node in branch.body if isinstance(node, ast.Assign) for target in node.targets}
    assert seen == {*hs._HOME, *hs._MODULES}
    assert all(getattr(hs, name) is not None for name in seen)
    assert seen <= set(dir(hs))
    with pytest.raises(AttributeError, match="no attribute 'SphereConv4d'"):
        hs.SphereConv4d  # noqa: B018
