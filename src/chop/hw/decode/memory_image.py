"""Memory image of a decode engine: weights packed in the order of use, then the cache.

A matrix is a sequence of blocks, row by row. Groups of blocks follow a header beat with their
exponents, one byte each. A row of the cache is one group. Addresses count beats.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.hw.decode.block_codes import WIDTH, BlockCodes, BlockMatrix
from chop.hw.decode.decode_model import DecodeModel

Bytes = npt.NDArray[np.uint8]
MOST_BEATS = 1 << 28
"""Beats that an instruction can address."""
DATA_WIDTHS = (32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Region:
    """Range of memory: first beat and number of beats."""

    address: int
    beats: int


@dataclass
class MemoryImage:
    """Bytes of the weights, and the regions by name; `cache` regions follow the bytes."""

    data_width: int
    parts: list[Bytes] = field(default_factory=list)
    regions: dict[str, Region] = field(default_factory=dict)
    beats: int = 0

    is_filled: bool = True
    """False: regions have sizes and no bytes, as for a model without weights."""

    def add_codes(self, name: str, codes: Tensor, rows: int = 1, width: int = WIDTH) -> None:
        """Append a region of codes of `width` bits; each row is filled to whole beats."""
        beats = rows * -(-(codes.numel() // rows) * width // self.data_width)
        if self.is_filled:
            self.parts.append(_rows(_words(codes, width), rows, self.data_width))
        self.reserve(name, beats)

    def add_matrix(self, name: str, matrix: BlockMatrix) -> None:
        """Append a region of a packed matrix."""
        blocks, bits = matrix.blocks.exponents.numel(), matrix.width
        beats = blocks * matrix.blocks.mantissas.shape[-1] * bits // self.data_width
        if not matrix.is_fixed:
            beats += -(-blocks // (self.data_width // 8))
        if self.is_filled:
            self.parts.append(pack_matrix(matrix, self.data_width))
        self.reserve(name, beats)

    def reserve(self, name: str, beats: int) -> None:
        """Append a region without content."""
        self.regions[name] = Region(self.beats, beats)
        self.beats += beats

    def tobytes(self) -> bytes:
        """Return the bytes of all regions with content."""
        return b"".join(part.tobytes() for part in self.parts)


def build_image(model: DecodeModel, data_width: int, *, is_filled: bool = True) -> MemoryImage:
    """Return the memory image of `model` for beats of `data_width` bits.

    With `is_filled` false it has regions and no bytes.
    """
    check_width(model, data_width)
    image = lay_out(model, data_width, is_filled=is_filled)
    if image.beats > MOST_BEATS:
        raise ConfigError(f"decode: {image.beats} beats of memory. Allowed: {MOST_BEATS}.")
    return image


def lay_out(model: DecodeModel, data_width: int, *, is_filled: bool) -> MemoryImage:
    """Return a memory image of any size."""
    image = MemoryImage(data_width, is_filled=is_filled)
    image.add_codes("embedding", model.embedding, width=model.embedding_width)
    image.add_codes("rotations", model.rotations, len(model.rotations))
    for index, layer in enumerate(model.layers):
        image.add_codes(f"{index}.norm_1", layer.norm_1.codes)
        for name in ("key", "value", "query", "output"):
            image.add_matrix(f"{index}.{name}", layer.matrices[name])
        image.add_codes(f"{index}.norm_2", layer.norm_2.codes)
        gate, up = (layer.matrices[name] for name in ("gate", "up"))
        image.add_matrix(f"{index}.gate_up", interleave(gate, up))
        image.add_matrix(f"{index}.down", layer.matrices["down"])
    image.add_codes("norm", model.norm.codes)
    image.add_matrix("head", model.head)
    for index in range(len(model.layers)):
        for name in ("keys", "values"):
            image.reserve(f"{index}.{name}", model.shape.kv_heads * head_beats(model, data_width))
    return image


def check_width(model: DecodeModel, data_width: int) -> None:
    """Raise if beats of `data_width` bits do not suit the blocks of the model."""
    problem = width_problem(model, data_width)
    if problem:
        raise ConfigError(f"decode: {problem}")


def width_problem(model: DecodeModel, data_width: int) -> str:
    """Return why beats of `data_width` bits do not suit the model's blocks, or an empty text."""
    if data_width not in DATA_WIDTHS:
        return f"data_width must be one of {DATA_WIDTHS}, got {data_width}."
    options = model.options
    lanes = data_width // options.lane_width
    if lanes > options.block:
        kind = "weights" if options.lane_width == options.weight_width else "cached numbers"
        return (
            f"a beat of {data_width} bits has {lanes} {kind} of {options.lane_width} "
            f"bits. Allowed: a block of {options.block}. Lower data_width, or raise block."
        )
    if model.shape.head_dim // options.block > data_width // 8:
        return (
            f"a row of the cache has {model.shape.head_dim // options.block} exponents. "
            f"Allowed: {data_width // 8}, the bytes of a beat."
        )
    return ""


def row_beats(model: DecodeModel, data_width: int) -> int:
    """Return the beats of a row of the cache: a header and the mantissas of a head."""
    return 1 + model.shape.head_dim * model.options.cache_width // data_width


def head_beats(model: DecodeModel, data_width: int) -> int:
    """Return the beats of the cache of one head."""
    return model.options.max_length * row_beats(model, data_width)


def interleave(first: BlockMatrix, second: BlockMatrix) -> BlockMatrix:
    """Return a matrix whose even rows are those of `first` and whose odd rows are of `second`."""
    (a, b), (c, d) = ((m.blocks.mantissas, m.blocks.exponents) for m in (first, second))
    blocks = BlockCodes(*(torch.stack(pair, 1).flatten(0, 1) for pair in ((a, c), (b, d))))
    return replace(first, blocks=blocks)


def pack_matrix(matrix: BlockMatrix, data_width: int) -> Bytes:
    """Return a matrix as groups of a header beat and the beats of its blocks.

    A matrix in fixed point has no headers.
    """
    size, group = matrix.blocks.mantissas.shape[-1], data_width // 8
    mantissas = matrix.blocks.mantissas.reshape(-1, size).numpy()
    exponents = matrix.blocks.exponents.reshape(-1).numpy().astype(np.uint8)
    packed = _pack(mantissas, matrix.width)
    if matrix.is_fixed:
        return packed.reshape(-1)
    parts = []
    for start in range(0, len(packed), group):
        header = np.zeros(group, dtype=np.uint8)
        chosen = exponents[start : start + group]
        header[: len(chosen)] = chosen
        parts += [header, packed[start : start + group].reshape(-1)]
    return np.concatenate(parts)


def _pack(mantissas: npt.NDArray[np.int64], width: int) -> Bytes:
    """Return rows of bytes; the first of two 4-bit mantissas is in the low bits."""
    if width == 8:
        return mantissas.astype(np.int8).view(np.uint8)
    nibbles = (mantissas & 15).astype(np.uint8)
    return (nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)).astype(np.uint8)


def _words(codes: Tensor, width: int) -> Bytes:
    """Return codes of 16 or 32 bits as little-endian bytes."""
    return codes.reshape(-1).numpy().astype(f"<i{width // 8}").view(np.uint8)


def _rows(content: Bytes, rows: int, data_width: int) -> Bytes:
    """Return rows of bytes, each filled with zeros to whole beats."""
    shaped = content.reshape(rows, -1)
    width = -(-shaped.shape[1] * 8 // data_width) * data_width // 8
    padded = np.zeros((rows, width), dtype=np.uint8)
    padded[:, : shaped.shape[1]] = shaped
    return padded.reshape(-1)
