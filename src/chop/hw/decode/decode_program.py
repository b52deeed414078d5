"""Program of a decode engine: one instruction for each range of memory that a token reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

from chop.errors import ConfigError
from chop.hw.decode.decode_model import DecodeModel, LayerCodes, NormCodes
from chop.hw.decode.memory_image import MemoryImage, head_beats
from chop.nn.quantizers.arithmetic.norm import Z_FRAC
from chop.nn.quantizers.arithmetic.tables import RECIPROCAL_FRAC

FINISH_WAIT = 24
"""Cycles of `decode_engine.sv` from the last value to the first result."""
ROOT_WAIT = 32
"""Cycles of `decode_engine.sv` from the residual stream to its inverse root."""
EMBED_TAIL = 12
"""Cycles from the last beat of the embedding until its last square is added."""
DOT_TAIL = 24
"""Cycles from the last beat of a matrix until its last element is used."""
POST_TAIL = 16
"""More cycles for the rotation or the gate."""
COLLECT_TAIL = 12
"""More cycles for a block, besides its size."""


class DecodeOp(IntEnum):
    """Kinds of instruction, with the codes of `decode_engine.sv`."""

    EMBED = 0
    ROTATION = 1
    NORM = 2
    MATRIX = 3
    SCORES = 4
    VALUES = 5


class To(IntEnum):
    """Destinations of the rows of a matrix."""

    CACHE = 0
    VECTOR = 1
    HIDDEN = 2
    LOGITS = 3


WIDTHS = {
    "op": 3, "to": 2, "rotate": 1, "gated": 1, "source": 1, "target": 1, "fence": 1, "head": 1,
    "shift_0": 6, "shift_1": 6, "shift_2": 6, "row_blocks": 10, "group": 8, "offset": 12,
    "address": 28, "beats": 28, "write": 28, "tail": 12,
}  # fmt: skip
"""Bits of each field, from the lowest; `instruction_t` of `decode_engine.sv` has them reversed."""
WORD_WIDTH = sum(WIDTHS.values())


@dataclass(frozen=True)
class DecodeInstruction:
    """One range of memory and its use. `name` is that of the region, for reports."""

    name: str
    op: DecodeOp
    address: int
    beats: int
    tail: int
    to: To = To.CACHE
    rotate: bool = False
    gated: bool = False
    source: int = 0
    target: int = 0
    fence: bool = False
    head: bool = False
    shift_0: int = 0
    shift_1: int = 0
    shift_2: int = 0
    row_blocks: int = 0
    group: int = 0
    offset: int = 0
    write: int = 0

    def word(self) -> int:
        """Return the instruction as it is stored; raise if a field does not fit."""
        word, place = 0, 0
        for name, width in WIDTHS.items():
            value = int(getattr(self, name))
            if not 0 <= value < 1 << width:
                raise ConfigError(
                    f"decode: {name} = {value} of '{self.name}' does not fit {width} bits."
                )
            word |= value << place
            place += width
        return word


assert set(WIDTHS) == {f.name for f in fields(DecodeInstruction)} - {"name"}


def build_program(model: DecodeModel, image: MemoryImage) -> list[DecodeInstruction]:
    """Return the instructions of one token."""
    return list(_Writer(model, image).instructions())


class _Writer:
    """Instructions of a model and its memory image."""

    def __init__(self, model: DecodeModel, image: MemoryImage) -> None:
        self.model, self.image = model, image
        self.block = model.options.block
        self.lanes = image.data_width // model.options.lane_width
        self.collect = self.block + COLLECT_TAIL

    def instructions(self) -> Iterator[DecodeInstruction]:
        """Yield all instructions in order."""
        shape, fracs = self.model.shape, self.model.fracs
        regions = self.image.regions
        embedding, rotations = regions["embedding"], regions["rotations"]
        beats = embedding.beats // shape.vocab
        yield DecodeInstruction(
            "embedding", DecodeOp.EMBED, embedding.address, beats, tail=EMBED_TAIL
        )
        beats = rotations.beats // self.model.options.max_length
        yield DecodeInstruction("rotations", DecodeOp.ROTATION, rotations.address, beats, tail=2)
        for index, layer in enumerate(self.model.layers):
            yield from self._layer(index, layer)
        yield self._norm("norm", self.model.norm, fracs["x"], head=True)
        shift = fracs["x"] + self.model.head.frac_width - fracs["logits"]
        yield self._matrix("head", shape.hidden, shift, To.LOGITS, head=True)

    def _layer(self, index: int, layer: LayerCodes) -> Iterator[DecodeInstruction]:
        shape, fracs = self.model.shape, layer.fracs
        attended = shape.heads * shape.head_dim
        yield self._norm(f"{index}.norm_1", layer.norm_1, fracs["x_1"])
        for name in ("key", "value"):
            write = self.image.regions[f"{index}.{name}s"].address
            shift = self._shift(layer, name, "x_1", fracs[name])
            is_key = name == "key"
            yield self._matrix(
                f"{index}.{name}", shape.hidden, shift, To.CACHE, rotate=is_key, write=write
            )
        shift = self._shift(layer, "query", "x_1", fracs["query"])
        yield self._matrix(f"{index}.query", shape.hidden, shift, To.VECTOR, rotate=True, target=1)
        yield from self._attention(index, layer)
        shift = self._shift(layer, "output", "attended", self.model.fracs["hidden"])
        yield self._matrix(f"{index}.output", attended, shift, To.HIDDEN)
        yield self._norm(f"{index}.norm_2", layer.norm_2, fracs["x_2"])
        yield self._gate_up(index, layer)
        shift = self._shift(layer, "down", "middle", self.model.fracs["hidden"])
        yield self._matrix(f"{index}.down", shape.intermediate, shift, To.HIDDEN, source=1)

    def _gate_up(self, index: int, layer: LayerCodes) -> DecodeInstruction:
        gate = self.model.fracs["gate"]
        return self._matrix(
            f"{index}.gate_up",
            self.model.shape.hidden,
            self._shift(layer, "gate", "x_2", gate),
            To.VECTOR,
            shift_1=self._shift(layer, "up", "x_2", layer.fracs["up"]),
            shift_2=gate + layer.fracs["up"] - layer.fracs["middle"],
            gated=True,
            target=1,
        )

    def _attention(self, index: int, layer: LayerCodes) -> Iterator[DecodeInstruction]:
        shape, fracs = self.model.shape, layer.fracs
        stride = head_beats(self.model, self.image.data_width)
        score_shift = fracs["query"] + fracs["key"] - self.model.fracs["scores"]
        value_shift = RECIPROCAL_FRAC + fracs["value"] - fracs["attended"]
        blocks = shape.head_dim // self.block
        for head in range(shape.heads):
            place = head // shape.group * stride
            keys, values = (
                self.image.regions[f"{index}.{name}"].address + place for name in ("keys", "values")
            )
            common: dict[str, Any] = {
                "row_blocks": blocks, "group": blocks,
                "offset": head * shape.head_dim // self.lanes,
            }  # fmt: skip
            yield DecodeInstruction(
                f"{index}.scores", DecodeOp.SCORES, keys, 0, DOT_TAIL, source=1, fence=head == 0,
                shift_0=score_shift, shift_1=score_shift, **common,
            )  # fmt: skip
            yield DecodeInstruction(
                f"{index}.values", DecodeOp.VALUES, values, 0,
                FINISH_WAIT + shape.head_dim + COLLECT_TAIL + self.collect,
                shift_0=value_shift, **common,
            )  # fmt: skip

    def _norm(
        self, name: str, norm: NormCodes, frac: int, *, head: bool = False
    ) -> DecodeInstruction:
        region = self.image.regions[name]
        shift = Z_FRAC + norm.frac_width - frac
        tail = DOT_TAIL + self.collect
        return DecodeInstruction(
            name, DecodeOp.NORM, region.address, region.beats, tail, shift_0=shift, head=head
        )

    def _matrix(
        self, name: str, inputs: int, shift: int, to: To, shift_1: int | None = None, **more: Any
    ) -> DecodeInstruction:
        region, tail = self.image.regions[name], DOT_TAIL
        if to in (To.CACHE, To.VECTOR):
            tail += POST_TAIL + self.collect
        return DecodeInstruction(
            name, DecodeOp.MATRIX, region.address, region.beats, tail, to, shift_0=shift,
            shift_1=shift if shift_1 is None else shift_1, row_blocks=inputs // self.block,
            group=0 if self.model.head.is_fixed else self.image.data_width // 8, **more,
        )  # fmt: skip

    def _shift(self, layer: LayerCodes, name: str, source: str, frac: int) -> int:
        return layer.fracs[source] + layer.matrices[name].frac_width - frac


def program_words(program: list[DecodeInstruction]) -> list[str]:
    """Return the program as hexadecimal words for `$readmemh`."""
    digits = -(-WORD_WIDTH // 4)
    return [f"{instruction.word():0{digits}x}" for instruction in program]
