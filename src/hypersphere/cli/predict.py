"""Predict labels or embeddings of images, folders or arrays."""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._internal.tables import TextTable
from .._internal.text import escaped
from . import _loading
from ._output import file_to_write, integer, print_table, printable, say, user_errors

if TYPE_CHECKING:
    from torch import Tensor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _loading.add_run(parser)
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="images, folders of images, or .npy arrays (N, ...) of uint8 pixels or normalized floats",
    )
    parser.add_argument("--embeddings", action="store_true", help="print unit embeddings instead of labels")
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=file_to_write(".csv", ".npy"),
        help="write the result to .csv, or all probabilities to .npy; with --embeddings .npy, and a .csv of the same "
        "name with the file and the class folder of each row",
    )
    parser.add_argument("--top", metavar="K", type=integer(1), help="print the K most likely labels (default: 1)")
    parser.add_argument("--quiet", action="store_true", help="hide the progress bar")
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(options: argparse.Namespace) -> int:
    _check(options)

    from .._internal.progress import track
    from ..train.distributed import device_of
    from ..train.inference.samples import batches_of_files, find_inverted

    with user_errors(options):
        loaded = _loading.load_options_run(options)
        loaded.check_labels()
        if (options.top or 1) > len(loaded.labels):
            raise ValueError(f"argument --top: must be at most {len(loaded.labels)}, the classes of the run")
        loaded.model.to(device_of("auto"))
        batches = list(batches_of_files(loaded, options.files))
        total = sum(len(batch.names) for batch in batches)
        inverted: list[str] = []
        printed: list[dict[str, Any]] = []
        with nullcontext() if options.out is None else _writer(options.out, total, options.embeddings) as write:
            for batch in batches if options.quiet else track(batches, "predict"):
                inputs = batch.load()
                try:
                    values = (loaded.embed(inputs) if options.embeddings else loaded.predict(inputs)[1]).cpu()
                except (TypeError, ValueError) as error:  # of an image, the message has its name
                    where = "" if isinstance(inputs, list) else f"{batch.names[0]} and on: "
                    raise ValueError(f"{where}{error}") from None
                if isinstance(inputs, list):
                    inverted += find_inverted(loaded, inputs)
                names = [escaped(name) for name in batch.names]
                if options.embeddings:
                    rows = [{"file": name, "embedding": row} for name, row in zip(names, values.tolist(), strict=True)]
                else:
                    rows = _labelled(names, values, loaded.labels, options.top)
                if write is not None:
                    write(rows, values, batch.labels)
                if write is None or options.json:
                    printed += rows
    if inverted:
        more = f" and {len(inverted) - 1} more" if inverted[1:] else ""
        known = f"{loaded.config.data.name} is light on dark: try inverting the images"
        say(f"hypersphere predict: {inverted[0]}{more}: dark on light, but {known}")
    if options.json:
        print(json.dumps(printed, indent=None if options.embeddings else 2))
    elif options.out is not None:
        files = map(str, _files(options.out, options.embeddings))
        print(printable(f"wrote {' and '.join(files)}: {total} rows"))
    elif options.embeddings:
        print(_csv_text(_columns(printed)).decode(), end="")
    else:
        header, *lines = (
            [f"{cell:.4f}" if isinstance(cell, float) else escaped(cell) for cell in row] for row in _columns(printed)
        )
        print_table(TextTable(header, lines, left=2))
    return 0


def _check(options: argparse.Namespace) -> None:
    """Check the arguments before any file is read."""
    out = options.out
    if out is not None and any(file.is_dir() for file in _files(out, options.embeddings)):
        options.error(f"argument --out: {out.with_suffix('.csv')} is a folder, and the names of the rows go there")
    if options.top is not None and options.embeddings:
        options.error("argument --top: needs labels: remove --embeddings")
    if options.top is not None and out is not None and out.suffix.lower() == ".npy" and not options.json:
        options.error("argument --top: needs a table, .csv or --json; .npy has all probabilities")


def _labelled(names: Sequence[str], probabilities: Tensor, labels: list[str], top: int | None) -> list[dict[str, Any]]:
    values, places = probabilities.topk(top or 1, dim=1)
    rows: list[dict[str, Any]] = []
    for name, row, classes in zip(names, values.tolist(), places.tolist(), strict=True):
        best = [{"label": labels[i], "probability": value} for i, value in zip(classes, row, strict=True)]
        rows.append({"file": name, **best[0], **({"top": best} if top is not None else {})})
    return rows


def _columns(rows: list[dict[str, Any]]) -> list[list[Any]]:
    """Return header and rows, one column per value."""
    if "embedding" in rows[0]:
        header = ["file", *(f"e{i}" for i in range(len(rows[0]["embedding"])))]
        return [header, *([row["file"], *row["embedding"]] for row in rows)]
    best = [row.get("top", [row]) for row in rows]
    keys = ("label", "probability")
    header = ["file", *keys, *(f"{key}{i + 1}" for i in range(1, len(best[0])) for key in keys)]
    cells = [[guess[key] for guess in guesses for key in keys] for guesses in best]
    return [header, *([row["file"], *more] for row, more in zip(rows, cells, strict=True))]


def _csv_text(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    cells = ([f"{value:.9g}" if isinstance(value, float) else value for value in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(cells)
    return text.getvalue().encode()


def _files(out: Path, embeddings: bool) -> list[Path]:
    """Return the files to write: beside an array of embeddings stands the table that names its rows."""
    return [out, out.with_suffix(".csv")] if embeddings and out.suffix.lower() == ".npy" else [out]


@contextmanager
def _writer(
    path: Path, total: int, embeddings: bool
) -> Iterator[Callable[[list[dict[str, Any]], Tensor, list[str]], None]]:
    """Yield a function that adds rows to a table (.csv), or their values to an array of `total` rows (.npy)."""
    import numpy as np

    from .._internal.safe_files import replacing

    is_table = path.suffix.lower() == ".csv"
    with ExitStack() as stack:
        file, *tables = (stack.enter_context(replacing(one)) for one in _files(path, embeddings))
        for table in tables:
            table.write(_csv_text([["file", "label"]]))

        def write(rows: list[dict[str, Any]], values: Tensor, labels: list[str]) -> None:
            is_first, array = file.tell() == 0, values.numpy()
            if is_table:
                header, *lines = _columns(rows)
                file.write(_csv_text([header, *lines] if is_first else lines))
                return
            if is_first:
                shape = {"shape": (total, *array.shape[1:]), "fortran_order": False, "descr": array.dtype.str}
                np.lib.format.write_array_header_1_0(file, shape)
            file.write(array.tobytes())
            for table in tables:
                names = zip((row["file"] for row in rows), map(escaped, labels), strict=True)
                table.write(_csv_text(names))

        yield write
        if tables:
            for written in (file, *tables):
                written.flush()  # if the disk is full, here
            # Killed between the two renames, the table has no array, not an older one of other rows.
            path.unlink(missing_ok=True)
