"""The config: what it reads, what it refuses and in which words, and that it can run nothing."""

import dataclasses
import inspect
import json
import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypersphere._internal.modules import install_command
from hypersphere.train.config import (
    Config,
    ConfigError,
    Data,
    Embedding,
    Energy,
    Gan,
    Loss,
    Model,
    Optimizer,
    Rotation,
    Schedule,
    apply,
    derive,
    flags,
    from_tree,
    load_file,
    to_json,
    to_tree,
    to_yaml,
)

FULL = Config(
    seed=7,
    steps=75_000,
    out="runs/a b: #1",
    clip=5,
    amp="bfloat16",
    patience=3,
    model=Model("cnn9.mhe", similarity="sigmoid(0.7)", scale=True, widths=(16, 32, 64), fc=0, relu=False),
    data=Data("cifar10", root="/données/☃", augment="cifar.mhe", imbalance="single", validation=0.1, workers=2),
    loss=Loss("ga_softmax", similarity="linear", margin=2.5, scale=30, annealing=False, energy_weight=0.1),
    energy=Energy(hidden_weight=1e-7, s=0, half_space=True, minibatch=12, average=True),
    rotation=Rotation("ogd", sample=0.25, every=100, spread=True),
    optimizer=Optimizer("ogd", lr=1 / 3, momentum=0.0),
    schedule=Schedule("step", milestones=(30_000, 50_000, 65_000), gamma=0.5, warmup=10),
)


def short(value):
    return ascii(value)[1:25]


def refused(make, *args, **options):
    """The words of the refusal, which are one line."""
    with pytest.raises(ConfigError) as caught:
        make(*args, **options)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1500
    return message


# What it reads


def test_a_group_left_out_is_off_and_a_group_without_settings_is_on():
    plain = from_tree({})
    assert plain == Config()
    assert plain.energy is None
    assert plain.rotation is None
    assert (plain.schedule.name, plain.loss.name, plain.data.name) == ("cosine", "softmax", "digits")
    on = from_tree({"energy": {}, "rotation": {}})
    assert (on.energy, on.rotation) == (Energy(), Rotation())
    assert from_tree({"energy": None}).energy is None


@pytest.mark.parametrize("made", [Config(), FULL], ids=["default", "full"])
def test_round_trips(made, tmp_path):
    assert from_tree(to_tree(made)) == made
    assert from_tree(json.loads(to_json(made))) == made
    for name, text in (("c.json", to_json(made)), ("c.yaml", to_yaml(made))):
        (tmp_path / name).write_text(text, encoding="utf-8")
        again = load_file(tmp_path / name)
        assert again == made
        assert to_json(again) == to_json(made)  # 1 and 1.0, True and 1 are equal, but not alike here


@given(st.floats(min_value=1e-300, max_value=1e300), st.text(min_size=1, max_size=20))
@settings(max_examples=30, deadline=None)
def test_numbers_and_text_come_back_from_yaml_to_the_last_bit(tmp_path_factory, lr, out):
    try:
        made = derive(Config(), {"optimizer.lr": lr, "out": out})
    except ConfigError as error:
        assert "character U+" in str(error)  # noqa: PT017
        return
    path = tmp_path_factory.mktemp("yaml") / "c.yaml"
    path.write_text(to_yaml(made), encoding="utf-8")
    again = load_file(path)
    assert again == made
    assert math.copysign(1, again.optimizer.lr) == 1


def test_yaml_as_people_write_it(tmp_path):
    path = tmp_path / "c.yml"
    path.write_text(
        "# a comment\nsteps: 1000\nmodel: {name: cnn9, widths: [16, 32, 64], scale: 1, similarity: linear}\n"
        "optimizer:\n  lr: 1e-3\n  weight_decay: 5E-4\nenergy:\nout: 'no'\nschedule:\n  name: step\n"
        "  milestones:\n  - 10\n  - 20\n"
    )
    read = load_file(path)
    assert (read.steps, read.epochs, read.out, read.energy) == (1000, None, "no", None)
    assert read.model.widths == (16, 32, 64)
    assert type(read.model.scale) is float
    assert (read.optimizer.lr, read.optimizer.weight_decay) == (1e-3, 5e-4)
    assert read.schedule.milestones == (10, 20)
    path.write_text("")
    assert load_file(path) == Config()
    path.write_bytes(b"\xef\xbb\xbfseed: 3\r\n")
    assert load_file(path).seed == 3
    (tmp_path / "c.json").write_bytes(b'\xef\xbb\xbf{"seed": 3}')
    assert load_file(tmp_path / "c.json").seed == 3
    for out in ("null", "True", "off", "1", "1e3", "~", ".inf"):
        path.write_text(to_yaml(Config(out=out)))
        assert load_file(path).out == out


