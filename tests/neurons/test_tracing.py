"""select with example inputs, on small nets built like those people bring; and the rules without them."""

import copy
import json
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hypersphere as hs
from hypersphere._internal import checks
from hypersphere.cli import main
from tests.rotations import shake

D = 8
X = torch.zeros(2, 5, D)


def outputs(model, **options):
    return [name for name, neurons in hs.select(model, **options).items() if neurons.is_output]


class Beit(nn.Module):
    """Attention that reads qkv.weight and adds a bias to queries and values only."""

    def __init__(self, separate=False):
        super().__init__()
        self.qkv, self.proj = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(D)), nn.Parameter(torch.zeros(D))
        self.qkv_bias_separate = separate

    def forward(self, x):
        bias = torch.cat([self.q_bias, torch.zeros(D), self.v_bias])
        qkv = self.qkv(x) + bias if self.qkv_bias_separate else F.linear(x, self.qkv.weight, bias)
        q, k, v = qkv.chunk(3, -1)
        return self.proj(torch.softmax(q @ k.mT, -1) @ v)


class Reader(nn.Module):
    """As Beit, under names that no rule knows; the weight is cast first."""

    def __init__(self):
        super().__init__()
        self.mix, self.fc = nn.Linear(D, D), nn.Linear(D, 3)

    def forward(self, x):
        return self.fc(F.linear(x, self.mix.weight.to(torch.float64).float() * 1.0))


class CrossVit(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(D, D)
        self.head = nn.ModuleList([nn.Linear(D, 3), nn.Linear(D, 3)])

    def forward(self, x):
        x = self.body(x)
        return torch.stack([head(x) for head in self.head]).mean(0)


@dataclass
class Boxes:
    logits: Tensor
    boxes: dict
    hidden: Tensor


class Detr(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Block()
        self.cls = nn.Linear(D, 7)
        self.box = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, 4))

    def forward(self, x):
        hidden = self.body(x)
        return Boxes(self.cls(hidden), {"all": [self.box(hidden).sigmoid()]}, hidden)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 4, 3, padding=1), nn.ConvTranspose2d(8, 4, 1)
        self.time = nn.Sequential(nn.Linear(1, 4), nn.SiLU(), nn.Linear(4, 4))
        self.last = nn.Conv2d(4, 3, 1)

    def forward(self, x, t):
        h = self.down(x) + self.time(t)[:, :, None, None]
        return x - self.last(self.up(torch.cat([h, h.relu_()], 1)))


class Block(nn.Module):
    """As in Llama: two sums into the residual stream, in place."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.q_proj, self.k_proj = nn.Linear(D, D), nn.Linear(D, D // 2)
        self.v_proj, self.o_proj = nn.Linear(D, D), nn.Linear(D, D)
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(D, 12), nn.Linear(D, 12), nn.Linear(12, D)

    def forward(self, x):
        h = self.norm(x)
        weights = (self.q_proj(h)[..., : D // 2] @ self.k_proj(h).mT).softmax(-1)
        x = x + self.o_proj(weights @ self.v_proj(h))
        x += self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return x


class Llama(nn.Module):
    """With caches and hidden states in its results, as HF models return them."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(9, D)
        self.layers = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(D)

    def forward(self, input_ids, **kwargs):
        x = self.embed_tokens(input_ids)
        hidden = []
        for block in self.layers:
            hidden.append(x)
            x = block(x.clone())
        cache = type("Cache", (), {})()
        cache.values = [block.v_proj(h) for block, h in zip(self.layers, hidden, strict=True)]
        cache.used = sum(value.sum() for value in cache.values)
        return {"last_hidden_state": self.norm(x) + 0 * cache.used, "hidden_states": tuple(hidden)}


