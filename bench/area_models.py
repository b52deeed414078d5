"""Models of area and clock: measured on a grid of components, fitted, and held against others.

    python bench/area_models.py grid --jobs 16 --rows out/area
    python bench/area_models.py route --jobs 16 --rows out/area
    python bench/area_models.py fit --rows out/area
    python bench/area_models.py check

`grid`: each instance of area_instances.py alone, synthesised by Yosys for each family. `route`:
some of the instances placed and routed on ecp5-85k. Both leave a row per instance in the folder
`--rows` as it is done, and take up from there. `fit`: the coefficients, which `chop.hw.predict`
reads, from the instances that are not held out, and bench/results/area_grid.json from all rows.
`check`: the errors that the committed coefficients have on the committed rows.
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

import matplotlib.pyplot as plt
from area_fit import errors, fit, held_out
from area_instances import GRID, make
from record import RESULTS, save

from chop.hw.check import bench_design
from chop.hw.emit import emit
from chop.hw.predict.count import inventory_of
from chop.hw.predict.inventory import Inventory
from chop.hw.predict.model import (
    ANY,
    COEFFICIENTS,
    StagePrediction,
    coefficients,
    predict_stage,
)
from chop.hw.route.netlist import make_netlist
from chop.hw.route.parts import get_part
from chop.hw.route.place import place
from chop.hw.synth import synthesize

FAMILIES = ("ecp5", "xc7")
ROOT = Path(__file__).parents[1]
ROUTED_ON, SEED, TARGET_MHZ = "ecp5-85k", 1, 200.0
LEAST_ROWS = 300
"""Of a family: fewer make no models."""
ROUTED_SHARE = 6
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
        return cells(hardware, family)


def cells(hardware: Path, family: str) -> dict[str, Any]:
    """Of emitted RTL; LUTs as nextpnr and Vivado count them."""
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
        told |= measure_clock(key) if what == "route" else measure_area(key)
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
    keys = list(KEYS[args.command]())
    done = {(r["kind"], r["number"], r["on"]) for r in read_rows(args.rows, args.command)}
    chosen = [
        key
        for key in keys
        if key not in done
        and (not args.families or key[2] in args.families)
        and (not args.kinds or key[0] in args.kinds)
        and key[1] % args.every == 0
    ]
    tasks = [(args.command, key, args.rows) for key in chosen[: args.most]]
    print(f"{len(done)} of {len(keys)} rows are there, {len(tasks)} to do", flush=True)
    started = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for count, told in enumerate(pool.imap_unordered(_row, tasks), 1):
            if "Error" in told or count % 50 == 0:
                print(f"{count} {time.perf_counter() - started:.0f} s: {told}", flush=True)


def amounts_of(rows: list[dict[str, Any]]) -> dict[tuple[str, int, str], Inventory]:
    """What the instance of each row is made of, on the family of the row."""
    found = {}
    for row in rows:
        family = "ecp5" if row["on"] == ROUTED_ON else row["on"]
        component = make(row["kind"], row["number"])
        found[row["kind"], row["number"], row["on"]] = inventory_of(component, family)
    return found


def fit_kinds(
    rows: list[dict[str, Any]], amounts: list[dict[str, float]], measured: list[float]
) -> dict[str, dict[str, float]]:
    """Coefficients of all kinds together, and of each kind, drawn to those."""
    tagged = [
        {(f"one {row['kind']}" if name == "one" else name): n for name, n in each.items()}
        for row, each in zip(rows, amounts, strict=True)
    ]
    found = {ANY: _common(rows, tagged, measured, {row["kind"] for row in rows})}
    for kind in sorted({row["kind"] for row in rows}):
        mine = [k for k, row in enumerate(rows) if row["kind"] == kind]
        alike = next((group for group in ALIKE if kind in group), {row["kind"] for row in rows})
        towards = _common(rows, tagged, measured, alike)
        towards["one"] = towards.get(f"one {kind}", 0.0)
        own = fit([amounts[k] for k in mine], [measured[k] for k in mine], towards)
        found[kind] = {**towards, **own}
    return {kind: _kept(of_kind, found[ANY]) for kind, of_kind in found.items()}


def _kept(weights: dict[str, float], common: dict[str, float]) -> dict[str, float]:
    """Without the constants of other kinds, and what is as for all kinds."""
    named = {n: c if c > 1e-6 else 0.0 for n, c in weights.items() if not n.startswith("one ")}
    return {n: c for n, c in named.items() if weights is common or c or common.get(n)}


def _common(
    rows: list[dict[str, Any]],
    amounts: list[dict[str, float]],
    measured: list[float],
    kinds: set[str] | frozenset[str],
) -> dict[str, float]:
    """Coefficients of several kinds together, each with a constant of its own."""
    mine = [k for k, row in enumerate(rows) if row["kind"] in kinds]
    return fit([amounts[k] for k in mine], [measured[k] for k in mine])


ALIKE = (
    frozenset(kind for kind in GRID if any(w in kind for w in ("linear", "conv", "matmul"))),
    frozenset({"sliding_window", "fixed_max_pool", "fixed_avg_pool"}),
    frozenset({"gearbox", "fifo", "skid_buffer", "stream_fork", "stream_slice", "stream_concat"}),
    frozenset(
        {
            "fixed_add", "fixed_sub", "fixed_mul", "fixed_constant_arithmetic", "fixed_batch_norm",
            "fixed_leaky_relu", "fixed_hardsigmoid", "fixed_hardswish", "fixed_piecewise",
            "mxint_to_fixed", "fixed_to_mxint", "fixed_softmax", "fixed_lut", "fixed_embedding",
        }
    ),
)  # fmt: skip
"""Kinds that are made of the same things: what one of them has too few instances of, another
tells."""


LUT_ONLY = ("ff", "ff_dsp", "dsp", "bram")
"""What takes no LUT."""
FF_ONLY = ("one", "ff", "ff_dsp")


def fit_family(rows: list[dict[str, Any]], clocks: list[dict[str, Any]]) -> dict[str, Any]:
    """The models of one family."""
    inventories = amounts_of(rows)
    amounts = [inventories[r["kind"], r["number"], r["on"]].amounts for r in rows]
    luts = [{n: v for n, v in each.items() if n not in LUT_ONLY} for each in amounts]
    ffs = [{n: v for n, v in each.items() if n in FF_ONLY} for each in amounts]
    paths = amounts_of(clocks)
    longest = [paths[r["kind"], r["number"], r["on"]].longest for r in clocks]
    return {
        "lut": fit_kinds(rows, luts, [r["lut"] for r in rows]),
        "ff": fit_kinds(rows, ffs, [r["ff"] for r in rows]),
        "ns": fit_kinds(clocks, longest, [1000 / r["mhz"] for r in clocks]),
        "whole": {},
    }


def is_held_out(row: dict[str, Any]) -> bool:
    """Whether the models never see it."""
    return row["number"] in held_out(row["kind"], GRID[row["kind"]][0])


def fit_all(args: argparse.Namespace) -> None:
    """Write the rows as the project keeps them, and the coefficients."""
    rows, clocks = read_rows(args.rows, "grid"), read_rows(args.rows, "route")
    kept = [r for r in clocks if not is_held_out(r)]
    models = {}
    for family in FAMILIES:
        mine = [r for r in rows if r["on"] == family and not is_held_out(r)]
        if len(mine) >= LEAST_ROWS:
            models[family] = rounded(fit_family(mine, kept))
    COEFFICIENTS.write_text(json.dumps(models, indent=1, sort_keys=True) + "\n")
    coefficients.cache_clear()
    save("area_grid", {"area": compact(rows), "clock": compact(clocks)})
    check_rows(rows, clocks)


def rounded(thing: Any) -> Any:
    """Numbers to four digits."""
    if isinstance(thing, dict):
        return {key: rounded(value) for key, value in thing.items()}
    return float(f"{thing:.4g}")


def compact(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as they are kept, in order."""
    keys = ("kind", "number", "on", "lut", "ff", "dsp", "bram", "mhz", "used")
    ordered = sorted(rows, key=lambda r: (r["on"], r["kind"], r["number"]))
    return [{k: row[k] for k in keys if k in row} for row in ordered]


