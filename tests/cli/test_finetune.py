"""`hypersphere finetune`: rotations of a trained network; networks of hs.models only."""

import re
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hypersphere as hs
from hypersphere.cli import finetune as finetune_command
from hypersphere.cli import main
from hypersphere.models import _timm
from hypersphere.rotation.parametrization import find_rotated
from hypersphere.train import Config, Data, Model, Rotation, derive, fit, load_run, neurons, splits
from hypersphere.train.config import to_json, to_tree
from hypersphere.train.config.convert import flatten
from hypersphere.train.config.files import format_scalar
from hypersphere.train.engine import fit_part
from tests import runs
from tests.train.test_engine import three_digits

DATA = ["--data.name", "few_digits", "--data.batch_size", "32", "--device", "cpu", "--quiet"]
FINAL, ADAPTER = "final/model.safetensors", "final/rotations.safetensors"


@pytest.fixture(autouse=True)
def _data():
    runs.register()
    hs.data.register("three_digits", three_digits)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The folder of a trained network with biases: 64 → 16 → 16 → 10."""
    path = tmp_path_factory.mktemp("base") / "run"
    fit(runs.tiny(out=str(path), **{"model.widths": (16, 16)}), progress=False)
    return path


def finetune(*argv):
    return main(["finetune", *map(str, argv), *DATA])


def energies(tensors):
    return {k: hs.hyperspherical_energy(v).item() for k, v in tensors.items() if v.dim() == 2 and "layers" in k}


def test_a_run_is_rotated_and_leaves_an_adapter_and_a_merged_model(base, tmp_path):
    assert finetune(base, "--steps", 12, "--out", tmp_path / "tuned") == 0
    before, after = load_file(base / FINAL), load_file(tmp_path / "tuned" / FINAL)
    assert energies(after) == pytest.approx(energies(before), rel=1e-4)
    turned = {name for name, value in after.items() if not torch.equal(value, before[name])}
    # Blocks of 32 divide the first layer's 64 inputs; the second layer has 16 and is rotated whole. Biases are frozen.
    assert turned == {"layers.0.weight", "layers.2.weight", "classifier.weight", "classifier.bias"}
    adapted = hs.rotation.load_rotations(load_run(base).model, tmp_path / "tuned" / ADAPTER)
    assert [layer.rotation.plan.blocks for layer in find_rotated(adapted)] == [2, 1]
    assert all(layer.rotation.plan.scaled for layer in find_rotated(adapted))
    inputs = torch.randn(5, 1, 8, 8)
    merged = load_run(tmp_path / "tuned").model
    torch.testing.assert_close(hs.merge(adapted)(inputs), merged(inputs), rtol=1e-4, atol=1e-5)


def test_verify_and_resume_see_the_adapter(base, tmp_path, capsys):
    tuned = tmp_path / "tuned"
    assert finetune(base, "--steps", 4, "--out", tuned) == 0
    good = (tuned / ADAPTER).read_bytes()

    def verified():
        capsys.readouterr()
        code = main(["verify", str(tuned)])
        return code, next(line for line in capsys.readouterr().out.splitlines() if ADAPTER in line).split(maxsplit=2)

    assert verified() == (0, ["ok", str(tuned / ADAPTER)])
    (tuned / ADAPTER).write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert verified() == (1, ["damaged", f"{tuned / ADAPTER}:", "it does not match its checksum"])
    (tuned / ADAPTER).unlink()
    assert verified()[0] == 1
    with pytest.warns(UserWarning, match="finishing again from the last checkpoint"):
        fit(derive(load_run(tuned).config, resume=True), progress=False)
    assert (tuned / ADAPTER).read_bytes() == good
    assert verified()[0] == 0


def test_a_file_of_weights_gives_the_same_as_the_run(base, tmp_path):
    assert finetune(base, "--steps", 4, "--out", tmp_path / "a") == 0
    (tmp_path / "link.safetensors").symlink_to(base / FINAL)  # as in the caches of model hubs
    name = ["mlp", "--model.widths", "16,16", "--weights", tmp_path / "link.safetensors"]
    assert finetune(*name, "--steps", 4, "--out", tmp_path / "b") == 0
    one, other = (load_file(tmp_path / run / FINAL) for run in "ab")
    assert all(torch.equal(value, other[key]) for key, value in one.items())


def test_other_classes_get_an_output_layer_of_their_own(base, tmp_path):
    argv = ["mlp", "--model.widths", "16,16", "--weights", base / FINAL, "--out", tmp_path / "three", "--steps", 2]
    assert main(["finetune", *map(str, argv), "--data.name", "three_digits", "--device", "cpu", "--quiet"]) == 0
    after = load_file(tmp_path / "three" / FINAL)
    assert after["classifier.weight"].shape == (3, 16)
    assert energies(after) == pytest.approx(energies(load_file(base / FINAL)), rel=1e-4)


def test_an_angular_loss_takes_the_classes_of_a_file(base, tmp_path):
    changes = {"model.widths": (16, 16), "loss.name": "s_softmax", "rotation.freeze": True}
    config = runs.tiny(steps=1, init_from=str(base / FINAL), **changes)
    seen = {}

    def look(model, step, line):
        seen.setdefault(step, {key: value.clone() for key, value in model.state_dict().items()})

    fit(config, callbacks=[look], progress=False)
    assert torch.equal(seen[0]["head.weight"], load_file(base / FINAL)["classifier.weight"])


@pytest.mark.slow
def test_an_interrupted_fine_tuning_is_resumed_without_the_earlier_flags(base, tmp_path, capsys):
    changes = ["--data.validation", "32", "--steps", 8, "--eval_every", 2, "--optimizer.lr", 0.002]
    assert finetune(base, *changes, "--out", tmp_path / "whole") == 0
    config = hs.train.load_file(tmp_path / "whole" / "config.json")
    fit_part(derive(config, out=str(tmp_path / "half"), resume=True), 2)
    assert not (tmp_path / "half" / "result.json").exists()
    again = ["finetune", str(base), "--resume", "--out", str(tmp_path / "half"), "--quiet"]
    assert main([*again, "--optimizer.lr", "0.003"]) == 2
    assert "there optimizer.lr is 0.002, here it is 0.003" in capsys.readouterr().err
    assert main(["finetune", "mlp", "--weights", str(base / FINAL), *again[2:]]) == 2
    assert "is another run: there init_from is" in capsys.readouterr().err
    assert main(again) == 0
    for name in (FINAL, ADAPTER):
        one, other = (load_file(tmp_path / run / name) for run in ("whole", "half"))
        assert all(torch.equal(value, other[key]) for key, value in one.items()), name


def test_an_interruption_names_the_command_that_was_typed(base, monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("hypersphere.train.fit", interrupt)
    assert main(["finetune", str(base), "--data.root=my pets", "--out=x"]) == 130
    words = f"finetune {base} '--data.root=my pets' --out=x --resume=true"
    assert capsys.readouterr().err == f"hypersphere finetune: to resume: hypersphere {words}\n"
    weights = str(base / FINAL)
    assert main(["finetune", "mlp", "--weights", weights, "--data.name=mnist", "--out=x"]) == 130
    words = f"finetune mlp --weights {weights} --data.name=mnist --out=x --resume=true"
    assert capsys.readouterr().err == f"hypersphere finetune: to resume: hypersphere {words}\n"


@pytest.fixture
def pets(tmp_path):
    """A folder of images in colours of several sizes, two classes of six."""
    Image = pytest.importorskip("PIL.Image")
    for i in range(12):
        pixels = torch.randint(256, (20 + i, 30, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(i))
        path = tmp_path / "pets" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.numpy()).save(path)
    return tmp_path / "pets"


def test_images_in_colours_become_what_a_network_of_small_grey_ones_takes(base, pets, tmp_path):
    out = tmp_path / "out"
    argv = ["finetune", base, "--data.root", pets, "--steps", 2, "--out", out, "--device", "cpu", "--quiet"]
    assert main([str(word) for word in argv]) == 0
    tuned = load_run(out)
    assert (tuned.spec.shape, tuned.spec.classes) == ((1, 8, 8), ["a", "b"])
    assert (tuned.config.data.channels, tuned.config.data.size) == (1, 8)
    data = splits.load(tuned.config.data, 0)
    paths = data.train.paths
    trained = torch.cat([data.eval_augment(data.train[i][0][None], None) for i in range(len(paths))])
    assert torch.equal(tuned.preprocess(paths), trained)  # prediction sees the pixels of the training
    assert trained.std() > 0.01


@pytest.mark.parametrize("flag", ["--rotation=off", "--rotation.method=none"])
def test_all_weights_or_the_output_layer_alone_are_trained(base, tmp_path, flag):
    assert finetune(base, flag, "--steps", 2, "--out", tmp_path / "tuned") == 0
    before, after = load_file(base / FINAL), load_file(tmp_path / "tuned" / FINAL)
    same = {name for name, value in after.items() if torch.equal(value, before[name])}
    assert same == (set() if flag == "--rotation=off" else {name for name in before if "layers" in name})
    assert load_run(tmp_path / "tuned").config.optimizer.lr == (0.001 if flag == "--rotation=off" else 0.003)


def test_the_help_has_the_defaults_of_a_fine_tuning(base, capsys):
    assert main(["finetune", "--help-all"]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    shown = dict(re.findall(r" --([a-z_.]+) \S+ (?:(?! --[a-z]).)*?\(default: ([^)]+)\)", lines))
    assert (shown["data.name"], shown["rotation.block_size"], shown["model.name"]) == (
        "image_folder",
        "32",
        "that of MODEL",
    )
    assert main(["finetune", str(base), "--data.root=pets", "--print_config"]) == 0
    (file := base.parent / "printed.yaml").write_text(capsys.readouterr().out)
    used = flatten(to_tree(hs.train.load_file(file)))
    told = {key: text for key, text in shown.items() if key in used and text != "MODEL" and " " not in text}
    assert len(told) > 30
    assert told == {key: str(format_scalar(used[key])) for key in told}
    assert shown["optimizer.lr"] == f"{used['optimizer.lr']:g}, with --rotation=off {finetune_command.FULL_RATE:g}"


def test_a_rotation_without_a_start_leaves_no_adapter(tmp_path):
    fit(runs.tiny(out=str(tmp_path / "run"), steps=1, **{"rotation.method": "cayley"}), progress=False)
    assert not (tmp_path / "run" / ADAPTER).exists()


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("nowhere", "MODEL 'nowhere' is not a run folder: give a network's name"),
        (".", "is not a run folder: it has no config.json"),
        ("BASE --weights BASE/final/model.safetensors", "is a run folder, which has weights: remove --weights"),
        ("mlp --weights nowhere.safetensors", "--weights: nowhere.safetensors does not exist"),
        ("mlp --weights BASE/config.json", "must be a run folder or a .safetensors file"),
        ("mlp --weights cut.safetensors", "cut.safetensors cannot be read"),
        ("mlp --weights nan.safetensors --model.widths 16,16", "'layers.0.weight' must be finite"),
        ("mlp --weights BASE/final/model.safetensors --model.widths 16,8", "is (16, 16) there and (8, 16) here"),
        ("BASE --init_from x", "--init_from is given by MODEL and --weights: remove it"),
        ("BASE --rotation.method householder", "rotation.scaled needs rotation.method"),
        ("BASE --data.root .", "image_folder: . has no folders"),
        ("BASE", "finetune needs --data.root, a folder of images by class, or --data.name"),
    ],
)
def test_errors_are_one_line_and_nothing_is_written(base, tmp_path, monkeypatch, capsys, argv, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cut.safetensors").write_bytes((base / FINAL).read_bytes()[:100])
    tensors = load_file(base / FINAL)
    save_file(tensors | {"layers.0.weight": tensors["layers.0.weight"] * float("nan")}, "nan.safetensors")
    there = set(tmp_path.iterdir())
    words = argv.replace("BASE", str(base)).split()
    data = [] if "--data.root" in words or words == [str(base)] else DATA
    assert main(["finetune", *words, *data, "--steps", "2", "--out", "out"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert line in err
    assert set(tmp_path.iterdir()) == there


def test_a_folder_of_images_is_the_dataset_of_a_root(base, capsys):
    assert main(["finetune", str(base), "--data.root", "pets", "--print_config"]) == 0
    printed = capsys.readouterr().out
    assert "name: image_folder" in printed
    assert "block_size: 32" in printed


def test_images_get_the_size_that_the_run_was_trained_with(tmp_path, capsys):
    config = Config(model=Model("cnn"), data=Data("image_folder", root="pets", size=24))
    (tmp_path / "config.json").write_text(to_json(config))
    assert main(["finetune", str(tmp_path), "--data.root=others", "--print_config"]) == 0
    assert "  size: 24 " in capsys.readouterr().out


def test_settings_reach_the_rotations():
    body = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 4))
    neurons.prepare(body, None, Rotation(block_size=4, apply="weight", scaled=True, freeze=True), 0)
    (layer,) = find_rotated(body)
    assert (layer.rotation.plan.apply, layer.rotation.plan.scaled, layer.rotation.plan.blocks) == ("weight", True, 2)
    trained = [name for name, p in body.named_parameters() if p.requires_grad]
    assert trained == ["0.parametrizations.weight.0.default.cayley", "2.weight", "2.bias"]
    body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    neurons.prepare(body, None, Rotation(block_size=4, apply="activation"), 0)
    assert next(find_rotated(body)).rotation.plan.apply == "activation"
    assert body[0].bias.requires_grad


def test_a_generator_is_not_frozen():
    with pytest.raises(ValueError, match=r"rotation\.freeze needs a classifier"):
        derive(Config(), {"model.name": "generator.mhe", "rotation.freeze": True})


def test_a_missing_timm_names_how_to_install_it(monkeypatch, base, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert finetune("timm/resnet18", "--weights", base / FINAL, "--out", tmp_path / "out") == 2
    assert "pip install timm" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_timm_gets_pixels_from_zero_to_one():
    black, white = hs.data.augment.Normalize()(torch.tensor([0, 255], dtype=torch.uint8)).tolist()
    assert (black, white) == (_timm.BLACK, _timm.WHITE)
