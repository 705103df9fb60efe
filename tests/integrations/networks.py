"""The networks of the matrix: small, with random weights, nothing fetched; what is true of each stands beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from .timm_import import timm

MlpMixer = timm.models.mlp_mixer.MlpMixer  # its registered networks have fixed sizes

Inputs = Tensor | dict[str, Tensor]


@dataclass(frozen=True)
class Network:
    """A network, and what its own source says about its layers; names are fnmatch patterns."""

    library: str
    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    heads: tuple[str, ...]
    only_read: tuple[str, ...] = ()
    """Layers whose weight is read without calling them: no sphere layer can stand there."""
    plain: tuple[str, ...] = ()
    """Layers that spherize cannot convert, since they compute something of their own (padding, a transposed weight)."""
    shapes: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """(groups, N, d) of layers whose neurons do not lie along the first dimension, or lie in groups."""
    rotation: dict[str, Any] = field(default_factory=lambda: {"block_size": 8})
    trap: str = ""

    def build(self) -> nn.Module:
        """Return the network in eval mode, the same one at each call."""
        torch.manual_seed(0)
        model = self.make().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                # Some scales and heads start at 0, and what they multiply would look unused.
                if parameter.dim() < 2:
                    parameter.add_(torch.empty_like(parameter).uniform_(0.1, 0.3))
                elif not parameter.any():
                    parameter.normal_(std=0.1)
        return model


def _images(size: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def _tokens() -> Tensor:
    return torch.randint(0, 60, (2, 7), generator=torch.Generator().manual_seed(1))


def _timm(name: str, heads: tuple[str, ...], size: int = 32, *, arguments: dict[str, Any] | None = None, **more: Any):
    def make() -> nn.Module:
        return timm.create_model(name, pretrained=False, num_classes=5, **(arguments or {}))

    return Network("timm", name, make, _images(size), heads, **more)


def _transformers(name: str, config: Any, heads: tuple[str, ...], inputs: Callable[[], Inputs], **more: Any):
    return Network("transformers", name, lambda: getattr(transformers, name)(config()), inputs, heads, **more)


class UNet(nn.Module):
    """A UNet's skeleton: the time's Linear is the last Linear, conv_out is the output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(3, 8, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 16))
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.conv_out = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        fine = F.silu(self.conv_in(x))
        coarse = F.silu(self.down(fine) + self.time(t)[:, :, None, None])
        return self.conv_out(torch.cat([fine, F.silu(self.up(coarse))], 1))


_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
_CNN = {"sample": 0.1}  # a share: layers with d < 20 stay whole
_SMALL = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 48}
_TEXT = _SMALL | {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 63}
_LLAMA = _TEXT | {"num_key_value_heads": 1}
_IMAGE = _SMALL | {"image_size": 32, "patch_size": 8}


def _bert() -> Any:
    return transformers.BertConfig(**_TEXT, max_position_embeddings=16, num_labels=5)


def _gpt2() -> Any:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16}
    return transformers.GPT2Config(vocab_size=64, bos_token_id=1, eos_token_id=63, **sizes)


def _yolos() -> Any:
    return transformers.YolosConfig(**_IMAGE | {"image_size": [32, 32]}, num_labels=5, num_detection_tokens=3)


def _t5() -> Any:
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2}
    return transformers.T5Config(vocab_size=64, decoder_start_token_id=0, **sizes)


def _clip() -> Any:
    text = _TEXT | {"max_position_embeddings": 16}
    return transformers.CLIPConfig(text_config=text, vision_config=_IMAGE, projection_dim=24)


def _text_and_image() -> Inputs:
    return {"input_ids": _tokens(), "pixel_values": _images(32)()}


