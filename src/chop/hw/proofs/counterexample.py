"""Counterexamples: signals over cycles, as a table and as a VCD file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chop.hw.proofs.aiger import Aig

HIDDEN = ("clk",)


@dataclass(frozen=True)
class Trace:
    """Values of the named signals in each cycle."""

    widths: Mapping[str, int]
    cycles: tuple[Mapping[str, int], ...]

    @classmethod
    def of(cls, aig: Aig, names: str, witness: str) -> Trace:
        """Return the signals of `aig` under the inputs of `witness`; `names`: the map of Yosys."""
        frames = [[int(bit == "1") for bit in line] for line in _frames(witness)]
        bits = _bits(names)
        cycles = []
        for inputs, (state, outputs) in zip(frames, aig.run(frames), strict=True):
            sources = {"input": inputs, "latch": state, "output": outputs}
            values: dict[str, int] = {}
            for kind, index, bit, name in bits:
                values[name] = values.get(name, 0) | sources[kind][index] << bit
            cycles.append(values)
        widths = {name: 1 + max(b for _, _, b, n in bits if n == name) for *_, name in bits}
        return cls(widths, tuple(cycles))

    def table(self) -> str:
        """Return a row per cycle; registers of the harness and the module follow the ports."""
        names = sorted(self.widths, key=lambda name: ("." in name, name.startswith("u_")))
        shown = [name for name in names if "." not in name]
        rows = [[str(k), *(str(c[name]) for name in shown)] for k, c in enumerate(self.cycles)]
        return _aligned([["cycle", *shown], *rows])

    def vcd(self) -> str:
        """Return the trace as a VCD file, 10 ns per cycle."""
        codes = {name: f"s{k}" for k, name in enumerate(self.widths)}
        head = ["$timescale 1ns $end", "$scope module proof $end"]
        for name, code in codes.items():
            head.append(f"$var wire {self.widths[name]} {code} {name.replace(' ', '')} $end")
        head += ["$upscope $end", "$enddefinitions $end"]
        body = []
        for k, values in enumerate(self.cycles):
            body += [f"#{10 * k}", *(f"b{values[n]:b} {code}" for n, code in codes.items())]
        return "\n".join([*head, *body, f"#{10 * len(self.cycles)}"]) + "\n"


def _frames(witness: str) -> list[str]:
    """Return the input lines of a witness; the first line is the initial state."""
    return [line for line in witness.split("\n")[1:] if line and set(line) <= set("01x")]


def _bits(names: str) -> list[tuple[str, int, int, str]]:
    """Return (kind, index, bit, name) of each signal bit that is not hidden."""
    lines = (line.split(maxsplit=3) for line in names.splitlines())
    return [
        (kind, int(rest[0]), int(rest[1]), rest[2])
        for kind, *rest in lines
        if kind in ("input", "latch", "output") and rest[2] not in HIDDEN
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines) + "\n"
