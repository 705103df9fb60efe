"""Read .pt, .pth and .bin in another process, with limits of time and memory."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Lock

from .stored import SafetensorsFile

SECONDS = 8  # and one for every 30 MB
EXTRA_MEMORY = 256 << 20  # bytes beside twice the file


class _Reader:
    """The process, started for the first file and kept: importing torch takes longer than most files."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def convert(self, source: int, target: int, limits: dict[str, int]) -> str:
        """Write the tensors of `source` to `target`; return why not, or nothing."""
        with self._lock:
            if self._channel is None:
                self._start()
            assert self._channel is not None
            try:
                self._channel.settimeout(limits["seconds"] + 60)  # its torch may be slow to import
                socket.send_fds(self._channel, [json.dumps(limits).encode()], [source, target])
                line = self._channel.recv(1 << 16)
            except OSError as error:
                line = f"the process that reads it failed: {error}\n".encode()
            if not line.endswith(b"\n"):
                line = b"the process that reads it ended\n"
            if line.startswith(b"the process"):
                self.stop()
            return line.decode(errors="replace").strip()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        # -P: no module of the current folder is imported in place of ours
        command = [sys.executable, "-P", os.fspath(Path(__file__).with_name("_unpickle.py")), str(theirs.fileno())]
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with theirs:  # it ends when our side is closed
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=os.environ | single
            )
        self._channel = ours

    def stop(self) -> None:
        """Kill the process, if there is one."""
        if self._channel is not None and self._process is not None:
            self._channel.close()
            self._process.kill()
            self._process.wait()
        self._channel = self._process = None


_READER = _Reader()
atexit.register(_READER.stop)


def read_pickled(descriptor: int, path: Path) -> SafetensorsFile:
    """Read a file of torch.save; only tensors are taken, nothing of it is run. The descriptor is closed."""
    try:
        size = os.fstat(descriptor).st_size
        if not size:
            raise ValueError(f"{path} is empty")
        if sys.platform == "win32":
            raise ValueError(f"{path}: reading a pickle safely needs Linux; save it as safetensors")
        limits = {
            "seconds": SECONDS + size // (30 << 20),
            "memory": 2 * size + EXTRA_MEMORY,
            "written": 2 * size + (1 << 24),
        }
        with tempfile.TemporaryFile() as target:  # it has no name and is gone when closed
            if why := _READER.convert(descriptor, target.fileno(), limits):
                raise ValueError(f"{path} cannot be read: {why}")
            file = SafetensorsFile(os.dup(target.fileno()), path)
            file.add_names(json.loads(file.metadata["tied"]))
            return file
    finally:
        os.close(descriptor)