def test_yes_and_010_are_not_what_yaml_1_1_makes_of_them(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("out: on\nseed: 010\n")
    assert (load_file(path).out, load_file(path).seed) == ("on", 10)
    path.write_text("compile: yes")
    assert "compile must be true or false, got 'yes'" in refused(load_file, path)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("steps", "100", 100),
        ("optimizer.lr", "1e-3", 1e-3),
        ("optimizer.betas", "0.9,0.99", None),
        ("clip", "null", None),
        ("model.widths", "16,32,64", (16, 32, 64)),
        ("model.widths", "[16, 32]", (16, 32)),
        ("model.similarity", "linear(-0.5, 0.8)", "linear(-0.5, 0.8)"),
        ("rotation.sample", "0.25", 0.25),
        ("rotation.method", "none", "none"),
        ("energy.half_space", "true", True),
        ("schedule.milestones", "", ()),
        ("out", "12", "12"),
        ("data.root", "/a,b", "/a,b"),
    ],
)
def test_flags_are_read_by_the_field_s_type(key, text, value):
    together = {
        "optimizer.betas": {"optimizer.name": "adam"},
        "data.root": {"data.name": "mnist"},
    }.get(key, {})
    made = apply(Config(), {key: text, **together})
    *groups, name = key.split(".")
    found = getattr(getattr(made, groups[0]) if groups else made, name)
    expected = {"optimizer.betas": (0.9, 0.99)}.get(key, value)
    assert found == expected
    assert type(found) is type(expected)


def test_a_flag_turns_its_group_on_and_leaves_the_rest_of_it():
    made = apply(Config(energy=Energy(s=1.0)), {"energy.angular": "true", "rotation": "on"})
    assert (made.energy, made.rotation) == (Energy(s=1.0, angular=True), Rotation())
    assert apply(made, {"energy": "off"}).energy is None
    assert apply(made, {"energy": "on"}).energy == made.energy
    assert apply(made, {"energy": "off", "energy.s": "3"}).energy == Energy(s=3.0)
    assert "energy must be on or off, got 'maybe'" in refused(apply, made, {"energy": "maybe"})


def test_steps_make_way_for_epochs_and_back():
    assert (Config().steps, Config().epochs) == (None, "auto")
    by_steps = apply(Config(epochs=3), {"steps": "100"})
    assert (by_steps.steps, by_steps.epochs) == (100, None)
    by_epochs = derive(by_steps, epochs=2)
    assert (by_epochs.steps, by_epochs.epochs) == (None, 2)
    assert "give steps or epochs, not both" in refused(derive, Config(), steps=1, epochs=1)
    assert "give steps or epochs, not both" in refused(from_tree, {"steps": 1, "epochs": 1})


def test_derive_dotted_nested_and_whole():
    base = Config(energy=Energy(s=1.0))
    made = derive(base, {"optimizer.lr": 0.5}, energy={"angular": True}, schedule=Schedule("cosine"), seed=3)
    assert made == Config(
        seed=3, optimizer=Optimizer(lr=0.5), energy=Energy(s=1.0, angular=True), schedule=Schedule("cosine")
    )
    assert base == Config(energy=Energy(s=1.0))
    assert derive(base, energy=None).energy is None
    assert derive(base, energy=None, **{"energy.s": 4}).energy == Energy(s=4.0)
    assert derive(base, {"energy.s": 4}, energy=None).energy == Energy(s=4.0)  # in whatever order
    assert derive(base) == base
    assert "unknown setting 'optimiser', did you mean 'optimizer'?" in refused(derive, base, **{"optimiser.lr": 1})
    assert "seed must be an integer >= 0, got a group" in refused(derive, base, **{"seed.x": 1})


def test_groups_cannot_be_changed_or_made_wrong():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().seed = 1
    assert "optimizer.lr must be a number > 0 or auto, got 0.0" in refused(Optimizer, lr=0)
    assert "model must be a group of settings, got None" in refused(Config, model=None)
    assert "energy must be a group of settings, got Model" in refused(Config, energy=Model())
    assert Optimizer(lr=1).lr.is_integer()
    assert Model(widths=[1, 2]).widths == (1, 2)
    assert hash(FULL) == hash(from_tree(to_tree(FULL)))


