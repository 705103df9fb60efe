"""examples/embed_minilm.py runs with a tiny BERT of random weights."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

transformers = pytest.importorskip("transformers")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    words = [f"w{i}" for i in range(50)]
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    transformers.BertTokenizerFast(vocab_file=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=55, **sizes)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    return tmp_path


def test_every_way_is_measured(model: Path, tmp_path: Path) -> None:
    lines = [" ".join(f"w{(i * k + k) % 50}" for k in range(1, 8)) for i in range(50)]
    (tmp_path / "text").write_text("\n".join(lines))
    command = [sys.executable, str(ROOT / "examples/embed_minilm.py"), str(tmp_path / "text"), "--model", str(model)]
    command += ["--steps", "2", "--seeds", "1", "--out", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    runs = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert len({(run["model"], run["rotation"]) for run in runs}) == 8
    assert runs[0]["floats"] == 100
    assert all(0 < run["bits"] <= 100 for run in runs)
