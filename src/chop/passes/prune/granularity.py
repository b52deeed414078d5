"""Masks from scores: single weights, blocks of them, or N of every M.

A granularity is the shape of the blocks that stay or go together; a block's score is the mean of
its weights' scores. To add one, add a row to `BLOCKS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from chop.errors import ConfigError, PassError
from chop.registry import suggest

Shape = tuple[int, ...]

BLOCKS: dict[str, Callable[[Shape, Shape], Shape]] = {
    "elementwise": lambda shape, size: (1,) * len(shape),
    "block": lambda shape, size: (*size, *(1,) * (len(shape) - 2)),
    "row": lambda shape, size: (1, *shape[1:]),
    "column": lambda shape, size: (shape[0], 1, *shape[2:]),
    "kernel": lambda shape, size: (1, 1, *shape[2:]),
}
"""Granularity -> the block's shape in a weight of `shape`; `size` is the option `block_size`."""

N_OF_M = re.compile(r"(\d+):(\d+)")


def n_of_m(granularity: str) -> tuple[int, int] | None:
    """Return N and M of a granularity such as "2:4" (two of every four stay); None for others."""
    match = N_OF_M.fullmatch(granularity)
    return None if match is None else (int(match[1]), int(match[2]))


def check_granularity(granularity: str, others: Sequence[str] = ()) -> None:
    """Raise if `granularity` is unknown, or an N:M without 0 < N < M."""
    pair = n_of_m(granularity)
    if pair is None and granularity not in (*BLOCKS, *others):
        allowed = (*BLOCKS, "N:M", *others)
        raise ConfigError(f"granularity: unknown '{granularity}'. {suggest(granularity, allowed)}")
    if pair is not None and not 0 < pair[0] < pair[1]:
        raise ConfigError(
            f"granularity: '{granularity}' must keep N of M with 0 < N < M, such as 2:4."
        )


def block_shape(granularity: str, shape: Shape, size: Shape, path: str) -> Shape:
    """Return the shape of the blocks in a weight of `shape`; raise if they do not tile it."""
    block = BLOCKS[granularity](shape, size)
    if any(n % b for n, b in zip(shape, block, strict=True)):
        raise PassError(
            f"prune: blocks of {list(block)} do not tile the weight of '{path}', {list(shape)}. "
            "Change block_size, or leave the layer out with target_modules."
        )
    return block


def pool(scores: Tensor, block: Shape) -> Tensor:
    """Return the mean score of each block."""
    split = [n for size, b in zip(scores.shape, block, strict=True) for n in (size // b, b)]
    return scores.reshape(split).mean(dim=tuple(range(1, len(split), 2)))


def spread(mask: Tensor, block: Shape) -> Tensor:
    """Expand a mask of blocks to a mask of weights."""
    for dim, b in enumerate(block):
        mask = mask.repeat_interleave(b, dim)
    return mask


def keep_largest(scores: Tensor, sparsity: float, already: int = 0) -> Tensor:
    """Return a mask that drops the lowest `sparsity` of `scores`, at least `already` of them.

    Exactly round(sparsity * n) of n are dropped; among equals, the first.
    """
    flat = scores.flatten()
    count = max(round(sparsity * flat.numel()), already)
    if count == 0:
        return torch.ones_like(scores, dtype=torch.bool)
    limit = flat.kthvalue(count).values
    keep = flat > limit
    spare = count - int((flat < limit).sum())
    keep |= (flat == limit) & ((flat == limit).cumsum(0) > spare)
    return keep.reshape(scores.shape)


def keep_largest_of_rows(scores: Tensor, counts: Tensor) -> Tensor:
    """Return a mask that drops the lowest `counts[i]` of row i of `scores`, the first of equals.

    >>> keep_largest_of_rows(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([2])).int()
    tensor([[1, 0, 0]], dtype=torch.int32)
    """
    rank = scores.argsort(dim=1, stable=True).argsort(dim=1)
    return rank >= counts[:, None].to(rank.device)


def check_n_of_m(shape: Shape, n: int, m: int, path: str) -> None:
    """Raise if the number of inputs of a weight is no multiple of M."""
    if shape[1] % m:
        raise PassError(
            f"prune: {n}:{m} needs a multiple of {m} inputs, and '{path}' has {shape[1]}. "
            "Leave the layer out with target_modules."
        )


def keep_n_of_m(scores: Tensor, n: int, m: int, path: str) -> Tensor:
    """Return a mask that keeps the largest N of every M neighbours along the input dimension.

    >>> keep_n_of_m(torch.tensor([[1.0, 4.0, 3.0, 2.0]]), 2, 4, "fc").int()
    tensor([[0, 1, 1, 0]], dtype=torch.int32)
    """
    check_n_of_m(tuple(scores.shape), n, m, path)
    moved = scores.movedim(1, -1)
    groups = moved.reshape(-1, m)
    best = groups.topk(n, dim=1).indices
    mask = torch.zeros_like(groups, dtype=torch.bool).scatter(1, best, True)
    return mask.reshape(moved.shape).movedim(-1, 1)