# What it refuses


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"modle": {}}, "unknown setting 'modle', did you mean 'model'?"),
        ({"model": {"nmae": "cnn9"}}, "unknown setting 'model.nmae', did you mean 'model.name'?"),
        ({"lr": 0.1}, "unknown setting 'lr', did you mean 'optimizer.lr'?"),
        (
            {"data": {"root": "x"}},
            "data.name=digits reads no files, but data.root is given: set data.name=image_folder",
        ),
        ({"optimizer.lr": 0.1}, "unknown setting 'optimizer.lr', write it as optimizer: {lr: ...}"),
        ({"qqqq": 1}, "unknown setting 'qqqq', must be one of seed, steps"),
        ({"model": {"name": "cnn99"}}, "unknown model.name 'cnn99', did you mean 'cnn"),
        ({"loss": {"name": "zzz"}}, "unknown loss.name 'zzz', must be one of softmax, w_softmax"),
        ({"model": {"similarity": "cosin"}}, "unknown model.similarity 'cosin', did you mean 'cosine'?"),
        (
            {"model": {"similarity": "sigmoid(nan)"}},
            "model.similarity takes finite numbers in parentheses, as in sigmoid(0.7)",
        ),
        ({"model": {"similarity": "cosine(1)"}}, "model.similarity: cosine takes at most 0 numbers"),
        ({"model": "cnn9"}, "model must be a group of settings, got 'cnn9'"),
        ([], "a config must be a mapping, got a list"),
        ({"seed": "1"}, "seed must be an integer >= 0, got '1' (remove the quotes)"),
        ({"seed": 2**63}, "seed must fit in 64 bits"),
        ({"compile": 1}, "compile must be true or false, got 1"),
        ({"amp": "half"}, "amp must be true, false, bfloat16 or float16, got 'half'"),
        ({"device": "tpu"}, "device must be auto, cpu, mps, cuda or cuda:N, got 'tpu'"),
        ({"out": ""}, "out must not be empty"),
        ({"out": "a\0b"}, "out must not hold the character U+0000"),
        ({"clip": math.nan}, "clip must be a finite number, got nan"),
        ({"optimizer": {"lr": float("1e400")}}, "optimizer.lr must be a finite number, got inf"),
        ({"optimizer": {"betas": [0.9]}}, "optimizer.betas must be two numbers such as 0.9,0.999, got 0.9"),
        ({"model": {"widths": [16, "32"]}}, "model.widths[1] must be an integer from 1 to 1,000,000, got '32'"),
        ({"data": {"batch_size": 0}}, "data.batch_size must be an integer from 1 to 10,000,000 or auto, got 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_that_names_the_key(tree, message):
    assert message in refused(from_tree, tree)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.scale": 2.0}, "model.scale needs model.similarity"),
        ({"model.scale": False, "model.similarity": "cosine"}, "model.scale must be true, a number, auto or null"),
        ({"rotation.spread_steps": 5}, "rotation.spread_steps needs rotation.spread"),
        (
            {"rotation.spread": True, "rotation.spread_half_space": True, "rotation.spread_measure": "srip"},
            "rotation.spread_half_space needs rotation.spread_measure to be one of energy, comhe_random, comhe_angle; "
            "got srip",
        ),
        ({"optimizer.iterations": None}, "optimizer.iterations needs optimizer.name to be one of ogd; got auto"),
        (
            {"rotation.method": "ogd", "optimizer.name": "ogd", "optimizer.betas": (0.5, 0.9)},
            "optimizer.betas with optimizer.name=ogd needs optimizer.rest=adam",
        ),
        ({"optimizer.rotation_lr": 0.1}, "optimizer.rotation_lr needs rotations"),
        (
            {"optimizer.decay_layers": "layers.0", "optimizer.weight_decay": 0},
            "optimizer.decay_layers needs optimizer.weight_decay > 0",
        ),
        (
            {"model.init": "he"},
            "model.init must be kaiming, kaiming(mean), xavier, normal or normal(mean, std), got 'he'",
        ),
        ({"model.k_per": "layer", "model.similarity": "sigmoid"}, "model.k_per needs model.similarity=learnable"),
        ({"loss.bias": True}, "loss.bias needs an angular loss"),
        ({"loss.sample": 0.1}, "loss.sample needs an angular loss, got loss.name=softmax"),
        ({"loss.sample": 1.5}, "loss.sample must be a number > 0 and <= 1 or null, got 1.5"),
        (
            {"loss.sparse": True, "loss.name": "arcface", "optimizer.name": "adam"},
            "loss.sparse needs optimizer.name=row_sgd, got adam",
        ),
        (
            {"loss.sample": 0.1, "loss.name": "arcface", "compile": True},
            "loss.sample and loss.sparse need compile=false",
        ),
        (
            {"loss.annealing_rate": 0.1, "loss.name": "arcface", "loss.margin": 0.5},
            "loss.annealing_rate needs annealing and loss.name to be one of ga_softmax, a_softmax, sphereface_plus, ",
        ),
        (
            {"loss.annealing_floor": 1, "loss.name": "a_softmax", "loss.annealing": False},
            "loss.annealing_floor needs annealing and ",
        ),
        ({"data.labels": "coarse"}, "data.labels: only cifar100 has fine and coarse labels, got data.name=digits"),
        ({"patience": 3}, "patience needs data.validation"),
        ({"data.fold": "0/5"}, "data.fold must be 1/K to K/K with K >= 2, got '0/5'"),
        ({"data.fold": "2"}, "data.fold must be a fold such as 2/5, the second of five, or null, got '2'"),
        ({"data.fold": "2/5", "data.validation": 9}, "give data.validation or data.fold, not both"),
        ({"data.validation": 1.0}, "data.validation must be a share below 1 or an integer, got 1.0"),
        (
            {"model.name": "gcn"},
            "model.name=gcn needs a graph dataset (citeseer, cora, pubmed), but data.name=digits has images",
        ),
        ({"data.name": "text"}, "model.name=cnn needs an image dataset (casia_webface, cifar10, "),
        ({"schedule.rotation_gamma": 0.2}, "schedule.rotation_gamma needs schedule.name=step, got cosine"),
        (
            {"schedule.name": "step", "schedule.milestones": (1,), "schedule.rotation_gamma": 0.2},
            "schedule.rotation_gamma needs rotations",
        ),
        ({"rotation.renormalize": True}, "rotation.renormalize needs rotation.neurons=learned"),
        ({"data.augment": "cifar.mhe"}, "data.augment=cifar.mhe crops to 32 pixels"),
        ({"data.augment": "modelnet.opt"}, "data.augment=modelnet.opt is for points, but data.name=digits is images"),
        (
            {"data.name": "cora", "model.name": "gcn", "data.augment": "cifar.mhe"},
            "data.augment: there is none for graph, got data.name=cora",
        ),
        (
            {"data.name": "cora", "model.name": "gcn", "data.validation": 9},
            "data.validation: the samples of a graph are split already",
        ),
        ({"data.name": "text", "model.name": "transformer", "data.imbalance": "single"}, "text has no classes"),
        ({"loss.margin": 4.0}, "loss.margin needs loss.name to be one of ga_softmax, a_softmax"),
        ({"loss.energy_weight": 1.0}, "loss.energy_weight needs an angular loss"),
        ({"loss.name": "w_softmax", "loss.scale": 30.0}, "loss.scale needs loss.name to be one of ga_softmax"),
        (
            {"loss.name": "am_softmax", "loss.margin": 4},
            "loss.margin of am_softmax must be a cosine from 0 to 1, got 4.0",
        ),
        ({"loss.name": "arcface", "loss.margin": math.pi}, "loss.margin of arcface must be radians"),
        (
            {"loss.name": "a_softmax", "loss.margin": 0.5},
            "loss.margin of a_softmax must be a factor of the angle, >= 1",
        ),
        ({"embedding.weight": 1.0}, "embedding needs a loss whose network returns embeddings, such as s_softmax"),
        ({"embedding.angular": True, "loss.name": "arcface"}, "embedding.angular needs embedding.measure=energy, got"),
        (
            {"embedding.measure": "hug", "loss.name": "arcface", "loss.subcenters": 2},
            "embedding.measure=hug needs an angular loss with one weight vector of each class",
        ),
        ({"energy.half_space": True, "energy.hidden_weight": 0}, "energy.half_space applies to hidden layers"),
        (
            {"energy.half_space": True, "energy.measure": "srip"},
            "energy.half_space needs energy.measure to be one of energy",
        ),
        ({"model.name": "generator.mhe", "loss.name": "a_softmax"}, "loss.name needs a classifier"),
        ({"model.name": "generator.mhe", "rotation.layers": "all"}, "rotation.layers must be hidden"),
        ({"data.name": "modelnet", "model.name": "pointnet", "data.size": 32}, "data.size: only images have one"),
        ({"data.name": "cora", "model.name": "gcn", "data.channels": 1}, "data.channels: only images have them"),
        ({"data.channels": 2}, "data.channels must be 1, 3 or null, got 2"),
        ({"optimizer.name": "ogd"}, "optimizer.name=ogd needs rotation.method=ogd, got none at all"),
        ({"rotation.method": "ogd"}, "rotation.method=ogd needs optimizer.name=ogd, got auto"),
        ({"optimizer.betas": [0.9, 0.99]}, "optimizer.betas needs optimizer.name to be one of adam"),
        (
            {"optimizer.name": "adam", "optimizer.momentum": 0.9},
            "optimizer.momentum needs optimizer.name to be one of rmsprop, sgd, ogd, muon, muonh, row_sgd; got adam",
        ),
        ({"optimizer.name": "rprop"}, "optimizer.weight_decay must be 0: rprop has no weight decay"),
        ({"loss.name": "additive_angle"}, "loss.name=additive_angle needs loss.margin"),
        ({"rotation.sample": 0.5, "rotation.blocks": 2}, "rotation.sample needs whole layers"),
        ({"rotation.sample": 0.5, "rotation.init": "normal"}, "rotation.sample needs rotation.init=identity"),
        ({"rotation.blocks": 2, "rotation.block_size": 9}, "give rotation.blocks or rotation.block_size, not both"),
        ({"rotation.method": "none", "rotation.blocks": 2}, "rotation.method=none rotates nothing"),
        ({"rotation.sample": 1.5}, "rotation.sample must be a share below 1 or an integer >= 2, got 1.5"),
        ({"rotation.every": 10}, "rotation.every needs rotation.sample"),
        ({"rotation.penalty": 0.1}, "rotation.penalty needs rotation.method=regularized"),
        ({"schedule.name": "step"}, "schedule.name=step needs schedule.milestones"),
        ({"schedule.milestones": [5]}, "schedule.milestones needs schedule.name=step, got cosine"),
        ({"schedule.name": "step", "schedule.milestones": [5, 5]}, "schedule.milestones must increase, got 5 after 5"),
        ({"schedule.patience": 5}, "schedule.patience needs schedule.name=plateau"),
    ],
)
def test_what_cannot_be_together(changes, message):
    assert message in refused(derive, Config(), changes)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("optimizer.lrr", "1", "unknown setting 'optimizer.lrr', did you mean 'optimizer.lr'?"),
        (
            "model.name",
            "resnet21",
            "unknown model.name 'resnet21', did you mean 'resnet20'? (`hypersphere list models`)",
        ),
        ("data.augment", "cifar10", "did you mean 'cifar10.spherenet'? (`hypersphere list augmentations`)"),
        ("steps", "0", "steps must be an integer >= 1 or null, got 0"),
        ("optimizer.betas", "0.9,x", "optimizer.betas[1] must be a number >= 0 and < 1, got 'x'"),
        ("seed", "9" * 5000, "seed must be an integer >= 0, got '9"),
        ("model.widths", "16,,32", "model.widths[1] must be an integer"),
    ],
    ids=short,
)
def test_flags_that_are_refused(key, text, message):
    assert message in refused(apply, Config(), {key: text})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.yaml", "seed: 1\nseed: 1\n", "line 2: seed is given twice"),
        ("c.yaml", "model:\n  name: cnn9\n  name: cnn9\n", "line 3: name is given twice"),
        ("c.json", '{"clip": NaN}', "clip must be a finite number, got nan"),
        ("c.json", '{"seed": ' + "9" * 5000 + "}", "seed must be an integer >= 0, got inf"),
        ("c.json", '{"seed": 1, "seed": 1}', "seed is given twice"),
        ("c.yaml", "seed: !!python/object/apply:os.system ['true']", "tags are not allowed"),
        ("c.json", "[" * 50_000, "nested too deeply"),
        ("c.yaml", "[a, b]: 1", "line 1: a key must be text"),
        ("c.yaml", "just text", "a config must be a mapping, got 'just text'"),
        ("c.yaml", "seed: 1\n---\nseed: 2\n", "not YAML"),
        ("c.yaml", "seed: [1", "line 1: not YAML"),
        ("c.yaml", r'out: "\U00110000"', "not YAML: an escape beyond Unicode"),
        ("c.yaml", r'out: "\uD800"', "out must not hold the character U+D800"),
        ("c.json", '{"seed": 1,}', "line 1, column 12: not JSON"),
        ("c.yaml", b"seed: \xff", "not UTF-8 text (byte 6)"),
        ("c.yaml", "model: {nmae: x}", "c.yaml: unknown setting 'model.nmae', did you mean 'model.name'?"),
    ],
    ids=short,
)
def test_files_that_are_refused(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    words = refused(load_file, path)
    assert message in words
    assert words.startswith(str(path))


def test_paths_that_are_no_files(tmp_path):
    assert "No such file" in refused(load_file, tmp_path / "none.yaml")
    assert "Is a directory" in refused(load_file, tmp_path)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["model", "name", "energy", "s", "lr", "optimizer", "steps", "x", "widths"]), inner
            )
        ),
        max_leaves=8,
    )
)
@settings(max_examples=100, deadline=None)
def test_any_tree_is_a_config_or_a_config_error(tree):
    try:
        made = from_tree(tree)
    except ConfigError as error:
        assert str(error).isprintable()  # noqa: PT017
    else:
        assert from_tree(json.loads(to_json(made))) == made


