"""Write TensorBoard event files without TensorBoard."""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from .layout import EVENTS


class Events:
    """Write a new event file ``events.out.tfevents.<seconds>.<host>`` in `folder`, unbuffered."""

    def __init__(self, folder: Path) -> None:
        now = time.time()
        # Ten digits, so that TensorBoard, which reads a folder in the order of names, sees the oldest first.
        path = folder / f"{EVENTS}{int(now):010d}.{socket.gethostname() or 'localhost'}"
        self._file = FileIO(path, "w")
        append(self._file, _record(_double(1, now) + _bytes(3, b"brain.Event:2")))

    def add(self, step: int, wall_time: float, values: dict[str, float]) -> None:
        """Add `values` by tag at `step` and `wall_time` (seconds since 1970)."""
        if values:
            summary = b"".join(_bytes(1, _bytes(1, k.encode()) + _float(2, v)) for k, v in values.items())
            append(self._file, _record(_double(1, wall_time) + _integer(2, step) + _bytes(5, summary)))

    def close(self) -> None:
        self._file.close()


def append(file: FileIO, data: bytes) -> None:
    """Write all of `data`; OSError that names the file if it fails, such as on a full disk."""
    try:
        while data:  # a nearly full disk may write a part
            data = data[file.write(data) :]
    except OSError as error:
        raise OSError(f"{file.name} could not be written: {error.strerror}") from error


# ------------------------------------------------------------- TFRecord: length, its CRC, data, its CRC; all masked


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _table() -> Iterator[int]:
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # CRC-32C, reflected
        yield value


_TABLE = tuple(_table())


def _masked(data: bytes) -> bytes:
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


# -------------------------------------------------------- protobuf: a key of (field number, kind), then the value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value & 0xFFFFFFFFFFFFFFFF)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _float(field: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # beyond float32
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return _varint(field << 3 | 5) + packed