class LlamaLM(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.model, self.lm_head = Llama(), nn.Linear(D, 9, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids):
        out = self.model(input_ids)
        return (self.lm_head(out["last_hidden_state"]), out["hidden_states"])


class ScaledEmbedding(nn.Embedding):
    """As in Gemma and BART."""

    def forward(self, ids):
        return super().forward(ids) * 2.0


class LookedUp(nn.Embedding):
    def forward(self, ids):
        return self.weight[ids] + 1.0


class TiedScaled(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.embed, self.body, self.head = embedding(9, D), nn.Linear(D, D), nn.Linear(D, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.body(x))


class Linear(nn.Module):
    """Built as torch_geometric's."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels))
        self.bias = nn.Parameter(torch.randn(out_channels))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class Dense(nn.Module):
    """Inputs before outputs, sizes and name of no use."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))

    def forward(self, x):
        return x @ self.weight


class Convolution(nn.Module):
    """A graph convolution with a weight of its own: its result is not that of a Linear."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return torch.einsum("bni,io->bno", x, self.weight).cumsum(1) + self.bias


class Scale(nn.Module):
    """A matrix that is not a Linear's."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, size))

    def forward(self, x):
        return x * self.weight


class Graph(nn.Module):
    """A graph network; the adjacency is between layers."""

    def __init__(self, linear):
        super().__init__()
        self.fc, self.first, self.last = nn.Linear(D, D), linear(D, D), linear(D, 3)
        self.scale = Scale(3)

    def forward(self, x):
        adjacency = torch.ones(x.shape[-2], x.shape[-2]) / x.shape[-2]
        return self.scale(adjacency @ self.last((adjacency @ self.first(self.fc(x))).relu()))


class Stream(nn.Module):
    """A residual stream of an unknown Linear: it has no output."""

    def __init__(self):
        super().__init__()
        self.fc, self.dense = nn.Linear(D, D), Dense(D, D)

    def forward(self, x):
        x = self.fc(x)
        return x + self.dense(x)


class ReadHead(nn.Module):
    """The head's weight is read, as in tied models."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(D, D), nn.Linear(D, 3)

    def forward(self, x):
        return self.body(x).relu() @ self.head.weight.T


class Bert(nn.Module):
    def __init__(self, head=False):
        super().__init__()
        self.body, self.pooler = Block(), nn.ModuleDict({"dense": nn.Linear(D, D)})
        self.classifier = nn.Linear(D, 3) if head else None

    def forward(self, x):
        hidden = self.body(x)
        pooled = self.pooler["dense"](hidden[:, 0]).tanh()
        return (hidden, pooled) if self.classifier is None else self.classifier(pooled)


class Parallel(nn.Module):
    """One block whose attention and MLP are added together, without a head."""

    def __init__(self):
        super().__init__()
        self.embed, self.attention, self.mlp = nn.Embedding(9, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, ids):
        x = self.embed(ids)
        return x + self.attention(x) + self.mlp(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs, self.rnn = nn.Linear(D, D), nn.GRU(D, D, batch_first=True)

    def forward(self, x):
        return self.rnn(self.inputs(x))


IDS = torch.zeros(2, 5, dtype=torch.int64)
NETS = {
    "sequential": (lambda: nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, 3)), X, ["2"]),
    "beit": (Beit, X, ["proj"]),
    "reader": (Reader, X, ["fc"]),
    "crossvit": (CrossVit, X, ["head.0", "head.1"]),
    "detr": (Detr, X, ["cls", "box.2"]),
    "unet": (UNet, (torch.zeros(2, 3, 4, 4), torch.zeros(2, 1)), ["last"]),
    "llama": (Llama, IDS, []),
    "lm": (LlamaLM, {"input_ids": IDS}, ["lm_head"]),
    "tied": (lambda: LlamaLM(tied=True), IDS, ["lm_head"]),
    "tied_and_scaled": (lambda: TiedScaled(ScaledEmbedding), IDS, ["head"]),
    "tied_and_read": (lambda: TiedScaled(LookedUp), IDS, ["head"]),
    "graph": (lambda: Graph(Linear), X, ["last"]),
    "dense": (lambda: Graph(Dense), X, ["last"]),
    "graph_convolution": (lambda: Graph(Convolution), X, ["last"]),
    "stream": (Stream, X, []),
    "read_head": (ReadHead, X, ["head"]),
    "bert": (Bert, X, []),
    "bert_classifier": (lambda: Bert(True), X, ["classifier"]),
    "parallel": (Parallel, IDS, []),
    "recurrent": (Recurrent, X, []),
    "attention": (lambda: nn.TransformerEncoderLayer(D, 2, batch_first=True), X, []),
    "linear": (lambda: nn.Linear(D, 3), X, []),
}


@pytest.mark.parametrize("net", NETS)
def test_the_output_is_what_leaves_and_reaches_no_other_layer(net):
    make, inputs, expected = NETS[net]
    assert outputs(make(), example_inputs=inputs) == expected
    assert outputs(make().eval(), example_inputs=inputs) == expected


def test_read_weights_are_seen():
    read = {net: hs.select(make(), example_inputs=x).uncalled for net, (make, x, _) in NETS.items()}
    assert {net: names for net, names in read.items() if names} == {
        "beit": {"qkv"},
        "reader": {"mix"},
        "read_head": {"head"},
        "attention": {"self_attn", "self_attn.out_proj", "linear1", "linear2"},  # torch's fast path calls none
    }
    assert hs.select(Beit()).uncalled == {"qkv"}  # known without a trace
    assert hs.select(Beit(separate=True), example_inputs=X).uncalled == hs.select(Beit(separate=True)).uncalled == set()


@pytest.mark.parametrize(
    ("net", "options"), [(Beit, {}), (Beit, {"example_inputs": X}), (Reader, {"example_inputs": X})]
)
def test_spherize_leaves_what_is_only_read_and_says_so(net, options):
    model = net()
    name = next(iter(hs.select(model)))
    with pytest.raises(ValueError, match=f"{name} cannot be converted"):
        hs.spherize(model, layers=hs.select(model, name, **options))
    with pytest.warns(UserWarning, match=f"skipped {name}: their weights are read without calling the layers"):
        hs.spherize(model, layers=hs.select(model, output=None, **options))
    assert type(model.get_submodule(name)) is nn.Linear
    assert sum(isinstance(m, hs.SphereLinear) for m in model.modules()) == 1


@pytest.mark.parametrize("embedding", [ScaledEmbedding, LookedUp])
def test_spherize_leaves_a_tied_head_plain(embedding):
    model = TiedScaled(embedding)
    hs.spherize(model, layers=hs.select(model, example_inputs=IDS))
    assert (type(model.body), type(model.head)) == (hs.SphereLinear, nn.Linear)


def test_linear_layers_of_unknown_classes():
    with pytest.warns(
        UserWarning, match=r"'last', the last Linear, .* 'scale' \[Scale\] comes after it and has a weight"
    ):
        known = hs.select(Graph(Linear))  # by its form
    assert list(known) == ["fc", "first", "last"]
    assert known["last"].is_output
    assert known.passed_over["scale"][1] == "weight not known to hold neurons"
    model = Graph(Dense)
    traced = hs.select(model, example_inputs=X)  # by what it computes
    assert list(traced) == ["fc", "first", "last"]
    assert torch.equal(traced["last"].matrix()[0], model.last.weight.T)
    with pytest.warns(UserWarning, match=r"'fc', the last Linear, .*'scale' \[Scale\] comes after it and has a weight"):
        assert list(hs.select(model)) == ["fc"]
    with pytest.warns(UserWarning, match=r"spherize left first \[Linear\] plain"):
        assert type(hs.spherize(Graph(Linear)).last) is Linear


@pytest.mark.parametrize("linear", [Linear, Dense])
def test_rotations_of_unknown_linear_layers(linear, tmp_path):
    model, x = Graph(linear), torch.randn(2, 5, D)
    before = model(x)
    hs.rotate(model, "exponential", layers=hs.select(model, example_inputs=X))
    torch.testing.assert_close(model(x), before)
    model(x).sum().backward()
    assert model.first.parametrizations.weight[0].default.exponential.grad.abs().max() > 0
    assert list(hs.select(model, example_inputs=X)) == ["fc", "first", "last"]
    plain = copy.deepcopy(model)
    shake(model)
    hs.rotation.save_rotations(model, tmp_path / "r.safetensors")
    turned = model(x).detach()
    assert (turned - before).abs().max() > 1e-3
    fresh = hs.rotation.load_rotations(hs.merge(plain), tmp_path / "r.safetensors")  # no example inputs needed
    torch.testing.assert_close(fresh(x), turned)
    torch.testing.assert_close(hs.merge(model)(x), turned)


def test_every_verb_takes_a_selection_by_example_inputs():
    x = NETS["unet"][1]
    verbs = [hs.spherize, hs.rotate, hs.diagnose, hs.normalize_neurons, hs.EnergyRegularizer]
    for verb in [*verbs, lambda model, **options: hs.spread(model, steps=1, **options)]:
        model = UNet()
        before = model.last.weight.clone()
        result = verb(model, layers=hs.select(model, example_inputs=x))
        assert type(model.last) is nn.Conv2d
        assert torch.equal(model.last.weight, before)
        if verb is hs.diagnose:
            assert [row.name for row in result if row.is_output] == ["last"]
        if verb is hs.spherize:
            assert isinstance(model.time[2], hs.SphereLinear)


def test_nothing_changes():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.norm, self.drop = nn.Linear(D, D), nn.BatchNorm1d(D), nn.Dropout()
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
            self.register_buffer("cache", torch.zeros(1))
            self.norm.eval()

        def forward(self, x):
            assert not self.training
            assert not torch.is_grad_enabled()
            self.steps += 1
            self.cache = x
            self.register_buffer("new", x)
            return self.drop(self.norm(self.fc(x))) + torch.rand(D)

    model = Odd().train()
    model.drop.eval()
    modes = {name: m.training for name, m in model.named_modules()}
    before, cache, rng = copy.deepcopy(model.state_dict()), model.cache, torch.get_rng_state()
    hs.select(model, example_inputs=torch.zeros(4, D))
    assert {name: m.training for name, m in model.named_modules()} == modes
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.cache is cache
    assert torch.equal(torch.get_rng_state(), rng)
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks


def test_inputs_that_do_not_fit():
    model = nn.Sequential(nn.Linear(D, D), nn.Linear(D, 2))
    with pytest.raises(ValueError, match="example_inputs: the forward pass fails: RuntimeError"):
        hs.rotate(model, layers=hs.select(model, example_inputs=torch.zeros(2, 3)))
    assert model.training
    assert not nn.modules.module._global_forward_hooks
    with pytest.raises(TypeError, match="example_inputs must be a tensor, a tuple"):
        hs.select(model, example_inputs=[X])
    with pytest.raises(ValueError, match="lazy"):
        hs.select(nn.Sequential(nn.LazyLinear(3)), example_inputs=X)


@pytest.mark.slow
def test_wrappers_and_names():
    wrapped = nn.DataParallel(CrossVit())
    assert outputs(wrapped, example_inputs=X) == ["module.head.0", "module.head.1"]
    assert outputs(torch.compile(CrossVit()), example_inputs=X) == ["_orig_mod.head.0", "_orig_mod.head.1"]
    parts = nn.Sequential(torch.compile(nn.Linear(D, D)), nn.ReLU(), torch.compile(nn.Linear(D, 3)))
    assert outputs(parts, example_inputs=X) == ["2._orig_mod"]
    assert outputs(CrossVit(), output="body", example_inputs=X) == ["body"]
    assert outputs(CrossVit(), output=None, example_inputs=X) == []


def test_a_loss_head_and_get_classifier_with_a_trace():
    model = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, 3))
    model.arcface = hs.ArcFaceLoss(4, 3)
    model.forward = lambda x: model[2](model[1](model[0](x)))
    assert outputs(model, example_inputs=X) == ["arcface"]
    embedding = CrossVit()
    embedding.get_classifier = nn.Identity
    assert outputs(embedding, example_inputs=X) == []


def test_sparse_inputs_and_modules_that_are_not_called():
    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.unused, self.out = nn.Linear(D, D), nn.Linear(D, 2), nn.Linear(D, 3)

        def forward(self, x, adjacency):
            return torch.sparse.mm(adjacency, self.out(torch.sparse.mm(adjacency, self.fc(x)).relu()))

    selected = hs.select(Graph(), example_inputs=(torch.randn(4, D), torch.eye(4).to_sparse()))
    assert [name for name, n in selected.items() if n.is_output] == ["out"]
    assert selected.remarks == {"unused": "not called with the example inputs"}


# without example inputs


def test_get_classifier_in_a_container():
    model = CrossVit()
    model.get_classifier = lambda: {"a": model.head}
    assert outputs(model) == ["head.0", "head.1"]


def test_heads_beside_each_other():
    assert outputs(Detr()) == ["cls", "box.2"]
    chain = nn.ModuleDict({"class_1": nn.Linear(D, D), "class_2": nn.Linear(D, 3)})
    assert outputs(chain) == ["class_2"]
    names = nn.ModuleDict({"fc1": nn.Linear(D, 4), "fc2": nn.Linear(D, 3)})
    assert outputs(names) == ["fc2"]
    sizes = nn.ModuleDict({"cls": nn.Linear(D, 4), "box": nn.Linear(D + 1, 3)})
    assert outputs(sizes) == ["box"]


class Pretrained(nn.Module):
    """The two methods of transformers' models."""

    def __init__(self, base, embeddings=None, **heads):
        super().__init__()
        self.base = base
        for name, head in heads.items():
            self.add_module(name, head)
        self.embeddings = embeddings

    @property
    def base_model(self):
        return self.base or self

    def get_output_embeddings(self):
        return None if self.embeddings is None else self.get_submodule(self.embeddings)


def test_the_heads_of_transformers_models():
    headless = Pretrained(None)
    headless.layers = nn.ModuleList([Block(), Block()])
    assert outputs(headless) == []
    lm = Pretrained(Block(), "lm_head", lm_head=nn.Linear(D, 9))
    assert outputs(lm) == ["lm_head"]
    both = Pretrained(Block(), "lm_head", lm_head=nn.Linear(D, 9), relation=nn.Linear(D, 2))
    assert outputs(both) == ["lm_head", "relation"]
    assert outputs(Pretrained(Block(), pooler=nn.Linear(D, D), score=nn.Linear(D, 2))) == ["score"]
    assert outputs(Pretrained(Block(), pooler=nn.Linear(D, D))) == []
    assert outputs(Bert()) == ["body.down_proj"]  # without those methods, the last Linear that is no pooler


@pytest.mark.parametrize(("make", "match"), [(UNet, "'time.2'.*but 'last' comes after"), (Llama, "built alike")])
def test_what_cannot_be_known_is_said_once(make, match):
    with pytest.warns(UserWarning, match=rf"not known for certain: .*{match}.*example_inputs="):
        hs.select(make())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hs.select(make())
        checks._warned.clear()
        hs.select(make(), output=None)
        inputs = NETS["unet"][1] if make is UNet else IDS
        hs.select(make(), example_inputs=inputs)


# the table


def test_the_table_tells_why_layers_are_passed_over():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.rnn, self.odd = nn.Embedding(9, D), nn.GRU(D, D), nn.Bilinear(2, 2, 2)
            self.attention = nn.MultiheadAttention(D, 2)
            self.lazy, self.normed = nn.LazyLinear(4), nn.utils.parametrizations.weight_norm(nn.Linear(D, 5))
            self.conv, self.fc = nn.Conv2d(4, 8, 3, groups=2), nn.Linear(D, 3)

    selected = hs.select(Net(), exclude="conv")
    note = "read, not called: its weight is used without calling it"
    lines = [line.split() for line in str(selected).splitlines()]
    assert str(selected) == repr(selected)
    assert lines == [
        ["layer", "type", "neurons", "×", "dim", "output"],
        ["attention", "MultiheadAttention", "3·8", "×", "8"],
        ["attention.out_proj", "NonDynamicallyQuantizableLinear", "8", "×", "8", *note.split()],
        ["lazy", "LazyLinear", "?"],
        ["normed", "Linear", "5", "×", "8"],
        ["fc", "Linear", "3", "×", "8", "yes"],
        ["conv", "Conv2d", "passed", "over:", "in", "exclude"],
        ["tokens", "Embedding", "passed", "over:", "an", "embedding"],
        ["rnn", "GRU", "passed", "over:", "a", "recurrent", "layer"],
        ["odd", "Bilinear", "passed", "over:", *["weight", "not", "known", "to", "hold", "neurons"]],
    ]
    assert "not in layers" in str(hs.select(Net(), "fc"))
    assert str(hs.select(nn.ReLU())) == "(no layers)"
    assert isinstance(selected, dict)
    assert json.loads(json.dumps(selected.to_dict())) == selected.to_dict()


def test_list_layers(capsys):
    assert main(["list", "layers", "mlp", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(r["layer"], r["neurons"], r["dimension"], r["output"]) for r in rows] == [
        ("layers.0", 256, 784, False),
        ("layers.2", 256, 256, False),
        ("classifier", 10, 256, True),
    ]
    assert main(["list", "layers", "transformer"]) == 0
    printed = capsys.readouterr().out
    assert "MultiheadAttention" in printed
    assert "passed over: an embedding" in printed
    for wrong in (["list", "layers"], ["list", "models", "mlp"], ["list", "layers", "mlpp"]):
        assert main(wrong) == 2
        assert "MODEL" in capsys.readouterr().err


# special cases of verbs


def test_depthwise_convolutions_are_left_out_of_the_energy():
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 6, 1), nn.Flatten(), nn.Linear(6, 2))
    with pytest.warns(UserWarning, match="leaves 0 out of the sum: depthwise"):
        regularizer = hs.EnergyRegularizer(model, half_space=True, average=True)
    energies = regularizer.per_layer()
    assert regularizer().item() == pytest.approx((energies["1"] + energies["3"]) / 2, rel=1e-5)
    model.zero_grad()
    hs.EnergyRegularizer(model, measure="orthonormal", hidden_weight=1.0)().backward()  # lengths do count here
    assert model[0].weight.grad.abs().max() > 0
    both = hs.EnergyRegularizer(model, hidden_weight=0.0, output_weight=0.0, norm_weight=1.0)
    lengths = torch.cat([layer.weight.flatten(1).norm(dim=1) for layer in (model[0], model[1], model[3])])
    torch.testing.assert_close(both(), lengths.mean())


def test_exclude_goes_before_checks():
    model = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D), nn.Linear(D, 2))
    nn.utils.parametrizations.weight_norm(model[2])
    with pytest.raises(ValueError, match="parametrized"):
        hs.spherize(copy.deepcopy(model))
    hs.spherize(model, exclude="2")
    assert isinstance(model[0], hs.SphereLinear)


