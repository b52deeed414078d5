"""Blocks of elements that share an exponent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from chop.errors import ConfigError
from chop.nn.quantizers.kernels import Kernel
from chop.nn.quantizers.quantizer import RoundingQuantizer, check
from chop.nn.quantizers.spelling import read_value, write_value

BLOCK_SIZE = 32
"""Default elements per block, as in the OCP microscaling specification."""
BlockSize = int | tuple[int, ...]
BlockRule = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class BlockQuantizer(RoundingQuantizer):
    """A format whose elements share an exponent per block, chosen by the largest magnitude.

    A block has `block_size` elements along `axis`; a pair is a tile of the last two dimensions, and
    -1 is the whole dimension. Blocks do not cross rows: the last of a row may be shorter. A block
    with Inf or NaN becomes NaN. The exponent follows the data, so the gradient passes everywhere.
    """

    group_grammar = "[/<block_size>]"
    legacy: ClassVar[tuple[str, ...]] = ("skip_first_dim",)

    block_size: BlockSize = field(default=BLOCK_SIZE, kw_only=True)
    axis: int = field(default=-1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = self._sizes
        check(
            len(sizes) in (1, 2) and all(n == -1 or n > 0 for n in sizes),
            "block_size must be one or two positive sizes (-1: the whole dimension), "
            f"got {self.block_size}.",
        )
        check(self.axis == -1 or self.tile[0] == 1, "axis needs a block_size of one dimension.")

    @property
    def blocks(self) -> BlockQuantizer:
        return self

    @property
    def group_columns(self) -> int | None:
        rows, columns = self.tile
        return columns if rows == 1 and columns > 0 and self.axis == -1 else None

    def part_unit(self, rank: int, dim: int) -> int | None:
        rows, columns = self.tile
        units = {(self.axis % rank if rank > 1 else 0): columns}
        if rank > 1 and self.axis == -1:
            units[rank - 2] = rows
        unit = units.get(dim, 1)
        return None if unit == -1 or self.is_random else unit

    @property
    def code_bits(self) -> int:
        return self.element_bits

    @property
    def lowest_exponent(self) -> int | None:
        """Smallest exponent that a block may share; None for a format without codes."""
        return None

    @property
    def group_text(self) -> str:
        default = next(f.default for f in fields(self) if f.name == "block_size")
        return "" if self.block_size == default else write_value(self.block_size)

    @classmethod
    def read_group(cls, text: str) -> dict[str, Any]:
        size = read_value(text)
        whole = size if isinstance(size, tuple) else (size,)
        if not whole or any(type(each) is not int for each in whole):
            raise ConfigError(f"'/{text}' is not a block size, such as '/16' or '/4x4'.")
        return {"block_size": size}

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.block_size if isinstance(self.block_size, tuple) else (self.block_size,)

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a block."""
        return (self._sizes[0] if len(self._sizes) == 2 else 1), self._sizes[-1]

    def block_kernel(self, name: str, parameters: tuple[float, ...]) -> Kernel | None:
        """Return the native code `name`, which has blocks along the last dimension only."""
        if self.tile[0] != 1 or self.axis != -1:
            return None
        return self.rounded_kernel(name, parameters, self.tile[1])

    def scale_exponent(self, largest: Tensor) -> Tensor:
        """Return the exponent that a block with this largest magnitude shares."""
        raise NotImplementedError

    @property
    def shared_bits(self) -> int:
        """Bits stored once per block."""
        raise NotImplementedError

    @property
    def element_bits(self) -> int:
        """Bits stored per element."""
        raise NotImplementedError

    @property
    def bits(self) -> float:
        elements = math.inf if -1 in self.tile else self.tile[0] * self.tile[1]
        return self.element_bits + self.shared_bits / elements

    def represent_blocks(self, x: Tensor, largest: Tensor, noise: Tensor | None) -> Tensor:
        """Return the values, given the largest magnitude of each block (broadcasts)."""
        raise NotImplementedError

    @property
    def has_powers(self) -> bool:
        """True if the scales of blocks are powers of two."""
        return True

    def measured_on(self, x: Tensor) -> BlockQuantizer:
        """Return the format with the settings that it otherwise measures on all of `x`."""
        return self

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        return in_blocks(x, self.tile, self.axis, self.represent_blocks, self.noise_for(x, noise))


def in_blocks(
    x: Tensor, tile: tuple[int, int], axis: int, rule: BlockRule, noise: Tensor | None
) -> Tensor:
    """Apply `rule(blocks, largest magnitude of each, noise)` to the blocks of `x`."""
    rows = torch.atleast_2d(x.movedim(axis, -1) if x.dim() > 1 else x)
    blocks = split(rows, tile)
    if noise is not None:
        noise = split(torch.atleast_2d(noise.movedim(axis, -1) if x.dim() > 1 else noise), tile)
    largest = blocks.abs().amax((-3, -1), keepdim=True)
    y = rule(blocks, largest, noise)
    y = join(torch.where(largest.isfinite(), y, math.nan), rows.shape)
    return (y.movedim(-1, axis) if x.dim() > 1 else y).reshape(x.shape)


def split(x: Tensor, tile: tuple[int, int]) -> Tensor:
    """Reshape (..., R, C) to (..., R/r, r, C/c, c), padded with zeros at the end."""
    rows, columns = (n if t == -1 else t for n, t in zip(x.shape[-2:], tile, strict=True))
    missing_rows, missing_columns = -x.shape[-2] % rows, -x.shape[-1] % columns
    if missing_rows or missing_columns:
        x = F.pad(x, (0, missing_columns, 0, missing_rows))
    tiles = (x.shape[-2] // rows, rows, x.shape[-1] // columns, columns)
    return x.reshape(*x.shape[:-2], *tiles)


def join(blocks: Tensor, shape: torch.Size) -> Tensor:
    """Invert `split`, without the padding."""
    *batch, down, rows, across, columns = blocks.shape
    return blocks.reshape(*batch, down * rows, across * columns)[..., : shape[-2], : shape[-1]]
