"""Models of area and clock: measured on a grid of components, fitted, and held against others.

    python bench/area_models.py grid --jobs 16 --rows out/area
    python bench/area_models.py route --jobs 16 --rows out/area
    python bench/area_models.py fit --rows out/area [--kinds fixed_prelu …]
    python bench/area_models.py check

`grid`: each instance of area_instances.py synthesised by Yosys for each family. `route`: some of
the instances placed and routed on ecp5-85k. Both measure what is missing or was measured on other
RTL, leave a row per instance in the folder `--rows` as it is done, and take up from there. `fit`:
the coefficients, which `chop.hw.flow.predict` reads, from the instances that are not held out, and
bench/results/area_grid.json from all rows. `fit --kinds`: the coefficients of these kinds alone;
those of the other kinds stay as they are, and so do rows of other RTL.
`check`: the errors that the committed coefficients have on the committed rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from area_fit import FIRM, errors, fit, held_out
from area_instances import GRID, make
from area_rows import (
    FAMILIES,
    HELD_OUT_FROM,
    ROUTED_ON,
    compact,
    kept_rows,
    key_of,
    measure,
    read_rows,
)
from area_rows import cells as cells
from area_rows import measure_area as measure_area
from measuring.record import save

from chop.hw.area.area_model import inventory_of
from chop.hw.area.inventory import Inventory
from chop.hw.flow.predict.model import (
    ANY,
    COEFFICIENTS,
    StagePrediction,
    coefficients,
    predict_stage,
)

ROOT = Path(__file__).parents[1]
LEAST_ROWS = 300
"""Of a family: fewer make no models."""


def amounts_of(rows: list[dict[str, Any]]) -> dict[tuple[str, int, str], Inventory]:
    """What the instance of each row is made of, on the family of the row."""
    found = {}
    for row in rows:
        family = "ecp5" if row["on"] == ROUTED_ON else row["on"]
        component = make(row["kind"], row["number"])
        found[row["kind"], row["number"], row["on"]] = inventory_of(component, family)
    return found


def fit_kinds(
    rows: list[dict[str, Any]],
    amounts: list[dict[str, float]],
    measured: list[float],
    **how: Any,
) -> dict[str, dict[str, float]]:
    """Coefficients of all kinds together, and of each kind, drawn to those; `how`: as of `fit`."""
    tagged = [
        {(f"one {row['kind']}" if name == "one" else name): n for name, n in each.items()}
        for row, each in zip(rows, amounts, strict=True)
    ]
    found = {ANY: _common(rows, tagged, measured, {row["kind"] for row in rows}, **how)}
    for kind in sorted({row["kind"] for row in rows}):
        mine = [k for k, row in enumerate(rows) if row["kind"] == kind]
        alike = next((group for group in ALIKE if kind in group), {row["kind"] for row in rows})
        towards = _common(rows, tagged, measured, alike, **how)
        towards["one"] = towards.get(f"one {kind}", 0.0)
        own = fit([amounts[k] for k in mine], [measured[k] for k in mine], towards, **how)
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
    **how: Any,
) -> dict[str, float]:
    """Coefficients of several kinds together, each with a constant of its own."""
    mine = [k for k, row in enumerate(rows) if row["kind"] in kinds]
    return fit([amounts[k] for k in mine], [measured[k] for k in mine], **how)


ALIKE = (
    frozenset(kind for kind in GRID if any(w in kind for w in ("linear", "conv", "matmul"))),
    frozenset({"sliding_window", "fixed_max_pool", "fixed_avg_pool"}),
    frozenset({"gearbox", "fifo", "skid_buffer", "stream_fork", "stream_slice", "stream_concat"}),
    frozenset(
        {
            "fixed_add", "fixed_sub", "fixed_mul", "fixed_constant_arithmetic", "fixed_batch_norm",
            "fixed_leaky_relu", "fixed_prelu", "fixed_hardsigmoid", "fixed_hardswish",
            "fixed_piecewise", "mxint_to_fixed", "fixed_to_mxint", "fixed_softmax", "fixed_lut",
            "fixed_embedding",
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
        "lut": fit_kinds(rows, luts, [r["lut"] for r in rows], power=1.0, firm=FIRM),
        "ff": fit_kinds(rows, ffs, [r["ff"] for r in rows]),
        "ns": fit_kinds(clocks, longest, [1000 / r["mhz"] for r in clocks]),
        "whole": {},
    }


def is_held_out(row: dict[str, Any]) -> bool:
    """Whether the models never see it; of the rows that are routed, those that a seed drew."""
    if "mhz" in row:
        return row["number"] in held_out(row["kind"], GRID[row["kind"]][0])
    return row["number"] >= HELD_OUT_FROM


def fit_kind(kind: str, rows: list[dict[str, Any]], models: dict[str, Any]) -> None:
    """Fit the areas of one kind, drawn to the coefficients that `models` has of all kinds."""
    inventories = amounts_of(rows)
    amounts = [inventories[r["kind"], r["number"], r["on"]].amounts for r in rows]
    luts = [{n: v for n, v in each.items() if n not in LUT_ONLY} for each in amounts]
    ffs = [{n: v for n, v in each.items() if n in FF_ONLY} for each in amounts]
    common = {what: models[what][ANY] for what in ("lut", "ff")}
    own = {
        "lut": fit(luts, [r["lut"] for r in rows], common["lut"], power=1.0, firm=FIRM),
        "ff": fit(ffs, [r["ff"] for r in rows], common["ff"]),
    }
    for what, fitted in own.items():
        models[what][kind] = rounded(_kept(fitted, common[what]))


def fit_some(args: argparse.Namespace) -> None:
    """Fit the kinds `args.kinds`, and put the rows of the folder in the place of older ones."""
    fresh = [
        json.loads(line)
        for file in sorted(args.rows.glob("grid.*jsonl"))
        for line in file.read_text().splitlines()
    ]
    rows = [*({key_of(r): r for r in (*kept_rows("grid"), *fresh) if "error" not in r}).values()]
    models = coefficients()
    for family in models:
        for kind in args.kinds:
            mine = [r for r in rows if (r["kind"], r["on"]) == (kind, family)]
            fit_kind(kind, [r for r in mine if not is_held_out(r)], models[family])
    COEFFICIENTS.write_text(json.dumps(models, indent=1, sort_keys=True) + "\n")
    save("area_grid", {"area": compact(rows), "clock": kept_rows("route")})
    check_rows([r for r in rows if r["kind"] in args.kinds], [])


def fit_all(args: argparse.Namespace) -> None:
    """Write the rows as the project keeps them, and the coefficients."""
    rows, clocks = read_rows(args.rows, "grid"), read_rows(args.rows, "route")
    kept = [r for r in clocks if not is_held_out(r)]
    whole = {family: told["whole"] for family, told in coefficients().items()}
    models = {}
    for family in FAMILIES:
        mine = [r for r in rows if r["on"] == family and not is_held_out(r)]
        if len(mine) >= LEAST_ROWS:
            models[family] = rounded(fit_family(mine, kept)) | {"whole": whole.get(family, {})}
    COEFFICIENTS.write_text(json.dumps(models, indent=1, sort_keys=True) + "\n")
    coefficients.cache_clear()
    save("area_grid", {"area": compact(rows), "clock": compact(clocks)})
    check_rows(rows, clocks)


def rounded(thing: Any) -> Any:
    """Numbers to four digits."""
    if isinstance(thing, dict):
        return {key: rounded(value) for key, value in thing.items()}
    return float(f"{thing:.4g}")


def check(args: argparse.Namespace) -> None:
    """The errors of the committed coefficients on the committed rows."""
    check_rows(kept_rows("grid"), kept_rows("route"))


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
    """The table and the figure of docs/hardware_parts.md."""
    lines = [
        "| family | what | held out | median error | worst | within 15 % | exact |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in FAMILIES:
        rows = [r for r in kept_rows("grid") if r["on"] == family and is_held_out(r)]
        rows = rows if family in coefficients() else []
        stages = [_predicted(r, family) for r in rows]
        for what in ("lut", "ff", "dsp", "bram") if rows else ():
            pairs = [(getattr(s, what), r[what]) for s, r in zip(stages, rows, strict=True)]
            lines.append(f"| {family} | {what.upper()} {_told(pairs)} |")
        if family == "ecp5":
            draw([(r["lut"], s.lut) for s, r in zip(stages, rows, strict=True)])
    clocks = [r for r in kept_rows("route") if is_held_out(r)]
    pairs = [(_predicted(r, "ecp5").mhz, r["mhz"]) for r in clocks]
    lines.append(f"| ecp5 | MHz {_told(pairs)} |")
    page = ROOT / "docs" / "hardware_parts.md"
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


def fit_models(args: argparse.Namespace) -> None:
    """Fit the kinds that are named, or all of them together."""
    (fit_some if args.kinds else fit_all)(args)


COMMANDS = {
    "grid": measure,
    "route": measure,
    "fit": fit_models,
    "check": check,
    "markdown": markdown,
}


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=[*COMMANDS])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rows", type=Path, default=Path("out/area"))
    parser.add_argument("--families", nargs="+", default=[])
    parser.add_argument("--kinds", nargs="+", default=[])
    parser.add_argument("--every", type=int, default=1, help="one in so many instances of a kind")
    parser.add_argument("--from", type=int, default=0, dest="least", help="the first instance")
    parser.add_argument("--below", type=int, default=2**31, help="the one behind the last")
    parser.add_argument("--most", type=int, default=None, help="rows of this run")
    args = parser.parse_args()
    COMMANDS[args.command](args)


if __name__ == "__main__":
    sys.exit(main())
