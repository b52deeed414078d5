"""Packing of flip-flops into the multipliers of ECP5, whose registers Yosys leaves unused.

A multiplier `MULT18X18D` can register its operands and its product. If all bits of each operand
come from flip-flops that share clock and enable and are never reset, the multiplier reads their
inputs instead (a constant operand is registered with the other). If all bits of a product go to
such flip-flops and nowhere else, it drives their outputs. The netlist keeps its function, cycle by
cycle, and loses the flip-flops that nothing reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

MULTIPLIER, FLIP_FLOP = "MULT18X18D", "TRELLIS_FF"
OPERAND_BITS, PRODUCT_BITS = 18, 36
ENABLES = 4
"""Enable signals that a multiplier may tell apart."""
CONSTANTS = ("0", "1", "x")

Bit = int | str
"""A net by its number, or a constant."""
Cell = dict[str, Any]


class RegisterControl(NamedTuple):
    """Signals that flip-flops must share to be one register."""

    clock: Bit
    enable: Bit


def pack_dsp_registers(netlist: Mapping[str, Any], top: str) -> int:
    """Change the module `top` of a JSON netlist in place; return the flip-flops removed."""
    module = netlist["modules"][top]
    packer = _Packer(module)
    before = len(packer.flip_flops)
    for name, cell in list(module["cells"].items()):
        if cell["type"] == MULTIPLIER:
            packer.pack(name, cell)
    packer.remove_unread()
    return before - len(packer.flip_flops)


class _Packer:
    """The cells of a module, with the driver and the readers of each net."""

    def __init__(self, module: Mapping[str, Any]) -> None:
        self.cells: dict[str, Cell] = module["cells"]
        self.flip_flops: dict[Bit, str] = {}  # by the net they drive
        self.readers: dict[Bit, set[tuple[str, str]]] = defaultdict(set)
        for port, facts in module["ports"].items():
            for bit in facts["bits"]:
                self.readers[bit].add(("", port))
        for name, cell in self.cells.items():
            if cell["type"] == FLIP_FLOP:
                self.flip_flops[cell["connections"]["Q"][0]] = name
            for port, bits in cell["connections"].items():
                for bit in bits:
                    if cell["port_directions"].get(port) != "output":
                        self.readers[bit].add((name, port))

    def pack(self, name: str, cell: Cell) -> None:
        """Give a multiplier the registers around it."""
        enables: list[Bit] = []
        packed = self._pack_operands(name, cell, enables)
        packed = self._pack_product(name, cell, enables) or packed
        if not packed:
            return
        cell["parameters"]["GSR"] = "DISABLED"
        for number, bit in enumerate(enables):
            self._connect(name, cell, f"CE{number}", bit)
        self._connect(name, cell, "CLK0", packed)
        self._connect(name, cell, "RST0", "0")

    def _connect(self, name: str, cell: Cell, port: str, bit: Bit) -> None:
        cell["connections"][port] = [bit]
        cell["port_directions"][port] = "input"
        self.readers[bit].add((name, port))

    def _pack_operands(self, name: str, cell: Cell, enables: list[Bit]) -> Bit:
        """Return the clock of the registers of the operands; "" for none.

        Both or neither: nextpnr times a multiplier with one of them as if it had none.
        """
        by_operand = {operand: self._registers(cell, operand) for operand in "AB"}
        controls = {o: _shared_control(list(r.values())) for o, r in by_operand.items() if r}
        distinct = [control for control in controls.values() if control is not None]
        if None in by_operand.values() or len(distinct) < len(controls) or not distinct:
            return ""
        for operand, registers in by_operand.items():
            assert registers is not None, "looked at above"
            control = controls.get(operand) or distinct[0]  # a constant has none
            if not _note(cell, f"INPUT{operand}", control, enables):
                return ""
            for port, register in registers.items():
                self.readers[cell["connections"][port][0]].discard((name, port))
                self._connect(name, cell, port, register["connections"]["DI"][0])
        return distinct[0].clock

    def _registers(self, cell: Cell, operand: str) -> dict[str, Cell] | None:
        """Return the flip-flop before each variable bit, by port; None unless all have one."""
        ports = [f"{operand}{k}" for k in range(OPERAND_BITS)]
        bits = {port: cell["connections"][port][0] for port in ports}
        variable = {port: bit for port, bit in bits.items() if bit not in CONSTANTS}
        if not set(variable.values()) <= self.flip_flops.keys():
            return None
        return {port: self.cells[self.flip_flops[bit]] for port, bit in variable.items()}

    def _pack_product(self, name: str, cell: Cell, enables: list[Bit]) -> Bit:
        """Return the clock of the register of the product; "" for none."""
        behind: dict[str, str] = {}
        for port in (f"P{k}" for k in range(PRODUCT_BITS)):
            bit = cell["connections"].get(port, [""])[0]
            readers = self.readers[bit] if bit else set()
            if not readers:
                continue
            (reader, into), *others = readers
            if others or into != "DI" or self.cells[reader]["type"] != FLIP_FLOP:
                return ""
            behind[port] = reader
        shared = _shared_control([self.cells[reader] for reader in behind.values()])
        if shared is None or not _note(cell, "OUTPUT", shared, enables):
            return ""
        for port, reader in behind.items():
            register = self.cells.pop(reader)
            driven = register["connections"]["Q"][0]
            del self.flip_flops[driven]
            cell["connections"][port] = [driven]
            for pin, bits in register["connections"].items():
                self.readers[bits[0]].discard((reader, pin))
        return shared.clock

    def remove_unread(self) -> None:
        """Remove flip-flops that nothing reads, and those that only they read."""
        queue = [bit for bit in self.flip_flops if not self.readers[bit]]
        while queue:
            name = self.flip_flops.pop(queue.pop())
            for port, bits in self.cells.pop(name)["connections"].items():
                self.readers[bits[0]].discard((name, port))
                if port == "DI" and bits[0] in self.flip_flops and not self.readers[bits[0]]:
                    queue.append(bits[0])


def _control(cell: Cell) -> RegisterControl | None:
    """Return clock and enable of a flip-flop that is never reset; None for another."""
    parameters, pins = cell["parameters"], cell["connections"]
    is_plain = (
        parameters.get("CLKMUX", "CLK") == "CLK"
        and parameters.get("REGSET", "RESET") == "RESET"
        and parameters.get("LSRMUX", "LSR") == "LSR"
        and pins.get("LSR", ["0"])[0] == "0"
    )
    enables = {"CE": pins.get("CE", ["1"])[0], "1": "1"}
    enable = enables.get(str(parameters.get("CEMUX", "CE")).strip())
    return None if enable is None or not is_plain else RegisterControl(pins["CLK"][0], enable)


def _shared_control(registers: list[Cell]) -> RegisterControl | None:
    controls = {_control(register) for register in registers}
    return controls.pop() if len(controls) == 1 else None


def _note(cell: Cell, place: str, control: RegisterControl, enables: list[Bit]) -> bool:
    """Write a register into a multiplier's parameters; return False if enables run out."""
    if control.enable not in enables:
        if len(enables) == ENABLES:
            return False
        enables.append(control.enable)
    cell["parameters"] |= {
        f"REG_{place}_CLK": "CLK0",
        f"REG_{place}_CE": f"CE{enables.index(control.enable)}",
        f"REG_{place}_RST": "RST0",
    }
    return True
