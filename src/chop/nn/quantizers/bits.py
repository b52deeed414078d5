"""Numbers of a few bits each, one after the other in bytes.

Number i takes the bits i·n to (i+1)·n - 1 of the stream; bit k of the stream is bit k mod 8 of byte
k // 8, counted from the lowest. The last byte is filled with zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

TOGETHER = 8
"""Numbers that fill whole bytes together, whatever their width."""


def bytes_of(count: int, bits: int) -> int:
    """Bytes that `count` numbers of `bits` bits take."""
    return -(-count * bits // 8)


def pack_bits(numbers: Tensor, bits: int) -> Tensor:
    """Numbers (uint8, below 2**bits) as bytes.

    >>> pack_bits(torch.tensor([1, 2, 3], dtype=torch.uint8), 4).tolist()
    [33, 3]
    """
    flat = numbers.reshape(-1)
    if bits == 8:
        return flat.clone()
    if 8 % bits == 0:
        return _pack_within_bytes(flat, bits)
    padded = F.pad(flat, (0, -len(flat) % TOGETHER)).reshape(-1, TOGETHER).long()
    words = sum((padded[:, i] << (i * bits) for i in range(1, TOGETHER)), padded[:, 0])
    pieces = [(words >> (8 * i)) & 255 for i in range(bits)]
    return torch.stack(pieces, 1).to(torch.uint8).reshape(-1)[: bytes_of(len(flat), bits)].clone()


def _pack_within_bytes(flat: Tensor, bits: int) -> Tensor:
    """Numbers of which a whole number fills a byte: no wider integers are needed."""
    together = 8 // bits
    padded = F.pad(flat, (0, -len(flat) % together)).reshape(-1, together)
    made = padded[:, 0].clone()
    for i in range(1, together):
        made |= padded[:, i] << (i * bits)
    return made


def unpack_bits(data: Tensor, bits: int, count: int) -> Tensor:
    """The first `count` numbers (uint8) of `data`.

    >>> unpack_bits(torch.tensor([33, 3], dtype=torch.uint8), 4, 3).tolist()
    [1, 2, 3]
    """
    if bits == 8:
        return data[:count]
    if 8 % bits == 0:
        mask = 2**bits - 1
        pieces = [(data >> i) & mask for i in range(0, 8, bits)]
        return torch.stack(pieces, 1).reshape(-1)[:count]
    padded = F.pad(data, (0, -len(data) % bits)).reshape(-1, bits).long()
    words = sum((padded[:, i] << (8 * i) for i in range(1, bits)), padded[:, 0])
    mask = 2**bits - 1
    numbers = [(words >> (i * bits)) & mask for i in range(TOGETHER)]
    return torch.stack(numbers, 1).to(torch.uint8).reshape(-1)[:count]
