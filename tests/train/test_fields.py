"""Fields of a config that rows of the papers' tables need, each against what it stands for."""

from itertools import groupby

import pytest
import torch

import hypersphere as hs
from hypersphere.cli import main
from hypersphere.papers import tables
from hypersphere.rotation import rotation_penalty
from hypersphere.train import Energy, Rotation, networks, neurons, optimizers, splits, tasks
from tests import reference, runs
from tests.runs import one_line, quiet, tiny

pytestmark = pytest.mark.slow


def paper_energy(net):
    """The energy of OPT's Tables 2 and 4: half space, s = 2, mean over pairs of the 2N points, over layers."""
    layers = [layer.matrix().detach()[0].double() for layer in hs.select(net).values() if not layer.is_output]
    return sum(float(reference.energy(matrix, 2.0, half_space=True)) for matrix in layers)


# ------------------------------------------------------------------------------------------------------- spread


def start(**fields):
    torch.manual_seed(0)
    net = hs.models.create("cnn6.opt")
    before = paper_energy(net)
    neurons.prepare(net, None, Rotation("none", spread=True, **fields), seed=0)
    return before, paper_energy(net)


def test_spread_alone_reaches_the_least_energy_of_the_paper_s_measure():
    before, after = start()
    assert before == pytest.approx(3.5115, abs=1e-3)
    assert after == pytest.approx(3.4973, abs=1e-4)


def test_spread_in_full_space_pairs_opposite_neurons_unless_it_stops_early():
    assert start(spread_half_space=False)[1] > 100
    assert 3.4973 < start(spread_half_space=False, spread_steps=5)[1] < 3.51


def test_spread_by_another_measure_lowers_the_energy_too():
    before, after = start(spread_measure="orthonormal", spread_steps=5)
    assert after < before - 0.005


# ------------------------------------------------------------------------------------------------------- energy


def test_the_orthonormality_term_leaves_out_the_plain_shortcuts_of_spherenet_v2():
    """SphereNet, 4.6: the shortcuts of v2 are no sphere layers."""
    net = hs.models.create("resnet18v2.spherenet", similarity="cosine", num_classes=3, widths=(4, 4, 8, 8))
    term = tables.load("spherenet.fig6").row("v2").full.energy
    layers = neurons.build_regularizer(net, None, term, 0).per_layer()
    kept = {name for name, layer in hs.select(net).items() if isinstance(layer.module, hs.SphereConv2d)}
    assert set(layers) - {"classifier"} == kept
    assert any("shortcut" in name for name in hs.select(net))


def test_the_energy_of_a_loss_head_is_left_out_by_its_name():
    net, head = hs.models.create("mlp", num_classes=0, widths=(8, 8)), hs.WSoftmaxLoss(5, 8)
    terms = {name: float(neurons.build_regularizer(net, head, Energy(exclude=name), 0)()) for name in ((), "head")}
    whole = {w: float(neurons.build_regularizer(net, head, Energy(output_weight=w), 0)()) for w in (1.0, 0.0)}
    assert (terms[()], terms["head"]) == (whole[1.0], whole[0.0])
    assert terms[()] != terms["head"]


def test_excluded_layers_that_do_not_exist_are_named():
    assert one_line(tiny(**{"energy.exclude": "fcc"})).startswith("energy.exclude must be layers of the network, ")


# ------------------------------------------------------------------------------------------------------- optimizer


def test_only_the_named_layers_decay():
    """OPT, App. D: weight decay on the first layer of a GCN alone."""
    config = tiny(**{"model.widths": (8, 8), "optimizer.decay_layers": "layers.0"})
    spec = splits.DataSpec("images", (1, 8, 8), "uint8", [str(i) for i in range(10)])
    model = networks.build_classifier(config, spec)
    neurons.prepare(model.network, None, Rotation("cayley", layers="layers.2"), 0)
    optimizer = optimizers.build_optimizer(model, config)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    decays = {name for name, p in model.named_parameters() if decay.get(id(p))}
    assert decays == {"network.layers.0.weight"}
    trained = {id(p) for name, p in model.named_parameters() if not name.endswith("original")}
    assert set(decay) == trained
    two = optimizers.build_optimizer(model, tiny(**{"optimizer.decay_layers": "layers.*"}))
    decays = [(group["name"], len(group["params"])) for group in two.param_groups if group["weight_decay"]]
    assert decays == [("weights", 1), ("rotations", 1)]


