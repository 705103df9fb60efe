"""`hypersphere inspect` of embeddings: each question beside its definition, files, labels and bad input."""

import json
import math
import mmap
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

import hypersphere as hs
from hypersphere.cli import main
from hypersphere.inspection import embeddings
from hypersphere.inspection.embeddings import duplicates, hubs, spread, vectors
from hypersphere.inspection.embeddings.reading import open_embeddings, read_labels
from hypersphere.inspection.embeddings.vectors import Vectors
from hypersphere.inspection.page import make_page


def unit(x):
    return x / x.norm(dim=1, keepdim=True)


def clustered(n=300, d=24):
    """Rows with a mean, unequal dimensions, three equal to row 5 and two near row 9."""
    x = unit(torch.randn(n, d) * torch.linspace(2, 0.2, d) + 0.3)
    x[[40, 41, 200]] = x[5].clone()
    x[[50, 60]] = unit(x[9] + 0.004 * torch.randn(2, d))
    return x


def brute_groups(x):
    """Connected components of the pairs with a cosine above 0.995."""
    near = unit(x.double()) @ unit(x.double()).T > 0.995
    groups, seen = set(), set()
    for i in range(len(x)):
        if i in seen:
            continue
        group, new = {i}, [i]
        while new:
            others = set(near[new.pop()].nonzero().flatten().tolist()) - group
            group |= others
            new += others
        seen |= group
        if len(group) > 1:
            groups.add(frozenset(group))
    return groups


@pytest.mark.parametrize("d", [3, 24], ids=["chains", "pairs"])
@pytest.mark.parametrize("is_exact", [True, False], ids=["all pairs", "buckets"])
def test_duplicates_are_those_of_brute_force(monkeypatch, d, is_exact):
    """In three dimensions groups are chains of many rows."""
    x = clustered(1500, d)
    monkeypatch.setattr(duplicates, "EXACT_UP_TO", 20_000 if is_exact else 0)
    vectors = Vectors(x)
    seen = spread.measure_spectrum(vectors)
    details = duplicates.find_duplicates(vectors, seen.directions, seen.mean, None).details
    assert {frozenset(group) for group in details["groups"]} == brute_groups(x)
    assert details["exact_groups"] == [[5, 40, 41, 200]]


def test_hubs_are_those_of_brute_force():
    x = clustered()
    answer = hs.inspect(x)["hubs"]
    cosines = unit(x.double()) @ unit(x.double()).T
    cosines.fill_diagonal_(-2)
    counts = torch.bincount(cosines.topk(10).indices.flatten(), minlength=len(x)).double()
    skewness = ((counts - counts.mean()) ** 3).mean() / counts.var(correction=0) ** 1.5
    assert answer.details["skewness"] == pytest.approx(float(skewness), rel=0.02)  # ties between twins
    assert answer.details["largest"] == pytest.approx(int(counts.max()), abs=1)
    assert answer.details["never_retrieved"] == pytest.approx(float((counts == 0).double().mean()), abs=0.01)


def test_neighbors_come_from_all_parts_of_the_database(monkeypatch):
    monkeypatch.setattr(hubs, "CHUNK", 70)
    x = torch.randn(300, 8)
    found = hubs.find_neighbors(Vectors(x), 50)
    expected = hs.openset.nearest(x, k=10)
    assert torch.equal(found.indices, expected.indices[found.queries])
    distances = (unit(x)[found.queries].unsqueeze(1) - unit(x)[found.indices]).norm(dim=2)
    torch.testing.assert_close(found.distances.float(), distances)


@pytest.mark.slow
def test_two_nn_knows_the_dimension_and_bears_twins():
    x = torch.zeros(2000, 20)
    x[:, :4] = torch.randn(2000, 4)  # the sphere in four dimensions has three
    repeated = torch.cat([x, x[:1500]])  # equal rows count once
    assert hs.inspect(repeated)["collapsed"].details["two_nn"] == pytest.approx(3, rel=0.15)
    twins = torch.cat([x, x * 2, x + 1e-7 * torch.randn(2000, 20)])
    assert 0 < hs.inspect(twins)["collapsed"].details["two_nn"] < 10
    assert spread.two_nn(torch.zeros(100, 5)) is None


