"""What the files of rotations and checkpoints share: tensors as bytes, their hashes, and each stored once."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def hash_of(tensor: Tensor) -> str:
    """Of the numbers, their type and shape; two tensors of one hash are the same, whoever made them."""
    digest = hashlib.sha256(_kind(tensor))
    digest.update(_bytes(tensor))
    return digest.hexdigest()


def checksum_of(tensor: Tensor) -> str:
    """Of the same, but against damage alone: CRC-32 finds every error within 32 bits and all but 2⁻³² of the others.

    The fastest that the standard library has: half the time of SHA-256 where the processor helps with that. Who can
    change a file can change its checksum, however long: it need not resist.
    """
    return f"{zlib.crc32(_bytes(tensor), zlib.crc32(_kind(tensor))):08x}"


def unshared(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """`tensors` on the CPU, contiguous, each once; and the names of those that are another one, with its name."""
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    places: dict[tuple[Any, ...], str] = {}
    storages: set[int] = set()
    for key, value in tensors.items():
        # A view of the conjugate or the negative lies where its tensor does.
        kind = (value.device, value.dtype, value.is_conj(), value.is_neg())
        place = (value.data_ptr(), value.shape, value.stride(), kind)
        if value.numel() and place in places:
            aliases[key] = places[place]
            continue
        places[place] = key
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        storage = plain.untyped_storage().data_ptr()
        # safetensors refuses two views of one storage if they overlap.
        kept[key] = plain.clone() if storage in storages else plain
        storages.add(storage)
    return kept, aliases


def _kind(tensor: Tensor) -> bytes:
    return f"{tensor.dtype}{list(tensor.shape)}".encode()


def _bytes(tensor: Tensor) -> Any:
    dense = tensor.detach().cpu().contiguous()
    # not flatten(): a single number may have any stride, and then is no bytes
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy().data
