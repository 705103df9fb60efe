"""The rows of MHE's Table 14: losses, penalties and normalizations of a discriminator, against their formulas."""

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import hypersphere as hs
from hypersphere import models
from hypersphere.models._registry import PRESETS
from hypersphere.papers import gan as adversarial
from hypersphere.train import Gan, Rotation, derive, fit, load_run
from hypersphere.train.inference.exporting import export
from hypersphere.train.storage.weights import read_tensors
from tests import reference, runs

pytestmark = pytest.mark.slow

NORMS = ("batch", "layer", "weight", "spectral")
PAPERS_OWN = PRESETS["generator.mhe"]
SMALL = {"widths": (4, 5, 6, 7), "input_size": 8, "init": "kaiming"}


@pytest.fixture(autouse=True)
def _small_gan(monkeypatch):
    for name in ("generator.mhe", "discriminator.mhe"):
        monkeypatch.setitem(PRESETS, name, PRESETS[name])
    runs.small_gan()


def gan(**changes):
    base = {"model.name": "generator.mhe", "model.widths": (4, 4, 4, 4), "steps": 4, "data.batch_size": 16}
    base |= {"optimizer.name": "adam", "optimizer.lr": 0.01, "optimizer.weight_decay": 0.0}
    return runs.tiny(**base | changes)


# ------------------------------------------------------------------------------------------------------- losses


def test_the_losses_are_those_of_equation_20():
    real, fake = torch.randn(2, 9, dtype=torch.float64)
    loss = adversarial.LOSSES["logistic"]
    sigmoid = [1 / (1 + math.exp(-value)) for value in fake.tolist()]
    assert loss(fake).tolist() == pytest.approx([-math.log(each) for each in sigmoid])
    assert loss(-fake).tolist() == pytest.approx([-math.log(1 - each) for each in sigmoid])
    loss = adversarial.LOSSES["wasserstein"]
    assert (loss(real) + loss(-fake)).tolist() == pytest.approx((fake - real).tolist())


def test_discriminator_accuracy():
    real, fake = torch.tensor([3.0, 1.0, -1.0]), torch.tensor([2.0, -1.0, -2.0])
    assert adversarial.discriminator_accuracy("logistic", real, fake).tolist() == [0.5, 1.0, 0.5]
    assert adversarial.discriminator_accuracy("wasserstein", real, fake - 1.5).tolist() == [1.0, 1.0, 1.0]
    assert adversarial.discriminator_accuracy("wasserstein", real, fake + 1.5).tolist() == [0.0, 1.0, 0.0]


# ------------------------------------------------------------------------------------------------------- penalty


def images(seed, count=3):
    return torch.randn(count, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("options", [{}, {"similarity": "cosine"}, {"norm": "spectral"}], ids=str)
def test_the_gradient_penalty(options):
    """Against central differences of the output along every pixel, one image after the other."""
    net = models.create("discriminator.mhe", **SMALL | options).double().eval()
    real, fake, shares = images(0), images(1), torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    expected = reference.gradient_penalty(net, real, fake, shares.tolist())
    assert adversarial.gradient_penalty(net, real, fake, shares).item() == pytest.approx(expected, rel=1e-5)


def test_the_penalty_is_in_the_training():
    slopes = {}
    for weight in (0.0, 10.0):
        config = gan(steps=25, **{"gan.loss": "wasserstein", "gan.gradient_penalty": weight})
        task = trained(config)
        batch = torch.randn(8, 1, 8, 8)
        slopes[weight] = adversarial.gradient_penalty(task.discriminator, batch, -batch, torch.rand(8)).item()
    assert slopes[10.0] < 1.1 < 10 < slopes[0.0]


def trained(config):
    """The task of a training at its end."""
    from hypersphere.train import tasks

    made = []
    make = tasks.make
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "make", lambda *args: made.append(make(*args)) or made[-1])
        fit(config, progress=False)
    return made[0]