def test_a_gcn_steps_by_exact_ogd_and_adam_each_at_its_rate():
    """Table 9's setting: OGD with its own rate for the rotation, Adam for the classifier."""
    changes = {"model.name": "gcn", "model.widths": (5,), "data.name": "graph_of_test", "rotation.method": "ogd"}
    changes |= {"optimizer.name": "ogd", "optimizer.rest": "adam", "optimizer.lr": 0.01, "optimizer.rotation_lr": 0.1}
    changes |= {"optimizer.iterations": None, "rotation.init": "identity", "steps": 1, "eval_every": 1}
    config = tiny(**changes)
    start, end = {}, {}
    quiet(config, lambda model, step, line: (start if step == 0 else end).update(detached(model)))
    moved = {name: (end[name] - start[name]) for name in start}
    assert moved["network.classifier.weight"].abs().max() <= 0.01 * 1.001  # Adam's first step is lr·sign
    assert moved["network.classifier.weight"].abs().median() == pytest.approx(0.01, rel=1e-2)
    rotation = next(name for name in start if name.endswith("ogd"))
    x, y = start[rotation][0].double(), end[rotation][0].double()
    # Y = (I − λ/2·W)⁻¹(I + λ/2·W)X, so W is skew with ‖λW‖_F = min(lr·‖W‖, 1)
    w = torch.linalg.solve((x + y).mT, (y - x).mT).mT * 2
    assert (w + w.mT).abs().max() < 1e-5
    assert 0 < float(w.norm()) <= 1


def detached(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def test_rotations_can_fall_by_another_factor_than_the_rest(monkeypatch):
    """The released OGD: ×0.2 where the rest falls by ×0.1."""
    seen = []
    monkeypatch.setattr("hypersphere.train.engine.set_rate", lambda optimizer, *rates: seen.append(rates))
    changes = {"schedule.name": "step", "schedule.milestones": (1, 2), "schedule.rotation_gamma": 0.2, "steps": 3}
    quiet(tiny(**changes | {"rotation.method": "cayley", "optimizer.lr": 0.1, "optimizer.rotation_lr": 0.3}))
    assert [rate for rate, _, _ in seen] == pytest.approx([0.1, 0.01, 0.001])
    assert [rate for _, rate, _ in seen] == pytest.approx([0.3, 0.06, 0.012])


def test_the_momentum_of_batch_norm_halves_with_the_rate():
    """PointNet's: 0.5, halved on the steps on which the rate falls, at least 0.01."""
    seen = []

    def look(model, step, line):
        seen.append({m.momentum for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)})

    changes = {"schedule.name": "step", "schedule.milestones": (1, 2), "schedule.batch_norm": 0.03, "steps": 3}
    changes |= {"model.name": "cnn3", "model.widths": (4, 4, 4), "model.batch_norm": True, "log_every": 1}
    quiet(tiny(**changes), look)
    assert [key for key, _ in groupby(seen)][-3:] == [{0.03}, {0.015}, {0.01}]
    none = one_line(tiny(**changes | {"model.batch_norm": False}))
    assert none == "schedule.batch_norm needs BatchNorm, which model.name=cnn3 does not have"


def test_learned_neurons_are_scaled_to_norm_one_after_every_step():
    norms = []
    base = {"rotation.method": "none", "rotation.neurons": "learned", "rotation.normalize": True, "steps": 3}
    for always in (True, False):
        changes = {"rotation.renormalize": always, "optimizer.lr": 0.5}
        quiet(tiny(**base | changes), lambda model, *_: norms.append(model.network.layers[0].weight.norm(dim=1)))
        assert bool(((norms[-1] - 1).abs() < 1e-5).all()) == always


