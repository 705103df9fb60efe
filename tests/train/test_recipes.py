"""Recipes: those of the package, and files of the user's own with all that can be wrong with them."""

import sys

import pytest

from hypersphere.train import recipes
from hypersphere.train.config import Config, apply

HEAD = "from hypersphere.train import Config, Model, derive\n"


def refused(text):
    """The one line a recipe is refused with."""
    with pytest.raises(ValueError) as caught:
        recipes.load(str(text))
    line = str(caught.value)
    assert line.isprintable()
    return line


@pytest.fixture
def write(tmp_path):
    def write(text, name="my.py"):
        file = tmp_path / name
        file.write_text(text)
        return file

    return write


def test_each_recipe_is_its_idea():
    made = {name: recipes.load(name) for name in ("plain", "spherenet", "mhe", "opt", "s_opt", "sphereface_plus")}
    assert all(config.data.name == "digits" for config in made.values())
    assert [name for name in made if made[name].model.similarity] == ["spherenet"]
    assert [name for name in made if made[name].energy] == ["mhe"]
    assert [name for name in made if made[name].rotation] == ["opt", "s_opt"]
    assert [name for name in made if made[name].loss.name != "softmax"] == ["sphereface_plus"]
    assert made["opt"].rotation.sample is None
    assert made["s_opt"].rotation.sample == 0.25
    same = ("name", "widths", "fc", "batch_norm", "relu")
    assert len({tuple(getattr(config.model, key) for key in same) for config in made.values()}) == 1


def test_the_only_function(write):
    text = "def _helper(): pass\ndef of(width): return Config(seed=width)\ndef mine(width=5): return of(width)\n"
    file = write(HEAD + text)
    assert recipes.load(str(file)) == recipes.load(f"{file}:mine") == Config(seed=5)
    assert recipes.load(f"{write(HEAD + 'def _hidden(): return Config(seed=3)')}:_hidden").seed == 3
    assert recipes.load(str(write(HEAD + "mine = lambda: Config(seed=4)"))).seed == 4


def test_a_function_called_recipe(write):
    file = write(HEAD + "def other(): return Config(seed=1)\ndef recipe(): return Config(seed=2)\n")
    assert recipes.load(str(file)).seed == 2
    assert recipes.load(f"{file}:other").seed == 1


def test_what_it_imports_is_not_its_own(write):
    file = write(
        HEAD + "from hypersphere.train.recipes.digits import opt, plain\ndef mine(): return derive(opt(), seed=9)\n"
    )
    assert recipes.load(str(file)).seed == 9
    assert recipes.load(f"{file}:opt") == recipes.load("opt")


def test_files_beside_it_can_be_imported(write):
    write("SEED = 11\n", "beside_my_recipe.py")
    before = [*sys.path]
    file = write(HEAD + "def mine():\n    from beside_my_recipe import SEED\n    return Config(seed=SEED)\n")
    assert recipes.load(str(file)).seed == 11
    assert sys.path == before
    del sys.modules["beside_my_recipe"]


def test_it_may_define_dataclasses(write):
    """They look up the types of their fields in sys.modules."""
    text = """from __future__ import annotations
from dataclasses import KW_ONLY, dataclass
from typing import get_type_hints
from hypersphere.train import Config
@dataclass
class Mine:
    _: KW_ONLY
    seed: int = 6
def mine():
    assert get_type_hints(Mine)["seed"] is int
    return Config(seed=Mine().seed)
"""
    assert recipes.load(str(write(text))).seed == 6


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plian", "unknown recipe 'plian', did you mean 'plain'? (`hypersphere list recipes`)"),
        ("zzzzzz", "your own is a file, my.py or my.py:function (`hypersphere list recipes`)"),
        ("my.yaml", "a recipe is a name or a Python file, got 'my.yaml'; pass a config file with --config"),
        ("/nowhere/my.py", "/nowhere/my.py: No such file or directory"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_recipe(text, line):
    assert line in refused(text)


def test_a_folder_is_no_recipe(tmp_path):
    (tmp_path / "config.json").touch()
    assert refused(tmp_path) == f"{tmp_path} is a run folder: use --out {tmp_path} --resume"
    (tmp_path / "my.py").mkdir()
    assert refused(tmp_path / "my.py") == f"{tmp_path / 'my.py'}: not a file"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\n1 / 0\n", ", line 2: ZeroDivisionError: division by zero"),
        ("def f():\n    return g()\ndef g(n=0):\n    raise KeyError\n", ", line 4: KeyError"),
        ("def f():\n    import json\n    json.loads('{')\n", ", line 3: JSONDecodeError: Expecting property name"),
        ("def f(:\n", ", line 1: SyntaxError: invalid syntax"),
        ("raise ValueError('two\\nlines')\n", ", line 1: ValueError: two lines"),
        ("import no_such_module_here\n", ", line 1: ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("def f(): return 3\n", ": f() must return a Config, got int"),
        ("def f(x): return x\n", " has no function without arguments; a recipe is one that returns a Config"),
        ("def a(): pass\ndef b(): pass\n", " has several functions: a, b; name one, as in "),
    ],
    ids=lambda text: text[:20],
)
def test_files_that_are_refused(text, line, write):
    file, before = write(text), {*sys.modules}
    words = refused(f"{file}:f" if "def g" in text else file)
    assert words.startswith(str(file))
    assert line in words
    assert not [name for name in {*sys.modules} - before if name.startswith("_recipe_")]


@pytest.mark.parametrize(
    ("function", "line"),
    [
        ("mien", ": unknown function 'mien', did you mean 'mine'?"),
        ("zzz", ": unknown function 'zzz', it has mine, of"),
        ("of", ": TypeError: of() missing 1 required positional argument: 'width'"),
    ],
)
def test_functions_that_are_refused(function, line, write):
    file = write("number = 3\ndef mine(): pass\ndef of(width, *more, depth=2): pass\n")
    assert refused(f"{file}:{function}").startswith(f"{file}{line}")


def test_ctrl_c_goes_through(write):
    with pytest.raises(KeyboardInterrupt):
        recipes.load(str(write("raise KeyboardInterrupt")))


def test_the_sizes_of_a_recipe_stay_with_its_network():
    plain = recipes.load("plain")
    assert apply(plain, {"model.name": "cnn6"}).model.widths == plain.model.widths
    other = apply(plain, {"model.name": "resnet20"}).model
    assert (other.widths, other.fc) == (None, None)
    assert apply(plain, {"model.name": "resnet20", "model.widths": "4,8,8"}).model.widths == (4, 8, 8)