def test_several_steps_of_the_discriminator_for_one_of_the_generator():
    """The generator moves in the third step only, the discriminator in each, on new images and new noise."""
    weights = []
    for steps in (1, 2, 3):
        task = trained(gan(steps=steps, log_every=1, **{"gan.discriminator_steps": 3}))
        weights.append([next(module.parameters()).detach().clone() for module in task.modules.values()])
    generators, discriminators = zip(*weights, strict=True)
    assert torch.equal(generators[0], generators[1])
    assert not torch.equal(generators[1], generators[2])
    assert not torch.equal(discriminators[0], discriminators[1])
    metrics = fit(gan(steps=3, log_every=1, **{"gan.discriminator_steps": 3}), progress=False).metrics
    losses = [line.values for line in metrics if line.split == "train" and "lr" in line.values]
    assert ["generator_loss" in line for line in losses] == [False, False, True]
    assert all(line["discriminator_loss"] == line["loss"] for line in losses)


# ------------------------------------------------------------------------------------------------------- weights


def test_weights_are_clipped_and_biases_are_not():
    for limit in (None, 0.003):
        net = trained(gan(steps=6, **{"gan.clip_weights": limit})).discriminator
        weights = [n.tensor.abs().max().item() for n in hs.select(net).values()]
        assert max(weights) <= 0.003 + 1e-9 if limit else min(weights) > 0.003
        assert max(layer.bias.abs().max().item() for layer in net.layers if isinstance(layer, nn.Conv2d)) > 0.003


def test_spectral_normalization_divides_by_the_largest_singular_value():
    net = models.create("discriminator.mhe", norm="spectral", **SMALL)
    for _ in range(400):  # a power iteration a call
        [neurons.tensor for neurons in hs.select(net).values()]
    net.eval()
    assert len(hs.select(net)) == 8
    for neurons in hs.select(net).values():
        assert torch.linalg.matrix_norm(neurons.tensor.flatten(1), 2).item() == pytest.approx(1, abs=1e-3)
        direction = nn.functional.cosine_similarity(neurons.stored.flatten(), neurons.tensor.flatten(), 0)
        assert direction.item() == pytest.approx(1, abs=1e-6)


def test_weight_normalization_gives_neurons_of_length_one():
    net = trained(gan(**{"gan.norm": "weight"})).discriminator
    for neurons in hs.select(net).values():
        assert torch.allclose(neurons.matrix()[0].norm(dim=1), torch.ones(1), atol=1e-5)


def test_layer_and_batch_normalization():
    for norm, dims in (("layer", (1, 2, 3)), ("batch", (0, 2, 3))):
        net = models.create("discriminator.mhe", norm=norm, **SMALL)
        inside = net.layers[0](torch.randn(5, 3, 8, 8))
        mean, variance = inside.mean(dims, keepdim=True), inside.var(dims, correction=0, keepdim=True)
        assert torch.allclose(net.layers[1](inside), (inside - mean) / (variance + 1e-5).sqrt(), atol=1e-5)
        assert not list(net.layers[1].parameters())


# ------------------------------------------------------------------------------------------------------- runs

ROWS = {
    "clipped": {"gan.clip_weights": 0.01},
    "penalty": {"gan.gradient_penalty": 10.0},
    "wgan-gp": {"gan.loss": "wasserstein", "gan.gradient_penalty": 10.0},
    **{norm: {"gan.norm": norm} for norm in NORMS},
    "energy and spectral": {"gan.norm": "spectral", "energy.half_space": True},
    "narrow generator": {"gan.widths": (6, 5, 4)},
}


@pytest.mark.parametrize("row", ROWS)
def test_a_run_loads_again_and_can_be_continued(row, tmp_path):
    config = gan(out=str(tmp_path / "run"), **ROWS[row])
    result = fit(config, progress=False)
    assert all(
        math.isfinite(result.to_dict()[key])
        for key in ("discriminator_loss", "generator_loss", "discriminator_accuracy")
    )
    noise = torch.randn(3, 4)
    assert torch.equal(load_run(tmp_path / "run").model(noise), result.model(noise))
    assert result.model.dense.out_features == (24 if row == "narrow generator" else 4)
    export(load_run(tmp_path / "run"), file := tmp_path / "model.safetensors")
    assert torch.equal(load_file(file)["dense.weight"], result.model.dense.weight)
    task = trained(derive(config, out=None, init_from=str(tmp_path / "run"), steps=1, **{"optimizer.lr": 1e-12}))
    theirs = read_tensors(tmp_path / "run" / "final" / "discriminator.safetensors")
    for name, value in task.discriminator.state_dict().items():
        if not name.endswith(("_u", "_v", "running_mean", "running_var", "num_batches_tracked")):
            assert torch.allclose(value, theirs[name], atol=1e-6), name


