"""Faces: ORL, Labeled Faces in the Wild (LFW) with its lists of pairs, and sets to train on for LFW."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import torch

from .._internal import checks
from . import _files
from ._dataset import ArrayDataset, LazyDataset
from ._pairs import Pairs
from ._registry import register
from .image_folder import decode, list_images, read_size

ORL = _files.Source(
    "orl",
    ("att_faces", "orl_faces"),
    "s1/1.pgm to s40/10.pgm",
    "https://cam-orl.co.uk/facedatabase.html",
)
LFW = _files.Source(
    "lfw",
    (
        *("lfw-deepfunneled", "lfw-py/lfw-deepfunneled", "lfw_funneled", "lfw-py/lfw_funneled"),
        *("lfw", "lfw-py/lfw", "lfw64"),
    ),
    "<person>/<person>_0001.jpg and so on, and beside it or in it pairs.txt, peopleDevTrain.txt and peopleDevTest.txt",
    "http://vis-www.cs.umass.edu/lfw/",
)
PEOPLE, HEIGHT, WIDTH = 40, 112, 92
ALIGNED_LFW = "lfw-112X96"  # below root, instead of LFW's own folder: faces aligned as those that were trained on
_ALIGNED = "<person>/*.jpg, aligned and cropped to 112×96 pixels"
#: sets of faces that are tested on LFW
TRAINED = (
    _files.Source(
        "casia_webface",
        ("CASIA-WebFace-112X96", "CASIA-WebFace"),
        _ALIGNED,
        "its authors (https://arxiv.org/abs/1411.7923)",
    ),
    _files.Source("imdb_face", ("IMDb-Face-112X96", "IMDb-Face"), _ALIGNED, "https://github.com/fwang91/IMDb-Face"),
    _files.Source(
        "ms_celeb", ("MS-Celeb-1M-112X96", "MS-Celeb-1M"), _ALIGNED, "its authors (https://arxiv.org/abs/1607.08221)"
    ),
)


def orl(root: Path | None, split: str) -> ArrayDataset:
    """Load images uint8 (N, 1, 112, 92) of 40 people, 10 of each; split: train (images 1–5) | test (6–10) | all.

    There is no official split.
    """
    checks.choice("split", split, ("train", "test", "all"))
    wanted = {"train": range(1, 6), "test": range(6, 11), "all": range(1, 11)}[split]
    folder = ORL.find(root, "s1/1.pgm")
    images = torch.empty(PEOPLE, len(wanted), 1, HEIGHT, WIDTH, dtype=torch.uint8)
    for person in range(PEOPLE):
        for place, number in enumerate(wanted):
            path = ORL.file(folder, f"s{person + 1}/{number}.pgm")
            if read_size(str(path)) != (HEIGHT, WIDTH):
                raise ValueError(f"{path} must have {WIDTH}×{HEIGHT} pixels")
            images[person, place] = decode(str(path))[:1]
    labels = torch.arange(PEOPLE).repeat_interleave(len(wanted))
    return ArrayDataset(images.flatten(0, 1), labels, [f"s{i + 1}" for i in range(PEOPLE)])


def lfw(root: Path | None, split: str) -> LazyDataset:
    """Load images uint8 (3, 250, 250), 13,233 of 5749 people, who are the classes; decoded on access.

    Args:
        split: train | test, the people of peopleDevTrain.txt and peopleDevTest.txt (View 1) | all, which the pair
            lists of :func:`read_pairs` refer to.
    """
    checks.choice("split", split, ("train", "test", "all"))
    folder = _find_lfw(root)
    if split == "all":
        return list_images(folder, _files.list_folders(folder))
    name = {"train": "peopleDevTrain.txt", "test": "peopleDevTest.txt"}[split]
    path = LFW.file(folder, name, os.path.join(os.pardir, name))
    lines = [line.split() for line in _files.read_text(path).splitlines() if line.strip()]
    if not lines or len(lines[0]) != 1 or len(lines) - 1 != _files.parse_integers(path, lines[0])[0]:
        raise ValueError(f"{path} must begin with the number of people that follow, one per line")
    people = {}
    for line in lines[1:]:
        if len(line) != 2:
            raise ValueError(f"{path} must have a name and a number in each line, got {' '.join(line)[:80]!r}")
        people[_check_person(path, line[0])] = _files.parse_integers(path, line[1:], low=1)[0]
    for person in people:
        if not (folder / person).is_dir():
            raise ValueError(f"lfw: {folder / person}, listed in {path}, is missing")
    data = list_images(folder, sorted(people))
    counts = torch.bincount(data.labels, minlength=len(people)).tolist()
    for person, count in zip(data.classes, counts, strict=True):
        if count != people[person]:
            raise ValueError(f"{folder / person} must have {people[person]} images (see {path}), got {count}")
    return data


def lfw_pairs(root: Path | None, split: str) -> Pairs:
    """Read the pairs of View 1: pairsDevTrain.txt or pairsDevTest.txt."""
    checks.choice("split", split, ("train", "test"))
    name = {"train": "pairsDevTrain.txt", "test": "pairsDevTest.txt"}[split]
    return read_pairs(LFW.file(_find_lfw(root), name, os.path.join(os.pardir, name)))


def trained_faces(source: _files.Source, root: Path | None, split: str) -> LazyDataset:
    """Load a set of faces, uint8 (3, H, W), whose split test is the whole of LFW (its split all), also below root.

    The images that lists of pairs name are those of LFW: the split all is the split test.
    """
    checks.choice("split", split, ("train", "test", "all"))
    if split != "train":
        return lfw(None if root is None else _aligned(root), "all")
    folder = source.find_where(root, lambda folder: folder != root and bool(_files.list_folders(folder)))
    return list_images(folder, _files.list_folders(folder))


def view_2(root: Path | None, split: str) -> Pairs:
    """Read the pairs of LFW's View 2, pairs.txt: ten folds of 600."""
    checks.choice("split", split, ("test",))
    folder = _find_lfw(None if root is None else _aligned(root))
    return read_pairs(LFW.file(folder, "pairs.txt", os.path.join(os.pardir, "pairs.txt")))


