"""Recurrent layers against reference.recurrent_step, stepped literally; shapes and state_dicts against torch's."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import hypersphere as hs
from tests import reference

pytestmark = pytest.mark.slow

PAIRS = {hs.SphereRNN: nn.RNN, hs.SphereGRU: nn.GRU, hs.SphereLSTM: nn.LSTM}
SPHERE = list(PAIRS)
GATES = {hs.SphereRNN: 1, hs.SphereGRU: 3, hs.SphereLSTM: 4}
D, H = 3, 4  # input and hidden size
every_layer = pytest.mark.parametrize("cls", SPHERE, ids=lambda c: c.__name__)


def step(mode, x, state, p, g, scale):
    if mode == "RNN_RELU":  # the reference's RNN has tanh
        gates_x = reference.sphere_linear(x, p["w_ih"], p["b_ih"], g, scale)
        return (torch.relu(gates_x + reference.sphere_linear(state[0], p["w_hh"], p["b_hh"], g, scale)),)
    return reference.recurrent_step(mode.split("_")[0], x, state, p, g, scale)


def literal(layer, x, hx=None, g=reference.cosine, scale=1.0):
    """Layer by layer, direction by direction, step by step: x (T, B, D) → output (T, B, ·), [states (L·2, B, ·)]."""
    value = {name: tensor.detach().cpu() for name, tensor in layer.state_dict().items()}
    x = x.detach().cpu()
    sizes = [layer.proj_size or layer.hidden_size, layer.hidden_size][: 2 if layer.mode == "LSTM" else 1]
    directions = 2 if layer.bidirectional else 1
    if hx is None:
        hx = [x.new_zeros(layer.num_layers * directions, x.shape[1], size) for size in sizes]
    finals = []
    for index in range(layer.num_layers):
        outputs = []
        for backwards in range(directions):
            end = f"_l{index}{'_reverse' if backwards else ''}"
            p = {"w_ih": value[f"weight_ih{end}"], "w_hh": value[f"weight_hh{end}"]}
            p |= {b: value.get(f"bias_{b[2:]}{end}") for b in ("b_ih", "b_hh")}
            if layer.proj_size:
                p["w_hr"] = value[f"weight_hr{end}"]
            state = tuple(part[index * directions + backwards].detach().cpu() for part in hx)
            out = [None] * len(x)
            for t in reversed(range(len(x))) if backwards else range(len(x)):
                state = step(layer.mode, x[t], state, p, g, scale)
                out[t] = state[0]
            outputs.append(torch.stack(out))
            finals.append(state)
        x = torch.cat(outputs, -1)
    return x, [torch.stack(parts) for parts in zip(*finals, strict=True)]


def parts(state):
    return list(state) if isinstance(state, tuple) else [state]


def random_hx(layer, batch, dtype=torch.float64, device="cpu"):
    """A state that is nowhere zero; as many dimensions as the input has."""
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    shape = (rows,) if batch is None else (rows, batch)
    h = torch.randn(*shape, layer.proj_size or layer.hidden_size, dtype=dtype, device=device)
    return (h, torch.randn(*shape, layer.hidden_size, dtype=dtype, device=device)) if layer.mode == "LSTM" else h


def assert_same(result, expected, tolerance=1e-10):
    (output, state), (wanted, wanted_state) = result, expected
    torch.testing.assert_close(output.cpu(), wanted.cpu(), atol=tolerance, rtol=0)
    for part, other in zip(parts(state), wanted_state, strict=True):
        torch.testing.assert_close(part.cpu(), other.cpu(), atol=tolerance, rtol=0)


VARIANTS = {
    "rnn": (hs.SphereRNN, {}),
    "rnn deep both relu": (hs.SphereRNN, {"num_layers": 2, "bidirectional": True, "nonlinearity": "relu"}),
    "rnn no bias": (hs.SphereRNN, {"bias": False, "num_layers": 2}),
    "gru": (hs.SphereGRU, {}),
    "gru deep both": (hs.SphereGRU, {"num_layers": 2, "bidirectional": True}),
    "gru no bias": (hs.SphereGRU, {"bias": False}),
    "lstm": (hs.SphereLSTM, {}),
    "lstm deep both": (hs.SphereLSTM, {"num_layers": 2, "bidirectional": True}),
    "lstm projected": (hs.SphereLSTM, {"num_layers": 3, "proj_size": 2}),
    "lstm projected both no bias": (hs.SphereLSTM, {"proj_size": 2, "bidirectional": True, "bias": False}),
}


def make(variant, **more):
    cls, options = VARIANTS[variant]
    layer = cls(D, H, **{"dtype": torch.float64, **options, **more})
    with torch.no_grad():  # torch starts in ±1/√H: bring the gates to where they bend
        for parameter in layer.parameters(recurse=False):
            parameter.mul_(3)
    return layer


# values


@pytest.mark.parametrize("starts", [False, True], ids=["from zero", "from hx"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_literal_steps(variant, starts, device):
    layer = make(variant).to(device)
    x = torch.randn(3, 2, D, dtype=torch.float64, device=device)
    hx = random_hx(layer, 2, device=device) if starts else None
    assert_same(layer(x, hx), literal(layer, x, parts(hx) if starts else None))


SIMILARITIES = {
    "linear(-0.5, 0.8)": lambda theta: reference.linear(theta, -0.5, 0.8),
    "sigmoid(0.7)": lambda theta: reference.sigmoid(theta, 0.7),
    "callable": lambda theta: torch.cos(theta) ** 3 + 0.2,
}


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_similarity(similarity):
    g = (lambda c: c**3 + 0.2) if similarity == "callable" else similarity
    layer = hs.SphereGRU(D, H, 2, bidirectional=True, similarity=g, dtype=torch.float64)
    x = torch.randn(2, 2, D, dtype=torch.float64)
    assert_same(layer(x), literal(layer, x, g=SIMILARITIES[similarity]))


@every_layer
def test_learnable_has_a_k_for_every_gate_neuron(cls):
    layer = cls(D, H, 2, similarity="learnable", dtype=torch.float64)
    assert layer.similarity.log_k.shape == (GATES[cls] * H,)
    assert torch.allclose(layer.similarity.k, torch.tensor(0.5, dtype=torch.float64))
    k = torch.linspace(0.2, 1.5, GATES[cls] * H, dtype=torch.float64)
    with torch.no_grad():
        layer.similarity.log_k.copy_(k.log())
    x, hx = torch.randn(3, 2, D, dtype=torch.float64), random_hx(layer, 2)
    assert_same(layer(x, hx), literal(layer, x, parts(hx), g=lambda theta: reference.sigmoid(theta, k)))


@every_layer
def test_the_similarity_sees_gate_neurons_on_dimension_1(cls):
    seen = []

    def g(c):
        seen.append(tuple(c.shape))
        return c

    layer = cls(D, H, 2, bidirectional=True, similarity=g)
    layer(torch.randn(5, 3, D))
    layer(torch.randn(5, D))
    layer(pack_sequence([torch.randn(n, D) for n in (3, 2)]))
    assert {shape[1] for shape in seen} == {GATES[cls] * H}


@pytest.mark.parametrize("scale", [True, 4.0, -2])
@every_layer
def test_scale(cls, scale):
    layer = cls(D, H, 2, scale=scale, dtype=torch.float64)
    factor = float(scale)
    if scale is True:
        assert layer.scale.shape == (GATES[cls] * H,)
        assert bool((layer.scale == 1).all())
        factor = torch.randn(GATES[cls] * H, dtype=torch.float64) * 3
        with torch.no_grad():
            layer.scale.copy_(factor)
    x, hx = torch.randn(3, 2, D, dtype=torch.float64), random_hx(layer, 2)
    assert_same(layer(x, hx), literal(layer, x, parts(hx), scale=factor))


# ways to give the input


@pytest.mark.parametrize("variant", VARIANTS)
def test_batch_first_and_unbatched_are_the_same_numbers(variant, device):
    layer = make(variant).to(device)
    other = make(variant, batch_first=True).to(device)
    other.load_state_dict(layer.state_dict())
    x, hx = torch.randn(5, 3, D, dtype=torch.float64, device=device), random_hx(layer, 3, device=device)
    output, state = layer(x, hx)
    first, first_state = other(x.transpose(0, 1), hx)
    torch.testing.assert_close(first.transpose(0, 1), output)
    for part, wanted in zip(parts(first_state), parts(state), strict=True):  # states have no batch_first in torch
        torch.testing.assert_close(part, wanted)
    for b, module in itertools.product(range(3), (layer, other)):  # batch_first means nothing without a batch
        one = tuple(part[:, b] for part in parts(hx))
        alone, alone_state = module(x[:, b], one if layer.mode == "LSTM" else one[0])
        torch.testing.assert_close(alone, output[:, b])
        for part, wanted in zip(parts(alone_state), parts(state), strict=True):
            torch.testing.assert_close(part, wanted[:, b])


@pytest.mark.parametrize(
    ("lengths", "enforce_sorted", "starts"),
    [((5, 3, 3, 1), True, False), ((2, 5, 1, 3), False, True), ((1, 1), False, False)],
)
@pytest.mark.parametrize("variant", ["rnn deep both relu", "gru deep both", "lstm deep both", "lstm projected"])
def test_packed_equals_every_sequence_alone(variant, lengths, enforce_sorted, starts, device):
    layer = make(variant).to(device)
    sequences = [torch.randn(n, D, dtype=torch.float64, device=device) for n in lengths]
    hx = random_hx(layer, len(lengths), device=device) if starts else None
    packed = pack_sequence(sequences, enforce_sorted=enforce_sorted)
    output, state = layer(packed, hx)
    assert isinstance(output, PackedSequence)
    assert torch.equal(output.batch_sizes, packed.batch_sizes)
    padded, sizes = pad_packed_sequence(output)
    assert sizes.tolist() == list(lengths)
    for b, x in enumerate(sequences):
        one = tuple(part[:, b] for part in parts(hx)) if starts else None
        alone, alone_state = layer(x, one if one is None or layer.mode == "LSTM" else one[0])
        torch.testing.assert_close(padded[: lengths[b], b], alone)
        for part, wanted in zip(parts(state), parts(alone_state), strict=True):
            torch.testing.assert_close(part[:, b], wanted)


@every_layer
def test_shapes_are_those_of_torch_for_all_options(cls):
    extra = {"nonlinearity": ("tanh", "relu")} if cls is hs.SphereRNN else {}
    extra |= {"proj_size": (0, 2)} if cls is hs.SphereLSTM else {}
    choices = {"num_layers": (1, 2), "bias": (True, False), "batch_first": (False, True)}
    choices |= {"bidirectional": (False, True), **extra}
    usual = {name: values[0] for name, values in choices.items()}
    alone = [usual | {name: values[1]} for name, values in choices.items()]  # and all together
    for options in (*alone, {name: values[1] for name, values in choices.items()}):
        ours, theirs = cls(D, H, **options), PAIRS[cls](D, H, **options)
        assert {n: p.shape for n, p in ours.state_dict().items()} == {
            n: p.shape for n, p in theirs.state_dict().items()
        }
        packed = pack_sequence([torch.randn(n, D) for n in (1, 2)], enforce_sorted=False)
        for x, batch in (
            (torch.randn(3, 2, D), 3 if options["batch_first"] else 2),
            (torch.randn(3, D), None),
            (packed, 2),
        ):
            for hx in (None, random_hx(ours, batch, torch.float32)):
                (output, state), (wanted, wanted_state) = ours(x, hx), theirs(x, hx)
                assert type(output) is type(wanted), options
                assert type(state) is type(wanted_state), options
                if x is packed:
                    output, wanted = output.data, wanted.data
                assert output.shape == wanted.shape, options
                assert [s.shape for s in parts(state)] == [s.shape for s in parts(wanted_state)], options


# options and signatures


@every_layer
def test_takes_torchs_arguments_in_torchs_order(cls):
    arguments = {
        hs.SphereRNN: (D, H, 2, "relu", False, True, 0.25, True),
        hs.SphereGRU: (D, H, 2, False, True, 0.25, True),
        hs.SphereLSTM: (D, H, 2, False, True, 0.25, True, 2),
    }[cls]
    ours, theirs = cls(*arguments), PAIRS[cls](*arguments)
    names = ["mode", "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"]
    assert [getattr(ours, n) for n in [*names, "proj_size"]] == [getattr(theirs, n) for n in [*names, "proj_size"]]
    assert isinstance(ours, nn.RNNBase)
    by_name = cls(input_size=D, hidden_size=H, device="cpu", dtype=torch.float64, similarity="linear", scale=2.0)
    assert by_name.weight_ih_l0.dtype == torch.float64


@every_layer
def test_same_seed_same_start_as_torch(cls):
    torch.manual_seed(3)
    ours = cls(D, H, 2, bidirectional=True)
    torch.manual_seed(3)
    for (name, value), (other, wanted) in zip(
        ours.named_parameters(), PAIRS[cls](D, H, 2, bidirectional=True).named_parameters(), strict=True
    ):
        assert name == other
        assert torch.equal(value, wanted)


@every_layer
def test_dropout_one_between_layers_only(cls):
    """With p = 1 the second layer sees zeros, the first layer's state and the last layer's output are whole."""
    layer = cls(D, H, 2, dropout=1.0, dtype=torch.float64)
    first, second = cls(D, H, dtype=torch.float64), cls(H, H, dtype=torch.float64)
    state = layer.state_dict()
    first.load_state_dict({k: v for k, v in state.items() if k.endswith("l0")})
    second.load_state_dict({k.replace("l1", "l0"): v for k, v in state.items() if k.endswith("l1")})
    x = torch.randn(4, 2, D, dtype=torch.float64)
    out, end = layer.train()(x)
    blind, blind_end = second(torch.zeros(4, 2, H, dtype=torch.float64))
    torch.testing.assert_close(out, blind)
    for part, one, two in zip(parts(end), parts(first(x)[1]), parts(blind_end), strict=True):
        torch.testing.assert_close(part, torch.cat([one, two]))
    torch.testing.assert_close(layer.eval()(x)[0], second(first(x)[0])[0])


# state_dict


@every_layer
def test_torchs_state_dict_loads_strictly_and_back(cls):
    options = {"num_layers": 2, "bidirectional": True} | ({"proj_size": 2} if cls is hs.SphereLSTM else {})
    plain, layer = PAIRS[cls](D, H, **options), cls(D, H, **options, similarity="learnable", scale=True)
    with torch.no_grad():
        layer.scale.fill_(3.0)
        layer.similarity.log_k.fill_(-1.0)
    state = plain.state_dict()
    keys = list(state)
    assert str(layer.load_state_dict(state, strict=True)) == "<All keys matched successfully>"
    assert list(state) == keys  # the caller's dict is as it was
    assert bool((layer.scale == 3).all())
    assert bool((layer.similarity.log_k == -1).all())
    own = layer.state_dict()
    assert sorted(own) == sorted([*keys, "scale", "similarity.log_k"])
    for key in keys:
        assert torch.equal(own[key], state[key])
    del own["scale"], own["similarity.log_k"]
    PAIRS[cls](D, H, **options).load_state_dict(own, strict=True)


@every_layer
def test_own_state_dict_round_trip_and_missing_weights(cls):
    layer, other = (cls(D, H, 2, similarity="learnable", scale=True) for _ in range(2))
    with torch.no_grad():
        layer.scale.uniform_(1, 2)
        layer.similarity.log_k.uniform_(-1, 0)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(3, 2, D)
    assert torch.equal(layer(x)[0], other(x)[0])
    broken = layer.state_dict()
    del broken["weight_hh_l1"]
    with pytest.raises(RuntimeError, match="weight_hh_l1"):
        other.load_state_dict(broken)


# gradients


@every_layer
def test_gradcheck(cls):
    options = {"proj_size": 2} if cls is hs.SphereLSTM else {}
    layer = cls(3, 3, similarity="learnable", scale=True, dtype=torch.float64, **options)
    names = [name for name, _ in layer.named_parameters()]
    x, hx = torch.randn(2, 1, 3, dtype=torch.float64), random_hx(layer, 1)

    def run(x, *rest):
        state, values = rest[: len(parts(hx))], rest[len(parts(hx)) :]
        start = tuple(state) if layer.mode == "LSTM" else state[0]
        output, end = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x, start))
        return output, *parts(end)

    leaves = [x, *parts(hx), *layer.parameters()]
    assert torch.autograd.gradcheck(run, [leaf.detach().requires_grad_() for leaf in leaves])


def test_gradcheck_deep_both_packed():
    layer = hs.SphereGRU(3, 3, 2, bidirectional=True, dtype=torch.float64)
    packed = pack_sequence([torch.randn(n, 3, dtype=torch.float64) for n in (1, 2)], enforce_sorted=False)
    hx = random_hx(layer, 2)

    def run(data, hx):
        output, end = layer(PackedSequence(data, *packed[1:]), hx)
        return output.data, end

    assert torch.autograd.gradcheck(run, (packed.data.detach().requires_grad_(), hx.requires_grad_()))


@pytest.mark.parametrize("similarity", ["cosine", "sigmoid(0.01)"])
@every_layer
def test_zero_input_and_state_are_finite(cls, similarity, device):
    layer = cls(D, H, 2, bidirectional=True, similarity=similarity, scale=True, device=device)
    x = torch.zeros(3, 2, D, device=device, requires_grad=True)
    hx = tuple(torch.zeros_like(part).requires_grad_() for part in parts(random_hx(layer, 2, torch.float32, device)))
    output, end = layer(x, hx if layer.mode == "LSTM" else hx[0])
    (output.sum() + sum(part.sum() for part in parts(end))).backward()
    assert output.isfinite().all()
    assert not x.grad.any()  # a zero vector has cosine 0 with everything, whatever the weights
    for tensor in (*hx, *layer.parameters()):
        assert tensor.grad.isfinite().all()


# precision


@pytest.mark.parametrize(("dtype", "packed"), [(torch.float16, False), (torch.bfloat16, True)])
@every_layer
def test_autocast_is_close_to_float32(cls, dtype, packed, device):
    layer = cls(D, H, 2, bidirectional=True, similarity="learnable", scale=True, device=device)
    x = torch.randn(4, 2, D, device=device)
    x[1] = 0
    sequences = pack_padded_sequence(x, [2, 4], enforce_sorted=False) if packed else x
    expected, _ = layer(sequences)
    with torch.autocast(device.type, dtype):
        output, state = layer(sequences)
        layer(sequences, state)  # a state of autocast's dtype goes in again
    if packed:
        expected, output = expected.data, output.data
    torch.testing.assert_close(output.float(), expected, atol=0.05, rtol=0)
    output.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


# what is refused


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (torch.zeros(5, 2, D + 1), ValueError),
        (torch.zeros(D), ValueError),
        (torch.zeros(5, 2, 1, D), ValueError),
        (torch.zeros(0, 2, D), ValueError),
        (torch.zeros(5, 2, D, dtype=torch.int64), TypeError),
        (torch.zeros(5, 2, D, dtype=torch.float64), TypeError),
        (None, TypeError),
        (pack_sequence([torch.zeros(5, D + 1)]), ValueError),
    ],
    ids=["size", "1-d", "4-d", "no steps", "int64", "float64", "None", "packed size"],
)
def test_bad_input_is_named(x, error):
    with pytest.raises(error, match="input"):
        hs.SphereGRU(D, H)(x)


def bad_states(cls):
    def state(*shape, dtype=None):
        h = torch.zeros(*shape, dtype=dtype)
        return (h, h) if cls is hs.SphereLSTM else h

    h = torch.zeros(2, 3, H)
    return {
        "batch": (state(2, 4, H), ValueError),
        "layers": (state(1, 3, H), ValueError),
        "size": (state(2, 3, H + 1), ValueError),
        "unbatched": (state(2, H), ValueError),
        "parts": (h if cls is hs.SphereLSTM else (h, h), (ValueError, TypeError)),
        "empty": ((), (ValueError, TypeError)),
        "int64": (state(2, 3, H, dtype=torch.int64), TypeError),
        "float64": (state(2, 3, H, dtype=torch.float64), TypeError),
        "text": ("zeros", TypeError),
        "None inside": ((h, None) if cls is hs.SphereLSTM else (None,), (ValueError, TypeError)),
    }


@pytest.mark.parametrize("case", list(bad_states(hs.SphereGRU)))
@pytest.mark.parametrize("cls", [hs.SphereGRU, hs.SphereLSTM])
def test_bad_hx_is_named(cls, case):
    hx, error = bad_states(cls)[case]
    with pytest.raises(error, match="hx"):
        cls(D, H, 2)(torch.zeros(5, 3, D), hx)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"similarity": "cosin"}, ValueError, "similarity.*cosine"),
        ({"similarity": hs.LearnableSigmoid(H + 1)}, ValueError, "similarity"),
        ({"scale": 0}, ValueError, "scale"),
        ({"scale": "learned"}, TypeError, "scale"),
        ({"dtype": torch.int64}, TypeError, "dtype"),
        ({"num_layers": 0}, ValueError, "num_layers"),
        ({"hidden_size": 0}, ValueError, "hidden_size"),
        ({"dropout": 1.5}, ValueError, "dropout"),
        ({"nonlinearity": "sigmoid"}, ValueError, "nonlinearity"),
    ],
    ids=lambda v: str(v) if isinstance(v, dict) else "",
)
def test_bad_options_are_named(options, error, match):
    with pytest.raises(error, match=match):
        hs.SphereRNN(**{"input_size": D, "hidden_size": H, **options})
