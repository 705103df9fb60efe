"""Writing files so that a reader finds the old content or the new, never half of it."""

import os
import secrets
from pathlib import Path


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` as UTF-8, as :func:`write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
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
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno:  # which names the temporary file, or on a full disk none
            raise OSError(error.errno, error.strerror, str(target)) from None
        raise