# What it imports


def _run(code, *options):
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=True).stdout


def test_no_torch_and_no_yaml_until_a_yaml_file_is_read(tmp_path):
    (tmp_path / "c.json").write_text(to_json(FULL))
    (tmp_path / "c.yaml").write_text("seed: 3")
    code = f"""
import sys
from hypersphere.train.config import *
flags(); to_yaml(Config()); apply(Config(), {{"energy.s": "1"}})
load_file({str(tmp_path / "c.json")!r})
for name in ("torch", "numpy", "yaml", "jsonargparse"):
    assert name not in sys.modules, name
load_file({str(tmp_path / "c.yaml")!r})
assert "yaml" in sys.modules and "torch" not in sys.modules
sys.modules["yaml"] = None
try:
    load_file({str(tmp_path / "c.yaml")!r})
except ConfigError as error:
    print(error)
"""
    assert f"YAML needs PyYAML: {install_command('cli')}, or write JSON" in _run(code)


# The tables


def test_energy_and_rotation_have_the_defaults_of_the_library():
    import hypersphere as hs

    for group, verb, other in (
        (Energy(), hs.EnergyRegularizer, ()),
        (Rotation(), hs.rotate, ("every", "penalty", "penalty_squared", "layers", "freeze")),
    ):
        accepted = inspect.signature(verb).parameters
        for name, value in vars(group).items():
            if not name.startswith("spread") and name not in ("normalize", "renormalize", *other):
                assert accepted[name].default == value, name


