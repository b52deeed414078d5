"""Cocotb test bench of an emitted design: needs cocotb and the files beside it, nothing else.

Streams the vectors of `test/` through the ports under random stalls on both sides and compares
every output beat.
"""

import json
import os
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ReadOnly, RisingEdge

HARDWARE = Path(__file__).resolve().parent.parent
PROFILES = {"full_rate": (1.0, 1.0), "random_stalls": (0.6, 0.5)}


def _words(port: str) -> list[int]:
    return [int(line, 16) for line in (HARDWARE / "test" / f"{port}.mem").read_text().split()]


def _inputs(told: dict[str, Any]) -> dict[str, list[int]]:
    """The words of every input; weights, which lie with the memories, are repeated."""
    ports = told["inputs"]
    data = {port: _words(port) for port in ports if "sent" not in ports[port]}
    name, first = next(iter(data.items()))
    tensors = len(first) * ports[name]["parallelism"] // prod(ports[name]["shape"])
    for port in ports.keys() - data.keys():
        text = (HARDWARE / "mem" / f"{port}.mem").read_text()
        words = [int(line, 16) for line in text.split()]
        data[port] = _repeated(words, ports[port]["sent"]["shape"][:-1], ports[port]["shape"][:-1])
        data[port] *= tensors
    return data


def _repeated(words: list[int], shape: list[int], wanted: list[int]) -> list[int]:
    """`words` of `shape` as those of the shape `wanted`: again where there is a 1 instead."""
    if not shape:
        return words
    size = len(words) // shape[0]
    parts = [words[k * size : (k + 1) * size] for k in range(shape[0])]
    parts *= wanted[0] // shape[0]
    return [word for part in parts for word in _repeated(part, shape[1:], wanted[1:])]


async def _offer(dut: Any, port: str, words: list[int], rate: float, rng: Random) -> None:
    """Send all words; once offered, a beat stays until it is taken."""
    data, valid, ready = (getattr(dut, port + end) for end in ("", "_valid", "_ready"))
    for word in words:
        while rng.random() >= rate:
            valid.value = 0
            await RisingEdge(dut.clk)
        data.value = word
        valid.value = 1
        await ReadOnly()
        while not int(ready.value):
            await RisingEdge(dut.clk)
            await ReadOnly()
        await RisingEdge(dut.clk)
    valid.value = 0


async def _take(dut: Any, port: str, expected: list[int], rate: float, rng: Random) -> None:
    """Take as many beats as expected and compare each."""
    data, valid, ready = (getattr(dut, port + end) for end in ("", "_valid", "_ready"))
    for number, word in enumerate(expected):
        while True:
            ready.value = int(rng.random() < rate)
            await ReadOnly()
            is_beat = int(valid.value) and int(ready.value)
            got = int(data.value) if is_beat else None
            await RisingEdge(dut.clk)
            if is_beat:
                break
        assert got == word, f"{port} beat {number}: got {got:x}, expected {word:x}"
    ready.value = 0


async def _run(dut: Any, profile: str) -> None:
    rng = Random(profile)
    rates = PROFILES[profile]
    told = json.loads((HARDWARE / "design.json").read_text())
    Clock(dut.clk, 10, "ns").start()
    dut.rst.value = 1
    for port in told["inputs"]:
        getattr(dut, f"{port}_valid").value = 0
    for port in told["outputs"]:
        getattr(dut, f"{port}_ready").value = 0
    if "reload" in told:
        dut.load_valid.value = 0  # nothing writes weights here
    for _ in range(4):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    for port, words in _inputs(told).items():
        cocotb.start_soon(_offer(dut, port, words, rates[0], rng))
    takers = [
        cocotb.start_soon(_take(dut, port, _words(port), rates[1], rng)) for port in told["outputs"]
    ]
    compared = sum(len(_words(port)) for port in told["outputs"])
    assert compared > 0, "no output beat is expected: nothing would be compared"
    for taker in takers:
        await taker


@cocotb.test(timeout_time=int(os.environ.get("MASE_TIMEOUT_NS", "100000000")), timeout_unit="ns")
async def outputs_are_exact_at_full_rate(dut: Any) -> None:
    await _run(dut, "full_rate")


@cocotb.test(timeout_time=int(os.environ.get("MASE_TIMEOUT_NS", "100000000")), timeout_unit="ns")
async def outputs_are_exact_under_random_stalls(dut: Any) -> None:
    await _run(dut, "random_stalls")
