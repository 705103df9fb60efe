"""The tables of OPT: the paper's values, counts to the last number, settings, and validation data held out."""

from types import SimpleNamespace

import pytest

from hypersphere.papers import tables
from hypersphere.papers.reproduce.metrics import metrics_of
from hypersphere.train.config import Config

TABLES = [name for name in tables.TABLES if name.startswith("opt.")]


def row(table, name):
    return tables.load(table).row(name)


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_made(name):
    table = tables.load(name)
    assert tables.describe(name)
    assert table.title
    assert table.rows
    for each in table.rows:
        as_long = name == "opt.6" and each.name.startswith("mlp-x-100-epochs/")  # at full size: rows of mlp-x
        assert as_long or each.compute is not None or each.full is not None
        if each.small is not None:
            assert table.reduced
            kept = each.small.data.validation is not None
            assert kept or each.small.data.name in ("cora", "pubmed")  # graphs have a validation split
            assert each.seeds >= 1


# fmt: off
EXACT = {
    "opt.10_parameters": {"cnn6/baseline": 257_984, "cnn6/hs-mhe": 257_984, "cnn6/opt": 1_358_527, "cnn6/s-opt": 90_871,
        "wide-cnn9/baseline": 2_992_832, "wide-cnn9/hs-mhe": 2_992_832, "wide-cnn9/opt": 16_204_351,
        "wide-cnn9/s-opt": 1_035_799, "resnet18/baseline": 11_678_912, "resnet18/hs-mhe": 11_678_912,
        "resnet18/opt": 46_501_227, "resnet18/s-opt": 3_393_483},
    "opt.11_parameters": {"p-d": 16_204_351, "p-d-4": 1_035_799, "p-d-8": 277_979, "p-d-16": 88_741, "p-16": 27_031,
        "p-3": 25_978, "p-0": 25_600},
    "opt.12_parameters": {"resnet18a/oracle": 128_000, "resnet18a/cls-opt": 8_128, "resnet18b/oracle": 512_000,
        "resnet18b/cls-opt": 130_816},
    "opt.13_parameters": {"512/oracle": 5_412_864, "512/cls-opt": 130_816, "1024/oracle": 10_825_728,
        "1024/cls-opt": 523_776},
    "opt.19_parameters": {f"k{k}": (576 // k) ** 2 for k in (1, 2, 4, 8, 16, 32, 64)},
    "opt.20_parameters": {f"k{k}": 576**2 // k for k in (1, 2, 4, 8, 16, 32, 64)},
}
# fmt: on


@pytest.mark.filterwarnings("ignore:layer .* takes:UserWarning")
@pytest.mark.parametrize("name", EXACT)
def test_counts_are_exact_and_round_to_the_printed_ones(name):
    table = tables.load(name)
    assert {each.name for each in table.rows} == set(EXACT[name])
    for each in table.rows:
        count = each.compute(0)["parameters"]
        assert count == EXACT[name][each.name]
        if each.name != "resnet18a/oracle":  # the paper prints half of it
            assert each.reported == pytest.approx(count, rel=0.005, abs=50)


ENERGIES = {  # means over 30 draws; one draw scatters by up to 0.003
    "mean-0": 3.5115,
    "mean-1e-3": 3.5115,
    "mean-1e-2": 3.5146,
    "mean-2e-2": 3.5531,
    "mean-3e-2": 3.6765,
}


@pytest.mark.parametrize(("name", "expected"), ENERGIES.items())
def test_initial_energy(name, expected):
    assert row("opt.4_energy", name).compute(3)["energy"] == pytest.approx(expected, abs=0.003)


def test_half_space_refinement_reaches_the_bound():
    assert row("opt.2_energy", "hs-mhe").compute(0)["energy"] == pytest.approx(3.4973, abs=1e-4)
    assert row("opt.2_energy", "original").compute(0)["energy"] > 3.508


def test_settings_of_cifar100():
    for name in ("opt.1", "opt.3", "opt.5", "opt.6", "opt.19"):
        for each in tables.load(name).rows:
            config = each.full
            if config is None or config.data.name != "cifar100":
                continue
            assert (config.steps, config.data.batch_size, config.schedule.gamma) == (75_000, 128, 0.1)
            assert config.schedule.milestones == (30_000, 50_000, 64_000)
            assert (config.optimizer.lr, config.optimizer.momentum, config.optimizer.weight_decay) == (0.1, 0.9, 5e-4)
            if config.rotation is not None and config.rotation.method == "ogd":
                assert (config.optimizer.rotation_lr, config.schedule.rotation_gamma) == (0.02, 0.2)
                assert config.rotation.init == "identity"
            elif config.rotation is not None and config.rotation.method != "none":
                assert config.rotation.init == "normal"
            if config.rotation is not None and config.rotation.method == "regularized":
                assert config.rotation.penalty_squared is False  # the weight 0.1 is the released code's
            if each.name.endswith("fixed-neurons"):
                assert (config.rotation.method, config.rotation.freeze) == ("none", True)


def test_settings_of_s_opt():
    assert row("opt.11", "p-0").full.rotation.freeze is True
    config = row("opt.10", "cnn6/s-opt").full
    assert (config.steps, config.rotation.sample, config.rotation.every or 750) == (300 * 750, 0.25, 750)
    assert (config.rotation.method, config.rotation.init) == ("gram_schmidt", "identity")
    config = row("opt.10", "resnet18/s-opt").full
    assert (config.steps, config.rotation.every) == (700 * 1000, 1000)


def test_settings_of_mlp_gcn_pointnet():
    config = row("opt.6", "mlp-n/cp").full
    data = config.data
    assert (config.model.init, config.epochs, data.batch_size, data.validation) == ("normal", 100, 100, 5000)
    assert (config.optimizer.lr, config.optimizer.momentum) == (0.01, 0.9)
    config = row("opt.9", "cora/baseline").full
    assert (config.epochs, config.optimizer.name, config.optimizer.lr) == (200, "adam", 0.01)
    assert (config.optimizer.weight_decay, config.optimizer.decay_layers) == (5e-4, "layers.0")
    config = row("opt.9", "cora/ogd").full
    assert (config.optimizer.name, config.optimizer.rest) == ("ogd", "adam")
    config = row("opt.9", "pointnet/baseline").full
    assert (config.epochs, config.data.batch_size, config.optimizer.lr, config.schedule.gamma) == (250, 32, 1e-3, 0.7)
    assert config.schedule.milestones[0] == 200_000 // 32
    for method in ("gs", "cp", "ogd"):  # R decays as the rest does
        assert row("opt.9", f"pointnet/{method}").full.schedule == config.schedule
    assert (config.data.name, row("opt.9", "pointnet/ogd").small.data.name) == ("modelnet40", "modelnet10")


def test_settings_of_few_shot_and_faces():
    config = row("opt.8", "baseline++opt").full
    assert (config.epochs, config.optimizer.name, config.optimizer.lr, config.loss.scale) == (200, "adam", 1e-3, 2.0)
    assert (config.rotation.method, config.model.name, config.data.size) == ("cayley", "cnn4.opt", 84)
    config = row("opt.13", "1024/cls-opt").full
    assert (config.steps, config.data.batch_size, config.schedule.milestones) == (28_000, 512, (16_000, 24_000))
    assert (config.rotation.layers, config.model.fc) == ("output", 1024)


def test_reduced_sizes_of_one_table_differ_in_the_method_alone():
    for name in ("opt.1", "opt.3", "opt.5", "opt.10", "opt.19"):
        for each in tables.load(name).rows:
            if (config := each.small) is not None:
                assert (config.steps, config.data.batch_size, config.data.validation) == (2000, 64, 0.1)
                assert (config.model.name, config.model.widths, config.optimizer.lr) == ("cnn6.opt", (16,) * 3, 0.05)
                assert config.rotation is None or config.rotation.init == "identity"
    for each in tables.load("opt.6").rows:
        if (config := each.small) is not None:
            assert config.epochs == (100 if each.column == "mlp-x-100-epochs" else 20)
            assert config.optimizer.lr == {"normal": 1e-4, "xavier": 0.01}[config.model.init]
            assert each.seeds == (3 if each.name.endswith(("/baseline", "/cp")) else 1)


def clipped(config):
    """The norm at which gradients are clipped: "auto" clips where there is an energy."""
    return config.clip if config.clip != "auto" else None if config.energy is None else 1.0


def test_all_rows_of_a_column_clip_gradients_alike():
    for name in TABLES:
        table = tables.load(name)
        for row in table.rows:
            if row.full is not None:
                assert clipped(row.full) == clipped(table.baseline(row).full)
    assert [clipped(tables.load(name).rows[0].small) for name in ("opt.1", "opt.5", "opt.6")] == [1.0, None, None]


def test_top5_error_comes_from_the_summary():
    summary = SimpleNamespace(accuracy=0.5, metrics={"top5": 0.75}, energy=1.0, validation=None)
    result = SimpleNamespace(summary=summary, config=Config(), path=None, metrics=[])
    assert metrics_of(tables.load("opt.12"), result, None)["top5_error"] == 25.0
    assert tables.load("opt.7").row("cp").also == {"top5_error": 20.26}


def test_rotated_gcns_have_settings_of_their_own():
    table = tables.load("opt.9")
    for data, rate in (("cora", 3e-4), ("pubmed", 1e-3)):
        for method in ("gs", "cp", "ogd"):
            small = table.row(f"{data}/{method}").small
            assert (small.optimizer.lr, small.optimizer.weight_decay, small.rotation.init) == (0.2, 0.0, "identity")
            assert small.optimizer.rotation_lr == (0.02 if method == "ogd" else rate)
            assert table.row(f"{data}/{method}").seeds == 10
        assert table.row(f"{data}/cp-literal").small == table.row(f"{data}/cp").full
        assert table.row(f"{data}/baseline").small == table.row(f"{data}/baseline").full
