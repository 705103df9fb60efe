"""The tables of SphereNet and MHE: values as printed, the papers' settings, and reduced sizes that hold out data."""

import pytest

from hypersphere.papers import tables
from hypersphere.train.config import from_tree, to_tree

TABLES = [name for name in tables.TABLES if name.startswith(("spherenet.", "mhe."))]
SPHERENET = [name for name in TABLES if name.startswith("spherenet.")]
MHE = [name for name in TABLES if name.startswith("mhe.")]


@pytest.fixture(scope="module")
def all_tables():
    return {name: tables.load(name) for name in TABLES}


def test_every_table_is_there():
    assert {"spherenet." + each for each in ("1", "2", "3", "4", "fig3", "fig5", "fig6", "sec4_3")} == set(SPHERENET)
    numbers = [*map(str, range(1, 11)), "13", "14", "16", "17", "18", "secf", "fig3", "fig4"]
    assert {"mhe." + each for each in numbers} == set(MHE)
    assert all(tables.describe(name) for name in TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_rows(name, all_tables):
    table = all_tables[name]
    for row in table.rows:
        for config in (row.full, row.small):
            assert config is None or from_tree(to_tree(config)) == config
        assert row.full is not None or row.small is None
        if row.start is not None:
            assert table.row(row.start).full is not None
        if row.small is not None:
            assert row.small.data.validation or row.small.model.is_generator  # which is not selected by a metric
            assert row.small.data.imbalance == row.full.data.imbalance
            assert (row.small.model.name, row.small.loss) == (row.full.model.name, row.full.loss)
            assert row.small.energy == row.full.energy
            assert row.small.steps < row.full.steps
    assert bool(table.reduced) == any(row.small for row in table.rows)
    if table.metric == "steps":
        assert table.target is not None


# as printed in the papers: corners and one inner value of each table
# fmt: off
REPORTED = {
    "spherenet.1": {"softmax/original": 90.58, "softmax/sigmoid-0.1": 90.97, "w-sigmoid-0.3/sigmoid-0.7": 91.47,
        "w-linear/original": 91.08, "w-cosine/linear": 91.24, "a-softmax/cosine": 91.94,
        "ga-softmax/sigmoid-0.3": 92.38, "ga-softmax/original": 91.8},
    "spherenet.2": {"cnn3/original": 81.19, "cnn45/cosine": 90.05, "cnn60/linear": 89.91,
        "resnet32/sigmoid-0.3": 91.7},
    "spherenet.3": {"original": 80.73, "cosine": 85.25, "sigmoid-0.1": 86.29},
    "spherenet.4": {"cifar10+/original": 93.26, "cifar10+/s-g": 95.01, "cifar100/s-sw": 76.02,
        "cifar100/c-cw": 74.92},
    "spherenet.sec4_3": {"learnable": 91.64, "sigmoid-0.3": 91.22},
    "mhe.1": {"cifar10/baseline": 7.75, "cifar10/half-space-s1": 6.54, "cifar100/mhe-s2": 27.15,
        "cifar100/half-space-s2": 25.61, "cifar100/angular-s0": 27.9, "cifar100/half-space-angular-s1": 26.52},
    "mhe.2": {"16-32-64/baseline": 47.72, "64-128-256/mhe": 26.75, "256-512-1024/half-space": 21.83},
    "mhe.3": {"cnn6/baseline": 32.08, "cnn15/baseline": None, "cnn15/half-space": 25.84},
    "mhe.4": {"baseline": 28.13, "mhe-output": 26.85, "half-space-hidden": 26.28, "angular-both": 26.17},
    "mhe.6": {"resnet18/orthogonal": 32.65, "resnet34/orthonormal": 29.75, "resnet34/half-space": 29.5},
    "mhe.7": {"single/orthonormal": 8.34, "single/half-space-angular": 7.59, "multiple/half-space": 9.59},
    "mhe.8": {"m1/sphereface": 96.35, "m2/sphereface+": 99.05, "m4/sphereface": 99.26},
    "mhe.9": {"m1/sphereface+": 97.47, "m3/sphereface": 99.25, "m4/sphereface+": 99.47},
    "mhe.10": {"softmax": 97.88, "triplet": 98.7, "l-softmax": 99.1, "sphereface+": 99.47},
    "mhe.13": {"cifar10/mhe-s2": 5.71, "cifar10/orthonormal": 6.13, "cifar100/angular-s0": 26.7},
    "mhe.14": {"weight-clipping": 6.41, "spectral-norm": 7.42, "mhe+spectral-norm": 7.59},
    "mhe.16": {"single/baseline": 31.43, "multiple/half-space": 36.52},
    "mhe.17": {"m1/sphereface": 42.46, "m2/sphereface+": 80.94},
    "mhe.18": {"imdb-face/sphereface": 99.53, "ms-celeb/sphereface+": 99.5},
    "mhe.secf": {"am-softmax": 99.26, "am-softmax-energy": 99.37},
    "mhe.fig4": {"baseline": 88.5, "mhe": 98.0},
    "opt.1": {"cnn6/unconstrained-learned": 48.47, "cnn9/gs-fixed": 31.03},
    "opt.2": {"ls/hs-mhe": 34.37, "cp/comhe": 33.27},
    "opt.2_energy": {"comhe": 3.4954},
    "opt.3": {"plain/ogd": 33.37, "norm/ls": 32.11},
    "opt.4": {"mean-2e-2": 53.89},
    "opt.4_energy": {"mean-1e-2": 3.516},
    "opt.5": {"hs-mhe": 36.9, "cp": 34.88},
    "opt.6": {"mlp-n/baseline": 6.05, "mlp-x/gs": 1.45, "cnn6/ogd": 33.33, "cnn9/srip": 32.72,
        "resnet32/cp": 29.31},
    "opt.7": {"hs-mhe": 43.92},
    "opt.8": {"baseline++opt": 66.82},
    "opt.9": {"cora/ogd": 82.3, "pubmed/baseline": 79.0, "pointnet/cp": 87.81},
    "opt.10": {"cnn6/s-opt": 33.7, "resnet18/hs-mhe": 32.5},
    "opt.11": {"p-16": 33.03},
    "opt.12": {"resnet18b/cls-opt": 12.05},
    "opt.13": {"1024/oracle": 96.4},
    "opt.19": {"ls/k8": 45.62, "plain/fixed-neurons": 73.81},
    "opt.20": {"ogd/k64": 54.93, "hr/k2": 35.65},
}
# fmt: on


@pytest.mark.parametrize("name", REPORTED)
def test_reported_values(name):
    assert {row: tables.load(name).row(row).reported for row in REPORTED[name]} == REPORTED[name]


def test_further_reported_values(all_tables):
    assert all_tables["mhe.7"].row("single/mhe").also == {"class0_error": 25.80}
    assert all_tables["mhe.9"].row("m1/sphereface").also == {"megaface": 41.07}


@pytest.mark.parametrize("name", SPHERENET)
def test_settings_of_spherenet(name, all_tables):
    for row in all_tables[name].rows:
        config, on_cifar = row.full, name != "spherenet.fig6"
        assert config.clip is None
        assert config.steps == (64_000 if on_cifar else 550_000)
        assert config.schedule.milestones == ((34_000, 54_000) if on_cifar else (200_000, 375_000))
        assert (config.optimizer.name, config.optimizer.lr) == (("adam", 1e-3) if on_cifar else ("sgd", 0.1))
        if config.energy is not None:
            assert (config.energy.measure, config.energy.hidden_weight) == ("orthonormal", 1e-4)
            assert config.model.similarity is not None
        if "batch-" not in row.name:
            assert config.data.batch_size == (128 if on_cifar else 40)
        if config.loss.name in ("a_softmax", "ga_softmax"):
            assert config.loss.margin == 4


def test_methods_of_spherenet(all_tables):
    rows = {row.name: row.full for row in all_tables["spherenet.fig5"].rows}
    norm, rescaled = rows["batch-8/sphere-norm"], rows["batch-8/sphere-norm-rescaled"]
    assert (norm.model.batch_norm, norm.model.similarity, norm.energy) == (False, "cosine", None)
    assert rescaled.model.scale is True
    assert rows["batch-8/batch-norm"].model.similarity is None
    assert rows["batch-8/sphere-norm-batch-norm"].model.batch_norm is not False
    assert all(config.loss.name == "softmax" and config.data.batch_size == 8 for config in (norm, rescaled))
    shallow = all_tables["spherenet.2"].row("cnn3/linear").full
    assert (shallow.loss.name, shallow.loss.similarity) == ("w_softmax", "cosine")
    assert all_tables["spherenet.2"].row("cnn3/original").full.loss.name == "softmax"
    assert all(row.full.model.relu is False for row in all_tables["spherenet.3"].rows)
    linear = all_tables["spherenet.4"].row("cifar100/s-g").full
    assert (linear.loss.name, linear.loss.similarity, linear.model.similarity) == (
        "ga_softmax",
        "linear",
        "sigmoid(0.3)",
    )
    v1, v2 = (all_tables["spherenet.fig6"].row(name).full for name in ("v1", "v2"))
    assert (v1.model.name, v1.loss.name) == ("resnet18.spherenet", "w_softmax")
    assert (v2.model.name, v2.loss.name) == ("resnet18v2.spherenet", "softmax")


def test_steps_of_the_discriminator(all_tables):
    steps = {
        row.name: row.full.gan.discriminator_steps for row in all_tables["mhe.14"].rows if row.full.gan is not None
    }
    assert {name for name, count in steps.items() if count != 1} == {"wgan-gp"}
    assert steps["wgan-gp"] == 5


def test_no_paper_limits_the_gradient_of_the_energy(all_tables):
    rows = [row for table in all_tables.values() for row in table.rows]
    terms = [config.energy for row in rows for config in (row.full, row.small) if config is not None and config.energy]
    assert len(terms) > 100
    assert not any(term.limit_gradient for term in terms)


@pytest.mark.parametrize("name", MHE)
def test_settings_of_mhe(name, all_tables):
    faces = all_tables[name].metric == "verification"
    for row in all_tables[name].rows:
        if row.full is None:
            continue
        config = row.full
        if name == "mhe.14":
            continue
        unclipped = name == "mhe.3" or (faces and row.name != "l-softmax")
        assert config.clip == (None if unclipped else 1.0)
        if faces:
            second = row.start is not None
            assert (config.steps, config.optimizer.lr) == ((8000, 0.01) if second else (28_000, 0.1))
            assert (config.data.batch_size, config.optimizer.weight_decay) == (512, 5e-4)
            assert second == row.name.endswith(("+", "-energy", "-longer"))
            assert (config.loss.name == "sphereface_plus") == row.name.endswith("+")
            continue
        large = name == "mhe.6"
        assert config.steps == (500_000 if large else 42_500)
        milestones = (150_000, 300_000, 400_000) if large else (20_000, 30_000, 37_500)
        assert config.schedule.milestones == milestones
        assert (config.optimizer.lr, config.optimizer.momentum, config.optimizer.weight_decay) == (0.1, 0.9, 1e-4)
        assert config.data.batch_size == (64 if large else 128)
        if config.energy is not None and config.energy.measure == "orthonormal":
            assert config.energy.hidden_weight == 1e-5


def test_methods_of_mhe(all_tables):
    kinds = {row.name.partition("/")[2]: row.full.energy for row in all_tables["mhe.1"].rows}
    assert kinds["baseline"] is None
    angular = kinds["half-space-angular-s1"]
    assert (angular.half_space, angular.angular, angular.s) == (True, True, 1.0)
    assert (kinds["mhe-s0"].half_space, kinds["mhe-s0"].angular, kinds["mhe-s0"].s) == (False, False, 0.0)
    parts = {row.name: row.full.energy for row in all_tables["mhe.4"].rows}
    assert (parts["mhe-output"].hidden_weight, parts["mhe-output"].output_weight) == (0, None)
    assert (parts["half-space-hidden"].hidden_weight, parts["half-space-hidden"].output_weight) == (None, 0)
    weights = {row.name: row.full.energy for row in all_tables["mhe.fig3"].rows if row.full.energy is not None}
    assert len(weights) == 15
    assert (weights["output-100"].hidden_weight, weights["output-100"].output_weight) == (0, 100)
    half = weights["half-space-hidden-0.01"]
    assert (half.half_space, half.hidden_weight, half.output_weight) == (True, 0.01, 0)
    digit = all_tables["mhe.fig4"].row("mhe").full
    assert (digit.model.name, digit.model.fc, digit.data.imbalance) == ("cnn6.mhe", 2, "mnist0")
    assert all(row.full.model.similarity == "cosine" for row in all_tables["mhe.13"].rows)