def check(args: argparse.Namespace) -> None:
    """The errors of the committed coefficients on the committed rows."""
    told = json.loads((RESULTS / "area_grid.json").read_text())["results"]
    check_rows(told["area"], told["clock"])


def check_rows(rows: list[dict[str, Any]], clocks: list[dict[str, Any]]) -> None:
    """A table for each family: by kind, on instances that were and were not held out."""
    for family in FAMILIES:
        mine = [row for row in rows if row["on"] == family]
        if mine and family in coefficients():
            print_errors(family, mine)
    stages = {(r["kind"], r["number"]): _predicted(r, "ecp5") for r in clocks}
    for name, chosen in (("fitted", False), ("held out", True)):
        part = [r for r in clocks if is_held_out(r) == chosen]
        told = errors([stages[r["kind"], r["number"]].mhz for r in part], [r["mhz"] for r in part])
        print(f"mhz {name}: {told['count']} median {told['median']:.1%} worst {told['worst']:.1%}")


def _predicted(row: dict[str, Any], family: str) -> StagePrediction:
    return predict_stage(row["kind"], make(row["kind"], row["number"]), family)


def print_errors(family: str, rows: list[dict[str, Any]]) -> None:
    """By kind: LUTs of fitted and held-out instances, then what is counted."""
    stages = {(r["kind"], r["number"]): _predicted(r, family) for r in rows}
    print(f"{family}: LUT by kind (count median worst), fitted | held out")
    for kind in [*GRID, ""]:
        told = []
        for chosen in (False, True):
            part = [
                r for r in rows if r["kind"] == (kind or r["kind"]) and is_held_out(r) == chosen
            ]
            found = [stages[r["kind"], r["number"]].lut for r in part]
            e = errors(found, [r["lut"] for r in part])
            told.append(f"{e['count']:4d} {e['median']:6.1%} {e['worst']:6.1%}")
        print(f"  {kind or 'all':26s} {' | '.join(told)}")
    for what in ("ff", "dsp", "bram"):
        held = [r for r in rows if is_held_out(r)]
        found = [getattr(stages[r["kind"], r["number"]], what) for r in held]
        e = errors(found, [r[what] for r in held])
        exact = sum(p == r[what] for p, r in zip(found, held, strict=True))
        print(f"  {what} held out: {e['count']} median {e['median']:.1%} worst {e['worst']:.1%}, "
              f"{exact} exact")  # fmt: skip