NETWORKS = [
    _timm(
        "beit_base_patch16_224",
        ("head",),
        arguments=_VIT,
        only_read=("blocks.*.attn.qkv",),
        shapes={"blocks.0.attn.qkv": (3, 32, 32)},
        trap="qkv is read, not called",
    ),
    _timm(
        "eva02_tiny_patch14_224",
        ("head",),
        arguments=_VIT,
        only_read=("blocks.*.attn.qkv",),
        shapes={"blocks.0.attn.qkv": (3, 32, 32)},
        trap="qkv is read, not called",
    ),
    _timm(
        "swinv2_tiny_window8_256",
        ("head.fc",),
        arguments={"img_size": 32, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 2), "window_size": 4},
        only_read=("layers.*.attn.qkv",),
        shapes={"layers.0.blocks.0.attn.qkv": (3, 16, 16)},
        rotation={"sample": 0.5},
        trap="qkv is read, not called; an MLP over constant positions",
    ),
    _timm(
        "crossvit_tiny_240",
        ("head.0", "head.1"),
        48,
        arguments={
            **{"img_size": 48, "img_scale": (1.0, 2 / 3), "patch_size": [12, 16], "embed_dim": [16, 32]},
            **{"num_heads": [2, 2], "mlp_ratio": [2, 2, 1], "depth": [[1, 1, 1]]},
        },
        trap="get_classifier() is a ModuleList of two heads",
    ),
    _timm(
        "tf_efficientnet_b0",
        ("classifier",),
        96,
        plain=("conv_stem", "blocks.1.0.conv_dw", "blocks.2.0.conv_dw", "blocks.3.0.conv_dw", "blocks.5.0.conv_dw"),
        rotation=_CNN,
        trap="Conv2dSame, a Conv2d that pads by itself; depthwise convolutions",
    ),
    _timm("mobilenetv3_small_050", ("classifier",), 96, rotation=_CNN, trap="depthwise convolutions"),
    _timm(
        "convnext_atto",
        ("head.fc",),
        96,
        arguments={"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)},
        rotation=_CNN,
        trap="depthwise convolutions, a head of several modules",
    ),
    _timm("resnet10t", ("fc",), 64, arguments={"channels": (8, 16, 24, 32)}, rotation=_CNN),
    _timm("regnetx_002", ("head.fc",), 96, rotation=_CNN, trap="grouped convolutions"),
    _timm(
        "vit_tiny_patch16_224",
        ("head",),
        arguments=_VIT,
        shapes={"blocks.0.attn.qkv": (3, 32, 32)},
        trap="qkv in one Linear, called",
    ),
    Network(
        "timm",
        "MlpMixer",
        lambda: MlpMixer(num_classes=5, img_size=32, patch_size=16, embed_dim=32, num_blocks=2),
        _images(32),
        ("head",),
        rotation={"sample": 0.25},
        trap="Linears over places: layers of d = 4 and d = 16",
    ),
    _timm(
        "deit_tiny_distilled_patch16_224",
        ("head", "head_dist"),
        arguments=_VIT,
        shapes={"blocks.0.attn.qkv": (3, 32, 32)},
        trap="two heads, averaged",
    ),
    _transformers(
        "BertModel", _bert, (), lambda: {"input_ids": _tokens()}, trap="no head; the pooler is the last Linear"
    ),
    _transformers("BertForSequenceClassification", _bert, ("classifier",), lambda: {"input_ids": _tokens()}),
    _transformers(
        "GPT2LMHeadModel",
        _gpt2,
        ("lm_head",),
        lambda: {"input_ids": _tokens()},
        plain=("transformer.h.*",),
        shapes={
            "transformer.h.0.attn.c_attn": (3, 32, 32),
            "transformer.h.0.mlp.c_fc": (1, 128, 32),
            "transformer.h.0.mlp.c_proj": (1, 32, 128),
        },
        trap="Conv1D, a Linear with a transposed weight; tied embeddings; keys and values leave in a cache",
    ),
    _transformers(
        "LlamaModel",
        lambda: transformers.LlamaConfig(**_LLAMA),
        (),
        lambda: {"input_ids": _tokens()},
        trap="no head; down_proj is the last Linear",
    ),
    _transformers(
        "LlamaForCausalLM",
        lambda: transformers.LlamaConfig(**_LLAMA, tie_word_embeddings=True),
        ("lm_head",),
        lambda: {"input_ids": _tokens()},
        trap="tied embeddings; keys and values leave in a cache",
    ),
    _transformers(
        "MixtralForCausalLM",
        lambda: transformers.MixtralConfig(**_LLAMA, num_local_experts=4),
        ("lm_head",),
        lambda: {"input_ids": _tokens()},
        plain=("model.layers.*.experts.*", "model.layers.*.mlp.gate"),
        shapes={
            "model.layers.0.mlp.experts.gate_up_proj": (4, 96, 32),
            "model.layers.0.mlp.experts.down_proj": (4, 32, 48),
        },
        trap="stacked experts",
    ),
    _transformers(
        "ViTForImageClassification",
        lambda: transformers.ViTConfig(**_IMAGE, num_labels=5),
        ("classifier",),
        lambda: {"pixel_values": _images(32)()},
    ),
    _transformers(
        "YolosForObjectDetection",
        _yolos,
        ("class_labels_classifier.layers.2", "bbox_predictor.layers.2"),
        lambda: {"pixel_values": _images(32)()},
        trap="two heads: classes and boxes",
    ),
    _transformers(
        "T5ForConditionalGeneration",
        _t5,
        ("lm_head",),
        lambda: {"input_ids": _tokens(), "decoder_input_ids": _tokens()},
        trap="tied embeddings; encoder and decoder; keys and values leave in a cache",
    ),
    _transformers(
        "CLIPModel",
        _clip,
        ("visual_projection", "text_projection"),
        _text_and_image,
        trap="two towers with a projection each",
    ),
    Network(
        "torch",
        "UNet with a time Linear",
        UNet,
        lambda: {"x": _images(8)(), "t": torch.randn(2, 4, generator=torch.Generator().manual_seed(1))},
        ("conv_out",),
        plain=("up",),
        rotation={"sample": 0.5},
        trap="the last Linear is not the output, a convolution is",
    ),
]