def test_the_penalty_of_regularized_rotations_as_in_the_paper_and_in_the_released_code(monkeypatch):
    terms = []

    def spy(module, weight, *, squared):
        terms.append((squared, weight))
        return rotation_penalty(module, weight, squared=squared)

    monkeypatch.setattr(tasks, "rotation_penalty", spy)
    for squared in (True, False):
        quiet(tiny(**{"steps": 1, "rotation.method": "regularized", "rotation.penalty_squared": squared}))
    assert terms == [(True, 0.1), (False, 0.1)]


def test_decay_layers_that_do_not_exist_are_named():
    text = one_line(tiny(**{"optimizer.decay_layers": "layer.0"}))
    assert text == "optimizer.decay_layers must be layers of the network, layers.0, layers.2, classifier; got 'layer.0'"


# ------------------------------------------------------------------------------------------------------- network, loss


def digits_network(**changes):
    spec = splits.DataSpec("images", (1, 8, 8), "uint8", [str(i) for i in range(10)])
    torch.manual_seed(0)
    return networks.build_classifier(tiny(**changes), spec)


@pytest.mark.parametrize("name", ["mlp.opt", "own_of_test"])
def test_init_is_the_start_of_every_layer(name):
    """The second network has no option init."""
    changes = {"model.name": name, "model.widths": None, "model.init": "normal"}
    for layer in hs.select(digits_network(**changes).network).values():
        weight = layer.tensor.detach()
        assert float(weight.std()) == pytest.approx(1.0, abs=5 / weight.numel() ** 0.5)
    xavier = digits_network(**changes | {"model.init": "xavier"}).network
    for layer in hs.select(xavier).values():
        bound = (6 / sum(layer.tensor.shape)) ** 0.5
        assert 0.8 * bound < float(layer.tensor.detach().abs().max()) <= bound


def test_k_per_filter_layer_or_network():
    def ks(k_per):
        changes = {"model.name": "cnn3", "model.widths": (4, 4, 6), "model.fc": 8, "model.k_per": k_per}
        net = digits_network(**changes | {"model.similarity": "learnable(0.7)"}).network
        return [p for name, p in net.named_parameters() if name.endswith("log_k")]

    assert [tuple(k.shape) for k in ks("filter")] == [tuple(k.shape) for k in ks(None)] == [(4,), (4,), (6,), (8,)]
    assert [tuple(k.shape) for k in ks("layer")] == [()] * 4
    assert [tuple(k.shape) for k in ks("network")] == [()]
    for k_per in ("layer", "network"):
        assert all(float(k.detach().exp()) == pytest.approx(0.7) for k in ks(k_per))


def test_the_constants_of_the_annealing_and_the_bias():
    changes = {"loss.annealing_base": 10.0, "loss.annealing_rate": 0.5, "loss.annealing_floor": 2.0, "loss.bias": True}
    head = digits_network(**changes | {"loss.name": "a_softmax"}).head
    assert head.bias.shape == (10,)
    for n in (0, 1, 3, 7, 8, 9, 100):
        assert float(head.annealing(torch.tensor(n))) == pytest.approx(max(2.0, 10.0 / (1 + 0.5 * n)), rel=1e-12)
    one = digits_network(**{"loss.annealing_floor": 1.0, "loss.name": "a_softmax"}).head
    assert float(one.annealing(torch.tensor(100_000))) == 1.0
    assert float(one.annealing(torch.tensor(10))) == pytest.approx(1000 / 2.2)
    assert digits_network(**{"loss.name": "a_softmax"}).head.bias is None


# ------------------------------------------------------------------------------------------------------- data, top 5


