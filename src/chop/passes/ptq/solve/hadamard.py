"""Orthogonal matrices: Hadamard matrices and random ones."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Kind = Literal["hadamard", "random"]


def hadamard(size: int) -> Tensor | None:
    """Return a matrix of entries 1 and -1 with orthogonal rows; None if no construction is known.

    Powers of two by doubling; times q + 1 for a prime q that is 3 modulo 4 (Paley): 12, 20, 24 …
    """
    doublings = (size & -size).bit_length() - 1
    for doubled in range(doublings, -1, -1):
        core = _paley(size >> doubled)
        if core is not None:
            for _ in range(doubled):
                core = torch.cat([torch.cat([core, core], 1), torch.cat([core, -core], 1)])
            return core
    return None


def _paley(size: int) -> Tensor | None:
    q = size - 1
    if size == 1:
        return torch.ones(1, 1, dtype=torch.double)
    if q % 4 != 3 or any(q % d == 0 for d in range(2, int(q**0.5) + 1)):
        return None
    squares = {i * i % q for i in range(1, q)}
    signs = torch.tensor([0.0, *(1.0 if i in squares else -1.0 for i in range(1, q))])
    index = (torch.arange(q)[:, None] - torch.arange(q)) % q
    matrix = torch.ones(size, size, dtype=torch.double)
    matrix[1:, 1:] = signs.double()[index] + torch.eye(q, dtype=torch.double)
    matrix[1:, 0] = -1
    return matrix


def orthogonal(size: int, kind: Kind, seed: int) -> Tensor:
    """Return an orthogonal matrix in double precision.

    A Hadamard matrix gets random signs of its rows, so that no input is favoured. A random matrix
    replaces it for sizes without a known Hadamard matrix.
    """
    draw = torch.Generator().manual_seed(seed)
    matrix = hadamard(size) if kind == "hadamard" else None
    if matrix is None:
        return _random(size, draw)
    signs = torch.randint(0, 2, (size,), generator=draw) * 2.0 - 1.0
    mixed: Tensor = signs.double()[:, None] * matrix / size**0.5
    return mixed


def _random(size: int, draw: torch.Generator) -> Tensor:
    q, r = torch.linalg.qr(torch.randn(size, size, generator=draw, dtype=torch.double))
    matrix: Tensor = q * r.diagonal().sign()
    return matrix


def fixing_ones(size: int, seed: int) -> Tensor:
    """Return a random orthogonal matrix that maps (1, …, 1) to itself, so it keeps means."""
    draw = torch.Generator().manual_seed(seed)
    mirror = torch.full((size,), size**-0.5, dtype=torch.double)
    mirror[0] -= 1
    if size > 1:
        mirror /= mirror.norm()
    swap = torch.eye(size, dtype=torch.double) - 2 * mirror[:, None] * mirror  # e0 <-> ones
    inner = torch.eye(size, dtype=torch.double)
    inner[1:, 1:] = _random(size - 1, draw)
    return swap @ inner @ swap
