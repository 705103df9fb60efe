"""save_pretrained and from_pretrained with a model like those of transformers; tests/integrations has real ones."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hypersphere as hs
from hypersphere.integrations.huggingface import from_pretrained, save_pretrained
from tests.rotations import shake


class Config:
    def __init__(self, width: int = 8) -> None:
        self.width = width

    def save_pretrained(self, folder):
        Path(folder, "config.json").write_text(json.dumps(vars(self)))

    @classmethod
    def from_pretrained(cls, folder):
        config = cls()
        config.__dict__ |= json.loads(Path(folder, "config.json").read_text())
        return config


class Model(nn.Module):
    config_class = Config

    def __init__(self, config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(9, config.width)
        self.first, self.second = nn.Linear(config.width, 12), nn.Linear(12, config.width)
        self.head = nn.Linear(config.width, 9, bias=False)
        self.head.weight = self.embedding.weight  # tied

    def forward(self, x):
        return self.head(self.second(self.first(self.embedding(x)).relu()).relu())

    def save_pretrained(self, folder, state_dict=None):
        self.config.save_pretrained(folder)
        state = self.state_dict() if state_dict is None else state_dict
        save_file(
            {key: value for key, value in state.items() if key != "head.weight"}, Path(folder, "model.safetensors")
        )

    @classmethod
    def from_pretrained(cls, folder):
        state = load_file(Path(folder, "model.safetensors"))
        model = cls(cls.config_class.from_pretrained(folder)).to(state["first.weight"].dtype)
        model.load_state_dict(state, strict=False)
        return model.eval()


def with_tasks(model):
    hs.rotate(model)
    hs.rotation.add_task(model, "birds")
    hs.rotation.use_task(model, "birds")
    return model


def shared_k(model):
    return hs.spherize(model, hs.LearnableSigmoid(), scale=True)


CONVERSIONS = {
    "sphere": hs.spherize,
    "numbers": lambda m: hs.spherize(m, "linear(-0.61, 0.97)", scale=0.1 + 0.2),
    "k per filter": lambda m: hs.spherize(m, "learnable", scale=True, layers="first"),
    "shared k": shared_k,
    "rotated": hs.rotate,
    "method": lambda m: hs.rotate(m, "householder", init="normal", blocks=2, apply="weight"),
    "sampled": lambda m: hs.rotate(m, sample=0.5, seed=4, neurons="fixed"),
    "tasks": with_tasks,
    "both": lambda m: hs.rotate(hs.spherize(m, "sigmoid"), layers="second", neurons="learned"),
    "bfloat16": lambda m: hs.rotate(m.bfloat16()),
    "plain": lambda m: m,
}
X = torch.arange(9)


@pytest.mark.parametrize(
    ("name", "rotations"),
    [*((name, "keep") for name in CONVERSIONS), *((name, "merge") for name in ("sphere", "tasks", "both", "plain"))],
)
def test_round_trip_is_exact(name, rotations, tmp_path):
    model = shake(CONVERSIONS[name](Model(Config()))).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    save_pretrained(model, tmp_path / "new" / "folder", rotations=rotations)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    folder, random = tmp_path / "new" / "folder", torch.get_rng_state()
    again = from_pretrained(Model, folder)
    drew = not torch.equal(torch.get_rng_state(), random)
    assert torch.equal(again(X), model(X))
    assert not again.training
    assert again.head.weight is again.embedding.weight
    assert not hasattr(again.config, "hypersphere")
    has_sphere = any(isinstance(module, hs.SphereLinear) for module in model.modules())
    if rotations == "keep" or not hs.rotation.merging.holds_rotations(before):
        assert list(again.state_dict()) == list(before)
        assert all(torch.equal(value, before[key]) for key, value in again.state_dict().items())
        assert str(again) == str(model)
        assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in model.parameters()]
        if name == "shared k":
            assert again.first.similarity is again.second.similarity
        plain = name == "plain"
    else:
        assert type(again.second) is (hs.SphereLinear if has_sphere else nn.Linear)
        plain = not has_sphere
    files = {"config.json", "model.safetensors" if plain else "hypersphere.safetensors"}
    assert set(os.listdir(folder)) == files
    if plain:
        assert torch.equal(Model.from_pretrained(folder)(X), model(X))
    else:
        assert not drew
        with pytest.raises(FileNotFoundError):
            Model.from_pretrained(folder)


def test_a_loaded_model_goes_on(tmp_path):
    model = shake(with_tasks(Model(Config())))
    save_pretrained(model, tmp_path)
    again = from_pretrained(Model, tmp_path)
    hs.rotation.use_task(model, "default")
    hs.rotation.use_task(again, "default")
    assert torch.equal(again(X), model(X))
    assert torch.equal(hs.merge(again)(X), hs.merge(model)(X))
    save_pretrained(again, tmp_path / "merged")
    assert torch.equal(Model.from_pretrained(tmp_path / "merged")(X), model(X))


def test_weights_that_would_be_found_by_mistake_are_refused(tmp_path):
    Model(Config()).save_pretrained(tmp_path)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(ValueError, match=r"holds other weights \(model.safetensors\)"):
        save_pretrained(hs.spherize(Model(Config())), tmp_path)
    assert sorted(os.listdir(tmp_path)) == before
    other = tmp_path / "other"
    save_pretrained(hs.rotate(Model(Config())), other)
    save_pretrained(hs.rotate(Model(Config())), other, rotations="merge")
    assert sorted(os.listdir(other)) == ["config.json", "model.safetensors"]


def test_a_failed_save_leaves_the_old_folder(tmp_path, monkeypatch):
    model = hs.spherize(Model(Config()))
    save_pretrained(model, tmp_path)
    old = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("hypersphere.integrations.huggingface.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        save_pretrained(shake(model), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == old


def test_what_cannot_be_saved_or_loaded(tmp_path):
    with pytest.raises(TypeError, match="model must have save_pretrained"):
        save_pretrained(nn.Linear(2, 2), tmp_path / "x")
    with pytest.raises(ValueError, match="the similarity of layer 'first' must have a name"):
        save_pretrained(hs.spherize(Model(Config()), lambda c: c**3), tmp_path / "x")
    assert not (tmp_path / "x").exists()
    with pytest.raises(ValueError, match="rotations"):
        save_pretrained(hs.rotate(Model(Config())), tmp_path, rotations="drop")
    with pytest.raises(ValueError, match="folder must be one that save_pretrained wrote"):
        from_pretrained(Model, tmp_path / "none")


def drop_checksums(path):
    """Make a file as by another tool, or by an older version."""
    save_file(load_file(path), path, metadata={"format": "pt", "aliases": '{"head.weight": "embedding.weight"}'})


def change(key, value):
    def edit(folder):
        drop_checksums(folder / "hypersphere.safetensors")
        path = folder / "config.json"
        config = json.loads(path.read_text())
        inner = config["hypersphere"]
        *path_to, last = key
        for part in path_to:
            inner = inner[part]
        inner[last] = value
        path.write_text(json.dumps(config))

    return edit


def drop_description(folder):
    path = folder / "config.json"
    path.write_text(json.dumps({"width": 8}))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (change(("format",), 2), "hypersphere format 2; this version reads 1"),
        (change(("sphere",), {}), "must have the lists sphere and rotated"),
        (change(("sphere", 0, "similarity"), "cube"), "does not fit Model: .*cube"),
        (change(("sphere", 0, "name"), "embedding"), "'embedding' must be one of nn.Linear"),
        (change(("rotated", 0, "plan", "method"), "mine"), "unknown method 'mine'"),
        (change(("rotated", 0, "tasks"), ["forward"]), "malformed rotation"),
        (drop_description, "does not describe the network"),
        (lambda folder: (folder / "hypersphere.safetensors").write_bytes(b"123"), "cannot be read"),
        (lambda folder: (folder / "hypersphere.safetensors").unlink(), "is missing"),
        (lambda folder: save_file({"a": torch.ones(2)}, folder / "hypersphere.safetensors"), "does not fit Model"),
    ],
)
def test_damaged_folders(edit, message, tmp_path):
    save_pretrained(hs.rotate(hs.spherize(Model(Config()))), tmp_path)
    edit(tmp_path)
    with pytest.raises(ValueError, match=message):
        from_pretrained(Model, tmp_path)


@pytest.mark.parametrize(("rotations", "name"), [("keep", "hypersphere.safetensors"), ("merge", "model.safetensors")])
def test_a_flipped_bit_is_found(rotations, name, tmp_path):
    """In weights and in JSON files; files without checksums, as of other tools and versions, load as before."""
    model = hs.rotate(Model(Config()))
    save_pretrained(model, tmp_path, rotations=rotations)
    path, config = tmp_path / name, tmp_path / "config.json"
    assert from_pretrained(Model, tmp_path)(torch.arange(9)).isfinite().all()
    whole = path.read_bytes()
    path.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
    with pytest.raises(ValueError, match=rf"{name} is damaged: the checksum of '"):
        from_pretrained(Model, tmp_path)
    path.write_bytes(whole[:-2])
    with pytest.raises(ValueError, match=rf"{name} cannot be read: .*metadata"):
        from_pretrained(Model, tmp_path)
    path.write_bytes(whole)
    tree = json.loads(config.read_text())
    config.write_text(json.dumps(tree | {"_name_or_path": "moved"}))
    from_pretrained(Model, tmp_path)
    config.write_text(json.dumps(tree | {"dropout": 0.1}))
    with pytest.raises(ValueError, match=r"config.json is damaged or was edited"):
        from_pretrained(Model, tmp_path)
    drop_checksums(path)
    from_pretrained(Model, tmp_path)


def test_a_class_with_sphere_layers_of_its_own(tmp_path):
    class Native(Model):
        def __init__(self, config) -> None:
            super().__init__(config)
            self.first = hs.SphereLinear(config.width, 12, scale=2.0)

    model = hs.rotate(Native(Config()))
    save_pretrained(model, tmp_path)
    assert torch.equal(from_pretrained(Native, tmp_path)(X), model(X))
    change(("sphere", 0, "scale"), 3.0)(tmp_path)
    with pytest.raises(ValueError, match="other options"):
        from_pretrained(Native, tmp_path)


def test_a_strength_is_merged_or_said(tmp_path):
    model = shake(hs.rotate(Model(Config()), apply="weight")).eval()
    whole = model(X)
    hs.rotation.use_task(model, "default", strength=0.5)
    assert not torch.allclose(model(X), whole, atol=1e-3)
    save_pretrained(model, tmp_path / "merged", rotations="merge")
    torch.testing.assert_close(from_pretrained(Model, tmp_path / "merged")(X), model(X))
    with pytest.warns(UserWarning, match="strength 1"):
        save_pretrained(model, tmp_path / "kept")
    torch.testing.assert_close(from_pretrained(Model, tmp_path / "kept")(X), whole)


def test_a_tied_layer_that_rotates_its_inputs_loads_again(tmp_path):
    model = shake(hs.rotate(Model(Config()), layers="head", apply="activation", block_size=4)).eval()
    save_pretrained(model, tmp_path)
    again = from_pretrained(Model, tmp_path)
    assert again.head.weight is again.embedding.weight
    assert torch.equal(again(X), model(X))
