"""Hash tensors and deduplicate shared ones, for rotation files and checkpoints; tensors from arrays of numpy."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def from_floats(array: npt.NDArray[Any]) -> Tensor:
    """Copy a numpy array of floats, of any byte order and strides; long doubles become float64.

    A copy, because torch warns about arrays that cannot be written to, such as mapped ones.
    """
    dtype = array.dtype.newbyteorder("=") if array.dtype.itemsize in (2, 4, 8) else np.dtype(np.float64)
    return torch.from_numpy(array.astype(dtype))


def hash_of(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's values, dtype and shape."""
    digest = hashlib.sha256(_kind(tensor))
    digest.update(_bytes(tensor))
    return digest.hexdigest()


def checksum_of(tensor: Tensor) -> str:
    """Return the CRC-32 of a tensor's values, dtype and shape: it finds damage, all but 2⁻³² of it, not tampering.

    It takes half the time of SHA-256 with hardware support. Whoever can change a file can change its checksum too.
    """
    return f"{zlib.crc32(_bytes(tensor), zlib.crc32(_kind(tensor))):08x}"


def unshared(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors on the CPU, contiguous and each once, and {alias: name} for those that share one."""
    unique: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    places: dict[tuple[Any, ...], str] = {}
    storages: set[int] = set()
    for key, value in tensors.items():
        # Conjugate and negative views have the address of their tensor.
        kind = (value.device, value.dtype, value.is_conj(), value.is_neg())
        place = (value.data_ptr(), value.shape, value.stride(), kind)
        if value.numel() and place in places:
            aliases[key] = places[place]
            continue
        places[place] = key
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        storage = plain.untyped_storage().data_ptr()
        # safetensors refuses overlapping views of one storage.
        unique[key] = plain.clone() if storage in storages else plain
        storages.add(storage)
    return unique, aliases


def _kind(tensor: Tensor) -> bytes:
    return f"{tensor.dtype}{list(tensor.shape)}".encode()


def _bytes(tensor: Tensor) -> Any:
    dense = tensor.detach().cpu().contiguous()
    # not flatten(): a single element may have any stride, which view(uint8) refuses
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy().data
