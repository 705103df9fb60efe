"""The process that unpickles: torch.load with weights_only, in a fork of its own for each file, under limits.

It imports torch and nothing of the package. A request is two descriptors, the file and where its tensors go (as
safetensors), and the limits; the reply is one line, empty if all went well.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import resource
import select
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

import torch

TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",  # rotations have some
}
OPTIMIZER = re.compile(r"optim.*|exp_avg(_sq)?|max_exp_avg_sq|momentum_buffer|square_avg")
DEEPEST = 12  # nested dicts and lists
LONGEST_LINE = 4000


def serve(channel: socket.socket) -> None:
    """Answer requests until the other side closes."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, 4096, 2)
        if not data:
            return
        source, target = descriptors
        channel.sendall(_in_fork(source, target, json.loads(data)).encode() + b"\n")
        os.close(source)
        os.close(target)


def _in_fork(source: int, target: int, limits: dict[str, int]) -> str:
    """Convert in a child and return its line; kill it when the time is over."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        line = "it cannot be read"
        try:
            _limit(limits)
            _convert(source, target)
            line = ""
        except MemoryError:
            line = "it needs too much memory"
        except BaseException as error:
            line = _cause(error)
        finally:
            os.write(writer, line.encode(errors="replace")[:LONGEST_LINE] or b"\n")
            os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], limits["seconds"])
        said = os.read(reader, LONGEST_LINE) if ready else b""
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not ready:
        return f"reading it takes longer than {limits['seconds']} s"
    if not said:
        return "it ended the process that read it, by too much memory or time"
    return " ".join(said.decode(errors="replace").split())


def _limit(limits: dict[str, int]) -> None:
    """Limit memory, time and the size of files from here on; send what is printed nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    most = {
        resource.RLIMIT_CPU: limits["seconds"] + 1,
        resource.RLIMIT_FSIZE: limits["written"],
        resource.RLIMIT_CORE: 0,
    }
    if os.path.exists("/proc/self/statm"):  # elsewhere the address space cannot be limited
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        most[resource.RLIMIT_AS] = used + limits["memory"]
    for kind, value in most.items():
        resource.setrlimit(kind, (value, value))


def _convert(source: int, target: int) -> None:
    with open(source, "rb", closefd=False) as file:
        found = torch.load(file, map_location="cpu", weights_only=True)
    tensors: dict[str, torch.Tensor] = {}
    skipped: dict[str, str] = {}
    tied: dict[str, str] = {}
    _collect(found, [], tensors, skipped, tied, {})
    if not tensors and not skipped:
        raise ValueError("it holds no tensors")
    _write(target, tensors, {"skipped": json.dumps(skipped), "tied": json.dumps(tied)})


def _collect(
    value: Any,
    path: list[str],
    tensors: dict[str, torch.Tensor],
    skipped: dict[str, str],
    tied: dict[str, str],
    seen: dict[Any, str],
) -> None:
    """Collect the tensors in nested dicts and lists, without optimizers'; tied ones by the name of the first."""
    if isinstance(value, torch.Tensor):
        name = ".".join(path) or "tensor"
        dense = value.layout == torch.strided and value.device.type == "cpu"
        key = (value.data_ptr(), value.shape, value.stride()) if dense else id(value)
        if dense and value.numel() and key in seen:
            tied[name] = seen[key]
        elif value.dtype not in TYPES or not dense:
            skipped[name] = f"{str(value.dtype).removeprefix('torch.')}{'' if dense else ', not dense'}"
        elif value.numel() * value.itemsize > value.untyped_storage().nbytes():
            skipped[name] = "larger than its storage"
        else:
            tensors[name] = value.detach()
            seen[key] = name
    elif isinstance(value, Mapping | list | tuple) and len(path) < DEEPEST and id(value) not in seen:
        seen[id(value)] = ""
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            if not OPTIMIZER.fullmatch(str(key)):
                _collect(inner, [*path, str(key)], tensors, skipped, tied, seen)


def _write(target: int, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Write safetensors one by one."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, value in tensors.items():
        begin, end = end, end + value.numel() * value.itemsize
        header[name] = {"dtype": TYPES[value.dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(target, "wb", closefd=False) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            if value.numel():
                file.write(value.contiguous().view(-1).view(torch.uint8).numpy().data)


def _cause(error: BaseException) -> str:
    """Return why a file was refused, in a few words."""
    text = " ".join(str(error).split())
    for pattern in (r"GLOBAL ([\w.]+)", r"[Uu]nsupported (?:global|class|type):? ([\w.]+)"):
        if found := re.search(pattern, text):
            return f"it holds {found[1]} beside tensors; nothing of it was run"
    if "TorchScript" in text:
        return "it is a TorchScript archive: save the model's state_dict"
    if "can't allocate" in text or "Cannot allocate" in text:
        return "it needs too much memory"
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return "its tensors are larger than the file"
    text = re.sub(r"Weights only load failed.*?WeightsUnpickler error:|This is an internal miniz.*", "", text).strip()
    if isinstance(error, EOFError | LookupError | pickle.UnpicklingError):
        text = f"it is not a file of torch.save, or damaged ({type(error).__name__}{': ' if text else ''}{text})"
    return (text or type(error).__name__)[:200]


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(socket.socket(fileno=int(sys.argv[1])))
