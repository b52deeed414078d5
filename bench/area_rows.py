"""Rows of the models of area and clock: an instance, what it was made of, and what was measured.

A row keeps the fingerprint of the RTL that was synthesised. Where an instance is emitted otherwise
today, its row is stale: it counts as missing and is measured anew.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import multiprocessing
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from area_instances import GRID, make
from measuring.progress import Stopwatch
from measuring.record import RESULTS

from chop.hw.design.clock import DEFAULT_MHZ
from chop.hw.design.memories import memory_files
from chop.hw.flow.route.netlist import make_netlist
from chop.hw.flow.route.parts import get_part
from chop.hw.flow.route.place import place
from chop.hw.flow.synth import Area, mapped_for, synthesize
from chop.hw.sim.component_check import bench_design
from chop.hw.sim.emit import component_files, emit, top_files

FAMILIES = ("ecp5", "xc7")
ROUTED_ON, SEED, TARGET_MHZ = "ecp5-85k", 1, 200.0
ROUTED_SHARE = 6
"""One in so many instances of a kind is routed."""
HELD_OUT_FROM, HELD_OUT_COUNT = 7000, 2
"""The first and the count of the instances of each kind that no model of area is fitted to. They
were drawn after the first model was fitted; docs/hardware_parts.md reports the errors."""
ONCE_HELD_OUT = (5000, 5001, 6000, 6001)
"""Older models were held against these; they told what was wrong, and are fitted to now."""
LUTS: Mapping[str, Mapping[str, int]] = {
    "ecp5": {"LUT4": 1, "CCU2C": 2, "TRELLIS_DPR16X4": 4},
    "xc7": {
        **{f"LUT{k}": 1 for k in range(1, 7)},
        **dict.fromkeys(("RAM32M", "RAM64M"), 4),
        **dict.fromkeys(("RAM32X1D", "RAM64X1D"), 2),
        **dict.fromkeys(("SRL16E", "SRLC32E"), 1),
    },
}
"""LUTs of a cell; nextpnr takes some more where carry chains begin and end."""
Key = tuple[str, int, str]
Row = dict[str, Any]


@functools.cache
def fingerprint(kind: str, number: int) -> str:
    """Of the RTL and memories of an instance, but for comments and blanks, and of its mapping."""
    design = bench_design([make(kind, number)])
    files = {**top_files(design), **component_files(design), **memory_files(design)}
    digest = hashlib.sha256(mapped_for(DEFAULT_MHZ).encode())
    for name in sorted(files):
        text = re.sub(r"//.*", "", files[name])
        digest.update(f"{name} {' '.join(text.split())}\n".encode())
    return digest.hexdigest()[:12]


def measure_area(key: Key) -> Row:
    """One instance, alone, synthesised."""
    kind, number, family = key
    with tempfile.TemporaryDirectory() as scratch:
        hardware = emit(bench_design([make(kind, number)]), Path(scratch))
        return cells(hardware, family)


def cells(hardware: Path, family: str) -> Row:
    """Of emitted RTL."""
    return told_of(synthesize(hardware, family=family))


def luts_of(cells: Mapping[str, int], family: str) -> int:
    """LUTs of a netlist's cells."""
    return sum(n * cells.get(cell, 0) for cell, n in LUTS[family].items())


def told_of(area: Area) -> Row:
    """What a row keeps; LUTs by the table above."""
    lut = luts_of(area.cells, area.family)
    return {"lut": lut, "ff": area.ff, "dsp": area.dsp, "bram": area.bram, "cells": area.cells}


def measure_clock(key: Key) -> Row:
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
    held_out = range(HELD_OUT_FROM, HELD_OUT_FROM + HELD_OUT_COUNT)
    for family in FAMILIES:
        for kind, (count, _) in GRID.items():
            numbers = (*range(count), *ONCE_HELD_OUT, *held_out)
            yield from ((kind, number, family) for number in numbers)


def clock_keys() -> Iterator[Key]:
    """Those that are routed."""
    for kind, (count, _) in GRID.items():
        yield from ((kind, number, ROUTED_ON) for number in range(0, count, ROUTED_SHARE))


KEYS = {"grid": area_keys, "route": clock_keys}
SECTIONS = {"grid": "area", "route": "clock"}
"""Of bench/results/area_grid.json."""


def _measured(task: tuple[str, Key, Path]) -> str:
    """Measure and write down; the text that says how it went."""
    what, key, folder = task
    watch = Stopwatch()
    try:
        found = measure_clock(key) if what == "route" else measure_area(key)
    except Exception as error:  # a row that says so; the rest goes on
        found = {"error": f"{type(error).__name__}: {error}"[-300:]}
    kind, number, on = key
    known = {"kind": kind, "number": number, "on": on, "rtl": fingerprint(kind, number)}
    seconds = round(watch.seconds, 1)
    with (folder / f"{what}.{os.getpid()}.jsonl").open("a") as out:
        out.write(json.dumps({**known, **found, "seconds": seconds}) + "\n")
    return f"{key} {seconds} s {found.get('error', '')}"


def key_of(row: Row) -> Key:
    """What was measured."""
    return row["kind"], row["number"], row["on"]


def is_stale(row: Row) -> bool:
    """Whether its instance is emitted otherwise today."""
    return row["kind"] not in GRID or row.get("rtl") != fingerprint(row["kind"], row["number"])


def kept_rows(what: str) -> list[Row]:
    """Those of the project."""
    file = RESULTS / "area_grid.json"
    found: list[Row] = json.loads(file.read_text())["results"][SECTIONS[what]]
    return found


def read_rows(folder: Path, what: str) -> list[Row]:
    """The rows of the project, and in their place those of `folder`; neither errors nor stale."""
    found = {key_of(row): row for row in kept_rows(what)}
    for file in sorted(folder.glob(f"{what}.*jsonl"), key=lambda f: f.stat().st_mtime):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            if "error" not in row and not is_stale(row):
                found[key_of(row)] = row
    return [row for row in found.values() if not is_stale(row)]


def measure(args: argparse.Namespace) -> None:
    """All rows that are missing or stale, the kinds in the order that is asked for."""
    args.rows.mkdir(parents=True, exist_ok=True)
    keys = list(KEYS[args.command]())
    done = {key_of(row) for row in read_rows(args.rows, args.command)}
    chosen = [
        key
        for key in keys
        if key not in done
        and (not args.families or key[2] in args.families)
        and (not args.kinds or key[0] in args.kinds)
        and args.least <= key[1] < args.below
        and key[1] % args.every == 0
    ]
    if args.kinds:
        chosen.sort(key=lambda key: args.kinds.index(key[0]))
    chosen = chosen[: args.most]
    print(f"{len(done)} of {len(keys)} rows are there, {len(chosen)} to do", flush=True)
    tasks = [(args.command, key, args.rows) for key in chosen]
    watch = Stopwatch()
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for count, told in enumerate(pool.imap_unordered(_measured, tasks), 1):
            print(f"{count}/{len(tasks)} {watch.seconds:.0f} s: {told}", flush=True)


def compact(rows: list[Row]) -> list[Row]:
    """Rows as they are kept, in order."""
    keys = ("kind", "number", "on", "rtl", "lut", "ff", "dsp", "bram", "mhz", "used")
    ordered = sorted(rows, key=lambda r: (r["on"], r["kind"], r["number"]))
    return [{k: row[k] for k in keys if k in row} for row in ordered]