def test_the_discriminator_of_another_normalization_does_not_fit(tmp_path):
    fit(gan(out=str(tmp_path / "run")), progress=False)
    with pytest.raises(ValueError, match=r"discriminator\.safetensors does not fit"):
        fit(gan(init_from=str(tmp_path / "run"), **{"gan.norm": "spectral"}), progress=False)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"gan.norm": "instance"}, "unknown gan.norm 'instance', must be one of batch, layer, weight, spectral"),
        ({"gan.clip_weights": 0}, "gan.clip_weights must be a number > 0 or null, got 0"),
        ({"gan.gradient_penalty": 10, "gan.norm": "batch"}, "gan.gradient_penalty needs the gradient of single images"),
        ({"gan.gradient_penalty": 10, "model.batch_norm": True}, "which batch normalization mixes"),
        ({"gan.norm": "spectral", "rotation": {}}, "gan.norm=spectral and rotation both change the weights"),
        ({"gan.norm": "weight", "gan.clip_weights": 1}, "gan.clip_weights needs plain weights, got gan.norm=weight"),
        ({"gan.clip_weights": 1, "rotation": {}}, "gan.clip_weights needs plain weights, got rotation"),
        ({"gan": {}, "model.name": "cnn3", "model.widths": None}, "gan needs model.name=generator.mhe, got cnn3"),
    ],
)
def test_what_contradicts_itself(changes, line):
    with pytest.raises(ValueError) as caught:
        gan(**changes)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_normalized_weights_beside_a_similarity():
    with pytest.raises(ValueError, match="norm='spectral' changes the length of weights"):
        fit(gan(**{"gan.norm": "spectral", "model.similarity": "cosine"}), progress=False)
    with pytest.raises(ValueError, match="norm must be one of batch"):
        models.create("discriminator.mhe", norm="instance")
    with pytest.raises(ValueError, match="input_size must be a multiple of 16"):
        fit(gan(**{"gan.widths": (4, 4, 4, 4, 4)}), progress=False)


def test_the_group_is_a_plain_gan_by_default():
    one, two = (fit(gan(**extra), progress=False) for extra in ({}, {"gan": Gan()}))
    assert one.summary.loss == two.summary.loss


def test_whole_rotations_of_the_paper_s_gan_are_refused_on_a_cpu(monkeypatch):
    """One factorization of the generator's 8192 dimensions takes half a minute."""
    monkeypatch.setitem(PRESETS, "generator.mhe", PAPERS_OWN)
    with pytest.raises(ValueError) as caught:
        fit(gan(**{"model.widths": None, "data.size": 32, "rotation.method": "cayley"}), progress=False)
    text = str(caught.value)
    assert text.startswith("rotation: a step would take about ")
    assert "layers.0 of the generator has 8192 dimensions: set rotation.block_size=64 or rotation.sample=0.25" in text
    with torch.device("meta"):
        networks = models.create("generator.mhe"), models.create("discriminator.mhe")
    for fields in ({"block_size": 64}, {"sample": 0.25}, {"method": "none"}):
        adversarial.check_cost(*networks, Rotation(**fields))
    with pytest.raises(ValueError, match="8192 dimensions"):
        adversarial.check_cost(*networks, Rotation("ogd"))


def test_inspect_knows_the_layers_of_both_networks(tmp_path):
    """Their layers have the same names, and those of square transposed convolutions only the network tells."""
    run = tmp_path / "run"
    fit(gan(steps=1, checkpoint_every=1, out=str(run)), progress=False)
    final, saved = hs.inspect(run), hs.inspect(run / "checkpoints" / "1")
    assert {layer.name for layer in final} >= {"layers.3", "discriminator.layers.2"}
    assert not [layer.name for layer in (*final, *saved) if layer.assumed]
    energies = {layer.name: layer.energy for layer in saved}
    assert energies == pytest.approx({layer.name: layer.energy for layer in final}, rel=1e-5)
    weight = load_file(run / "final" / "model.safetensors")["layers.3.weight"]
    assert energies["layers.3"] == pytest.approx(float(hs.hyperspherical_energy(weight.transpose(0, 1))), rel=1e-5)