def markdown(args: argparse.Namespace) -> None:
    """The table and the figure of docs/hardware.md."""
    told = json.loads((RESULTS / "area_grid.json").read_text())["results"]
    lines = [
        "| family | what | held out | median error | worst | within 15 % | exact |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in FAMILIES:
        rows = [r for r in told["area"] if r["on"] == family and is_held_out(r)]
        rows = rows if family in coefficients() else []
        stages = [_predicted(r, family) for r in rows]
        for what in ("lut", "ff", "dsp", "bram") if rows else ():
            pairs = [(getattr(s, what), r[what]) for s, r in zip(stages, rows, strict=True)]
            lines.append(f"| {family} | {what.upper()} {_told(pairs)} |")
        if family == "ecp5":
            draw([(r["lut"], s.lut) for s, r in zip(stages, rows, strict=True)])
    clocks = [r for r in told["clock"] if is_held_out(r)]
    pairs = [(_predicted(r, "ecp5").mhz, r["mhz"]) for r in clocks]
    lines.append(f"| ecp5 | MHz {_told(pairs)} |")
    page = ROOT / "docs" / "hardware.md"
    start, end = "<!-- predicted -->", "<!-- end of predicted -->"
    before, _, rest = page.read_text().partition(start)
    table = "\n".join(lines)
    page.write_text(f"{before}{start}\n{table}\n{end}{rest.partition(end)[2]}")
    print(table)


def _told(pairs: list[tuple[float, float]]) -> str:
    """Count, median, worst, near and exact of pairs of predicted and measured."""
    e = errors([p for p, _ in pairs], [m for _, m in pairs])
    near = sum(abs(p - m) <= 0.15 * max(m, 1) for p, m in pairs)
    exact = sum(p == m for p, m in pairs)
    return f"| {e['count']} | {e['median']:.1%} | {e['worst']:.1%} | {near} | {exact}"


def draw(pairs: list[tuple[float, float]]) -> None:
    """Predicted against measured LUTs, on logarithmic axes, as a picture of the docs."""
    figure, axes = plt.subplots(figsize=(4.5, 4.2), layout="constrained")
    ends = (8, 1.2 * max(max(pair) for pair in pairs))
    axes.plot(ends, ends, color="grey", linewidth=0.8)
    axes.fill_between(ends, [0.85 * e for e in ends], [1.15 * e for e in ends], alpha=0.15)
    axes.scatter([m for m, _ in pairs], [p for _, p in pairs], s=9)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set(xlabel="LUTs measured (ECP5)", ylabel="LUTs predicted; the band is 15 %")
    figure.savefig(ROOT / "docs" / "images" / "predicted.svg", metadata={"Date": None})


KEYS = {"grid": area_keys, "route": clock_keys}
COMMANDS = {"grid": measure, "route": measure, "fit": fit_all, "check": check, "markdown": markdown}


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=[*COMMANDS])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rows", type=Path, default=Path("out/area"))
    parser.add_argument("--families", nargs="+", default=[])
    parser.add_argument("--kinds", nargs="+", default=[])
    parser.add_argument("--every", type=int, default=1, help="one in so many instances of a kind")
    parser.add_argument("--most", type=int, default=None, help="rows of this run")
    args = parser.parse_args()
    COMMANDS[args.command](args)


if __name__ == "__main__":
    sys.exit(main())
