"""The measured part of docs/finetuning.md."""

import re

from tools import finetune_page


def made_up(accuracies, seeds=(0, 1, 2)):
    """A result of the MiniLM script with these test accuracies of each method."""
    rates = {name: [0.1, 0.2] for name in ("rotation", "lora", "full")} | {"probe": [0.0]}
    settings = dict.fromkeys(["tokens", "steps", "batch", "block_size", "scaled", "lora_rank", "lora_alpha"], 8)
    runs_ = [
        {"method": name, "lr": rate, "seed": seed, "validation": rate, "test": value, "forgetting": value / 10}
        | {"parameters": 5, "seconds_per_step": 0.5, "seconds": 60.0, "kept_mb": 9.0}
        for name, values in accuracies.items()
        for seed, value in zip(seeds, values, strict=False)
        for rate in (rates[name] if seed == 0 else rates[name][-1:])
    ]
    speeches = {"train": 3, "validation": 2, "test": 1}
    common = {"settings": settings, "candidates": rates, "seeds": [*seeds], "speakers": ["A", "B"], "runs": runs_}
    return common | {"speeches": speeches, "versions": {"torch": "2"}, "threads": 1}


def test_the_page_says_ties_as_ties_and_what_is_missing():
    values = {"rotation": [0.5, 0.52, 0.48], "lora": [0.51, 0.5, 0.5], "full": [0.7, 0.71, 0.69], "probe": [0.2]}
    page = finetune_page.markdown(made_up(values))
    assert "| rotation | 0.2 | 5 | 50.0 ± 2.0 % | 0.050 ± 0.002 | 500 | 9 | 3 |" in page
    assert re.search(r"accuracy, rotation against LoRA: -0\.3 points, a tie \(p = 0\.", page)
    assert re.search(r"accuracy, rotation against full fine-tuning: -20\.0 points, a difference \(p = 0\.000", page)
    assert "accuracy, rotation against output layer only: +30.0 points, one seed cannot decide" in page
    assert "fewer than 3 seeds: output layer only." in page
    assert "The best rate is the first or the last that was tried for: rotation, LoRA, full fine-tuning." in page
    assert finetune_page.pictures(made_up(values)).keys() == {"accuracy", "trade"}
    twice = made_up(values)
    twice["runs"] += twice["runs"][1:4]  # a seed counts once, or a tie would become a difference
    assert finetune_page.final_runs(twice) == finetune_page.final_runs(made_up(values))
    begun = made_up({"rotation": [0.5]})
    begun["runs"] = begun["runs"][:1]
    assert "| rotation | 0.1: 10.0 %, 0.050 | - |" in finetune_page.markdown(begun)
    assert finetune_page.pictures(begun).keys() == {"trade"}
