"""Numbers of n bits packed into bytes, low bits first, padded with zeros.

Number i has the bits i·n to (i+1)·n - 1 of the stream; bit k is bit k mod 8 of byte k // 8.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

TOGETHER = 8
"""Numbers of any width that fill whole bytes together."""


def bytes_of(count: int, bits: int) -> int:
    """Return the bytes of `count` numbers of `bits` bits."""
    return -(-count * bits // 8)


def pack_bits(numbers: Tensor, bits: int) -> Tensor:
    """Pack numbers (uint8, below 2**bits) into bytes.

    >>> pack_bits(torch.tensor([1, 2, 3], dtype=torch.uint8), 4).tolist()
    [33, 3]
    """
    flat = numbers.reshape(-1)
    if bits == 8:
        return flat.clone()
    if 8 % bits == 0:  # needs no wider integers
        padded = F.pad(flat, (0, -len(flat) % (8 // bits))).reshape(-1, 8 // bits)
        packed = padded[:, 0].clone()
        for i in range(1, 8 // bits):
            packed |= padded[:, i] << (i * bits)
        return packed
    padded = F.pad(flat, (0, -len(flat) % TOGETHER)).reshape(-1, TOGETHER).long()
    words = sum((padded[:, i] << (i * bits) for i in range(1, TOGETHER)), padded[:, 0])
    pieces = [(words >> (8 * i)) & 255 for i in range(bits)]
    return torch.stack(pieces, 1).to(torch.uint8).reshape(-1)[: bytes_of(len(flat), bits)].clone()


def unpack_bits(data: Tensor, bits: int, count: int) -> Tensor:
    """Return the first `count` numbers (uint8) of `data`.

    >>> unpack_bits(torch.tensor([33, 3], dtype=torch.uint8), 4, 3).tolist()
    [1, 2, 3]
    """
    if bits == 8:
        return data[:count]
    mask = 2**bits - 1
    if 8 % bits == 0:
        pieces = [(data >> i) & mask for i in range(0, 8, bits)]
        return torch.stack(pieces, 1).reshape(-1)[:count]
    padded = F.pad(data, (0, -len(data) % bits)).reshape(-1, bits).long()
    words = sum((padded[:, i] << (8 * i) for i in range(1, bits)), padded[:, 0])
    numbers = [(words >> (i * bits)) & mask for i in range(TOGETHER)]
    return torch.stack(numbers, 1).to(torch.uint8).reshape(-1)[:count]
