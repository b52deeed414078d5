"""Flip-flops around a multiplier become its registers, where that changes nothing."""

from __future__ import annotations

import itertools

import pytest

from chop.hw.flow.route.dsp_registers import pack_dsp_registers

CLOCK, ENABLE, OTHER = 1000, 1001, 1002


class Circuit:
    """A multiplier of 2 bits with flip-flops before its operands and behind its product."""

    def __init__(self, enables=(ENABLE, ENABLE, ENABLE), reset="0", reader=None):
        self.numbers = itertools.count(1)
        self.cells = {}
        a, b = (self.registers(side, enables[k], reset) for k, side in enumerate("ab"))
        product = [next(self.numbers) for _ in range(4)]
        pins = {f"A{k}": [a[min(k, 1)]] for k in range(18)}
        pins |= {f"B{k}": [b[min(k, 1)]] for k in range(18)}
        pins |= {f"P{k}": [bit] for k, bit in enumerate(product)}
        directions = {name: "output" if name[0] == "P" else "input" for name in pins}
        self.cells["m"] = {
            "type": "MULT18X18D", "parameters": {}, "connections": pins,
            "port_directions": directions,
        }  # fmt: skip
        self.out = self.registers("p", enables[2], "0", product)
        ports = {"out": {"bits": [*self.out, *([] if reader is None else [a[0]])]}}
        self.module = {"cells": self.cells, "ports": ports}

    def registers(self, name, enable, reset, inputs=None):
        found = []
        for k, bit in enumerate(inputs or [next(self.numbers) for _ in range(2)]):
            found.append(next(self.numbers))
            pins = {"CLK": [CLOCK], "CE": [enable], "LSR": [reset], "DI": [bit], "Q": [found[-1]]}
            self.cells[f"{name}{k}"] = {
                "type": "TRELLIS_FF",
                "parameters": {"CEMUX": "CE", "CLKMUX": "CLK", "LSRMUX": "LSR", "REGSET": "RESET"},
                "connections": pins,
                "port_directions": {n: "output" if n == "Q" else "input" for n in pins},
            }
        return found

    def pack(self):
        before = self.flip_flops()
        gone = pack_dsp_registers({"modules": {"top": self.module}}, "top")
        assert gone == before - self.flip_flops()
        told = self.cells["m"]["parameters"]
        return {at for at in ("INPUTA", "INPUTB", "OUTPUT") if f"REG_{at}_CLK" in told}

    def flip_flops(self):
        return sum(cell["type"] == "TRELLIS_FF" for cell in self.cells.values())


def test_all_three_registers_move_in():
    circuit = Circuit()
    assert circuit.flip_flops() == 8
    assert circuit.pack() == {"INPUTA", "INPUTB", "OUTPUT"}
    pins = circuit.cells["m"]["connections"]
    assert circuit.flip_flops() == 0 and [pins[f"P{k}"][0] for k in range(4)] == circuit.out
    assert pins["CLK0"] == [CLOCK] and pins["CE0"] == [ENABLE] and pins["RST0"] == ["0"]


def test_enables_are_told_apart():
    circuit = Circuit(enables=(ENABLE, OTHER, ENABLE))
    assert circuit.pack() == {"INPUTA", "INPUTB", "OUTPUT"}
    told = circuit.cells["m"]["parameters"]
    places = [told[f"REG_{at}_CE"] for at in ("INPUTA", "INPUTB", "OUTPUT")]
    assert places == ["CE0", "CE1", "CE0"]


def test_registers_with_a_reset_stay():
    circuit = Circuit(reset=OTHER)
    assert circuit.pack() == {"OUTPUT"} and circuit.flip_flops() == 4


def test_a_flip_flop_that_something_else_reads_stays_too():
    circuit = Circuit(reader="out")
    assert circuit.pack() == {"INPUTA", "INPUTB", "OUTPUT"} and circuit.flip_flops() == 1


@pytest.mark.parametrize("port", ["P0", "P3"])
def test_a_product_that_something_else_reads_keeps_its_flip_flops(port):
    circuit = Circuit()
    bit = circuit.cells["m"]["connections"][port]
    circuit.module["ports"]["seen"] = {"bits": bit}
    assert circuit.pack() == {"INPUTA", "INPUTB"} and circuit.flip_flops() == 4


def test_an_operand_alone_stays_outside():  # nextpnr would time both as if they had no register
    circuit = Circuit()
    circuit.cells["b0"]["connections"]["LSR"] = [OTHER]
    assert circuit.pack() == {"OUTPUT"} and circuit.flip_flops() == 4


def test_a_constant_is_registered_with_the_other_operand():
    circuit = Circuit()
    for k in range(18):
        circuit.cells["m"]["connections"][f"B{k}"] = ["1" if k == 1 else "0"]
    assert circuit.pack() == {"INPUTA", "INPUTB", "OUTPUT"} and circuit.flip_flops() == 0
    pins = circuit.cells["m"]["connections"]
    assert (pins["B0"], pins["B1"]) == (["0"], ["1"]) and pins["CE0"] == [ENABLE]
