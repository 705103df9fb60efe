"""The tables of OPT: the paper's figures, counts to the last number, settings, and validation data held out."""

import pytest

from hypersphere.recipes import papers

TABLES = [name for name in papers.TABLES if name.startswith("opt.")]


def row(table, name):
    return papers.load(table).row(name)


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_made(name):
    table = papers.load(name)
    assert papers.describe(name)
    assert table.title
    assert table.rows
    for each in table.rows:
        assert each.compute is not None or each.full is not None
        if each.small is not None:
            assert table.reduced
            kept = each.small.data.validation is not None
            assert kept or each.small.data.name in ("cora", "pubmed")  # graphs have a validation split
            assert each.seeds >= 1


EXACT = {  # table: row → count, as REPRODUCTION states them
    "opt.10_parameters": {
        "cnn6/baseline": 257_984,
        "cnn6/opt": 1_358_527,
        "cnn6/s-opt": 90_871,
        "wide-cnn9/baseline": 2_992_832,
        "wide-cnn9/opt": 16_204_351,
        "wide-cnn9/s-opt": 1_035_799,
        "resnet18/baseline": 11_678_912,
        "resnet18/opt": 46_501_227,
        "resnet18/s-opt": 3_393_483,
    },
    "opt.11_parameters": {
        "p-d": 16_204_351,
        "p-d-4": 1_035_799,
        "p-d-8": 277_979,
        "p-d-16": 88_741,
        "p-16": 27_031,
        "p-3": 25_978,
        "p-0": 25_600,
    },
    "opt.12_parameters": {
        "resnet18a/oracle": 128_000,
        "resnet18a/cls-opt": 8_128,
        "resnet18b/oracle": 512_000,
        "resnet18b/cls-opt": 130_816,
    },
    "opt.13_parameters": {
        "512/oracle": 5_412_864,
        "512/cls-opt": 130_816,
        "1024/oracle": 10_825_728,
        "1024/cls-opt": 523_776,
    },
    "opt.19_parameters": {f"k{k}": (576 // k) ** 2 for k in (1, 2, 4, 8, 16, 32, 64)},
    "opt.20_parameters": {f"k{k}": 576**2 // k for k in (1, 2, 4, 8, 16, 32, 64)},
}


@pytest.mark.filterwarnings("ignore:layer .* takes:UserWarning")
@pytest.mark.parametrize("name", EXACT)
def test_counts_are_exact_and_round_to_the_printed_ones(name):
    table = papers.load(name)
    assert {each.name for each in table.rows} == set(EXACT[name])
    for each in table.rows:
        count = each.compute(0)["parameters"]
        assert count == EXACT[name][each.name]
        if each.name != "resnet18a/oracle":  # the paper prints half of it
            assert each.paper == pytest.approx(count, rel=0.005, abs=50)


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