def test_moments_are_those_of_the_definition():
    x = unit(torch.randn(500, 10) + 2)
    details = hs.inspect(x)["collapsed"].details
    cosines = (x.double() @ x.double().T)[~torch.eye(500, dtype=torch.bool)]
    assert details["mean_cosine"] == pytest.approx(float(cosines.mean()), rel=1e-5)
    assert details["mean_length"] == pytest.approx(float(x.mean(0).norm()), rel=1e-5)
    values = torch.linalg.svdvals((x - x.mean(0)).double())
    shares = values / values.sum()
    assert details["effective_rank"] == pytest.approx(float(torch.special.entr(shares).sum().exp()), rel=1e-4)
    assert details["first_share"] == pytest.approx(float(values[0] ** 2 / values.square().sum()), rel=1e-4)


@pytest.mark.slow
def test_uniform_points_are_fine_and_a_cone_is_not():
    x = torch.randn(1000, 32)
    result = hs.inspect(x)
    assert [row.question for row in result if not row.is_fine] == []
    assert result["uneven"].details["excess"] == pytest.approx(0, abs=0.02)
    assert result["hubs"].details["skewness"] == pytest.approx(result["hubs"].details["uniform_skewness"], abs=0.3)
    cone = hs.inspect(x + 1)
    assert "subtract the mean" in cone["collapsed"].verdict
    assert "clustered" in cone["uneven"].verdict


def test_broken_rows_are_named_and_left_out():
    x = clustered()
    x[3, 2], x[100, 0], x[77] = math.nan, math.inf, 0.0
    x[:, 4] = 0.25
    x[77, 4] = 0.0
    whole = hs.inspect(x)
    broken = whole["broken"]
    assert (broken.details["nan_rows"], broken.details["zero_rows"]) == ([3, 100], [77])
    assert broken.indices == (3, 77, 100)
    assert {5, 40, 41, 200} in map(set, whole["duplicates"].details["groups"])
    json.dumps(whole.to_dict(), allow_nan=False)
    kept = torch.ones(len(x), dtype=torch.bool)
    kept[list(broken.indices)] = False
    assert hs.inspect(x[kept])["uneven"].figure == whole["uneven"].figure
    assert [row.question for row in hs.inspect(x * math.nan)] == ["broken?"]
    assert hs.inspect(torch.cat([x[kept], torch.full((1, 24), 0.25)]))["broken"].details["constant_dimensions"] == [4]


def test_recall_of_a_cut_that_loses_nothing():
    x = torch.cat([torch.randn(400, 8), torch.zeros(400, 24)], 1)
    turned = x @ torch.linalg.qr(torch.randn(32, 32))[0]
    details = hs.inspect(x)["may I cut"].details["recall"]
    assert details["first"][8] == 1.0
    answer = hs.inspect(turned)["may I cut"]
    assert answer.details["recall"]["principal"][8] > 0.99 > answer.details["recall"]["first"][8]
    assert answer.verdict == "yes, to 8 principal components (hs.quantize.truncate)"
    of_8 = {how: of[8] for how, of in answer.details["recall"].items()}
    assert answer.figure == f"recall@10 of 8: first {of_8['first']:.3f}, principal {of_8['principal']:.3f}"
    assert answer.uniform == f"{answer.details['uniform_recall'][8]:.3f}"


def test_rotation_helps_where_dimensions_are_unequal_and_more_bits_recall_more():
    x = torch.randn(1000, 16) * torch.logspace(0, -1.5, 16)
    result = hs.inspect(x)
    recall = result["may I quantize"].details["recall"]
    assert recall["1 bit"]["fit_rotation"] > recall["1 bit"]["as is"] + 0.05
    for how in recall["1 bit"]:
        assert recall["1 bit"][how] < recall["int4"][how] < recall["int8"][how]
    assert result.transform.name == "fit_rotation"
    signs = result.transform(x) > 0
    assert (signs.float().mean(0) - 0.5).abs().max() < 0.1  # centred


