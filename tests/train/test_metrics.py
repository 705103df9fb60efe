"""The history of a run: what is on file, what TensorBoard reads, and what a resumed run keeps."""

import errno
import json
import math
import resource
import struct
from io import FileIO
from pathlib import Path

import pytest

from hypersphere.train.storage.events import Events, append
from hypersphere.train.storage.metrics import Metrics, MetricsLine

LINES = [
    {
        "step": 0,
        "epoch": 0.0,
        "split": "test",
        "loss": 2.5,
        "accuracy": 0.125,
        "energies": {"a.b": 1.5},
        "seconds": 0.5,
    },
    {"step": 10, "epoch": 0.5, "split": "train", "loss": 2.25, "accuracy": 0.25, "lr": 0.5, "seconds": 1.0},
    {"step": 20, "epoch": 1.0, "split": "train", "loss": 2.0, "accuracy": 0.375, "lr": 0.25, "seconds": 2.0},
    {
        "step": 20,
        "epoch": 1.0,
        "split": "test",
        "loss": 1.5,
        "accuracy": 0.5,
        "energies": {"a.b": 1.25},
        "seconds": 3.0,
    },
    {"step": 300, "epoch": 15.0, "split": "train", "loss": None, "accuracy": 0.5, "lr": 0.25, "seconds": 4.0},
]


def run(folder: Path, lines: list[dict], keep: int | None = None) -> Metrics:
    metrics = Metrics(folder, keep=keep)
    for line in lines:
        metrics.write(MetricsLine.from_dict(line))
    metrics.close()
    return metrics


def dicts(metrics: Metrics) -> list[dict]:
    return [line.to_dict() for line in metrics.lines]


def text_of(lines: list[dict]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


# A second, plainer reading of TensorBoard's format.


def crc(data: bytes) -> int:
    """CRC-32C bit by bit, with the mask of TFRecord."""
    value = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            odd = (value ^ (byte >> bit)) & 1
            value = (value >> 1) ^ (0x82F63B78 * odd)
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) % 2**32


def fields(data: bytes) -> list[tuple[int, object]]:
    found, at = [], 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value += (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            value: object = varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            assert at + size <= len(data)
            value = data[at : at + size]
            at += size
            if kind != 2:
                (value,) = struct.unpack("<d" if kind == 1 else "<f", value)
        found.append((number, value))
    return found


def records(folder: Path) -> list[dict[int, object]]:
    """Of the one event file: by field number 1 time, 2 step, 3 version, 5 the values by tag."""
    (path,) = folder.glob("*tfevents*")
    data, found = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12]) == (crc(data[:8]),)
        event, (end,) = data[12 : 12 + size], struct.unpack("<I", data[12 + size : 16 + size])
        assert end == crc(event)
        record = dict(fields(event))
        if 5 in record:
            values = [dict(fields(value)) for number, value in fields(record[5]) if number == 1]
            record[5] = {value[1].decode(): value[2] for value in values}
        found.append(record)
        data = data[16 + size :]
    return found


def points(folder: Path) -> list[tuple[int, dict[str, float]]]:
    return [(record[2], record[5]) for record in records(folder)[1:]]


def test_lines_are_on_file_as_they_come(tmp_path):
    metrics = Metrics(tmp_path / "new" / "run")
    for count, line in enumerate(LINES, start=1):
        metrics.write(MetricsLine.from_dict(line))
        assert (tmp_path / "new" / "run" / "metrics.jsonl").read_text() == text_of(LINES[:count])
        assert len(points(tmp_path / "new" / "run")) == count
    assert dicts(metrics) == LINES
    metrics.close()
    metrics.close()


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert dicts(run(None, LINES)) == LINES
    assert not list(tmp_path.iterdir())


def test_numbers_that_are_not_finite_are_null(tmp_path):
    metrics = Metrics(tmp_path)
    metrics.write(MetricsLine(1, "test", values={"loss": math.nan}, energies={"a": math.inf, "b": 1.0}))
    metrics.close()
    assert dicts(metrics) == [{"step": 1, "split": "test", "loss": None, "energies": {"a": None, "b": 1.0}}]
    assert (tmp_path / "metrics.jsonl").read_text() == text_of(dicts(metrics))
    assert points(tmp_path) == [(1, {"energy/b": 1.0})]


def test_tensorboard_reads_every_number(tmp_path):
    run(tmp_path, LINES)
    first, *_ = records(tmp_path)
    assert first[3] == b"brain.Event:2"
    assert first.keys() == {1, 3}
    assert points(tmp_path) == [
        (0, {"test/loss": 2.5, "test/accuracy": 0.125, "energy/a.b": 1.5}),
        (10, {"train/loss": 2.25, "train/accuracy": 0.25, "train/lr": 0.5}),
        (20, {"train/loss": 2.0, "train/accuracy": 0.375, "train/lr": 0.25}),
        (20, {"test/loss": 1.5, "test/accuracy": 0.5, "energy/a.b": 1.25}),
        (300, {"train/accuracy": 0.5, "train/lr": 0.25}),
    ]


