"""Tables of what the mapper makes of casts and gearboxes, each alone, for `chop.hw.area`.

    python bench/area_casts.py casts --jobs 16
    python bench/area_casts.py gears

Modules of one lane (casts) or with units of one element (gearboxes), synthesised for ECP5, many in
one run. They write chop/hw/area/casts.json and chop/hw/streams/gearbox/gears.json.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

import chop.hw.area.casts as casts
from chop.hw.design.clock import DEFAULT_MHZ
from chop.hw.design.component import rtl_sources
from chop.hw.flow.route.tools import run_yosys
from chop.hw.flow.synth import mapped_for
from chop.hw.streams.gearbox.area import GEARS

TOGETHER = 25
"""Modules of one run."""
CONTROL = 3
"""LUTs of a skid buffer besides those of its bits."""
PORTS = """input wire logic clk, rst, v, yr, output logic r, yv,
    input wire logic [{x}:0] x, output logic [{y}:0] y"""
HANDSHAKE = """.clk, .rst, .data_in_0_valid({valid}), .data_in_0_ready(r), .data_out_0(y),
    .data_out_0_valid(yv), .data_out_0_ready(yr)"""


class CastCase(NamedTuple):
    """A cast that is measured."""

    goes_to: str
    is_signed: int
    is_positive: int
    dropped: int
    beside: int
    above: int
    width: int

    def module(self, name: str) -> str:
        """A register, the cast, and a skid buffer, beside an adder; or the cast alone."""
        number = self.width + (not self.is_signed) + self.dropped + self.above
        bits = number - self.is_positive
        given = "q" if self.goes_to == "skid" else "x"
        cast = (
            f"fixed_cast #(.DATA_IN_0_PRECISION_0({number}), "
            f".DATA_IN_0_PRECISION_1({self.dropped}), .DATA_OUT_0_PRECISION_0({self.width}), "
            f".DATA_OUT_0_PRECISION_1(0), .DATA_OUT_0_IS_SIGNED({self.is_signed})) u_cast "
            f"(.data_in_0({'{1' + chr(39) + 'b0, ' + given + '}' if self.is_positive else given}),"
            f" .data_out_0(c));"
        )
        result = f"logic [{self.width - 1}:0] c; {cast}"
        if self.goes_to == "out":
            return (
                f"module {name} (input wire logic [{bits - 1}:0] x, "
                f"output logic [{self.width - 1}:0] y); {result} assign y = c; endmodule\n"
            )
        last = self.beside - 1
        ports = f", input wire logic [{last}:0] a, b, output logic [{last}:0] z"
        chain = (
            f"logic [{last}:0] a_q, b_q; "
            "always_ff @(posedge clk) begin a_q <= a; b_q <= b; z <= a_q + b_q; end"
        )
        return f"""module {name} ({PORTS.format(x=bits - 1, y=self.width - 1)}
    {ports if self.beside else ""});
  logic [{bits - 1}:0] q; logic v_q; {result} {chain if self.beside else ""}
  always_ff @(posedge clk) begin
    if (r) begin q <= x; v_q <= v; end
    if (rst) v_q <= 1'b0;
  end
  skid_buffer #(.DATA_WIDTH({self.width})) u_skid (.data_in_0(c), {HANDSHAKE.format(valid="v_q")});
