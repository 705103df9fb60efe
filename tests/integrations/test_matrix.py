"""Every network of networks.py through every verb of cells.py.

The outcomes must be those of results/tested_models.json, of which docs/tested_models.md is made; --write-results writes
that file.
"""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from tools import tested_models

import hypersphere as hs

from . import truth
from .cells import CELLS, SPHERES
from .networks import NETWORKS, Network

ROOT = Path(__file__).parents[2]
VERBS = {verb: (check.__doc__ or "").partition("\n")[0] for verb, check in CELLS.items()}


def write_results(outcomes: dict[tuple[str, str], str]) -> bool:
    """Write the outcomes of a run, by network and verb; return False if some are missing."""
    if any((network.name, verb) not in outcomes for network in NETWORKS for verb in CELLS):
        return False
    rows = [_facts(network) | {"cells": {verb: outcomes[network.name, verb] for verb in CELLS}} for network in NETWORKS]
    tested_models.write(ROOT, VERBS, rows)
    return True


def _facts(network: Network) -> dict[str, object]:
    return {
        **{"library": network.library, "name": network.name},
        **{"heads": list(network.heads), "trap": network.trap},
    }


@pytest.mark.parametrize("verb", CELLS)
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_cell(
    network: Network,
    verb: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("cell", [network.name, verb])
    outcome = CELLS[verb](network, tmp_path)
    record_property("outcome", outcome)
    if not request.config.getoption("--write-results"):
        recorded = {row["name"]: row["cells"] for row in tested_models.read(ROOT)["networks"]}
        assert recorded[network.name][verb] == outcome, "run `make integrations WRITE=1`"


def test_the_table_is_of_these_networks_and_versions(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--write-results"):
        pytest.skip("the table is being written")
    told = tested_models.read(ROOT)
    assert told["verbs"] == VERBS
    assert [{key: row[key] for key in row if key != "cells"} for row in told["networks"]] == list(map(_facts, NETWORKS))
    assert told["versions"] == tested_models.versions()


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_without_example_inputs_it_is_right_or_said(network: Network) -> None:
    """Static rules cannot see everything; then a warning names the argument that can."""
    model = network.build()
    layers = truth.layers(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        heads = {name for name, neurons in hs.select(model).items() if neurons.is_output}
        left_plain = truth.matching(layers, network.only_read) | truth.matching(layers, network.plain)
        if set(layers) != left_plain | set(network.heads):
            hs.spherize(model)
    said = " ".join(str(warning.message) for warning in caught)
    converted = {name for name, module in model.named_modules() if isinstance(module, SPHERES)}
    right = heads == set(network.heads) and converted == set(layers) - left_plain - set(network.heads)
    assert right or "example_inputs" in said, f"heads {heads}, converted {converted}, said {said!r}"