def _aligned(root: Path) -> Path:
    """Return the folder of LFW aligned as the training set, if there is one; else root."""
    return root / ALIGNED_LFW if _files.list_folders(root / ALIGNED_LFW) else root


def _find_lfw(root: Path | None) -> Path:
    def holds_people(folder: Path) -> bool:
        first = (folder / person / f"{person}_0001" for person in _files.list_folders(folder))
        return any(path.with_suffix(suffix).is_file() for path in first for suffix in (".jpg", ".png"))

    return LFW.find_where(root, holds_people)


def read_pairs(path: str | os.PathLike[str]) -> Pairs:
    """Read the pairs of LFW's pairs.txt, pairsDevTrain.txt or pairsDevTest.txt.

    The first line has the number of folds (default: one) and n; then each fold has n pairs of the same person,
    ``name i j``, and n of different ones, ``name i name j``.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp(), "pairs.txt")
        >>> _ = path.write_text("1\t1\\nAbel_Pacheco\t1\t4\\nAbdel_Madi_Shabneh\t1\tDean_Barker\t1\\n")
        >>> read_pairs(path)[1]
        Pair(first='Abdel_Madi_Shabneh_0001', second='Dean_Barker_0001', same=False, fold=0)
    """
    path = Path(path)
    lines = [line.split() for line in _files.read_text(path, encoding="utf-8-sig").splitlines() if line.strip()]
    if not lines or len(lines[0]) > 2:
        raise ValueError(f"{path} must begin with the number of folds and of pairs per fold, or only the latter")
    head = _files.parse_integers(path, lines[0], low=1)
    folds, count = (head[0], head[1]) if len(head) == 2 else (1, head[0])
    if len(lines) - 1 != folds * 2 * count:
        raise ValueError(f"{path} must have {folds * 2 * count} pairs (see its first line), got {len(lines) - 1}")
    first, second = [], []
    for i, line in enumerate(lines[1:]):
        same = i // count % 2 == 0
        if len(line) != (3 if same else 4):
            expected = "name i j" if same else "name i name j"
            raise ValueError(f"{path}: pair {i + 1} must be '{expected}', got {' '.join(line)[:80]!r}")
        other = line[0] if same else line[2]
        a, b = _files.parse_integers(path, [line[1], line[-1]], low=1)
        first.append(f"{_check_person(path, line[0])}_{a:04d}")
        second.append(f"{_check_person(path, other)}_{b:04d}")
    number = torch.arange(len(first))
    return Pairs(first, second, number // count % 2 == 0, number // (2 * count), folds)


def _check_person(path: Path, name: str) -> str:
    """Require a name that is safe as a folder."""
    if "/" in name or "\\" in name or "\0" in name or name.startswith("."):
        raise ValueError(f"{path} must have names of people, got {name[:80]!r}")
    return name


register("orl", orl, kind="images")
register("lfw", lfw, kind="images", pairs=lfw_pairs)
for _source in TRAINED:
    register(_source.name, partial(trained_faces, _source), kind="images", pairs=view_2)
