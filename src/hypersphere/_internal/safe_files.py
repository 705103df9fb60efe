"""Files: written so that a reader finds the old content or the new, never half of it; read without waiting for a pipe.

What a program of ours finds in a folder may have been put there by anybody: plain files and real folders are taken,
links, pipes and devices are not. A link would lead out of the folder, and a pipe would wait for ever.
"""

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

Name = str | os.PathLike[str]

_SAFE = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"))
_ODD = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR)  # a link, a pipe, a socket, a folder


def write_text(path: Name, text: str) -> None:
    """Write `text` to `path` as UTF-8, as :func:`write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Name, data: bytes) -> None:
    """Write `data` to `path`: under a temporary name in the same folder first, renamed once it is on disk."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"no such folder: {str(target.parent)!r}")
    # Not tempfile: its files are readable by their owner alone, and the rename would keep that.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):  # on a disk that fails this fails too, and would hide why
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno:  # a full disk names no file, and a temporary name says nothing
            raise OSError(error.errno, error.strerror, str(target)) from None
        raise


def remove_temporaries(folder: Path, names: Iterable[str]) -> None:
    """Remove what :func:`write_bytes` left in `folder` when it was killed while it wrote one of `names`."""
    ours = re.compile(rf"\.({'|'.join(map(re.escape, names))})\.[0-9a-f]{{8}}\.tmp")
    with suppress(OSError):
        for path in folder.iterdir():
            if ours.fullmatch(path.name) and is_plain(path):
                path.unlink()


def is_plain(path: Name) -> bool:
    """Whether `path` is a regular file itself, not a link to one."""
    return _is(path, stat.S_ISREG)


def is_folder(path: Name) -> bool:
    """Whether `path` is a folder itself, not a link to one."""
    return _is(path, stat.S_ISDIR)


def _is(path: Name, kind: object) -> bool:
    try:
        return bool(kind(os.lstat(path).st_mode))  # type: ignore[operator]
    except (OSError, ValueError):
        return False


def check_plain(path: Name) -> None:
    """ValueError unless `path` is a regular file itself."""
    if not os.path.lexists(path):
        raise ValueError(f"{path} is missing")
    if not is_plain(path):
        raise not_plain(path)


def not_plain(path: Name) -> ValueError:
    return ValueError(f"{path} is no plain file, but a link, a folder or a pipe")


def open_plain(path: Name, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor. ValueError for a link, a pipe, a device and a folder."""
    try:
        descriptor = os.open(path, flags | _SAFE, 0o666)
    except OSError as error:
        if error.errno in _ODD:
            raise not_plain(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise not_plain(path)
    return descriptor


def read_plain(path: Name, limit: int = 1 << 30) -> bytes:
    """The bytes of a regular file. ValueError if it is missing, no plain file, or larger than `limit` bytes."""
    try:
        descriptor = open_plain(path)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    with open(descriptor, "rb") as file:
        if (size := os.fstat(descriptor).st_size) > limit:
            raise ValueError(f"{path} is too large: expected at most {limit} bytes, got {size}")
        return file.read(limit + 1)