def small_cifar100(root, split, labels="fine"):
    """Images whose brightness is their class, a fine class i in the coarse class i // 5."""
    fine = torch.arange({"train": 200, "test": 100}[split]) % 100
    noise = torch.randint(0, 9, (len(fine), 3, 8, 8), generator=torch.Generator().manual_seed(len(fine)))
    images = (noise + 2 * fine[:, None, None, None]).to(torch.uint8)
    names = {"fine": 100, "coarse": 20}
    classes = [f"{labels} {i}" for i in range(names[labels])]
    return hs.data.ArrayDataset(images, fine if labels == "fine" else fine // 5, classes)


def test_coarse_labels_and_top_5(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(hs.data.DATASETS, "cifar100", hs.data.RegisteredDataset(small_cifar100))
    config = tiny(**{"data.name": "cifar100", "data.labels": "coarse", "out": str(tmp_path / "run"), "steps": 4})
    result = quiet(config)
    test = small_cifar100(None, "test", "coarse")
    with torch.no_grad():
        logits = result.model((test.inputs.float() - 127.5) / 128)
    assert logits.shape == (100, 20)
    ranks = [int((row > row[label]).sum()) for row, label in zip(logits, test.labels, strict=True)]
    top5 = sum(rank < 5 for rank in ranks) / 100
    assert 0.1 < top5 < 1
    assert result.summary.metrics["top5"] == top5
    assert [line["top5"] for line in runs.metrics_of(result) if "top5" in line][-1] == top5
    assert hs.train.load_run(result.path).labels == test.classes
    assert main(["evaluate", str(result.path)]) == 0
    assert f"{top5:.2%}" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------------- SphereNorm


RESCALED = {"model.similarity": "cosine", "model.scale": True, "model.batch_norm": False}


def test_rescaled_sphere_norm_learns_both_numbers():
    """SphereNet, 2.5 and Fig. 5: every SphereConv gives β·F + γ."""
    net = digits_network(**RESCALED, **{"model.name": "cnn9.spherenet", "model.widths": (4, 4, 6)}).network
    layers = [layer.module for layer in hs.select(net).values() if not layer.is_output]
    assert len(layers) == 10
    for layer in layers:
        assert torch.equal(layer.scale, torch.ones(len(layer.weight)))
        assert torch.equal(layer.bias, torch.zeros(len(layer.weight)))
    first, x = layers[0], torch.randn(2, 1, 8, 8)
    plain = hs.SphereConv2d(1, 4, 3, padding=1, bias=False)
    plain.load_state_dict({"weight": first.weight.detach()})
    torch.nn.init.normal_(first.scale)
    torch.nn.init.normal_(first.bias)
    expected = first.scale.view(-1, 1, 1) * plain(x) + first.bias.view(-1, 1, 1)
    assert torch.allclose(first(x), expected, atol=1e-6)
    groups = {group["name"]: group["params"] for group in hs.param_groups(net, 5e-4)}
    assert all(any(p is other for other in groups["no_decay"]) for layer in layers for p in (layer.scale, layer.bias))


@pytest.mark.parametrize("changes", [{"model.batch_norm": True}, {"model.scale": None}, {"model.scale": 2.0}])
def test_other_networks_have_no_new_bias(changes):
    net = digits_network(**RESCALED | changes | {"model.name": "cnn3.spherenet", "model.widths": (4, 4, 6)}).network
    assert not any(name.endswith("bias") and "stages.0.0" in name for name, _ in net.named_parameters())


def test_a_state_from_before_the_bias_loads():
    net = digits_network(**RESCALED, **{"model.name": "cnn3.spherenet", "model.widths": (4, 4, 6)}).network
    sphere = {name for name, layer in net.named_modules() if isinstance(layer, hs.SphereConv2d | hs.SphereLinear)}
    old = {name: value for name, value in net.state_dict().items() if name.removesuffix(".bias") not in sphere}
    assert len(old) == len(net.state_dict()) - 4
    net.load_state_dict(old)
    with pytest.raises(RuntimeError, match=r"Missing key.*classifier\.bias"):
        net.load_state_dict({name: value for name, value in old.items() if not name.endswith("bias")})
