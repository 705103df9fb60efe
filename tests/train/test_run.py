"""A run read back: its network, its preprocessing, its figures, and its export."""

import json
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

import hypersphere as hs
from hypersphere._internal.modules import install_command
from hypersphere._internal.tensors import checksum_of
from hypersphere.data.augment import CenterCrop, Compose, Normalize, Resize, as_stored
from hypersphere.train import Config, derive, fit
from hypersphere.train.inference import exporting
from hypersphere.train.inference.exporting import export
from hypersphere.train.inference.inputs import Preprocess
from hypersphere.train.inference.run import BATCH, load_run
from hypersphere.train.inference.scores import ClassScore, scores
from hypersphere.train.networks import Classifier
from hypersphere.train.splits import DataSpec
from hypersphere.train.storage import checkpoint
from tests.runs import rewritten, save_checkpoint

pytestmark = pytest.mark.slow

SMALL = {"model.name": "mlp", "model.widths": (16, 16), "steps": 20, "eval_every": 10, "device": "cpu"}
KINDS = {
    "plain": {},
    "cosine": {"model.similarity": "cosine", "model.scale": True},
    "cayley": {"rotation": {}},
    "sphereface_plus": {"loss.name": "sphereface_plus", "rotation": {"layers": "all"}},
    "validation": {"data.validation": 0.2, "loss.label_smoothing": 0.1},
}


