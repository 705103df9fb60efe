"""Converted models of the real transformers: saved and loaded with an error of 0.0."""

import pytest
import torch

import hypersphere as hs
from tests.rotations import shake

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
}
MODELS = {
    "bert": ("BertForSequenceClassification", "BertConfig", SMALL, "AutoModelForSequenceClassification"),
    "llama, tied": (
        "LlamaForCausalLM",
        "LlamaConfig",
        SMALL | {"num_key_value_heads": 2, "tie_word_embeddings": True},
        "AutoModelForCausalLM",
    ),
}
CONVERSIONS = {
    "sphere": lambda m: hs.spherize(m, "learnable", scale=True),
    "rotated": hs.rotate,
    "both": lambda m: hs.rotate(hs.spherize(m), sample=0.25),
    "bfloat16": lambda m: hs.rotate(m.bfloat16()),
}


def make(name, conversion):
    model, config, options, _ = MODELS[name]
    torch.manual_seed(0)
    plain = getattr(transformers, model)(getattr(transformers, config)(**options))
    return shake(CONVERSIONS[conversion](plain)).eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rotations", ["keep", "merge"])
@pytest.mark.parametrize("conversion", CONVERSIONS)
@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name, conversion, rotations, tmp_path):
    model, ids = make(name, conversion), torch.randint(50, (2, 7))
    expected = model(ids).logits
    hs.integrations.huggingface.save_pretrained(model, tmp_path, rotations=rotations)
    for cls in (type(model), getattr(transformers, MODELS[name][3])):
        again = hs.integrations.huggingface.from_pretrained(cls, tmp_path)
        assert torch.equal(again(ids).logits, expected)
        assert again.dtype is model.dtype
    if rotations == "keep":
        state = again.state_dict()
        assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    if rotations == "merge" and conversion in ("rotated", "bfloat16"):
        assert torch.equal(type(model).from_pretrained(tmp_path)(ids).logits, expected)
    else:
        with pytest.raises(OSError, match=r"no file named model.safetensors"):
            type(model).from_pretrained(tmp_path)
