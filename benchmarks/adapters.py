"""Fine-tuning a Transformer by rotations: training steps and memory against PEFT's OFT and LoRA, and a frozen network.

Networks have random weights: the sizes of MiniLM (6 layers, 384 dimensions), and a wider one. Every Linear of the
encoder is adapted. A step is forward, backward and SGD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

import hypersphere as hs
from hypersphere.rotation.parametrization import find_rotated

from .measure import Contestant, Measurement, Plan, kept_bytes, seconds

LINEARS = r".*encoder\.layer.*\.(query|key|value|dense)"
FROZEN, FULL, OURS, OFT, OFT_EXACT, LORA = (
    "frozen",
    "all weights",
    "rotations",
    "PEFT OFT",
    "PEFT OFT exact",
    "LoRA r=8",
)
TIME, KEPT, ERROR = "time / {}", "kept / {}", "max |RᵀR − I| at numbers of N(0, 0.1)"
STEP_GOALS = {TIME.format(OFT): 1.0, TIME.format(LORA): 1.05, KEPT.format(OFT): 1.0, ERROR: 1e-6}
FROZEN_GOALS = {32: 1.1, 64: 1.3}  # by block size, against a frozen network's step
BOTH_GOAL = 1.3  # blocks of 256 on both sides, hidden size 512, against a plain step


def measurements(plan: Plan) -> Iterator[Measurement]:
    try:
        import peft
        import transformers
    except ImportError:
        print("adapters: transformers and peft are not installed (make bench installs them)")
        return
    transformers.logging.set_verbosity_error()
    few = plan.fewer(3)
    for tokens in (4,) if plan.quick else (32, 128):
        yield from _against_peft(peft, transformers, 2 if plan.quick else 16, tokens, few)
    for sizes in ([*FROZEN_GOALS], [None]):  # apart: a whole R leaves other memory behind for the next
        yield from _against_frozen(transformers, (1, 4) if plan.quick else (8, 64), sizes, few)
    yield from _both_sides(transformers, (1, 4) if plan.quick else (32, 128), plan.fewer(8))


def _against_peft(peft: Any, transformers: Any, batch: int, tokens: int, plan: Plan) -> Iterator[Measurement]:
    case, base = f"BERT 6×384 (MiniLM), blocks of 32, {batch}×{tokens} tokens", _bert(transformers, 384)
    oft = {"r": 0, "oft_block_size": 32, "target_modules": LINEARS}
    models = {
        FROZEN: _frozen(base),
        FULL: deepcopy(base),
        OURS: _rotated(base, block_size=32),
        OFT: peft.get_peft_model(deepcopy(base), peft.OFTConfig(**oft)),
        OFT_EXACT: peft.get_peft_model(deepcopy(base), peft.OFTConfig(**oft, use_cayley_neumann=False)),
        LORA: peft.get_peft_model(deepcopy(base), peft.LoraConfig(r=8, target_modules=LINEARS)),
    }
    data = _tokens(base, batch, tokens)
    contestants = [
        Contestant(name, _step(model, data), goals=STEP_GOALS if name == OURS else {}) for name, model in models.items()
    ]
    taken = seconds(case, contestants, plan)
    kept = {name: kept_bytes(Contestant(name, _forward(model, data))) for name, model in models.items()}
    for contestant in contestants:
        name = contestant.name
        yield contestant.measurement(case, "ms", 1e3 * taken[name])
        yield contestant.measurement(case, "kept MB", kept[name] / 1e6)
        if name == OURS:
            for peer in (OFT, LORA, FROZEN):
                yield contestant.measurement(case, TIME.format(peer), taken[name] / taken[peer])
            yield contestant.measurement(case, KEPT.format(OFT), kept[name] / kept[OFT])
    yield Measurement(case, OURS, ERROR, _orthogonality(models[OURS]), STEP_GOALS[ERROR])
    yield Measurement(case, OFT, ERROR, _peft_orthogonality(models[OFT]))


def _against_frozen(
    transformers: Any, shape: tuple[int, int], sizes: list[int | None], plan: Plan
) -> Iterator[Measurement]:
    what = "in blocks" if sizes[0] else "whole"
    case, base = f"BERT 6×384, {what}, {shape[0]}×{shape[1]} tokens", _bert(transformers, 384)
    data = _tokens(base, *shape)
    contestants = [Contestant(FROZEN, _step(_frozen(base), data))]
    ratio = TIME.format(FROZEN)
    for size in sizes:
        name = f"rotations, blocks of {size}" if size else "rotations, whole"
        goals = {ratio: FROZEN_GOALS[size]} if size else {}
        contestants.append(Contestant(name, _step(_rotated(base, block_size=size), data), against=FROZEN, goals=goals))
    yield from _ratios(case, contestants, plan, ratio)


def _both_sides(transformers: Any, shape: tuple[int, int], plan: Plan) -> Iterator[Measurement]:
    case, base = f"BERT 2×512, blocks of 256 on both sides, {shape[0]}×{shape[1]} tokens", _bert(transformers, 512, 2)
    data, ratio = _tokens(base, *shape), TIME.format(FULL)
    both = hs.rotate(deepcopy(base), block_size=256, side="both", layers=_in_encoder)
    contestants = [
        Contestant(FULL, _step(deepcopy(base), data)),
        Contestant("rotations of both sides", _step(both, data), against=FULL, goals={ratio: BOTH_GOAL}),
    ]
    yield from _ratios(case, contestants, plan, ratio)


def _ratios(case: str, contestants: list[Contestant], plan: Plan, ratio: str) -> Iterator[Measurement]:
    taken = seconds(case, contestants, plan)
    for contestant in contestants:
        yield contestant.measurement(case, "ms", 1e3 * taken[contestant.name])
        if contestant.against is not None:
            yield contestant.measurement(case, ratio, taken[contestant.name] / taken[contestant.against])


def _bert(transformers: Any, hidden: int, layers: int = 6) -> nn.Module:
    config = transformers.BertConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=hidden // 32, intermediate_size=4 * hidden
    )
    return transformers.BertModel(config, add_pooling_layer=False)


def _in_encoder(name: str, module: nn.Module) -> bool:
    return name.startswith("encoder.") and isinstance(module, nn.Linear)


def _rotated(base: nn.Module, **options: Any) -> nn.Module:
    return hs.rotate(deepcopy(base).requires_grad_(False), layers=_in_encoder, **options)


def _frozen(base: nn.Module) -> nn.Module:
    """Return a network whose first bias alone is trained: the gradient passes all layers, as with adapters."""
    model = deepcopy(base).requires_grad_(False)
    model.embeddings.LayerNorm.bias.requires_grad_(True)
    return model


def _tokens(base: nn.Module, batch: int, tokens: int) -> dict[str, Tensor]:
    ids = torch.randint(1000, 20000, (batch, tokens))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _forward(model: nn.Module, data: dict[str, Tensor]) -> Callable[[], Tensor]:
    return lambda: model(**data).last_hidden_state


def _step(model: nn.Module, data: dict[str, Tensor]) -> Callable[[], Tensor]:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    def step() -> Tensor:
        loss = model(**data).last_hidden_state.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _orthogonality(model: nn.Module) -> float:
    rotation = next(find_rotated(model)).rotation
    with torch.no_grad():
        next(rotation.parameters()).normal_(std=0.1)
        return _error(rotation.task.block_rotations(rotation.plan, dropout=False)[0].matrices())


def _peft_orthogonality(model: nn.Module) -> float:
    layer = next(module for module in model.modules() if type(module).__name__ == "OFTRotationModule")
    with torch.no_grad():
        layer.weight.normal_(std=0.1)
        return _error(layer._cayley_batch(layer.weight, layer.block_size, layer.use_cayley_neumann))


def _error(matrices: Tensor) -> float:
    return float((matrices.mT @ matrices - torch.eye(matrices.shape[-1])).abs().max())
