"""Report which layers of a model file waste neurons, how two files differ, or what embeddings are like."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from ._output import file_to_write, print_table, printable, user_errors

if TYPE_CHECKING:
    from ..inspection.embeddings import Transform


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help=".safetensors file or folder of shards, .pt, .pth, .bin, .onnx, or run folder; two: what changed; "
        "embeddings: .npy, .npz, .parquet, or .safetensors and .pt with one tensor",
    )
    parser.add_argument("--embeddings", action="store_true", help="read each FILE as embeddings, not as a model")
    parser.add_argument("--labels", metavar="FILE", help="of embeddings: .npy of integers, or .csv with a column label")
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=file_to_write(".safetensors"),
        help="write the map that helps embeddings most: matrix and mean, y = (x/|x| - mean) matrix^T",
    )
    parser.add_argument("--html", metavar="FILE", type=file_to_write(), help="write a page with tables and charts")
    parser.add_argument("--json", action="store_true", help="print JSON only, with angles in radians")


def run(options: argparse.Namespace) -> int:
    if len(options.files) > 2:
        options.error(f"one FILE or two, got {len(options.files)}")
    if len(options.files) == 2 and (options.labels or options.out):
        options.error("--labels and --out need one FILE, got 2")
    from ..inspection import EmbeddingInspection, compare, inspect
    from ..inspection.page import make_page
    from ..papers import gan as gan  # registers it

    with user_errors(options):
        embeddings = options.embeddings or None
        if len(options.files) == 2:
            result = compare(*options.files, embeddings=embeddings)
        else:
            result = inspect(options.files[0], labels=options.labels, embeddings=embeddings)
        written = []
        if options.out is not None:
            written = [_write_transform(options, result.transform if isinstance(result, EmbeddingInspection) else None)]
        if options.html is not None:
            make_page(result).write(options.html)
    if options.json:
        print(json.dumps(result.to_dict(), indent=2, allow_nan=False))
        return 0
    for table in result.tables():
        print_table(table)
        print()
    notes = result.notes()
    if options.html is not None:
        written.append(f"page: {options.html}")
    notes += ([""] if notes and written else []) + written
    if notes:
        print(printable("\n".join(notes)))
    return 0


def _write_transform(options: argparse.Namespace, transform: Transform | None) -> str:
    """Write the map; return what is printed about it."""
    if transform is None:
        raise ValueError(f"nothing to write to {options.out}: no map of {options.files[0]} helps")
    transform.save(options.out)
    return (
        f"wrote {options.out}: {transform.name}, {transform.matrix.shape[1]} → {transform.matrix.shape[0]} dimensions"
    )
