"""FPGA boards as data. To add one: a row of `BOARDS`.

Pins are those of the vendors' constraint files. `uart_rx` is the pin on which the FPGA receives.
Optional pins: `led_busy` and `led_error`. All pins use 3.3 V.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chop.errors import HardwareError
from chop.hw.flow.route.parts import Part, get_part
from chop.registry import Registry, suggest

BAUD = 1_000_000
TIMEOUT_SECONDS = 0.02
"""Time that a board waits for the next byte of a request. USB adapters pause for milliseconds."""
LARGEST_BAUD_ERROR = 0.02
"""Relative error of the bit time that a receiver tolerates: half a bit in 10 bits, and a margin."""
FEWEST_CLOCKS = 4
"""Clock cycles per bit that the receiver needs."""


@dataclass(frozen=True)
class Board:
    """One board: its part, its oscillator and its pins."""

    name: str
    title: str
    tools: str
    """Tools that build the bitstream: "open" (Yosys and nextpnr), "vivado" or "quartus"."""
    part: str
    """Name in `chop.hw.flow.route.parts` for the open tools, else the vendor's part number."""
    oscillator_mhz: float
    pins: Mapping[str, str]
    """Port of the top module -> pin."""
    halvings: int = 0
    """The clock of the design is the oscillator divided by 2**halvings."""
    led_on: bool = True
    """Level that turns a LED on."""
    high: Mapping[str, str] = field(default_factory=dict)
    """Ports that are held at 1 -> pin."""
    programmer: str = ""
    """Command that loads the bitstream `$(BITSTREAM)`."""

    @property
    def label(self) -> str:
        """Description in one line."""
        tools = "Yosys and nextpnr" if self.tools == "open" else self.tools.capitalize()
        return f"{self.title}; part {self.part}, clock {self.clock_mhz:g} MHz; built with {tools}"

    @property
    def clock_mhz(self) -> float:
        """Clock of the design, in MHz."""
        return self.oscillator_mhz / (1 << self.halvings)

    @property
    def timeout_cycles(self) -> int:
        """Cycles that the board waits for the next byte of a request."""
        return int(self.clock_mhz * 1e6 * TIMEOUT_SECONDS)

    def open_part(self) -> Part | None:
        """Return the part for nextpnr, or None if the vendor's tools build the bitstream."""
        return get_part(self.part) if self.tools == "open" else None

    def clocks_per_bit(self, baud: int) -> int:
        """Return the clock cycles of one bit; raise if the clock cannot make this rate."""
        clocks = round(self.clock_mhz * 1e6 / baud) if baud > 0 else 0
        exact = self.clock_mhz * 1e6 / baud if baud > 0 else 0.0
        if clocks < FEWEST_CLOCKS or abs(clocks - exact) > LARGEST_BAUD_ERROR * exact:
            most = self.clock_mhz * 1e6 / FEWEST_CLOCKS
            raise HardwareError(
                f"board '{self.name}': its clock of {self.clock_mhz:g} MHz cannot make {baud} baud "
                f"within {LARGEST_BAUD_ERROR:.0%}. Allowed: up to {most:.0f} baud, such as "
                f"{BAUD} or 115200."
            )
        return clocks


BOARDS: Registry[Board] = Registry("board")
"""Name for `--board` -> board."""
for _board in (
    Board(
        "ulx3s",
        "Radiona ULX3S with LFE5U-85F",
        "open",
        "ecp5-85k",
        25.0,
        {"clk": "G2", "uart_rx": "M1", "uart_tx": "L4", "led_busy": "B2", "led_error": "C2"},
        high={"wifi_gpio0": "L2"},  # low would let the ESP32 take over the board
        programmer="openFPGALoader -b ulx3s $(BITSTREAM)",
    ),
    Board(
        "ulx3s-12f",
        "Radiona ULX3S with LFE5U-12F",
        "open",
        "ecp5-12k",
        25.0,
        {"clk": "G2", "uart_rx": "M1", "uart_tx": "L4", "led_busy": "B2", "led_error": "C2"},
        high={"wifi_gpio0": "L2"},
        programmer="openFPGALoader -b ulx3s $(BITSTREAM)",
    ),
    Board(
        "colorlight-i5",
        "Colorlight i5 v7.0 on its extension board, with LFE5U-25F",
        "open",
        "ecp5-25k",
        25.0,
        {"clk": "P3", "uart_rx": "H18", "uart_tx": "J17", "led_busy": "U16"},
        led_on=False,
        programmer="openFPGALoader -b colorlight-i5 $(BITSTREAM)",
    ),
    Board(
        "icebreaker",
        "1BitSquared iCEBreaker with iCE40UP5K",
        "open",
        "ice40-up5k",
        12.0,
        {"clk": "35", "uart_rx": "6", "uart_tx": "9", "led_busy": "37", "led_error": "11"},
        led_on=False,
        programmer="iceprog $(BITSTREAM)",
    ),
    Board(
        "ice40-hx8k-evn",
        "Lattice iCE40-HX8K breakout board",
        "open",
        "ice40-hx8k",
        12.0,
        {"clk": "J3", "uart_rx": "B10", "uart_tx": "B12", "led_busy": "C3", "led_error": "B3"},
        programmer="iceprog -S $(BITSTREAM)",
    ),
    Board(
        "icestick",
        "Lattice iCEstick with iCE40HX1K",
        "open",
        "ice40-hx1k",
        12.0,
        {"clk": "21", "uart_rx": "9", "uart_tx": "8", "led_busy": "95", "led_error": "96"},
        programmer="iceprog $(BITSTREAM)",
    ),
    Board(
        "arty-a7-35",
        "Digilent Arty A7-35T",
        "vivado",
        "xc7a35ticsg324-1L",
        100.0,
        {"clk": "E3", "uart_rx": "A9", "uart_tx": "D10", "led_busy": "H5", "led_error": "J5"},
        halvings=1,
    ),
    Board(
        "basys3",
        "Digilent Basys 3",
        "vivado",
        "xc7a35tcpg236-1",
        100.0,
        {"clk": "W5", "uart_rx": "B18", "uart_tx": "A18", "led_busy": "U16", "led_error": "E19"},
        halvings=1,
    ),
    Board(
        "de2-115",
        "Terasic DE2-115",
        "quartus",
        "EP4CE115F29C7",
        50.0,
        {"clk": "Y2", "uart_rx": "G12", "uart_tx": "G9"},
    ),
):
    BOARDS.register(_board.name, _board)


def get_board(name: str) -> Board:
    """Return the board called `name`."""
    if name not in BOARDS:
        raise HardwareError(f"unknown board '{name}'. {suggest(name, BOARDS)}")
    return BOARDS[name]