endmodule
"""


def cast_cases() -> Iterator[CastCase]:
    """By what changes what the mapper does: finely where the most casts of networks are."""
    few, some = (4, 6, 8, 12), (0, 1, 2, 3, 4, 5, 6, 8, 12)
    for above, depth in product(some, (1, 3, 8)):
        yield from (CastCase("skid", 1, 0, depth, 0, above, w) for w in (4, 6, 8, 10, 12, 16))
    for above, depth in product((7, 10, 13, 17), (1, 3, 8)):
        yield from (CastCase("skid", 1, 0, depth, 0, above, w) for w in (6, 8, 10, 16))
    for above, width, depth in product(some, few, (1, 8)):
        yield CastCase("skid", 0, 0, depth, 0, above, width)
    for signed, above, width, beside in product((1, 0), some, few, (0, 12, 16, 20, 24, 28, 40, 60)):
        if above or not signed:
            yield CastCase("skid", signed, 0, 0, beside, above, width)
    for signed, above, width in product((1, 0), (0, 1, 2, 3, 4, 6, 9), few):
        yield CastCase("skid", signed, 1, 2, 0, above, width)
        if above:
            yield from (CastCase("skid", signed, 1, 0, e, above, width) for e in (16, 40))
    for signed, positive, above in product((1, 0), (0, 1), (0, 1, 2, 3, 4, 5, 6, 8, 11)):
        for width, depth in product((4, 8, 12), (0, 1, 4, 8)):
            if above or depth:
                yield CastCase("out", signed, positive, depth, 0, above, width)


def measure(modules: Sequence[str], parts: Sequence[str]) -> list[dict[str, int]]:
    """The cells of modules called m_0, m_1, …"""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        uses = "".join(f"(* keep *) m_{k} u_{k} ();\n" for k in range(len(modules)))
        (folder / "together.v").write_text(f"module together ();\n{uses}endmodule\n")
        (folder / "modules.sv").write_text("".join(modules))
        tops = " ".join(f"--top m_{k}" for k in range(len(modules)))
        sources = " ".join(str(rtl_sources()[part]) for part in parts)
        commands = [
            f"read_slang {tops} {sources} {folder}/modules.sv",
            f"read_verilog {folder}/together.v",
            mapped_for(DEFAULT_MHZ),
            "synth_ecp5 -top together -noflatten",
            f"-o {folder}/stat.json stat -json",
        ]
        run_yosys(commands, folder)
        found = json.loads((folder / "stat.json").read_text())["modules"]
        return [found[f"\\m_{k}"]["num_cells_by_type"] for k in range(len(modules))]


def write(file: Path, rows: Sequence[object]) -> None:
    """A row in each line."""
    file.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def measure_casts(cases: Sequence[CastCase]) -> list[dict[str, int]]:
    """The cells of each."""
    modules = [case.module(f"m_{k}") for k, case in enumerate(cases)]
    return measure(modules, ("fixed_cast", "skid_buffer"))


def make_casts(jobs: int) -> None:
    """The table of casts."""
    cases = [*dict.fromkeys(cast_cases())]
    parts = [cases[start : start + TOGETHER] for start in range(0, len(cases), TOGETHER)]
    found: dict[tuple[object, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    with ThreadPoolExecutor(jobs) as pool:  # each waits for a child process
        told = [*pool.map(measure_casts, parts)]
    for part, of_part in zip(parts, told, strict=True):
        for case, cells in zip(part, of_part, strict=True):
            depth = case.dropped or case.beside
            key = (*case[:3], int(case.dropped > 0), depth, case.above)
            luts = cells.get("LUT4", 0) - CONTROL * (case.goes_to == "skid")
            found[key][case.width].append(luts)
    rows = []
    for key in sorted(found, key=str):
        points = [[w, round(sum(n) / len(n), 1)] for w, n in sorted(found[key].items())]
        rows.append([*key, points])
    write(casts.TABLE, rows)


def make_gears(jobs: int) -> None:
    """The table of gearboxes."""
    sizes = (1, 2, 3, 4, 6, 8, 9, 12)
    pairs = [
        (a, b)
        for a, b in product(sizes, sizes)
        if math.gcd(a, b) == 1 and max(a, b) > 1 and a * b <= 36
    ]
    cases = [(into, out, width) for into, out in pairs for width in (5, 12)]
    modules = [
        f"module m_{k} ({PORTS.format(x=into * width - 1, y=out * width - 1)});\n"
        f"gearbox #(.DATA_IN_0_PRECISION_0({width}), .DATA_IN_0_PARALLELISM_DIM_0({into}), "
        f".DATA_OUT_0_PARALLELISM_DIM_0({out}), .UNIT(1)) u_gearbox (.data_in_0(x), "
        f"{HANDSHAKE.format(valid='v')});\nendmodule\n"
        for k, (into, out, width) in enumerate(cases)
    ]
    lines: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for (into, out, width), cells in zip(cases, measure(modules, ("gearbox",)), strict=True):
        lines[into, out].append([width, cells.get("LUT4", 0) + 2 * cells.get("CCU2C", 0)])
    write(GEARS, [[into, out, points] for (into, out), points in sorted(lines.items())])


COMMANDS = {"casts": make_casts, "gears": make_gears}


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=[*COMMANDS])
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    COMMANDS[args.command](args.jobs)


if __name__ == "__main__":
    main()
