"""Predict labels or embeddings of images, folders or arrays."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _loading
from ._output import file_to_write, integer, print_table, printable, say, user_errors

if TYPE_CHECKING:
    from torch import Tensor

    from ..train.inference.run import Run

BATCH = 64  # files that are decoded at once
LIGHT_ON_DARK = ("digits", "mnist", "fashion_mnist")  # photos and scans are mostly the other way round


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
        help="write the result to .csv, or all probabilities or embeddings to .npy",
    )
    parser.add_argument("--top", metavar="K", type=integer(1), help="print the K most likely labels (default: 1)")
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(options: argparse.Namespace) -> int:
    _check(options)

    from .._internal.progress import track
    from ..train.distributed import device_of

    with user_errors(options):
        loaded = _loading.load_options_run(options)
        loaded.check_labels()
        if (options.top or 1) > len(loaded.labels):
            raise ValueError(f"argument --top: must be at most {len(loaded.labels)}, the classes of the run")
        loaded.model.to(device_of("auto"))
        parts = list(_parts(loaded, options.files))
        total = sum(len(part.names) for part in parts)
        turned: list[str] = []
        made: list[dict[str, Any]] = []  # what is printed
        with nullcontext() if options.out is None else _written(options.out, total) as write:
            for part in track(parts, "predict"):
                inputs = part.load()
                try:
                    numbers = loaded.embed(inputs) if options.embeddings else loaded.predict(inputs)[1]
                except (TypeError, ValueError) as error:  # of an image, the message has its name
                    where = "" if isinstance(inputs, list) else f"{part.names[0]} and on: "
                    raise ValueError(f"{where}{error}") from None
                if isinstance(inputs, list):
                    turned += _inverted(loaded, inputs)
                numbers = numbers.cpu()
                rows = (
                    _embedded(part.names, numbers)
                    if options.embeddings
                    else _labelled(part.names, numbers, loaded.labels, options.top)
                )
                if write is not None:
                    write(rows, numbers)
                if write is None or options.json:
                    made += rows
        if turned:
            more = f" and {len(turned) - 1} more" if turned[1:] else ""
            known = f"{loaded.config.data.name} is light on dark: try inverting the images"
            say(f"hypersphere predict: {printable(turned[0])}{more}: dark on light, but {known}")
    if options.json:
        print(json.dumps(made, indent=None if options.embeddings else 2))
    elif options.out is not None:
        print(printable(f"wrote {options.out}: {total} rows"))
    elif options.embeddings:
        print(_csv(made), end="")
    else:
        header, *lines = (
            [f"{x:.4f}" if isinstance(x, float) else _printable(x) for x in row] for row in _columns(made)
        )
        print_table(header, lines, left=2)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Check the arguments before any file is read."""
    out = options.out
    if options.top is not None and options.embeddings:
        options.error("argument --top: needs labels: remove --embeddings")
    if options.top is not None and out is not None and out.suffix.lower() == ".npy" and not options.json:
        options.error("argument --top: needs a table, .csv or --json; .npy has all probabilities")


# ------------------------------------------------------------------------------------------------------- what goes in