def test_event_file(tmp_path, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "host.name")
    monkeypatch.setattr("time.time", lambda: 123456789.5)
    events = Events(tmp_path)
    events.add(0, 1.5, {"zero": 0.0})
    events.add(2**40, 2.5, {"größe/" + "x" * 200: 1e300, "low": -1e300, "third": 1 / 3})
    events.add(7, 3.5, {})
    events.close()
    assert [path.name for path in tmp_path.iterdir()] == ["events.out.tfevents.0123456789.host.name"]
    version, zero, large = records(tmp_path)
    assert version[1] == 123456789.5
    assert (zero[1], zero[2], zero[5]) == (1.5, 0, {"zero": 0.0})
    third = struct.unpack("<f", struct.pack("<f", 1 / 3))[0]
    assert (large[1], large[2]) == (2.5, 2**40)
    assert large[5] == {"größe/" + "x" * 200: math.inf, "low": -math.inf, "third": third}


@pytest.mark.parametrize("keep", [0, 2, len(LINES)])
def test_a_resumed_run_has_the_history_it_would_have_had(tmp_path, keep):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run(whole, LINES)
    run(stopped, LINES[: keep + 2])
    (stopped / "notes.txt").write_text("mine")
    metrics = Metrics(stopped, keep=keep)
    assert dicts(metrics) == LINES[:keep]
    assert (stopped / "metrics.jsonl").read_text() == text_of(LINES[:keep])
    for line in LINES[keep:]:
        metrics.write(MetricsLine.from_dict(line))
    metrics.close()
    assert dicts(metrics) == LINES
    assert (stopped / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert points(stopped) == points(whole)
    assert len(list(stopped.iterdir())) == 3
    assert (stopped / "notes.txt").read_text() == "mine"


def test_times_of_a_resumed_run_are_those_of_its_lines(tmp_path, monkeypatch):
    run(tmp_path, LINES[:4])
    monkeypatch.setattr("time.time", lambda: 1000.0)
    run(tmp_path, [], keep=4)
    assert [record[1] for record in records(tmp_path)[1:]] == [997.5, 998.0, 999.0, 1000.0]


def test_a_new_run_leaves_nothing_of_the_old(tmp_path):
    run(tmp_path, LINES)
    run(tmp_path, LINES[1:2])
    assert (tmp_path / "metrics.jsonl").read_text() == text_of(LINES[1:2])
    assert [step for step, _ in points(tmp_path)] == [10]


DAMAGED = {
    "a text for a number": (text_of([*LINES[:2], {**LINES[2], "lr": "fast"}]).encode(), 2),
    "no end of line": (text_of(LINES[:3])[:-1].encode(), 2),
    "not JSON": ((text_of(LINES[:1]) + "{]\n" + text_of(LINES[2:])).encode(), 1),
    "no text": (text_of(LINES[:2]).encode() + b"\xff\xfe\n", 2),
    "no step": ((text_of(LINES[:2]) + "{}\n").encode(), 2),
    "missing": (None, 0),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_of_a_damaged_file_what_is_whole_stays(tmp_path, kind):
    data, whole = DAMAGED[kind]
    if data is not None:
        (tmp_path / "metrics.jsonl").write_bytes(data)
    with pytest.warns(UserWarning, match=rf"metrics.jsonl is damaged: {whole} of 3 lines") as caught:
        metrics = run(tmp_path, LINES[4:], keep=3)
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert dicts(metrics) == [*LINES[:whole], LINES[4]]
    assert (tmp_path / "metrics.jsonl").read_text() == text_of(dicts(metrics))


@pytest.fixture
def small_disk():
    """Files of this process cannot grow beyond 300 bytes while it lasts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_one_line_with_the_name_of_the_file(tmp_path, small_disk):
    metrics = Metrics(tmp_path)
    for line in LINES[:2]:
        metrics.write(MetricsLine.from_dict(line))
    with pytest.raises(OSError, match=rf"^{tmp_path}/metrics.jsonl could not be written: File too large$"):
        metrics.write(MetricsLine.from_dict(LINES[2]))
    metrics.close()
    assert (tmp_path / "metrics.jsonl").stat().st_size == 300
    resumed = Metrics(tmp_path, keep=2)
    resumed.close()
    assert dicts(resumed) == LINES[:2]


def test_a_full_disk_when_resuming_leaves_the_history_as_it_was(tmp_path, monkeypatch):
    run(tmp_path, LINES)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=rf"^{tmp_path}/metrics.jsonl could not be written: No space left on device$"):
        Metrics(tmp_path, keep=2)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_write_that_takes_a_part_is_continued(tmp_path):
    class Slow(FileIO):
        def write(self, data: bytes) -> int:
            return super().write(data[:3])

    with Slow(tmp_path / "file", "w") as file:
        append(file, b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"
