"""Export a run's merged network as ONNX, torch.export or safetensors."""

from __future__ import annotations

import argparse
import json

from ..train.storage.layout import EXPORTS, FINAL, RESULT
from . import _loading
from ._output import file_to_write, printable, user_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _loading.add_run(parser)
    parser.add_argument("--to", choices=EXPORTS, help="format (default: by the suffix of --out, else onnx)")
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=file_to_write(),
        help="output file (default for a finished run: RUN/final/model.onnx, model.pt2 or exported.safetensors; "
        "with --embeddings embeddings.onnx or embeddings.pt2)",
    )
    parser.add_argument("--embeddings", action="store_true", help="export unit embeddings instead of logits")
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(options: argparse.Namespace) -> int:
    from ..train.inference.exporting import export, format_of, inputs_of

    with user_errors(options):
        to = format_of(options.out or "x.onnx", options.to)
        loaded = _loading.load_options_run(options)
        out, is_final = options.out, loaded.source == loaded.path / FINAL
        unfinished = "" if is_final or (loaded.path / RESULT).exists() else f"{loaded.path} is not finished"
        if out is None:
            if not is_final:
                why = f"{unfinished}: this is its step {loaded.step}; " if unfinished else ""
                raise ValueError(f"{why}--out is needed: the file to write, such as model{EXPORTS[to]}")
            # model.safetensors is the run's own
            name = "embeddings" if options.embeddings else "exported" if to == "safetensors" else "model"
            out = loaded.source / f"{name}{EXPORTS[to]}"
        difference = export(loaded, out, to, options.embeddings)
    if options.json:
        written = {"path": str(out), "format": to, "step": loaded.step, "difference": difference}
        print(json.dumps({**written, "inputs": inputs_of(loaded)}, indent=2))
    else:
        print(printable(f"wrote {out}{_compared(to, difference)}\ninputs: {inputs_of(loaded)}"))
        if unfinished:
            print(printable(f"{unfinished}: the weights are those of step {loaded.step}"))
    return 0


def _compared(to: str, difference: float | None) -> str:
    if to == "safetensors":
        return ""
    if difference is None:
        return " (not compared with the network: needs onnxruntime)"
    return f" (differs from the network by {difference:.1e} at most)"