def test_layers_too_small_for_a_sample_stay_whole():
    net = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 16), nn.Linear(16, 4), nn.Linear(4, 2))
    hs.rotate(net, sample=0.25)
    samples = [layer.parametrizations.weight[0].plan.sample for layer in list(net)[:3]]
    assert samples == [None, None, 4]
    with pytest.raises(ValueError, match=r"sample must be two dimensions at least, got 0.25 of those of '1' \(4\)"):
        hs.rotate(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 2)), sample=0.25)


def test_a_block_size_that_does_not_fit_is_said_once():
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 16), nn.Linear(16, 2))
    with pytest.warns(UserWarning, match=r"block_size=8 does not fit 0 \(6 elements\): rotated whole"):
        hs.rotate(net, block_size=8)
    assert [layer.parametrizations.weight[0].plan.blocks for layer in list(net)[:2]] == [1, 1]


class Numbers(nn.Sequential):
    def forward(self, x):
        return super().forward(x).sum(0).tolist()


def test_a_model_that_returns_no_tensor_keeps_its_output():
    model = Numbers(nn.Linear(4, 6), nn.Linear(6, 2))
    with pytest.warns(UserWarning, match="returns no tensor"):
        hs.spherize(model, layers=hs.select(model, example_inputs=torch.randn(3, 4)))
    assert type(model[1]) is nn.Linear
