"""Train what the demo is compared with; results/demo_controls.json is what the table of docs/index.md is made of.

    python -m tools.demo_controls

The demo's MLP with another remedy (weight decay), and tasks on which plain training does well already. The controls of
its CNNs are in docs/layers.md (tools/accuracy_by_depth.py).
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from hypersphere._internal.safe_files import write_text
from hypersphere.train import Config, derive, fit, recipes

ROOT = Path(__file__).parents[1]
FILE, MARKER = "demo_controls.json", "controls"
SEEDS = range(5)
DECAYS = (1e-3, 1e-2, 3e-2)  # the best by validation accuracy is shown


def tasks() -> dict[str, dict[str, Config]]:
    """Return the configs by task and method."""
    sys.path.insert(0, str(ROOT / "examples"))
    import demo  # type: ignore[import-not-found]

    everything = {"data.validation": None}
    decays = {f"weight decay {decay:g}": derive(demo.few(), {"optimizer.weight_decay": decay}) for decay in DECAYS}
    return {
        "MLP on 100 digits": {"plain": demo.few(), **decays},
        "MLP on all 1280 digits": {
            "plain": derive(demo.few(), everything),
            "energy": derive(demo.few_energy(), everything),
            "rotations": derive(demo.few_rotated(), everything),
        },
        "small CNN with BatchNorm": {name: recipes.load(name) for name in ("plain", "spherenet", "mhe", "opt")},
    }


def measure(config: Config) -> dict[str, Any]:
    """Train with every seed."""
    summaries = [fit(derive(config, seed=seed, device="cpu"), progress=False).summary for seed in SEEDS]
    validated = [100 * summary.validation["accuracy"] for summary in summaries if summary.validation]
    return {
        "accuracies": [round(100 * summary.accuracy, 4) for summary in summaries],
        "validation": round(statistics.mean(validated), 4) if validated else None,
        "trained": summaries[0].parameters["trained"],
    }


def main() -> None:
    torch.set_num_threads(1)
    results: dict[str, dict[str, Any]] = {}
    for task, methods in tasks().items():
        results[task] = {}
        for method, config in methods.items():
            results[task][method] = measure(config)
            print(f"{task}, {method}: {statistics.mean(results[task][method]['accuracies']):.1f} %", flush=True)
    few = results["MLP on 100 digits"]
    best = max((name for name in few if name != "plain"), key=lambda name: few[name]["validation"])
    results["MLP on 100 digits"] = {name: few[name] for name in ("plain", best)}
    write_text(ROOT / "results" / FILE, json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