def train(folder, **changes):
    return fit(derive(Config(), SMALL | {"out": str(folder)} | changes), progress=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of each kind, made when it is first asked for."""
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = train(tmp_path_factory.mktemp("runs") / kind, **KINDS[kind])
        return made[kind]

    return of


@pytest.fixture
def copy(trained, tmp_path):
    """The folder of a run that a test may spoil."""
    return lambda kind="plain": shutil.copytree(trained(kind).path, tmp_path / "run")


@pytest.fixture(scope="module")
def digits():
    return hs.data.load("digits", split="test")


# ------------------------------------------------------------------------------------------------------- loading


def saved(path):
    return json.loads((path / "result.json").read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_gives_the_trained_network_back(trained, digits, kind):
    result = trained(kind)
    run = load_run(result.path)
    x = run.preprocess(digits.inputs)
    with torch.no_grad():
        assert torch.equal(run.model(x), result.model(x))
    assert not run.model.training
    assert isinstance(run.model, Classifier) == (kind == "sphereface_plus")
    assert run.labels == digits.classes
    assert run.config == result.config
    assert (run.path, run.source) == (result.path, result.path / "final")
    assert run.step == (result.summary.best_step or result.summary.step)
    assert str(result).startswith(f"mlp on digits, {result.path}\nstep  split")
    assert str(result).splitlines()[-1].split()[:2] == [str(result.rows[-1].step), result.rows[-1].split]
    assert result.to_dict() == {key: value for key, value in saved(result.path).items() if key in result.to_dict()}
    assert [line.split() for line in str(run).splitlines()][:2] == [["run", str(result.path)], ["network", "mlp"]]
    assert (run.to_dict()["step"], run.to_dict()["labels"]) == (run.step, run.labels)
    assert run._repr_html_().startswith("<table>")


@pytest.mark.parametrize("kind", ["plain", "cayley", "sphereface_plus"])
def test_a_checkpoint_is_merged(trained, digits, kind, monkeypatch):
    result = trained(kind)
    monkeypatch.chdir(result.path / "checkpoints")
    run = load_run("20")
    assert (run.step, run.path, run.source) == (20, result.path, result.path / "checkpoints" / "20")
    assert list(run.model.state_dict()) == list(result.model.state_dict())
    x = run.preprocess(digits.inputs)
    with torch.no_grad():
        torch.testing.assert_close(run.model(x), result.model(x), rtol=1e-5, atol=1e-5)
    assert not torch.equal(load_run("10").model(x), run.model(x))


def test_before_its_end_the_latest_or_the_best(copy):
    path = copy()
    (path / "result.json").unlink()
    shutil.rmtree(path / "final")
    assert load_run(path).step == 20
    state = path / "checkpoints" / "20" / "state.json"
    state.write_text(state.read_text().replace("e", "f", 1))
    with pytest.warns(UserWarning, match="skipping damaged checkpoints"):
        assert load_run(path).step == 10
    tensors, state = checkpoint.load(path / "checkpoints" / "10")
    save_checkpoint(path / "checkpoints", 5, tensors, state | {"step": 5}, keep=9, best=True)
    assert load_run(path).step == 5


def test_final_files_without_a_result_are_the_last_choice(copy):
    path = copy()
    (path / "result.json").unlink()
    assert load_run(path).source == path / "checkpoints" / "20"
    shutil.rmtree(path / "checkpoints")
    assert load_run(path).source == path / "final"


def test_a_run_that_is_made_longer_is_not_finished(copy):
    path = copy()
    rewritten(path / "config.json", lambda tree: tree | {"steps": 40})
    assert load_run(path).source == path / "checkpoints" / "20"


def test_needs_no_data_and_leaves_the_random_state(trained, monkeypatch):
    monkeypatch.setattr("hypersphere.data.load", None)
    before = torch.get_rng_state()
    load_run(trained("plain").path)
    assert torch.equal(torch.get_rng_state(), before)


def spoil(text, old, new):
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", lambda t: t[:50], r"config\.json: line .*: not JSON: "),
        ("config.json", (" 16", " 17"), r"model\.safetensors does not fit: layers\.0\.weight is \(16"),
        ("config.json", lambda t: spoil(t, " 16", " 17"), r'config\.json: damaged: .* remove its line "checksum"$'),
        ("config.json", None, r"run is not a run folder: it has no config\.json"),
        ("final/model.json", lambda t: "[]", r"model\.json cannot be read: it must be an object, got list"),
        ("final/model.json", ('"format": 2', '"format": 3'), r"model\.json has format 3; this .* 2$"),
        ("final/model.json", lambda t: spoil(t, '"3"', '"8"'), r"model\.json is damaged: the checksum does not match"),
        ("final/model.json", ('"images"', '"pictures"'), r"model\.json is malformed: .*'pictures'"),
        ("final/model.json", ('"shape"', '"size"'), r"model\.json is malformed: .*unknown field 'size'"),
        ("final/model.json", ('"step": 20', '"step": "a"'), r"step must be an integer >= 0, got 'a'"),
        ("final/model.json", None, r"model\.json is missing"),
        ("final/model.safetensors", None, r"model\.safetensors is missing"),
    ],
)
def test_bad_files_in_one_line(copy, file, change, message):
    path = copy("sphereface_plus")
    if change is None:
        (path / file).unlink()
    elif isinstance(change, tuple):
        rewritten(path / file, change)
    else:
        text = (path / file).read_text() if file.endswith("json") else ""
        (path / file).write_text(change(text))
    with pytest.raises(ValueError, match=message) as error:
        load_run(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("layers.0.bias"), "has no tensor 'layers.0.bias'"),
        (lambda t: t.update(more=torch.ones(1)), "does not fit: unexpected tensor more"),
        (lambda t: t.update({"layers.0.bias": torch.ones(3)}), r"layers.0.bias is \(3,\) there and \(16,\) here"),
        (lambda t: t.pop("layers.0.scale"), "has no tensor 'layers.0.scale'"),  # which has a start
    ],
)
def test_tensors_must_fit(copy, change, message):
    path = copy("cosine")
    file = path / "final" / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    sums = {name: checksum_of(value) for name, value in tensors.items()}
    rewritten(path / "final" / "model.json", lambda tree: tree["checksums"].update(model=sums))
    with pytest.raises(ValueError, match=message) as error:
        load_run(path)
    assert str(file) in str(error.value)


def test_one_flipped_bit_is_found(copy):
    path = copy("cosine")
    file = path / "final" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 0x40
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged: the checksum of '.*' does not match"):
        load_run(path)


def test_where_there_is_nothing(tmp_path, copy):
    with pytest.raises(ValueError, match="does not exist"):
        load_run(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"is not a run folder: it has no config\.json"):
        load_run(tmp_path)
    path = copy()
    for name in ("final", "checkpoints"):
        shutil.rmtree(path / name)
    (path / "result.json").unlink()
    with pytest.raises(ValueError, match=r"run has no trained network yet: neither final/model\.json nor an intact"):
        load_run(path)
    (path / "checkpoints" / "7").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"state\.json is missing"):
        load_run(path / "checkpoints" / "7")


def test_a_checkpoint_without_the_network(copy):
    path = copy()
    tensors, tree = checkpoint.flatten({"generator": {"a": torch.ones(1)}})
    state = checkpoint.load(path / "checkpoints" / "20")[1]
    saved = save_checkpoint(path / "checkpoints", 30, tensors, {**state, "tree": tree, "step": 30})
    with pytest.raises(ValueError, match=r"state\.json is malformed: it must have the tensors of 'classifier'"):
        load_run(saved)


# ------------------------------------------------------------------------------------------------------- preprocess


def images(channels=1, size=(8, 8), augment=as_stored, dtype="uint8"):
    return Preprocess(DataSpec("images", (channels, *size), dtype, ["a", "b"]), augment)


@pytest.fixture(scope="module")
def pixels():
    return torch.randint(0, 256, (5, 3, 10, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_every_form_of_a_grey_image_is_the_same(digits, tmp_path):
    preprocess, image = images(), digits.inputs[3]
    expected = Normalize()(digits.inputs[3:4])
    grey = Image.fromarray(image[0].numpy())
    grey.save(tmp_path / "a.png")
    forms = [image, image[0], image[0].numpy(), image[0, :, :, None].numpy(), image.expand(3, -1, -1)]
    forms += [image[None], image.permute(1, 2, 0)[None], expected, expected[0], expected.double().numpy()]
    forms += [grey, grey.convert("RGB"), grey.convert("RGBA"), tmp_path / "a.png", str(tmp_path / "a.png")]
    for form in forms:
        batch = preprocess(form)
        assert batch.dtype == torch.float32
        assert torch.equal(batch, expected)
    assert torch.equal(preprocess(forms), expected.expand(len(forms), -1, -1, -1))
    assert torch.equal(preprocess(tuple(forms[:2])), expected.expand(2, -1, -1, -1))


def test_colours_become_grey_as_pillow_does_it(pixels):
    expected = [np.array(Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L")) for image in pixels]
    expected = Normalize()(torch.from_numpy(np.stack(expected))[:, None])
    assert torch.equal(images(1, (10, 8))(pixels), expected)


def test_grey_becomes_three_channels(pixels):
    given = images(3, (10, 8))(pixels[0, 0])
    assert torch.equal(given, Normalize()(pixels[:1, :1]).expand(1, 3, 10, 8))


def test_size_becomes_the_networks(pixels):
    expected = Normalize()(F.interpolate(pixels, (5, 7), mode="bilinear", antialias=True))
    assert torch.equal(images(3, (5, 7))(pixels), expected)
    # ... unless its own augmentation brings images to a size: then the pixels are as they were
    sized = Compose(Resize(9), CenterCrop(6), Normalize())
    assert torch.equal(images(3, (6, 6), sized)(pixels), sized(pixels, None))


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ([], ValueError, "at least one sample"),
        (torch.zeros(3, 9, 3).byte(), ValueError, r"\(3, 9, 3\) may have their channels first or last"),
        (torch.zeros(7, 9, 5).byte(), ValueError, r"must have 1 or 3 channels, first or last, got \(7, 9, 5\)"),
        (torch.zeros(1, 8, 8).int(), TypeError, "must be uint8 pixels or normalized .* got torch.int32"),
        (torch.zeros(1, 9, 8), ValueError, r"must have the shape \(1, 8, 8\) or \(N, 1, 8, 8\), got \(1, 1, 9, 8\)"),
        (torch.full((1, 8, 8), 200.0), ValueError, r"must be normalized, .* give pixels of 0 to 255 as uint8"),
        (torch.full((1, 8, 8), torch.nan), ValueError, "must be finite"),
        (7, TypeError, "NumPy array or a tensor, .* got int"),
        ("nothing.png", FileNotFoundError, "no such file: 'nothing.png'"),
        (Image.new("F", (8, 8)), ValueError, "8 bits a colour, got Pillow's mode F"),
        (Image.new("1", (100_000, 400)), ValueError, "at most 33554432 pixels, got 100000×400"),
    ],
)
def test_what_is_no_image(inputs, error, message):
    with pytest.raises(error, match=message):
        images()(inputs)


def test_channels_that_could_be_two_things_are_taken_as_the_networks():
    pixels = torch.arange(81, dtype=torch.uint8).view(3, 9, 3)
    assert torch.equal(images(3, (9, 3))(pixels)[0], Normalize()(pixels))


def test_images_stored_as_floats_have_no_pixels():
    preprocess = images(1, dtype="float32")
    assert torch.equal(preprocess(torch.full((1, 8, 8), 200.0)), torch.full((1, 1, 8, 8), 200.0))
    with pytest.raises(TypeError, match="must be float32, as the network was trained on, got pixels of uint8"):
        preprocess(torch.zeros(1, 8, 8).byte())


def test_points():
    preprocess = Preprocess(DataSpec("points", (4, 3), "float32", ["a"]), as_stored)
    assert preprocess(np.ones((4, 3))).dtype == torch.float32
    assert preprocess(torch.ones(2, 7, 3)).shape == (2, 7, 3)
    with pytest.raises(ValueError, match=r"all samples of a batch must have one shape, got \(4, 3\) and \(7, 3\)"):
        preprocess([torch.ones(4, 3), torch.ones(7, 3)])
    with pytest.raises(ValueError, match=r"must have the shape \(P, 3\) or \(N, P, 3\), got \(1, 4, 2\)"):
        preprocess(torch.ones(4, 2))
    with pytest.raises(TypeError, match="floating point"):
        preprocess(torch.ones(4, 3).byte())


def test_text():
    preprocess = Preprocess(DataSpec("text", (4,), "int64", list("abc")), as_stored)
    assert preprocess("cab").tolist() == [[2, 0, 1]]
    assert preprocess(["abc", "cba"]).tolist() == [[0, 1, 2], [2, 1, 0]]
    assert preprocess("aabbcc").tolist() == [[1, 1, 2, 2]]  # the end of it
    assert preprocess(torch.tensor([[0, 1], [2, 2]])).tolist() == [[0, 1], [2, 2]]
    for inputs, error, message in (
        ("abd", ValueError, "of the 3 characters of the run, got 'd'"),
        ("", ValueError, "not empty"),
        (torch.tensor([0, 3]), ValueError, "0 to 2, got 3"),
        (torch.tensor([0, -1]), ValueError, "0 to 2, got -1"),
        (torch.ones(2), TypeError, "got torch.float32"),
    ):
        with pytest.raises(error, match=message):
            preprocess(inputs)


class Largest(TorchDispatchMode):
    """Records the bytes of the largest result of an operation."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.bytes = max(self.bytes, out.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize(("channels", "mode"), [(1, "RGB"), (3, "P")])
def test_a_large_image_is_never_copied_as_a_whole(tmp_path, monkeypatch, channels, mode):
    """A small file can declare a large image: only its bytes are kept, no floats or integers of that size."""
    noise = np.random.default_rng(0).integers(0, 256, (300, 1800, 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(tmp_path / "a.png")
    pixels = torch.from_numpy(np.array(Image.open(tmp_path / "a.png").convert("RGB"))).permute(2, 0, 1)
    expected = images(channels=channels)(pixels)
    convert, converted = Image.Image.convert, []
    monkeypatch.setattr(
        Image.Image, "convert", lambda image, *to: (converted.append(image.size), convert(image, *to))[1]
    )
    with Largest() as largest:
        given = images(channels=channels)(str(tmp_path / "a.png"))
    assert torch.equal(given, expected)
    assert largest.bytes <= pixels.numel() * 2  # strips of 2¹⁸ pixels, as integers
    assert max(width * height for width, height in converted) <= 1 << 18


# ------------------------------------------------------------------------------------------------------- predicting


@pytest.mark.parametrize("kind", ["plain", "sphereface_plus"])
def test_predict_and_embed(trained, digits, kind):
    run = load_run(trained(kind).path)
    assert len(digits) > BATCH
    labels, probabilities = run.predict(digits.inputs)
    x = run.preprocess(digits.inputs)
    with torch.no_grad():
        logits = run.model(x)
        features = run.model.network(x) if kind == "sphereface_plus" else run.model.forward_features(x)
    torch.testing.assert_close(probabilities, logits.softmax(1))
    assert labels == [digits.classes[i] for i in logits.argmax(1)]
    embeddings = run.embed(digits.inputs)
    torch.testing.assert_close(embeddings, F.normalize(features))
    assert not embeddings.requires_grad
    assert not probabilities.requires_grad
    assert run.predict(digits.inputs[0])[1].shape == (1, 10)


def test_text_is_predicted_at_its_end(tmp_path):
    (tmp_path / "input.txt").write_text("abc" * 1000)
    data = {"data.name": "text", "data.root": str(tmp_path / "input.txt"), "data.batch_size": 4}
    train(tmp_path / "run", **{"model.name": "transformer", "model.widths": None, "steps": 2, **data})
    run = load_run(tmp_path / "run")
    labels, probabilities = run.predict(["abca", "cabc"])
    assert probabilities.shape == (2, 3)
    assert labels == ["abc"[i] for i in probabilities.argmax(1)]
    assert run.embed("ab").shape == (1, 128)
    torch.testing.assert_close(probabilities, run.model(run.preprocess(["abca", "cabc"]))[:, -1].softmax(1))


@pytest.mark.parametrize("loss", ["softmax", "am_softmax"])
def test_a_graph(tmp_path, loss, monkeypatch):
    labels = torch.arange(60) % 3
    edges = (labels[:, None] == labels).float().fill_diagonal_(0).to_sparse()
    masks = [torch.arange(60) // 20 == i for i in range(3)]
    whole = hs.data.Graph(torch.rand(60, 6), edges, labels, *masks, ["a", "b", "c"])
    monkeypatch.setitem(hs.data.DATASETS, "cora", hs.data.RegisteredDataset(lambda root, split: whole))
    config = {"model.name": "gcn", "model.widths": (4,), "data.name": "cora"}
    result = train(tmp_path / "run", **config, **{"loss.name": loss, "steps": 3})
    run, graph = load_run(tmp_path / "run"), hs.data.load("cora")
    labels, probabilities = run.predict(graph)
    named = [graph.classes[i] for i in graph.labels]
    right = [a == b for a, b, there in zip(labels, named, graph.test, strict=True) if there]
    assert probabilities.shape == (len(graph.labels), len(graph.classes))
    assert run.embed(graph).norm(dim=1).round(decimals=5).unique().tolist() in ([1], [0, 1])
    assert scores(run, "test").accuracy == sum(right) / len(right)
    assert scores(run).split == "test"
    assert scores(run, "validation").loss == pytest.approx(result.summary.validation["loss"])
    with pytest.raises(ValueError, match="onnx cannot hold the network of a graph"):
        export(run, tmp_path / "a.onnx")
    with pytest.raises(TypeError, match=r"must be a hypersphere\.data\.Graph, got Tensor"):
        run.predict(graph.features)


def test_a_generator(tmp_path, monkeypatch, digits):
    monkeypatch.setitem(
        hs.data.DATASETS, "digits", hs.data.RegisteredDataset(lambda root, split: digits.subset(range(8)))
    )
    train(tmp_path / "run", **{"model.name": "generator.mhe", "model.widths": None, "steps": 1, "data.batch_size": 8})
    run = load_run(tmp_path / "run")
    assert run.labels == []
    assert run.model(run.preprocess(torch.zeros(2, 128))).shape == (2, 1, 8, 8)
    for call in (run.predict, run.embed, lambda _: scores(run)):
        with pytest.raises(ValueError, match="has no labels: its network, generator"):
            call(torch.zeros(2, 128))
    assert load_run(tmp_path / "run" / "checkpoints" / "1").model(torch.zeros(1, 128)).shape == (1, 1, 8, 8)
    assert exporting.inputs_of(run) == "float32 (B, 128): noise, standard normal"
    export(run, tmp_path / "a.pt2")
    assert torch.export.load(tmp_path / "a.pt2").module()(torch.zeros(5, 128)).shape == (5, 1, 8, 8)


# ------------------------------------------------------------------------------------------------------- scores


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_training(trained, digits, kind):
    result = trained(kind)
    run = load_run(result.path)
    measured = scores(run)
    assert (measured.split, measured.samples, measured.step) == ("test", 517, run.step)
    for key in ("accuracy", "loss", "energy", "energies"):
        assert getattr(measured, key) == pytest.approx(result.to_dict()[key], rel=1e-6)
    labels, _ = run.predict(digits.inputs)
    for number, (name, score) in enumerate(measured.classes.items()):
        hits = [label == name for label, truth in zip(labels, digits.labels.tolist(), strict=True) if truth == number]
        assert score == ClassScore(len(hits), sum(hits) / len(hits))


def test_scores_of_other_splits(trained):
    result = trained("validation")
    run = load_run(result.path)
    measured = scores(run, "validation")
    assert measured.accuracy == result.summary.validation["accuracy"]
    assert measured.samples + scores(run, "train").samples == 1280
    with pytest.raises(ValueError, match="this run has no validation split"):
        scores(load_run(trained("plain").path), "validation")


def test_scores_want_the_same_classes_and_shapes(trained, monkeypatch):
    run = load_run(trained("plain").path)

    def other(classes, size=8):
        def load(root, split):
            return hs.data.ArrayDataset(torch.zeros(4, 1, size, size).byte(), [0, 0, 1, 1], classes)

        monkeypatch.setitem(hs.data.DATASETS, "digits", hs.data.RegisteredDataset(load))

    names = list("0123456789")
    other([*names[:5], "x", *names[6:]])
    with pytest.raises(ValueError, match=r"the data must have the classes of .*, got 'x' in place of '5'"):
        scores(run)
    other(names[:7])
    with pytest.raises(ValueError, match="got 7 in place of 10"):
        scores(run)
    other(names, 9)
    with pytest.raises(ValueError, match=r"samples of shape \(1, 8, 8\), got \(1, 9, 9\)"):
        scores(run)
    other(names)
    assert scores(run).classes["7"] == ClassScore(0, None)


# ------------------------------------------------------------------------------------------------------- export


@pytest.mark.parametrize("embeddings", [False, True])
def test_export_to_onnx(trained, digits, tmp_path, embeddings):
    onnxruntime = pytest.importorskip("onnxruntime")
    run = load_run(trained("sphereface_plus").path)
    assert export(run, tmp_path / "a.onnx", embeddings=embeddings) < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    name = "embeddings" if embeddings else "logits"
    assert [port.name for port in (*session.get_inputs(), *session.get_outputs())] == ["inputs", name]
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["labels"]) == run.labels
    assert about["inputs"] == exporting.inputs_of(run)
    for count in (1, 7):
        x = run.preprocess(digits.inputs[:count])
        (given,) = session.run([name], {"inputs": x.numpy()})
        expected = run.embed(digits.inputs[:count]) if embeddings else run.model(x).detach()
        torch.testing.assert_close(torch.from_numpy(given), expected, rtol=1e-4, atol=1e-4)
    assert [file.name for file in tmp_path.iterdir()] == ["a.onnx"]


def test_export_to_torch(trained, digits, tmp_path):
    run = load_run(trained("cosine").path)
    assert export(run, tmp_path / "a.pt2") == 0
    extra = {"labels": "", "inputs": ""}
    module = torch.export.load(tmp_path / "a.pt2", extra_files=extra).module()
    x = run.preprocess(digits.inputs[:7])
    torch.testing.assert_close(module(x), run.model(x))
    assert json.loads(extra["labels"]) == run.labels
    assert extra["inputs"] == exporting.inputs_of(run)


@pytest.mark.parametrize("kind", ["cayley", "sphereface_plus"])
def test_export_to_safetensors(trained, tmp_path, kind):
    run = load_run(trained(kind).path)
    assert export(run, tmp_path / "a", to="safetensors") is None
    tensors = load_file(tmp_path / "a")
    plain = hs.models.create("mlp", 10 if kind == "cayley" else 0, widths=(16, 16), input_size=8)
    head = {name: tensors.pop(name) for name in list(tensors) if name.startswith("head.")}
    plain.load_state_dict(tensors)
    assert set(head) == ({"head.weight", "head.step"} if kind == "sphereface_plus" else set())
    with safe_open(tmp_path / "a", "pt") as file:
        assert json.loads(file.metadata()["labels"]) == run.labels
        assert file.metadata()["inputs"] == exporting.inputs_of(run)


@pytest.mark.parametrize(
    ("kind", "shape", "dtype", "augment", "said"),
    [
        ("images", (3, 4, 5), "uint8", None, "(B, 3, 4, 5): channels red, green, blue, (x - 127.5) / 128 of pixels x"),
        ("images", (1, 4, 5), "uint8", lambda x, g: x / 255, "(B, 1, 4, 5): grey, scaled as in the training data"),
        ("points", (9, 3), "float32", None, "(B, 9, 3): x, y, z of points"),
        ("text", (8,), "int64", None, "int64 (B, 8): numbers of characters"),
        ("other", (8,), "float32", None, "float32 (B, 8): numbers, scaled as in the training data"),
    ],
)
def test_what_an_exported_network_takes(kind, shape, dtype, augment, said, trained):
    preprocess = Preprocess(DataSpec(kind, shape, dtype, ["a", "b"]), augment or as_stored)
    run = replace(load_run(trained("plain").path), preprocess=preprocess)
    assert said in exporting.inputs_of(run)


def test_export_of_what_cannot_be(trained, tmp_path, monkeypatch):
    run = load_run(trained("plain").path)
    for path, options, message in (
        ("a.bin", {}, r"the file must end in \.onnx, \.pt2, \.safetensors"),
        ("a.bin", {"to": "tflite"}, "to must be one of onnx, torch, safetensors; got 'tflite'"),
        ("a.safetensors", {"embeddings": True}, "embeddings go with onnx and torch"),
    ):
        with pytest.raises(ValueError, match=message):
            export(run, tmp_path / path, **options)
    for own in (run.path / "final" / "model.safetensors", run.path / "checkpoints" / "20" / "tensors.safetensors"):
        before = own.read_bytes()
        with pytest.raises(ValueError, match="must not be a file of the run"):
            export(load_run(own.parent if own.parent.name == "20" else run.path), own)
        assert own.read_bytes() == before
    with pytest.raises(FileNotFoundError, match="no such folder"):
        export(run, tmp_path / "none" / "a.pt2")
    monkeypatch.setattr(exporting, "_torch", lambda *_: (b"", torch.ones(3, 10)))
    with pytest.raises(ValueError, match="the exported file gives different logits, off by"):
        export(run, tmp_path / "a.pt2")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        ImportError, match=re.escape(f"exporting to ONNX needs onnxscript: {install_command('export')}")
    ):
        export(run, tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())
