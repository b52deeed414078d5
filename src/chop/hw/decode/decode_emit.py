"""Files of a decode engine: SystemVerilog, tables, program and memory image."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.hw.decode.decode_model import DecodeModel
from chop.hw.decode.decode_program import DecodeInstruction, build_program, program_words
from chop.hw.decode.memory_image import MemoryImage, build_image, row_beats
from chop.hw.decode.residual_norm import eps_code
from chop.hw.design.component import Memory
from chop.hw.design.memories import memory_text
from chop.hw.sim.emit import write_files
from chop.nn.quantizers.arithmetic.integer_softmax import exponential_tables
from chop.nn.quantizers.arithmetic.tables import reciprocal_table, root_table

RTL = Path(__file__).parent / "rtl"
FIFO = Path(__file__).parents[1] / "streams" / "fifo" / "fifo.sv"
TOP = "decode_top"
IMAGE = "memory.bin"
PORTS = {
    "clk": ("input", "1"), "rst": ("input", "1"),
    "token_in": ("input", "TOKEN"), "token_in_last": ("input", "1"),
    "token_in_valid": ("input", "1"), "token_in_ready": ("output", "1"),
    "new_tokens": ("input", "16"),
    "token_out": ("output", "TOKEN"), "token_out_last": ("output", "1"),
    "token_out_valid": ("output", "1"), "token_out_ready": ("input", "1"),
    "logit": ("output", "16"), "logit_valid": ("output", "1"),
    "m_axi_araddr": ("output", "32"), "m_axi_arlen": ("output", "8"),
    "m_axi_arvalid": ("output", "1"), "m_axi_arready": ("input", "1"),
    "m_axi_rdata": ("input", "DATA"), "m_axi_rlast": ("input", "1"),
    "m_axi_rvalid": ("input", "1"), "m_axi_rready": ("output", "1"),
    "m_axi_awaddr": ("output", "32"), "m_axi_awvalid": ("output", "1"),
    "m_axi_awready": ("input", "1"), "m_axi_wdata": ("output", "DATA"),
    "m_axi_wvalid": ("output", "1"), "m_axi_wready": ("input", "1"),
    "m_axi_bvalid": ("input", "1"), "m_axi_bready": ("output", "1"),
}  # fmt: skip
"""Port of the engine -> direction and width; TOKEN and DATA depend on the model."""


@dataclass(frozen=True)
class EngineOptions:
    """Sizes of the engine that change its speed and no result."""

    data_width: int = 128
    """Bits of a beat of memory."""
    burst: int = 16
    outstanding: int = 8
    queue: int = 256
    """Beats that are read ahead."""


@dataclass(frozen=True)
class DecodeDesign:
    """An engine for one model."""

    model: DecodeModel
    options: EngineOptions
    image: MemoryImage
    program: list[DecodeInstruction]

    @property
    def row_beats(self) -> int:
        """Beats of a row of the cache."""
        return row_beats(self.model, self.options.data_width)

    @property
    def write_beats(self) -> int:
        """Beats of the cache that one layer writes for a token."""
        return 2 * self.model.shape.kv_heads * self.row_beats

    @property
    def token_width(self) -> int:
        """Bits of a token."""
        return max(1, (self.model.shape.vocab - 1).bit_length())

    def parameters(self) -> dict[str, int | str]:
        """Return the parameters of `decode_engine.sv`."""
        shape, options, silu = self.model.shape, self.options, self.model.silu
        beats = {i.name: i.beats for i in self.program}
        frac = self.model.fracs["hidden"]
        return {
            "DATA_WIDTH": options.data_width,
            "WEIGHT_WIDTH": self.model.options.weight_width,
            "CACHE_WIDTH": self.model.options.cache_width,
            "BLOCK": self.model.options.block,
            "HIDDEN": shape.hidden,
            "RESIDUAL": self.model.residual_width,
            "HEAD_DIM": shape.head_dim,
            "VECTOR": max(shape.hidden, shape.intermediate, shape.heads * shape.head_dim),
            "MAX_LENGTH": self.model.options.max_length,
            "TOKEN_WIDTH": self.token_width,
            "INSTRUCTIONS": len(self.program),
            "EMBEDDING_BEATS": beats["embedding"],
            "ROTATION_BEATS": beats["rotations"],
            "GUARD": self.model.guard,
            "EPS": f"62'd{eps_code(shape.eps, shape.hidden, frac, self.model.guard)}",
            "SILU_LOW_BITS": silu.low_bits,
            "SILU_BASE_WIDTH": _signed_bits(silu.bases),
            "SILU_SLOPE_WIDTH": _signed_bits(silu.slopes),
            "BURST": options.burst,
            "OUTSTANDING": options.outstanding,
            "QUEUE": options.queue,
            "WRITE_QUEUE": self.write_beats,
        }


def design_engine(
    model: DecodeModel, options: EngineOptions | None = None, *, is_filled: bool = True
) -> DecodeDesign:
    """Return the engine of a model: its memory image and its program.

    `is_filled` is false for a model that has shapes and no weights (`decode_shape`).
    """
    options = options or EngineOptions()
    image = build_image(model, options.data_width, is_filled=is_filled)
    return DecodeDesign(model, options, image, build_program(model, image))


def emit_engine(design: DecodeDesign, directory: Path) -> Path:
    """Write RTL, tables, program and memory image to `directory`; return it."""
    sources = {f"rtl/{path.name}": path.read_text() for path in (*sorted(RTL.glob("*.sv")), FIFO)}
    tables = {f"mem/{m.name}.mem": memory_text(m) for m in engine_tables(design.model)}
    program = "".join(f"{word}\n" for word in program_words(design.program))
    files = {
        **sources,
        **tables,
        "mem/program.mem": program,
        f"rtl/{TOP}.sv": top_text(design),
        "design.json": json.dumps(describe(design), indent=1) + "\n",
    }
    write_files(directory, files)
    if design.image.is_filled:
        (directory / IMAGE).write_bytes(design.image.tobytes())
    return directory


def describe(design: DecodeDesign) -> dict[str, Any]:
    """Return sizes, parameters and memory map as plain data."""
    regions = {n: [r.address, r.beats] for n, r in design.image.regions.items()}
    return {
        "parameters": design.parameters(),
        "fracs": design.model.fracs,
        "memory_beats": design.image.beats,
        "regions": regions,
    }


def port_widths(design: DecodeDesign) -> dict[str, int]:
    """Return the bits of each port of the engine."""
    widths = {"TOKEN": design.token_width, "DATA": design.options.data_width}
    return {name: widths.get(width) or int(width) for name, (_, width) in PORTS.items()}


def top_text(design: DecodeDesign) -> str:
    """Return the top module: the engine with its parameters."""
    widths = port_widths(design)
    ports = ",\n".join(
        f"    {'input  wire' if way == 'input' else 'output     '} logic "
        f"{_range(widths[name])}{name}"
        for name, (way, _) in PORTS.items()
    )
    values: dict[str, int | str] = {**design.parameters(), **_FILES}
    parameters = ",\n".join(f"      .{name}({value})" for name, value in values.items())
    connections = ",\n".join(f"      .{name}({name})" for name in PORTS)
    return (
        "// Decode engine of one model.\n`default_nettype none\n\n"
        f"module {TOP} (\n{ports}\n);\n\n  decode_engine #(\n{parameters}\n  ) u_engine (\n"
        f"{connections}\n  );\n\nendmodule\n\n`default_nettype wire\n"
    )


_FILES = {
    f"{name.upper()}_FILE": f'"mem/{name}.mem"'
    for name in ("program", "silu", "root", "exp", "fine", "reciprocal")
}


def _range(width: int) -> str:
    return "" if width == 1 else f"[{width - 1}:0] "


def _signed_bits(values: tuple[int, ...]) -> int:
    return max(max(v, -v - 1).bit_length() for v in values) + 1


def engine_tables(model: DecodeModel) -> list[Memory]:
    """Return the tables of the arithmetic, in block RAM."""
    coarse, fine = exponential_tables(model.score_format)
    base, slope = _signed_bits(model.silu.bases), _signed_bits(model.silu.slopes)
    lines = tuple(
        (s & ((1 << slope) - 1)) << base | b & ((1 << base) - 1)
        for b, s in zip(model.silu.bases, model.silu.slopes, strict=True)
    )
    return [
        Memory("silu", lines, base + slope),
        Memory("root", root_table(), 17),
        Memory("exp", coarse, 16),
        Memory("fine", fine, 17),
        Memory("reciprocal", reciprocal_table(), 16),
    ]
