"""Files of one run in the folder of another are refused, in one line that names the file."""

import json
import shutil

import pytest

from hypersphere.cli import main
from hypersphere.train.inference.run import load_run
from tests.runs import at_line, derive, lines, quiet, same_run, stopped, tiny


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two finished runs of one config, and one of them until it was stopped."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("one", "two"):
        quiet(tiny(out=str(folder / name)))
        assert main(["landscape", str(folder / name), "--size", "3", "--split", "test"]) == 0
    stopped(tiny(out=str(folder / "stopped")), at_line(9))
    return folder


@pytest.fixture
def copies(runs, tmp_path):
    shutil.copytree(runs, tmp_path / "runs")
    return tmp_path / "runs"


def swap(copies, name, target="one"):
    """Put a file or folder of the run two into another."""
    place = copies / target / name
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    (shutil.copytree if (copies / "two" / name).is_dir() else shutil.copy)(copies / "two" / name, place)


def ids(run):
    state = json.loads(next((run / "checkpoints").glob("*/state.json")).read_text())["state"]
    landscape = next((run / "landscape").glob("*.json"))
    trees = [json.loads(file.read_text()) for file in (run / "config.json", run / "result.json", landscape)]
    trees += [state, json.loads((run / "final" / "model.json").read_text())]
    trees += [json.loads((run / "metrics.jsonl").read_text().splitlines()[0])]
    return {tree["run_id"] for tree in trees}


def test_every_file_has_the_id_of_its_run(runs):
    (one,), (two,) = ids(runs / "one"), ids(runs / "two")
    assert len(one) == 32
    assert one != two
    same_run(runs / "one", runs / "two")


def verified(capsys, run):
    code = main(["verify", str(run)])
    return code, [line for line in capsys.readouterr().out.splitlines() if not line.startswith("ok")]


@pytest.mark.parametrize("name", ["final", "result.json", "config.json"])
def test_load_run_takes_no_file_of_another_run(copies, name, capsys):
    swap(copies, name)
    with pytest.raises(ValueError, match=r"belongs to another run: it has id '\w{32}', config.json has id") as error:
        load_run(copies / "one")
    assert "\n" not in str(error.value)
    code, said = verified(capsys, copies / "one")
    assert code == 1
    assert any("belongs to another run" in line for line in said)


def test_a_checkpoint_of_another_run_is_not_resumed(copies, capsys):
    swap(copies, "checkpoints", "stopped")
    config = tiny(out=str(copies / "stopped"), resume=True)
    with pytest.raises(ValueError, match=r"checkpoints/12 belongs to another run"):
        quiet(config)
    with pytest.raises(ValueError, match=r"checkpoints/12 belongs to another run"):
        load_run(copies / "stopped" / "checkpoints" / "12")
    code, said = verified(capsys, copies / "stopped")
    assert code == 1
    assert [line.split(": ")[1].startswith("belongs to another run") for line in said[:1]] == [True]
    assert main(["verify", str(copies / "stopped" / "checkpoints" / "12")]) == 1


def test_metrics_of_another_run_are_not_continued(copies, capsys):
    swap(copies, "metrics.jsonl", "stopped")
    before = (copies / "two" / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"metrics.jsonl belongs to another run"):
        quiet(tiny(out=str(copies / "stopped"), resume=True))
    assert (copies / "stopped" / "metrics.jsonl").read_bytes() == before
    assert main(["report", str(copies / "stopped")]) == 2
    assert "metrics.jsonl belongs to another run" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["landscape", "predictions"])
def test_a_landscape_or_predictions_of_another_run(copies, capsys, part):
    swap(copies, part)
    code, said = verified(capsys, copies / "one")
    assert (code, len(said)) == (1, 1)
    assert "belongs to another run" in said[0]


def test_a_resumed_and_an_extended_run_keep_their_id(runs, copies):
    before = lines(copies / "stopped")
    id_ = json.loads((copies / "stopped" / "config.json").read_text())["run_id"]
    quiet(tiny(out=str(copies / "stopped"), resume=True))
    same_run(copies / "stopped", runs / "one")
    assert len(lines(copies / "stopped")) > len(before)
    assert main(["verify", str(copies / "stopped")]) == 0
    quiet(derive(tiny(out=str(copies / "stopped"), resume=True), steps=14))
    assert json.loads((copies / "stopped" / "result.json").read_text())["run_id"] == id_
    assert load_run(copies / "stopped").step == 14


def test_the_config_of_a_run_starts_a_new_one(copies, tmp_path, capsys):
    assert (
        main(["train", "--config", str(copies / "one" / "config.json"), "--out", str(tmp_path / "new"), "--quiet"]) == 0
    )
    assert json.loads((tmp_path / "new" / "config.json").read_text())["run_id"] not in ids(copies / "one")
    quiet(tiny(out=str(tmp_path / "after"), init_from=str(copies / "one")))