def test_a_name_of_the_user_s_own_is_known_once_it_is_registered(monkeypatch):
    import hypersphere as hs

    monkeypatch.setitem(hs.models._registry.PRESETS, "mine_of_test_config", None)
    monkeypatch.setitem(hs.data.DATASETS, "my_data", None)
    made = derive(Config(), {"model.name": "mine_of_test_config", "data.name": "my_data", "data.augment": "cifar.mhe"})
    assert made.model.name == "mine_of_test_config"
    monkeypatch.undo()
    assert "unknown model.name" in refused(derive, Config(), {"model.name": "mine_of_test_config"})


def test_flags_tell_what_they_are():
    by_flag = {flag.flag: flag for flag in flags()}
    assert len(by_flag) == len(flags())
    assert by_flag["--optimizer.weight_decay"].help == "weight decay of weights and rotations (default: 0.0005)"
    assert "constant, step, cosine, plateau" in by_flag["--schedule.name"].help
    assert by_flag["--energy"].help.endswith(": on or off")
    assert all(flag.help and flag.field.metadata["help"] for flag in flags())
    groups = (Model, Data, Loss, Energy, Embedding, Rotation, Gan, Optimizer, Schedule)
    leaves = sum(len(dataclasses.fields(kind)) for kind in groups)
    assert len(flags()) == leaves + len(dataclasses.fields(Config)) - 5  # four groups can be turned off by their own


def test_folders_of_the_official_files_are_those_of_the_loaders():
    from hypersphere._internal.catalog import FOLDERS
    from hypersphere.data import cifar, idx, modelnet

    sources = (idx.MNIST, idx.FASHION, cifar.CIFAR10.source, cifar.CIFAR100.source, modelnet.SOURCE)
    folders = {source.name: source.folders for source in sources}
    folders |= {f"modelnet{n}": (folder,) for n, folder in zip((40, 10), modelnet.SOURCE.folders, strict=True)}
    assert folders == FOLDERS