class _Images:
    """A batch of image files."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def load(self) -> list[str]:
        return self.names


class _Rows:
    """A batch of samples in an .npy file."""

    def __init__(self, file: str, rows: range, is_grey: bool) -> None:
        self.file, self.rows, self.is_grey = file, rows, is_grey

    @property
    def names(self) -> Sequence[str]:
        return [f"{self.file}[{i}]" for i in self.rows]

    def load(self) -> Any:
        # A mapping of its own: the pages of all batches would stay in memory as long as a common one.
        some = _mapped(self.file)[self.rows.start : self.rows.stop]
        return some[:, None] if self.is_grey else some


def _parts(run: Run, files: list[str]) -> Iterator[_Images | _Rows]:
    """Yield batches of samples."""
    images: list[str] = []
    for file in files:
        if file.lower().endswith(".npy") and not os.path.isdir(file):
            yield from _batched(images)
            images = []
            yield from _rows(run, file)
            continue
        if run.spec.kind != "images":
            raise ValueError(f"{file}: this run takes {run.spec.kind}: pass .npy arrays")
        if os.path.isdir(file):
            images += _images_in(file)
        elif os.path.isfile(file):
            images.append(file)
        else:
            raise ValueError(f"no such file: {file!r}")
    yield from _batched(images)


def _batched(images: list[str]) -> Iterator[_Images]:
    for begin in range(0, len(images), BATCH):
        yield _Images(images[begin : begin + BATCH])


def _inverted(run: Run, images: list[str]) -> list[str]:
    """Return the images with a light border, if the training images have a dark one."""
    if run.config.data.name not in LIGHT_ON_DARK:
        return []
    grey = run.preprocess(images).mean(1)
    border = (grey.sum((1, 2)) - grey[:, 1:-1, 1:-1].sum((1, 2))) > 0  # normalized: 0 is the middle
    return [image for image, is_light in zip(images, border.tolist(), strict=True) if is_light]


def _images_in(folder: str) -> list[str]:
    from ..data.image_folder import SUFFIXES

    found = [
        os.path.join(place, name)
        for place, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(SUFFIXES) and not name.startswith(".") and os.path.isfile(os.path.join(place, name))
    ]
    if not found:
        raise ValueError(f"{folder!r} contains no image ending in {' '.join(SUFFIXES)}")
    return sorted(found)


def _mapped(file: str) -> Any:
    """Map an .npy file into memory: only the rows that are used are read."""
    import numpy as np

    if not os.path.isfile(file):  # a pipe would wait for ever
        raise ValueError(f"no such file: {file!r}")
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it is an archive")
    except Exception as error:  # NumPy reads the header as Python, and what is wrong with it may raise anything
        raise ValueError(f"{file} cannot be read as an array: {error}") from None
    return array


def _rows(run: Run, file: str) -> Iterator[_Rows]:
    import numpy as np

    from ..data.image_folder import PIXELS

    array = _mapped(file)
    shape, sample = tuple(array.shape), run.spec.shape
    grey = run.spec.kind == "images" and array.dtype == np.uint8 and array.ndim == 3
    may_be_one = grey and (shape[2] in (1, 3) or shape[0] == sample[0] == 3)  # image, and not N grey ones
    if not (grey or array.ndim == len(sample) + 1) or may_be_one or not len(array):
        raise ValueError(f"{file} must hold samples (N, {', '.join(map(str, sample))}), got {shape}")
    numbers = math.prod(shape[1:])  # of a sample; the file is not read yet
    if numbers > 4 * PIXELS:
        raise ValueError(f"{file} must hold samples of at most {4 * PIXELS} numbers, got {shape}")
    step = max(1, min(BATCH, PIXELS // max(1, numbers)))
    for begin in range(0, len(array), step):
        yield _Rows(file, range(begin, min(begin + step, len(array))), grey)


# ------------------------------------------------------------------------------------------------------- what comes out


def _labelled(names: Sequence[str], probabilities: Tensor, labels: list[str], top: int | None) -> list[dict[str, Any]]:
    values, places = probabilities.topk(top or 1, dim=1)
    made: list[dict[str, Any]] = []
    for name, row, those in zip(names, values.tolist(), places.tolist(), strict=True):
        best = [{"label": labels[i], "probability": value} for i, value in zip(those, row, strict=True)]
        made.append({"file": _printable(name), **best[0], **({"top": best} if top is not None else {})})
    return made


def _embedded(names: Sequence[str], embeddings: Tensor) -> list[dict[str, Any]]:
    rows = zip(names, embeddings.tolist(), strict=True)
    return [{"file": _printable(name), "embedding": row} for name, row in rows]


def _columns(made: list[dict[str, Any]]) -> list[list[Any]]:
    """Return header and rows, one column per value."""
    if "embedding" in made[0]:
        header = ["file", *(f"e{i}" for i in range(len(made[0]["embedding"])))]
        return [header, *([each["file"], *each["embedding"]] for each in made)]
    best = [each.get("top", [each]) for each in made]
    names = ("label", "probability")
    header = ["file", *names, *(f"{name}{i + 1}" for i in range(1, len(best[0])) for name in names)]
    return [
        header,
        *([each["file"], *(one[n] for one in some for n in names)] for each, some in zip(made, best, strict=True)),
    ]


def _csv(made: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    rows = [[f"{value:.9g}" if isinstance(value, float) else value for value in row] for row in _columns(made)]
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


@contextmanager
def _written(path: Path, total: int) -> Iterator[Callable[[list[dict[str, Any]], Tensor], None]]:
    """Return a function that adds rows to a table (.csv) or their numbers to an array of `total` rows (.npy)."""
    import numpy as np

    from .._internal.safe_files import replacing

    is_table = path.suffix.lower() == ".csv"
    with replacing(path) as file:

        def write(made: list[dict[str, Any]], numbers: Tensor) -> None:
            first, rows = file.tell() == 0, numbers.numpy()
            if is_table:
                text = _csv(made)
                file.write((text if first else text.partition("\n")[2]).encode())
                return
            if first:
                shape = {"shape": (total, *rows.shape[1:]), "fortran_order": False, "descr": rows.dtype.str}
                np.lib.format.write_array_header_1_0(file, shape)
            file.write(rows.tobytes())

        yield write


def _printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)
