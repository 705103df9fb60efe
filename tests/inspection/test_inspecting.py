"""`hypersphere inspect`: formats, layers, measurements, verdicts and comparisons. Hostile files: test_hostile."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.linalg import orthogonal_procrustes
from torch import nn

import hypersphere as hs
from hypersphere.cli import main
from hypersphere.inspection import compare, inspect, measuring, pairs
from hypersphere.train import recipes


@pytest.fixture
def file(tmp_path):
    """Write tensors as safetensors and return the path."""

    def write(name="model.safetensors", **tensors):
        save_file(
            {
                key.replace("__", "."): value.clone(memory_format=torch.contiguous_format)
                for key, value in tensors.items()
            },
            tmp_path / name,
        )
        return tmp_path / name

    return write


def by_name(path):
    found = inspect(path)
    return {layer.name: layer for layer in [*found, *found.others]}


# ------------------------------------------------------------------------------------------------ measurements


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((12, 3, 5, 5), torch.float32),
        ((9, 30), torch.bfloat16),
        ((300, 301), torch.float32),  # several blocks; singular values near zero
        ((350, 900), torch.float32),  # the largest singular value by Lanczos' method
        ((700, 400), torch.float64),
    ],
)
@pytest.mark.parametrize("close", [False, True], ids=["apart", "close"])
def test_measurements_of_a_layer(file, shape, dtype, close):
    """Each beside its definition. A close pair makes float32 too coarse, so that all is computed in float64."""
    weight = torch.randn(shape) + 0.3
    if close:
        weight[3] = weight[7] + 0.05 * torch.randn(shape[1:])
    weight = weight.to(dtype)
    (layer,) = inspect(file(net__weight=weight))
    rows = weight.flatten(1).double()
    points = rows / rows.norm(dim=1, keepdim=True)
    n, d = rows.shape
    rel = 1e-12 if dtype is torch.float64 or close else 2e-6
    assert (layer.name, layer.neurons, layer.dimension, layer.shape) == ("net", n, d, shape)
    assert layer.energy == pytest.approx(float(hs.hyperspherical_energy(rows)), rel=rel)
    assert layer.half_energy == pytest.approx(float(hs.hyperspherical_energy(rows, half_space=True)), rel=rel)
    assert layer.excess == pytest.approx(hs.geometry.excess_energy(rows), rel=max(rel, 1e-9))
    i, j, angle = hs.geometry.points.closest_pair(rows)
    assert (layer.closest, layer.separation) == ((i, j), pytest.approx(angle, rel=max(rel, 1e-9)))
    angles = np.arccos((points @ points.T).numpy()[np.triu_indices(n, 1)])
    assert layer.mean_angle == pytest.approx(angles.mean(), rel=rel)
    gram = rows @ rows.T - torch.eye(n, dtype=torch.float64)
    assert layer.orthonormality == pytest.approx(float(gram.square().sum()), rel=rel)
    largest = float(torch.linalg.matrix_norm(rows, 2))
    assert layer.largest_singular == pytest.approx(largest, rel=rel)
    shares = torch.linalg.svdvals(points)
    shares /= shares.sum()
    rank = float(torch.special.entr(shares).sum().exp())
    assert layer.effective_rank == pytest.approx(rank, rel=max(rel, 1e-9))
    lengths, rel = rows.norm(dim=1), 1e-12 if dtype is torch.float64 else 1e-6
    assert (layer.shortest, layer.longest) == pytest.approx((float(lengths.min()), float(lengths.max())), rel=rel)
    assert layer.norm_spread == pytest.approx(float(lengths.std(correction=0) / lengths.mean()), rel=max(rel, 1e-6))


def test_the_pair_that_is_closest_by_less_than_float32_has_digits(file):
    """All pairs are 60° apart but one, by 1e-7 less."""
    simplex = torch.linalg.cholesky(torch.full((40, 40), 0.5, dtype=torch.float64) + 0.5 * torch.eye(40))
    weight = simplex.float()
    weight[30] += 1e-7 * weight[11]
    (layer,) = inspect(file(fc__weight=weight))
    i, j, angle = hs.geometry.points.closest_pair(weight)
    assert (layer.closest, layer.separation) == ((i, j), pytest.approx(angle, rel=1e-12))


def test_few_dimensions_count_as_few(file):
    """Singular values that are zero are not in float32: 280 of them would add 18 to this rank."""
    weight = torch.randn(300, 20) @ torch.randn(20, 400)
    (layer,) = inspect(file(fc__weight=weight))
    shares = torch.linalg.svdvals(torch.nn.functional.normalize(weight.double(), dim=1))
    shares = shares / shares.sum()
    assert layer.effective_rank == pytest.approx(float(torch.special.entr(shares).sum().exp()), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_eigenvalue(dtype):
    """Of matrices with and without a gap below it, of rank one, and of zeros."""
    rows = torch.randn(400, 500, dtype=torch.float64)
    flat = torch.ones(400, 400), torch.eye(400), torch.zeros(400, 400)
    for matrix in (rows @ rows.T, (rows + 1) @ (rows + 1).T, *flat):
        expected = float(torch.linalg.eigvalsh(matrix.double())[-1])
        found = pairs.largest_eigenvalue(matrix.to(dtype))
        assert found == pytest.approx(expected, rel=1e-6 if dtype is torch.float32 else 1e-12, abs=1e-12)


@pytest.mark.parametrize(("n", "d"), [(40, 30), (40, 600), (400, 30)], ids=["narrow", "wide", "many"])
def test_planted_neurons_are_found_exactly(file, n, d):
    weight = torch.randn(n, d)
    weight[17] = 3 * weight[5]  # the same direction
    weight[23] = weight[5] + 1e-3 * torch.randn(d)
    weight[30] = -0.5 * weight[11]
    weight[[2, 33]] = 0.0
    (layer,) = inspect(file(fc__weight=weight))
    assert set(layer.duplicates) == {(5, 17), (5, 23), (17, 23)}
    assert layer.duplicates[0] == layer.closest == (5, 17)
    assert layer.separation < 1e-7
    assert (layer.duplicate_pairs, layer.redundant) == (3, (17, 23))
    assert (layer.opposites, layer.opposite_pairs) == (((11, 30),), 1)
    assert (layer.dead, layer.broken) == ((2, 33), ())
    assert layer.verdict.grade == "wasteful"
    assert [finding.name for finding in layer.verdict.findings][:3] == ["dead", "duplicates", "opposites"]
    assert str(layer.verdict).startswith(
        f"2 of {n} neurons are zero; 2 of {n} neurons are near-duplicates of another; 1 pair opposite"
    )
    exact = torch.cat([weight[:17], weight[18:]])[[i for i in range(n - 1) if i not in (2, 32)]]
    assert float(hs.hyperspherical_energy(exact)) < layer.energy  # duplicates count


def test_near_duplicates_of_wide_layers_keep_their_digits(file):
    """The distance of two neurons 1e-5 apart has half of its digits left in a Gram matrix."""
    weight = torch.randn(12, 200, dtype=torch.float64)
    weight[7] = weight[2] + 1e-5 * torch.randn(200, dtype=torch.float64)
    (layer,) = inspect(file(fc__weight=weight))
    assert layer.closest == (2, 7)
    assert layer.energy == pytest.approx(float(hs.hyperspherical_energy(weight)), rel=1e-8)


def test_nan_and_infinity_are_named_and_the_rest_measured(file):
    weight = torch.randn(12, 20)
    weight[3, 4], weight[7, 0] = math.nan, -math.inf
    (layer,) = inspect(file(fc__weight=weight))
    rest = weight[[i for i in range(12) if i not in (3, 7)]]
    assert (layer.broken, layer.dead, layer.verdict.grade) == ((3, 7), (), "broken")
    assert layer.energy == pytest.approx(float(hs.hyperspherical_energy(rest)), rel=1e-6)
    (layer,) = inspect(file(fc__weight=torch.full((4, 6), math.nan)))
    assert (layer.broken, layer.separation, layer.longest) == ((0, 1, 2, 3), None, None)


@pytest.mark.parametrize("size", [1e-100, 1e300])
def test_lengths_outside_of_the_range_of_squares(file, size):
    weight = torch.randn(6, 5, dtype=torch.float64)
    (layer,) = inspect(file(fc__weight=size * weight))
    assert layer.energy == pytest.approx(float(hs.hyperspherical_energy(weight)))
    assert layer.largest_singular == pytest.approx(size * float(torch.linalg.matrix_norm(weight, 2)))
    assert layer.longest == pytest.approx(size * float(weight.norm(dim=1).max()))


def test_a_large_vocabulary_is_sampled_and_marked(file, monkeypatch):
    monkeypatch.setattr(measuring, "SAMPLED", size := 200)
    weight = torch.randn(size + 500, 4)
    weight[123] = 0.0
    path = file(embed__weight=weight)
    (layer,) = inspect(path).others
    index = measuring.sample(len(weight))
    assert (layer.kind, layer.neurons, layer.sampled, len(index)) == ("embedding", size + 500, size, size)
    assert layer.dead == (123,)
    chosen = weight[index[index != 123]]
    assert layer.energy == pytest.approx(float(hs.hyperspherical_energy(chosen.double())), rel=1e-6)
    i, j = layer.closest
    angle = float(torch.nn.functional.cosine_similarity(weight[i].double(), weight[j].double(), dim=0).acos())
    assert layer.separation == pytest.approx(angle, rel=1e-3)
    assert "~" in str(inspect(path))
    assert inspect(path).others == (layer,)
    fused = torch.randn(3 * size + 90, size + 30)  # three groups, each sampled
    layer = by_name(file(a__in_proj_weight=fused))["a"]
    index = measuring.sample(size + 30)
    energies = [float(hs.hyperspherical_energy(part[index].double())) for part in fused.chunk(3)]
    assert (layer.groups, layer.neurons, layer.sampled) == (3, size + 30, size)
    assert layer.energy == pytest.approx(sum(energies) / 3, rel=1e-6)
    u, v = fused[list(layer.closest)].double()
    angle = float(torch.nn.functional.cosine_similarity(u, v, dim=0).acos())
    assert layer.separation == pytest.approx(angle, rel=1e-3)


# ------------------------------------------------------------------------------------------------ formats


def small_model():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 10))


def rows_of(path):
    """The rows of a file without what the format changes."""
    return [asdict(row) | {"tensor": None} for row in inspect(path)]


def test_every_format_gives_the_same_rows(tmp_path):
    model = small_model()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    save_file(state, tmp_path / "plain.safetensors")
    wanted = rows_of(tmp_path / "plain.safetensors")
    assert [row["name"] for row in wanted] == ["0", "3"]

    shards = tmp_path / "shards"
    shards.mkdir()
    parts = {"a-1.safetensors": ["0.weight"], "a-2.safetensors": ["3.weight", "3.bias"]}
    for name, keys in parts.items():
        save_file({key: state[key] for key in keys}, shards / name)
    assert rows_of(shards) == wanted
    index = {"weight_map": {key: name for name, keys in parts.items() for key in keys}}
    (shards / "a.safetensors.index.json").write_text(json.dumps(index))
    (shards / "other.safetensors").write_bytes(b"not of the index")
    assert rows_of(shards) == wanted

    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 3, 4, 4)).sum().backward()
    optimizer.step()
    torch.save(state, tmp_path / "plain.pt")
    torch.save({"state_dict": state, "optimizer": optimizer.state_dict(), "epoch": 3}, tmp_path / "checkpoint.pth")
    torch.save(state, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    for name in ("plain.pt", "checkpoint.pth", "old.bin"):
        assert rows_of(tmp_path / name) == wanted


@pytest.mark.parametrize("external", [False, True])
def test_onnx_weights_lie_as_the_graph_says(tmp_path, external):
    onnx = pytest.importorskip("onnx")
    conv, gemm, plain = torch.randn(6, 2, 3, 3), torch.randn(5, 7), torch.randn(4, 5)
    arrays = {"conv": conv, "gemm": gemm, "plain": plain.T, "half": torch.randn(3, 4, dtype=torch.float16)}
    arrays |= {"grouped": conv[:, :1], "back": torch.randn(4, 3, 2)}
    nodes = [
        onnx.helper.make_node("Conv", ["x", "conv"], ["a"]),
        onnx.helper.make_node("Gemm", ["b", "gemm"], ["c"], transB=1),
        onnx.helper.make_node("MatMul", ["c", "plain"], ["d"]),
        onnx.helper.make_node("Conv", ["e", "grouped"], ["f"], group=2),
        onnx.helper.make_node("ConvTranspose", ["f", "back"], ["g"], group=2),
    ]
    initializers = [onnx.numpy_helper.from_array(value.numpy().copy(), name) for name, value in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "g", [], [], initializers)
    options = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0} if external else {}
    onnx.save_model(onnx.helper.make_model(graph), tmp_path / "net.onnx", **options)
    found = by_name(tmp_path / "net.onnx")
    for name, weight in {"conv": conv, "gemm": gemm, "plain": plain, "half": arrays["half"]}.items():
        expected = hs.hyperspherical_energy(weight.double())
        assert found[name].energy == pytest.approx(float(expected), rel=1e-6), name
    sizes = {name: (layer.groups, layer.neurons, layer.dimension) for name, layer in found.items()}
    assert (sizes["plain"], sizes["grouped"], sizes["back"]) == ((1, 4, 5), (2, 3, 9), (2, 3, 4))
    assert [layer.name for layer in inspect(tmp_path / "net.onnx").others] == ["half"]  # no node uses it


def test_a_run_folder_and_its_checkpoints(tmp_path):
    """The final weights are merged, those of a checkpoint are merged when read."""
    config = hs.train.derive(
        recipes.load("opt"), steps=2, epochs=None, checkpoint_every=2, out=str(tmp_path / "run"), eval_every=2
    )
    hs.train.fit(config, progress=False)
    final = inspect(tmp_path / "run")
    saved = inspect(tmp_path / "run" / "checkpoints" / "2")
    assert (final.format, saved.format) == ("run folder", "checkpoint of a run")
    energies = {layer.name: layer.energy for layer in saved}
    assert energies == pytest.approx({layer.name: layer.energy for layer in final}, rel=1e-5)
    for layer in (*final, *saved):
        assert not layer.assumed, layer.name
    change = compare(tmp_path / "run" / "checkpoints" / "2", tmp_path / "run")
    assert max(row.changed for row in change) < 1e-5
    for part in (tmp_path / "run" / "final").iterdir():
        part.unlink()
    assert len(inspect(tmp_path / "run")) == len(final)
    (tmp_path / "run" / "config.json").unlink()
    assert [layer.name for layer in inspect(tmp_path / "run") if layer.assumed]  # convolutions


# ------------------------------------------------------------------------------------------------ which tensors


def test_a_model_in_memory_is_diagnosed():
    model = nn.Linear(3, 4)
    assert str(hs.inspect(model)) == str(hs.diagnose(model))
    assert str(hs.inspect(model.state_dict())) == str(hs.diagnose(model.state_dict()))
    with pytest.raises(ValueError, match="need embeddings, got a model"):
        inspect(model, labels=[0, 1])


def test_what_is_a_layer(file):
    path = file(
        bn__weight=torch.randn(8),
        conv__weight=torch.randn(8, 4, 3, 3),
        fc__weight=torch.randn(8, 4),
        fc__bias=torch.randn(1, 8),
        fc__lora_A__weight=torch.randn(2, 4),
        relative_position_bias_table=torch.randn(9, 4),
        embeddings__word_embeddings__weight=torch.randn(20, 4),
        pos_embed=torch.randn(1, 9, 4),
        cls_token=torch.randn(1, 1, 4),
        ids=torch.ones(4, 4, dtype=torch.int64),
        column__weight=torch.randn(5, 1),
        empty__weight=torch.randn(0, 4),
        one__weight=torch.randn(1, 4),
    )
    found = by_name(path)
    assert {name: (layer.kind, layer.neurons, layer.dimension) for name, layer in found.items()} == {
        "conv": ("convolution", 8, 36),
        "fc": ("linear", 8, 4),
        "fc.lora_A": ("linear", 2, 4),
        "column": ("linear", 5, 1),
        "embeddings.word_embeddings": ("embedding", 20, 4),
        "pos_embed": ("embedding", 9, 4),
        "one": ("linear", 1, 4),
    }
    assert found["one"].energy == 0
    skipped = inspect(path).skipped
    assert {*skipped} == {
        "cls_token",
        "fc.bias",
        "relative_position_bias_table",
        "ids",
        "empty.weight",
    }


# ------------------------------------------------------------------------------------------------ verdicts


def test_verdicts(file):
    spread = hs.geometry.minimize_energy(20, dim=6, s=2.0, starts=1)
    leaning = torch.randn(20, 50) + 1.5
    flat = torch.randn(40, 3) @ torch.randn(3, 40)
    lengths = torch.randn(40, 30) * torch.logspace(-2, 2, 40)[:, None]
    path = file(
        even__weight=spread,
        random__weight=torch.randn(200, 100),
        lean__weight=leaning,
        flat__weight=flat,
        uneven__weight=lengths,
    )
    found = {
        name: ([finding.name for finding in layer.verdict.findings], str(layer.verdict))
        for name, layer in by_name(path).items()
    }
    assert found["even"] == ([], "more even than random neurons")
    assert found["random"] == ([], "as even as random neurons")
    assert found["lean"][0] == ["one-sided"]
    assert "low rank" in found["flat"][0]
    assert found["uneven"][0] == ["uneven"]
    lines = inspect(path).verdict
    assert lines[0].startswith("5 layers: ")
    remedies = [line for line in lines if "hs.EnergyRegularizer(model)" in line]
    assert any(line.startswith("one-sided (lean)") for line in remedies)


# ------------------------------------------------------------------------------------------------ two files


@pytest.mark.parametrize(("n", "d"), [(30, 12), (12, 30), (5, 200)])
def test_share_of_a_rotation_is_the_procrustes_problem_s(file, n, d):
    before = torch.randn(n, d, dtype=torch.float64)
    after = before + 0.1 * torch.randn(n, d, dtype=torch.float64)
    (change,) = compare(file("a.safetensors", x__weight=before), file("b.safetensors", x__weight=after))
    rotation, _ = orthogonal_procrustes(before.numpy(), after.numpy())
    left = after - before @ torch.from_numpy(rotation)
    explained = 1 - float(left.square().sum() / (after - before).square().sum())
    assert change.rotation == pytest.approx(explained, abs=1e-9)
    assert change.rotation_by_chance == pytest.approx(explained, abs=0.1)
    assert change.changed == pytest.approx(float((after - before).norm() / before.norm()))
    cosines = torch.nn.functional.cosine_similarity(before, after).acos()
    assert change.mean_turn == pytest.approx(float(cosines.mean()))
    assert (change.most_turned, change.largest_turn) == (int(cosines.argmax()), pytest.approx(float(cosines.max())))
    assert not change.is_rotation


@pytest.mark.parametrize("n", [8, 60])
def test_a_rotated_network_is_recognized(file, n):
    before = torch.randn(n, 20, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(20, 20, dtype=torch.float64)).Q
    paths = file("a.safetensors", x__weight=before), file("b.safetensors", module__x__weight=before @ turn)
    (change,) = result = compare(*paths)
    assert change.rotation == pytest.approx(1, abs=1e-12)
    assert change.energy_after == pytest.approx(change.energy_before)
    assert change.is_rotation
    assert any("only rotated" in line for line in result.verdict)


def test_what_cannot_be_compared(file, tmp_path):
    same, nan = torch.randn(3, 4), torch.full((3, 4), math.nan)
    one = file("a.safetensors", same__weight=same, old__weight=same, size__weight=same, nan__weight=same)
    two = file("b.safetensors", same__weight=same, new__weight=same, size__weight=torch.randn(4, 4), nan__weight=nan)
    result = compare(one, two)
    assert [(row.name, row.changed, row.rotation) for row in result] == [("same", 0, None)]
    assert {*result.different} == {"old", "new", "size", "nan"}
    assert result.verdict[0] == "0 of 1 layers changed"
    with pytest.raises(ValueError, match="no layer of the same name and shape"):
        compare(one, file("c.safetensors", z__weight=same))


# ------------------------------------------------------------------------------------------------ command line


def test_command(file, capsys, tmp_path):
    one, two = file(fc__weight=torch.eye(4)), file("b.safetensors", fc__weight=torch.eye(4).flip(0))
    assert main(["inspect", str(one)]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("fc", "90.0°", "1 layer: 1 good"))
    page = tmp_path / "page.html"
    assert main(["inspect", str(one), "--json", "--html", str(page)]) == 0
    result = json.loads(capsys.readouterr().out)
    (layer,) = result["layers"]
    assert layer["energy"] == 0.5
    assert layer["verdict"]["grade"] == "good"
    assert layer["separation"] == pytest.approx(math.pi / 2)
    assert "<h1>Inspection of" in page.read_text()
    assert main(["inspect", str(one), str(two), "--html", str(page)]) == 0
    assert "100.0%" in capsys.readouterr().out
    assert "What changed" in page.read_text()
    assert "<td" in inspect(one)._repr_html_()
    assert main(["inspect", str(one), str(two), "--json"]) == 0
    (change,) = json.loads(capsys.readouterr().out)["layers"]
    assert change["rotation"] == pytest.approx(1)


def test_user_errors_are_one_line(file, capsys, tmp_path):
    good = str(file(fc__weight=torch.eye(4)))
    only_biases = str(file("b.safetensors", b=torch.ones(4)))
    (tmp_path / "empty").mkdir()
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "text.txt").write_text("hello world, no model")
    (tmp_path / "nothing").write_bytes(b"")
    for argv, words in {
        (str(tmp_path / "missing"),): "does not exist",
        (str(tmp_path / "empty"),): "has no model file",
        (str(tmp_path / "run"),): "run folder without weights",
        (str(tmp_path / "text.txt"),): "is not a model file",
        (str(tmp_path / "nothing"),): "it is empty",
        (only_biases,): "has no layer to inspect",
        (good, good, good): "one FILE or two, got 3",
        (good, "--html", str(tmp_path / "no" / "page.html")): "folder that exists",
        (good, "--html", str(tmp_path)): "must be a file",
        (): "required: FILE",
    }.items():
        assert main(["inspect", *argv]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert words in err
