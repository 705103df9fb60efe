"""Write files atomically and read only plain ones.

A reader finds the old content or the new, never half of it. Files in a folder may come from anybody: plain files and
real folders are read, links, pipes and devices are refused. A link leads out of the folder; a pipe blocks forever.
"""

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

Name = str | os.PathLike[str]
TEMPORARY = r"[0-9a-f]{8}\.tmp"  # how the name of a file ends while it is written

_SAFE_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"))
_NOT_PLAIN = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR)  # a link, a pipe, a socket, a folder


def write_text(path: Name, text: str) -> None:
    """Write `text` to `path` as UTF-8; see :func:`write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Name, data: bytes) -> None:
    """Write `data` to `path`; see :func:`replacing`."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: Name) -> Iterator[BinaryIO]:
    """Open a temporary file in the same folder; after the block, flush it to disk and rename it to `path`."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"no such folder: {str(target.parent)!r}")
    # Not tempfile: its files are readable by their owner only, and the rename keeps that.
    temporary = temporary_name(target)
    try:
        with open(temporary, "xb") as file:
            _lock(file.fileno())
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):  # must not hide the first error
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(temporary)):
            raise OSError(error.errno, error.strerror, str(target)) from None  # name the target instead
        raise


@contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """Wait until no other process or thread of this machine is in this block for the same folder (not on Windows)."""
    if fcntl is None:  # pragma: no cover
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process forked meanwhile has the descriptor too
        os.close(descriptor)


def temporary_name(path: Path) -> Path:
    """Return a new name beside `path` to write under."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def remove_temporaries(folder: Path, names: Iterable[str]) -> None:
    """Remove the temporary files that a killed :func:`write_bytes` of one of `names` left in `folder`."""
    ours = re.compile(rf"\.({'|'.join(map(re.escape, names))})\.{TEMPORARY}")
    with suppress(OSError):
        for path in folder.iterdir():
            if ours.fullmatch(path.name) and is_plain(path):
                with open(open_plain(path), "rb") as file:
                    if _lock(file.fileno()):
                        path.unlink()


def _lock(descriptor: int) -> bool:
    """Lock a file that is being written, until it is closed; False if a live process has locked it."""
    try:
        if fcntl is not None:  # missing on Windows
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def is_plain(path: Name) -> bool:
    """Return whether `path` is a regular file, not a link to one."""
    return _mode_is(path, stat.S_ISREG)


def check_folder(run: Path) -> None:
    """Require that a run is a folder, or a link to one."""
    if not run.is_dir():
        raise ValueError(f"{run} is a file, not a run folder" if run.exists() else f"{run} does not exist")


def is_folder(path: Name) -> bool:
    """Return whether `path` is a folder, not a link to one."""
    return _mode_is(path, stat.S_ISDIR)


def _mode_is(path: Name, kind: object) -> bool:
    try:
        return bool(kind(os.lstat(path).st_mode))  # type: ignore[operator]
    except (OSError, ValueError):
        return False


def check_plain(path: Name) -> None:
    """Raise ValueError unless `path` is a regular file."""
    if not os.path.lexists(path):
        raise ValueError(f"{path} is missing")
    if not is_plain(path):
        raise not_plain(path)


def not_plain(path: Name) -> ValueError:
    return ValueError(f"{path} is not a plain file, but a link, a folder or a pipe")


def open_plain(path: Name, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor; ValueError for a link, pipe, device or folder."""
    try:
        descriptor = os.open(path, flags | _SAFE_FLAGS, 0o666)
    except OSError as error:
        if error.errno in _NOT_PLAIN:
            raise not_plain(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise not_plain(path)
    return descriptor


def read_plain(path: Name, limit: int = 1 << 30) -> bytes:
    """Read a regular file; ValueError if it is missing, not a plain file, or larger than `limit` bytes."""
    try:
        descriptor = open_plain(path)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    with open(descriptor, "rb") as file:
        if (size := os.fstat(descriptor).st_size) > limit:
            raise ValueError(f"{path} is too large: expected at most {limit} bytes, got {size}")
        return file.read(limit + 1)