@pytest.mark.parametrize(("d", "unequal", "away"), [(8, 0.0, 0.0), (8, 1.0, 2.0), (16, 1.0, 0.5)])
def test_the_last_two_answers_agree_on_what_comes_before_codes(d, unequal, away):
    x = torch.randn(300, d) * torch.arange(1, d + 1) ** -unequal + away
    result = hs.inspect(x)
    quantize, helps = result["may I quantize"], result["what helps"]
    names = {"centred": "centring", "rotated at random": 'method="random")', "fit_rotation": "quantize.fit_rotation"}
    for code, how in quantize.details["best"].items():
        recall = quantize.details["recall"][code]
        others = [value for name, value in recall.items() if list(recall).index(name) < list(recall).index(how)]
        assert how in ("as is", "fit_rotation") or recall[how] > max(others) + 0.01
        assert f"{code} {recall[how]:.3f} {how}" in quantize.figure
        said = [part for part in helps.verdict.split("; ") if re.search(rf"before .*{code}", part)]
        assert [names[how] in part for part in said] == ([] if how == "as is" else [True])
    needs_map = set(quantize.details["best"].values()) != {"as is"}
    assert (result.transform is None) == (helps.verdict == "nothing that was tried")
    assert not needs_map or result.transform is not None


def test_labels_choose_the_map_and_the_file_applies_it(tmp_path, capsys):
    """The class is in a direction of little variance: whitening shows it."""
    labels = torch.arange(400) % 2
    x = torch.randn(400, 8) * torch.tensor([9.0, 9, 9, 9, 9, 9, 9, 0.1])
    x[:, 7] += 0.5 * (2 * labels - 1)
    np.save(tmp_path / "e.npy", x.numpy())
    lines = ["file,label", *(f"{i}.png,{'cat' if label else 'dog'}" for i, label in enumerate(labels.tolist()))]
    (tmp_path / "e.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    flags = ["--labels", str(tmp_path / "e.csv"), "--out", str(tmp_path / "map.safetensors"), "--json"]
    assert main(["inspect", str(tmp_path / "e.npy"), *flags]) == 0
    answers = {row["question"]: row for row in json.loads(capsys.readouterr().out)["questions"]}
    assert answers["what helps?"]["best"] == "whitening"
    tried = answers["what helps?"]["tried"]
    assert tried["whitening"]["same_label"] > tried["none"]["same_label"] + 0.1
    tensors = load_file(tmp_path / "map.safetensors")
    directions = unit(x).numpy()
    mapped = (directions - tensors["mean"]) @ tensors["matrix"].T
    np.testing.assert_allclose(np.cov(mapped.T), np.eye(8), atol=0.02)
    assert torch.equal(hs.inspect(x, labels=labels).transform.matrix, torch.from_numpy(tensors["matrix"]))
    assert main(["inspect", str(tmp_path / "e.npy"), *flags[:-1]]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"wrote {tmp_path / 'map.safetensors'}: whitening, 8 → 8 dimensions"


@pytest.mark.slow
def test_files_of_every_format_give_the_same(tmp_path):
    x = clustered()
    np.save(tmp_path / "e.npy", x.numpy().astype(">f4"))
    np.savez(tmp_path / "e.npz", e=x.numpy(), names=np.arange(3))
    save_file({"embeddings": x}, tmp_path / "e.safetensors")
    torch.save(x, tmp_path / "e.pt")
    expected = hs.inspect(x.numpy()).to_dict()["questions"]
    for name in ("e.npy", "e.npz", "e.safetensors", "e.pt"):
        result = hs.inspect(tmp_path / name)
        assert isinstance(result, embeddings.EmbeddingInspection)
        assert result.to_dict()["questions"] == expected, name
    save_file({"fc.weight": x}, tmp_path / "model.safetensors")
    assert isinstance(hs.inspect(tmp_path / "model.safetensors"), hs.inspection.Inspection)
    assert hs.inspect(tmp_path / "model.safetensors", embeddings=True).to_dict()["questions"] == expected
    with pytest.raises(ValueError, match="read as a model"):
        hs.inspect(tmp_path / "model.safetensors", labels=[0])


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="this system cannot let go of mapped pages")
@pytest.mark.parametrize("name", ["e.npy", "e.npz"])
def test_pages_of_a_mapped_file_do_not_stay_in_memory(tmp_path, name):
    """A sparse file of 64 MB, read in order and at random."""
    shape = (2**17, 128)
    array = np.lib.format.open_memmap(tmp_path / "e.npy", "w+", np.float32, shape)
    array[::1000] = 1
    if name == "e.npz":
        np.savez(tmp_path / "e.npz", e=array)
    del array
    data = open_embeddings(tmp_path / name)
    vectors, begin = Vectors(data), data.ctypes.data
    for _ in vectors.blocks():
        pass
    assert torch.equal(vectors.stored(np.arange(0, shape[0], 1000)), torch.ones(132, 128))
    resident, inside = 0, False  # kB
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(match[1], 16) <= begin < int(match[2], 16)
        elif inside and line.startswith("Rss:"):
            resident = int(line.split()[1])
    assert resident < 1000


def test_scattered_rows_of_a_mapped_file_are_read_in_pieces(tmp_path, monkeypatch):
    """Each maps a whole piece of the file: 4096 of them took a gigabyte."""
    np.save(tmp_path / "e.npy", np.random.default_rng(0).standard_normal((500, 4)))
    sizes = []
    monkeypatch.setattr(vectors, "from_floats", lambda part: sizes.append(len(part)) or torch.from_numpy(part.copy()))
    rows = np.random.default_rng(1).permutation(500)[:300]
    data = open_embeddings(tmp_path / "e.npy")
    assert torch.equal(Vectors(data).stored(rows), torch.from_numpy(data[rows]))
    assert sizes == [256, 44]
    assert Vectors(data).stored(rows[:0]).shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_types_and_scales(dtype, scale):
    result = hs.inspect((clustered() * scale).to(dtype))
    assert result["broken"].is_fine
    assert {5, 40, 41, 200} in map(set, result["duplicates"].details["groups"])


def test_eight_bits_of_floating_point():
    groups = hs.inspect(clustered().to(torch.float8_e4m3fn))["duplicates"].details["exact_groups"]
    assert groups == [[5, 40, 41, 200]]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 2), (5, 2), (11, 3), (40, 2), (60, 200)])
