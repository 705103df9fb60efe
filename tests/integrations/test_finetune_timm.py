"""`hypersphere finetune` with networks of the real timm; their weights are random ones that a file holds."""

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import hypersphere as hs
from hypersphere.cli import main
from hypersphere.train import load_run

from .timm_import import timm

NETWORKS = {"resnet18": 32, "vit_tiny_patch16_224": 224}


@pytest.fixture
def pets(tmp_path):
    """Two classes of images, red and blue ones, 8 to learn from and 4 to be tested on."""
    for split, count in (("train", 8), ("test", 4)):
        for name, colour in (("cat", (200, 40, 40)), ("dog", (40, 40, 200))):
            folder = tmp_path / "pets" / split / name
            folder.mkdir(parents=True)
            for i in range(count // 2):
                Image.new("RGB", (40, 40), tuple(c + i for c in colour)).save(folder / f"{i}.png")
    return tmp_path / "pets"


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_timm_is_fine_tuned_and_goes_back_to_timm(name, pets, tmp_path):
    torch.manual_seed(0)
    original = timm.create_model(name, num_classes=7)
    save_file(original.state_dict(), tmp_path / "model.safetensors")
    size, out = NETWORKS[name], tmp_path / "out"
    argv = [f"timm/{name}", "--weights", tmp_path / "model.safetensors", "--data.root", pets, "--data.size", size]
    argv += ["--data.batch_size", 4, "--steps", 2, "--out", out, "--quiet"]
    assert main(["finetune", *map(str, argv)]) == 0

    merged = timm.create_model(name, num_classes=2).eval()
    merged.load_state_dict(load_file(out / "final" / "model.safetensors"))  # timm's own names
    pixels = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    mean, deviation = (torch.tensor(merged.pretrained_cfg[key])[:, None, None] for key in ("mean", "std"))
    run = load_run(out)
    with torch.no_grad():
        inputs = run.preprocess(pixels)
        expected = merged((pixels / 255 - mean) / deviation)
        torch.testing.assert_close(run.model(inputs), expected, rtol=1e-3, atol=1e-4)
        features = torch.nn.functional.linear(run.classifier.embed(inputs), *merged.get_classifier().parameters())
        torch.testing.assert_close(features, expected, rtol=1e-3, atol=1e-4)

    hidden = [name for name, neurons in hs.select(original).items() if not neurons.is_output]
    before, after = (hs.EnergyRegularizer(network).per_layer() for network in (original, merged))
    assert [after[name] for name in hidden] == pytest.approx([before[name] for name in hidden], rel=1e-4)
    base = timm.create_model(name, num_classes=2).eval()
    fitting = {k: v for k, v in original.state_dict().items() if not k.startswith(("fc.", "head."))}
    base.load_state_dict(fitting, strict=False)
    adapted = hs.merge(hs.rotation.load_rotations(base, out / "final" / "rotations.safetensors"))
    with torch.no_grad():
        torch.testing.assert_close(adapted((pixels / 255 - mean) / deviation), expected, rtol=1e-3, atol=1e-4)


def test_unknown_networks_and_other_weights_are_one_line(pets, tmp_path, capsys):
    save_file(timm.create_model("resnet18", num_classes=7).state_dict(), tmp_path / "model.safetensors")
    for name, line in {"resnet19": "timm has no network 'resnet19'", "resnet34": "does not fit: it has no"}.items():
        argv = [f"timm/{name}", "--weights", tmp_path / "model.safetensors", "--data.root", pets, "--data.size", 32]
        assert main(["finetune", *map(str, argv), "--out", str(tmp_path / "out")]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert line in err
        assert not (tmp_path / "out").exists()
