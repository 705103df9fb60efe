"""One finder for models, state_dicts and files: the same rows, or a mark where names and shapes cannot tell."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import hypersphere as hs
from hypersphere.neurons.stored import find_stored
from tests.internal.test_plain_layer_tools import LoraLinear
from tests.neurons.test_layouts import Conv1D, GptOssExperts, MixtralExperts
from tests.neurons.test_tracing import Linear as GraphLinear


def rotated(net):
    return hs.rotate(net, layers="*")


def tied():
    net = nn.ModuleDict({"embed": nn.Embedding(9, 4), "fc": nn.Linear(4, 4), "head": nn.Linear(4, 9, bias=False)})
    net["head"].weight = net["embed"].weight
    return net


def adapted():
    net = nn.Sequential(LoraLinear(nn.Linear(6, 5)), nn.Linear(5, 3))
    nn.init.zeros_(net[0].lora_B["default"].weight)  # as PEFT begins; a model's rows are of base and adapter
    return net


# the module, and the rows whose layout is assumed: "=" as the model has it, "≠" not so
ZOO = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 7), nn.Linear(7, 3)), {}),
    "no_bias": (lambda: nn.ModuleDict({"fc": nn.Linear(5, 7, False), "mix": nn.Linear(7, 3, False)}), {"mix": "="}),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv1d(3, 6, 3), nn.Conv2d(3, 6, 3), nn.Conv3d(3, 6, 2, bias=False)),
        {"0": "=", "1": "=", "2": "="},
    ),
    "grouped": (lambda: nn.Sequential(nn.Conv2d(6, 6, 3, groups=3), nn.Linear(2, 3)), {"0": "≠"}),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 8, 3), nn.ConvTranspose1d(4, 6, 3, groups=2), nn.Linear(2, 3)),
        {},
    ),
    "transposed_no_bias": (
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 8, 3, bias=False), nn.Linear(2, 3)),
        {"0": "≠"},
    ),
    "conv1d": (
        lambda: nn.ModuleDict({"up": Conv1D(96, 32), "mix": Conv1D(32, 32), "down": Conv1D(32, 96)}),
        {"mix": "="},
    ),
    "conv1d_and_linear": (
        lambda: nn.ModuleDict({"up": Conv1D(9, 3), "mix": Conv1D(3, 3), "fc": nn.Linear(3, 2)}),
        {"mix": "≠"},
    ),
    "gpt2": (lambda: nn.ModuleDict({"c_attn": Conv1D(12, 4), "c_proj": Conv1D(4, 4), "wte": nn.Embedding(9, 4)}), {}),
    "attention": (
        lambda: nn.ModuleDict({"a": nn.MultiheadAttention(8, 2), "b": nn.MultiheadAttention(8, 2, kdim=6, vdim=4)}),
        {},
    ),
    "fused": (lambda: nn.ModuleDict({"qkv": nn.Linear(4, 12), "qkv_proj": nn.Linear(4, 12, bias=False)}), {}),
    "recurrent": (lambda: nn.ModuleDict({"rnn": nn.LSTM(4, 5), "cell": nn.GRUCell(4, 4), "fc": nn.Linear(5, 2)}), {}),
    "embedding_by_another_name": (
        lambda: nn.ModuleDict({"atoms": nn.Embedding(9, 4), "fc": nn.Linear(4, 3)}),
        {"atoms": "≠"},
    ),
    "tied": (tied, {}),
    "experts": (lambda: nn.ModuleDict({"a": MixtralExperts(), "b": GptOssExperts(), "fc": nn.Linear(4, 3)}), {}),
    "adapter": (adapted, {}),
    "graph": (lambda: nn.Sequential(GraphLinear(4, 5), GraphLinear(5, 3)), {}),
    "sphere": (
        lambda: hs.spherize(nn.Sequential(nn.Conv2d(3, 6, 3), nn.Linear(6, 5), nn.Linear(5, 2)), "learnable"),
        {"0": "="},
    ),
    "loss": (lambda: nn.ModuleDict({"fc": nn.Linear(4, 6), "loss": hs.ArcFaceLoss(5, 6)}), {}),
    "rotated": (lambda: rotated(nn.Sequential(nn.Linear(6, 5), nn.Conv2d(3, 4, 3), nn.Linear(5, 4))), {"1": "="}),
    "rotated_columns": (lambda: rotated(nn.ModuleDict({"up": Conv1D(9, 4), "back": nn.ConvTranspose2d(4, 6, 3)})), {}),
}


def values(rows):
    return {
        row.name: (
            *(row.groups, row.neurons, row.dimension, row.closest, row.redundant, row.dead),
            *(pytest.approx(x, rel=1e-3) for x in (row.energy, row.half_energy, row.effective_rank)),
        )
        for row in rows
    }


@pytest.mark.parametrize("net", ZOO)
def test_models_state_dicts_and_files_have_the_same_rows(net, tmp_path):
    make, assumptions = ZOO[net]
    torch.manual_seed(0)
    model = make()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    save_file(state, tmp_path / "net.safetensors")
    torch.save(state, tmp_path / "net.pt")
    of_model, of_state = hs.diagnose(model, layers=hs.select(model, output=None)), hs.diagnose(state)
    assert {row.name for row in of_state if row.assumed} == {*assumptions}
    assert not any(row.assumed for row in of_model)
    for path in (tmp_path / "net.safetensors", tmp_path / "net.pt"):
        of_file = hs.inspect(path)
        assert values(of_file) == values(of_state)
        assert {row.name: row.assumed for row in of_file} == {row.name: row.assumed for row in of_state}
        marked = [line for line in str(of_file).splitlines() if " ? " in line]
        assert len(marked) == 2 * len(assumptions)  # in both tables
        assert ("names and shapes do not tell" in str(of_file)) == bool(assumptions)
    assert ("names and shapes do not tell" in " ".join(str(of_state).split())) == bool(assumptions)
    wanted, stored = values(of_model), values(of_state)
    different = {name for name in wanted | stored if wanted.get(name) != stored.get(name)}
    assert different == {name for name, kind in assumptions.items() if kind == "≠"}


def test_tied_weights_have_all_their_names_in_a_pickle(tmp_path):
    model = tied()
    torch.save(model.state_dict(), tmp_path / "net.pt")
    report = hs.inspect(tmp_path / "net.pt")
    assert values(report) == values(hs.diagnose(model)) == values(hs.diagnose(model.state_dict()))
    assert [row.name for row in report.others] == ["embed"]


def test_matrices_that_diagnose_passes_over_are_measured_apart(tmp_path):
    net = nn.ModuleDict({"tokens": nn.Embedding(9, 4), "rnn": nn.GRU(4, 3, bias=False), "fc": nn.Linear(4, 3)})
    save_file({**net.state_dict(), "pos": torch.randn(1, 5, 4)}, tmp_path / "net.safetensors")
    report = hs.inspect(tmp_path / "net.safetensors")
    assert [row.name for row in report] == ["fc"]
    assert {row.name: row.passed_over for row in report.others} == {
        "tokens": "an embedding",
        "rnn.weight_ih_l0": "a recurrent layer",
        "rnn.weight_hh_l0": "a recurrent layer",
        "pos": "not known to hold neurons",
    }
    assert "tokens †" in str(report)
    assert "†: passed over by select and diagnose: a recurrent layer, an embedding, not known" in str(report)
    assert [row["name"] for row in report.to_dict()["others"]] == [row.name for row in report.others]
    embeddings = hs.diagnose(net.state_dict(), layers="tokens")
    assert embeddings[0].energy == pytest.approx(next(row.energy for row in report.others if row.name == "tokens"))


def test_shapes_that_fit_nothing():
    shapes = {"a.weight": (3, 4), "a.bias": (7,), "b.weight": (3, 0, 2), "b.bias": (5,), "c.weight": (3, 2, 2)}
    layers = find_stored(shapes | {"c.bias": (4,)})
    assert not any(stored.layout.transposed for stored in layers.values())


def test_a_linear_layer_that_is_called_an_embedding():
    """nn.Embedding has no bias."""
    net = nn.ModuleDict({"embed": nn.Linear(3, 64), "tokens_embed": nn.Embedding(50, 8), "fc": nn.Linear(64, 10)})
    assert (
        [row.name for row in hs.diagnose(net.state_dict())] == [row.name for row in hs.diagnose(net)] == ["embed", "fc"]
    )