def test_few_rows_and_dimensions_work(shape):
    for x in (torch.randn(shape), torch.ones(shape), torch.eye(*shape) + 1):
        result = hs.inspect(x)
        assert len(result) == 8
        json.dumps(result.to_dict(), allow_nan=False)
        make_page(result).html()


def test_extreme_lengths_are_no_error():
    x = torch.randn(50, 6, dtype=torch.float64)
    lengths = torch.logspace(-300, 300, 50, dtype=torch.float64).unsqueeze(1)
    assert hs.inspect(x * lengths)["hubs"].details == hs.inspect(x)["hubs"].details


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (np.zeros((1, 8)), "at least 3 rows"),
        (np.zeros((8, 1)), "2 dimensions"),
        (np.zeros((4, 4, 4)), r"\(4, 4, 4\)"),
        (np.zeros((9, 8), np.uint8), "integer codes"),
        (np.zeros((3, 9000)), "8192"),
    ],
)
def test_bad_arrays_end_in_one_line(tmp_path, capsys, value, why):
    with pytest.raises(ValueError, match=why):
        hs.inspect(value)
    np.save(tmp_path / "bad.npy", value)
    assert main(["inspect", str(tmp_path / "bad.npy")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "bad.npy" in line


def test_bad_files_end_in_one_line(tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "two.npz", a=np.ones((5, 4)), b=np.ones((5, 4)))
    (tmp_path / "text.npy").write_text("no array")
    torch.save(torch.ones(1000, 8), tmp_path / "cut.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "cut.pt").read_bytes()[:20_000])
    (tmp_path / "empty.npz").write_bytes(b"")
    np.save(tmp_path / "cut.npy", np.ones((100, 8)))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:500])
    (tmp_path / "no.parquet").write_bytes(b"PAR1")
    reasons = {
        **{"objects.npy": "objects", "two.npz": "a, b", "text.npy": "not a .npy file", "empty.npz": "cannot be read"},
        **{"cut.npy": "ends too early", "cut.pt": "or damaged", "no.parquet": "cannot be read"},
        "missing.npy": "does not exist",
    }
    for name, why in reasons.items():
        with pytest.raises(ValueError, match=why) as error:
            hs.inspect(tmp_path / name)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("labels", [[0, 1], np.zeros(300), np.zeros((300, 1), int), ["a"] * 300])
def test_wrong_labels(labels):
    with pytest.raises(ValueError, match="labels must be 300 integers"):
        hs.inspect(clustered(), labels=labels)


def test_tables_of_labels_as_programs_write_them(tmp_path):
    (tmp_path / "e.csv").write_text("label, file\ndog, 1\ncat, 2\ndog, 3\n", encoding="utf-8-sig")
    assert read_labels(tmp_path / "e.csv", 3).tolist() == [1, 0, 1]
    (tmp_path / "e.csv").write_text("file, label\n1, dog\n2\n", encoding="utf-8")
    with pytest.raises(ValueError, match="row 2 has no label"):
        read_labels(tmp_path / "e.csv", 2)


def test_what_is_no_matrix_is_refused():
    with pytest.raises(TypeError, match="got list"):
        hs.inspect([[1.0, 2.0]] * 5)
    for tensor in (clustered().to_sparse(), torch.empty(9, 4, device="meta")):
        with pytest.raises(ValueError, match="must be dense and hold values"):
            hs.inspect(tensor)


def test_page_and_tables(tmp_path, capsys):
    np.save(tmp_path / "e.npy", clustered().numpy())
    assert main(["inspect", str(tmp_path / "e.npy"), "--html", str(tmp_path / "page.html")]) == 0
    out = capsys.readouterr().out
    assert "4 rows" not in out
    assert "duplicates?" in out
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert html.count("<figure") == 6
    labels = np.arange(300).clip(0, 12)
    page = make_page(hs.inspect(clustered(), labels=labels)).html()
    assert [name in page for name in ("label 12", "label 7", "label 8", "other labels")] == [True, True, False, True]
    result = hs.inspect(clustered())
    assert "<table>" in result._repr_html_()
    with pytest.raises(KeyError, match="the questions are"):
        result["nothing"]


def test_two_files_of_the_same_rows(tmp_path, capsys):
    """CKA and residual beside their definitions on whole matrices; a rotation keeps everything."""
    x = clustered()
    other = unit(torch.cat([x[:, :20] + 0.1 * torch.randn(300, 20), torch.randn(300, 3)], 1))
    result = hs.inspection.compare(x, other, embeddings=False)  # which is for files
    a, b = (rows.double() - rows.double().mean(0) for rows in (x, other))
    cka = (a.T @ b).norm() ** 2 / (a.T @ a).norm() / (b.T @ b).norm()
    assert result["alike"].details["linear_cka"] == pytest.approx(float(cka), rel=1e-5)
    b = torch.nn.functional.pad(b, (0, 1))  # so that the rotation is square
    left, scale, right = torch.linalg.svd(a.T @ b)
    best = b - (scale.sum() / a.norm() ** 2) * a @ left @ right
    assert result["rotated"].details["procrustes_residual"] == pytest.approx(
        float(best.norm() ** 2 / b.norm() ** 2), rel=1e-4
    )
    assert 0 < result["neighbours"].details["neighbors_kept"] < 0.9
    turned = 3 * x @ torch.linalg.qr(torch.randn(24, 24))[0]
    turned[7] = math.nan
    np.save(tmp_path / "a.npy", x.numpy())
    np.save(tmp_path / "b.npy", turned.numpy())
    html = tmp_path / "page.html"
    assert main(["inspect", str(tmp_path / "a.npy"), str(tmp_path / "b.npy"), "--html", str(html)]) == 0
    out = capsys.readouterr().out
    assert "only rotated" in out
    assert "linear CKA 1.0000" in out
    assert "uniform" not in out  # nothing to compare with
    assert html.is_file()
    assert hs.inspection.compare(x, tmp_path / "b.npy")["rotated"].is_fine
    with pytest.raises(TypeError, match="after must be a file, a numpy array"):
        hs.inspection.compare(x, None)
    np.save(tmp_path / "b.npy", turned[:200].numpy())
    assert main(["inspect", str(tmp_path / "a.npy"), str(tmp_path / "b.npy")]) == 2
    assert "300 and 200" in capsys.readouterr().err


def test_parquet(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    x = clustered()
    for lists in (arrow.list_(arrow.float32()), arrow.large_list(arrow.float32()), arrow.list_(arrow.float32(), 24)):
        columns = {"id": list(range(300)), "e": arrow.array(list(x.numpy()), lists)}
        parquet.write_table(arrow.table(columns), tmp_path / "e.parquet", row_group_size=70)
        np.testing.assert_array_equal(open_embeddings(tmp_path / "e.parquet"), x.numpy())
    for name, column in {"none": [1, 2, 3], "uneven": [[1.0], [1.0, 2.0], [3.0]], "missing": [[1.0], None]}.items():
        parquet.write_table(arrow.table({"e": column}), tmp_path / f"{name}.parquet")
        with pytest.raises(ValueError, match=r"one column of lists of floats|several lengths, or are missing"):
            hs.inspect(tmp_path / f"{name}.parquet")
