"""Models of area and clock: measured on a grid of components, fitted, and held against others.

    python bench/area_models.py grid --jobs 16 --rows out/area
    python bench/area_models.py route --jobs 16 --rows out/area
    python bench/area_models.py fit --rows out/area
    python bench/area_models.py check

`grid`: each instance of area_instances.py alone, synthesised by Yosys for each family. `route`: some
of them placed and routed on ecp5-85k. Both leave a row per instance in the folder `--rows` as it is
done, and take up from there. `fit`: the coefficients, which `chop.hw.predict` reads, from the
instances that are not held out, and bench/results/area_grid.json from all rows. `check`: the errors
that the committed coefficients have on the committed rows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from area_instances import GRID, make

from chop.hw.check import bench_design
from chop.hw.emit import emit
from chop.hw.route.netlist import make_netlist
from chop.hw.route.parts import get_part
from chop.hw.route.place import place
from chop.hw.synth import synthesize

FAMILIES = ("ecp5", "xc7")
ROUTED_ON, SEED, TARGET_MHZ = "ecp5-85k", 1, 200.0
ROUTED_SHARE = 4
"""One in so many instances of a kind is routed."""
LUTS: Mapping[str, Mapping[str, int]] = {
    "ecp5": {"LUT4": 1, "CCU2C": 2, "TRELLIS_DPR16X4": 4},
    "xc7": {
        **{f"LUT{k}": 1 for k in range(1, 7)},
        **dict.fromkeys(("RAM32M", "RAM64M"), 4),
        **dict.fromkeys(("RAM32X1D", "RAM64X1D"), 2),
        **dict.fromkeys(("SRL16E", "SRLC32E"), 1),
    },
}
"""LUTs of a cell: what nextpnr and Vivado count."""
Key = tuple[str, int, str]


def measure_area(key: Key) -> dict[str, Any]:
    """One instance, alone, synthesised."""
    kind, number, family = key
    with tempfile.TemporaryDirectory() as scratch:
        hardware = emit(bench_design([make(kind, number)]), Path(scratch))
        area = synthesize(hardware, family=family)
    lut = sum(n * area.cells.get(cell, 0) for cell, n in LUTS[family].items())
    return {"lut": lut, "ff": area.ff, "dsp": area.dsp, "bram": area.bram, "cells": area.cells}


def measure_clock(key: Key) -> dict[str, Any]:
    """One instance, with pins around it, placed and routed."""
    kind, number, device = key
    part = get_part(device)
    with tempfile.TemporaryDirectory() as scratch:
        design = bench_design([make(kind, number)])
        hardware, work = emit(design, Path(scratch, "hardware")), Path(scratch, "work")
        work.mkdir()
        netlist = make_netlist(hardware, design.interface(), part, work)
        placed = place(netlist, part, SEED, TARGET_MHZ, [s.name for s in design.stages])
    path = [f"{s.kind} {s.nanoseconds} {s.where}" for s in placed.path]
    return {"mhz": round(placed.mhz, 2), "used": placed.used, "path": path, "cells": netlist.cells}


def area_keys() -> Iterator[Key]:
    """All instances, on all families."""
    for kind, (count, _) in GRID.items():
        yield from ((kind, number, family) for number in range(count) for family in FAMILIES)


def clock_keys() -> Iterator[Key]:
    """Those that are routed."""
    for kind, (count, _) in GRID.items():
        yield from ((kind, number, ROUTED_ON) for number in range(0, count, ROUTED_SHARE))


def _row(task: tuple[str, Key, Path]) -> str:
    """Measure and write down; the text that says how it went."""
    what, key, folder = task
    started = time.perf_counter()
    told: dict[str, Any] = {"kind": key[0], "number": key[1], "on": key[2]}
    try:
        told |= measure_area(key) if what == "grid" else measure_clock(key)
    except Exception as error:  # a row that says so; the rest goes on
        told["error"] = f"{type(error).__name__}: {error}"[-300:]
    told["seconds"] = round(time.perf_counter() - started, 1)
    with (folder / f"{what}.{os.getpid()}.jsonl").open("a") as out:
        out.write(json.dumps(told) + "\n")
    return f"{key} {told['seconds']} s {told.get('error', '')}"


def read_rows(folder: Path, what: str) -> list[dict[str, Any]]:
    """The rows that there are, those with errors left out."""
    found: dict[Key, dict[str, Any]] = {}
    for file in sorted(folder.glob(f"{what}.*jsonl")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            if "error" not in row:
                found[row["kind"], row["number"], row["on"]] = row
    return list(found.values())


def measure(args: argparse.Namespace) -> None:
    """All rows that are missing."""
    args.rows.mkdir(parents=True, exist_ok=True)
    keys = list(area_keys() if args.command == "grid" else clock_keys())
    done = {(r["kind"], r["number"], r["on"]) for r in read_rows(args.rows, args.command)}
    chosen = [
        key
        for key in keys
        if key not in done
        and (not args.families or key[2] in args.families)
        and (not args.kinds or key[0] in args.kinds)
    ]
    tasks = [(args.command, key, args.rows) for key in chosen[: args.most]]
    print(f"{len(done)} of {len(keys)} rows are there, {len(tasks)} to do", flush=True)
    started = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for count, told in enumerate(pool.imap_unordered(_row, tasks), 1):
            if "Error" in told or count % 50 == 0:
                print(f"{count} {time.perf_counter() - started:.0f} s: {told}", flush=True)


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=["grid", "route"])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rows", type=Path, default=Path("out/area"))
    parser.add_argument("--families", nargs="+", default=[])
    parser.add_argument("--kinds", nargs="+", default=[])
    parser.add_argument("--most", type=int, default=None, help="rows of this run")
    args = parser.parse_args()
    measure(args)


if __name__ == "__main__":
    sys.exit(main())
