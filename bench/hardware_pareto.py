"""Fronts of accuracy, frames per second, LUTs and DSPs: three points of each routed on a part.

    python bench/hardware_pareto.py search [cnn vit] [--folder out/pareto]
    python bench/hardware_pareto.py emit [cnn vit]
    python bench/hardware_pareto.py simulate [cnn vit]
    python bench/hardware_pareto.py route [cnn vit] --jobs 16 --limit 500
    python bench/hardware_pareto.py table
    python bench/hardware_pareto.py all

`search`: the digits CNN of examples/digits_hardware.py and the vision transformer of
hardware_transformer.py, trained on the digits but for 144 images that the search measures on; one
study of each over widths, sparsity, pace and arithmetic. `emit`: three points of each front (fast,
middle, small) in RTL, checked to be the designs that were scored; all 360 test images in the
integers of each design. `simulate`: test images through the RTL, every bit right. `route`:
synthesised, placed and routed on ecp5-85k, a process for each design and seed; needs only the
folder. `table`: predicted against routed, to bench/results/hardware_pareto.json.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from area_rows import luts_of
from measuring.loading import load
from measuring.progress import Deadline, Stopwatch
from measuring.record import save
from tabulate import tabulate
from torch import Tensor, nn

from chop.hw.flow.route.flow import RouteOptions, records, route
from chop.hw.sim.emit import emit, read_interface

PART, TARGET_MHZ = "ecp5-85k", 120.0
HELD_OUT = 144
"""Training images that the search measures on."""
TOLERANCE = 0.02
"""Of accuracy: points of the front that lose more are not looked at."""
POINTS = ("fast", "middle", "small")
SIMULATED = {"cnn": 128, "vit": 16}
"""Test images that go through the RTL; all go through its integers."""
SEEDS = {"cnn": (1, 2, 3), "vit": (1, 2)}
SPACES: Mapping[str, Mapping[str, Any]] = {
    "cnn": {"widths": (4, 5, 6, 8), "part": PART, "shift_add_weights": 1280},
    "vit": {
        "widths": (6, 8),
        "others": (8,),
        "part": PART,
        "by": "type",
        "multipliers": ("array",),
        "paces": (8192, 16384, 32768),
    },
}
TRIALS = {"cnn": 40, "vit": 14}


# -- the models ------------------------------------------------------------------------------------


@functools.cache
def digits() -> Any:
    """Images and labels; the last of the training rows are held out."""
    return load("examples/digits_hardware.py").load()


def trained(name: str, folder: Path) -> nn.Module:
    """The float model, trained without the rows that are held out; kept in `folder`."""
    from hardware_transformer import train as train_transformer
    from transformer_models import DigitsVit

    example, data = load("examples/digits_hardware.py"), digits()
    rows = data._replace(
        train_images=data.train_images[:-HELD_OUT], train_labels=data.train_labels[:-HELD_OUT]
    )
    torch.manual_seed(0)
    model: nn.Module = DigitsVit() if name == "vit" else example.MODELS[name]()
    file = folder / f"{name}.pt"
    if file.exists():
        model.load_state_dict(torch.load(file))
    elif name == "vit":
        train_transformer(model, rows, epochs=30, rate=4e-3)
    else:
        example.train(model, rows, epochs=20)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), file)
    return model.eval()


@torch.no_grad()
def accuracy(model: Any, images: Tensor, labels: Tensor) -> float:
    """The part of the images that the model names rightly."""
    return float((model(images).argmax(1) == labels).double().mean())


def make_evaluator(name: str, folder: Path) -> Any:
    """The evaluation of a search."""
    from chop import MaseGraph
    from chop.actions import Subject
    from chop.search import HardwareEvaluator, HardwareSpace, HardwareTable

    data = digits()
    graph = MaseGraph(trained(name, folder), dummy_in={"x": data.train_images[:128]})
    held = data.train_images[-HELD_OUT:], data.train_labels[-HELD_OUT:]

    def on_rows(changed: MaseGraph, first: int, last: int) -> float:
        return accuracy(changed.model, held[0][first:last], held[1][first:last])

    subject = Subject(
        graph=lambda seed: graph,
        train=lambda changed, seed: None,
        evaluate=lambda changed: on_rows(changed, 0, HELD_OUT),
        batches=lambda: [{"x": data.train_images[:128]}],
        rows=HELD_OUT,
        evaluate_rows=on_rows,
    )
    return HardwareEvaluator(subject, HardwareSpace(graph, HardwareTable(**SPACES[name])))


# -- search, emit ----------------------------------------------------------------------------------


def run_search(name: str, args: argparse.Namespace) -> None:
    """One study; a search that was interrupted goes on."""
    from chop.search import ProgressBar, search
    from chop.search.costs import direction_of_cost

    made = make_evaluator(name, args.folder)
    watch = Stopwatch()
    result = search(
        made.space,
        made,
        {"accuracy": "maximize", **{cost: direction_of_cost(cost) for cost in made.costs}},
        trials=args.trials or TRIALS[name],
        name=name,
        seed=0,
        storage=args.folder / f"{name}.db",
        initial=made.hardware.initial(),
        workers=args.workers,
        on_progress=ProgressBar(),
    )
    result.save(args.folder / name)
    told = {"seconds": watch.seconds, "size": made.space.size}
    (args.folder / name / "search.json").write_text(json.dumps(told))


def choose(trials: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The fastest, the smallest, and the one that lies between them in pace, of a front."""
    top = max(t["values"]["accuracy"] for t in trials)
    near = [t for t in trials if t["values"]["accuracy"] >= top - TOLERANCE]
    fast = max(near, key=lambda t: (_rate(t), -t["values"]["predicted_lut"]))
    small = min(near, key=lambda t: (t["values"]["predicted_lut"], -_rate(t)))
    wanted = (_rate(fast) * _rate(small)) ** 0.5
    rest = [t for t in near if t["number"] not in (fast["number"], small["number"])]
    middle = min(rest, key=lambda t: max(_rate(t) / wanted, wanted / _rate(t)))
    return dict(zip(POINTS, (fast, middle, small), strict=True))


def _rate(trial: Mapping[str, Any]) -> float:
    return float(trial["values"]["frames_per_second"])


def run_emit(name: str, args: argparse.Namespace) -> None:
    """RTL of three points, and what was predicted of each beside it."""
    from chop.actions.trials import pareto_front
    from chop.search.apply import apply, read_study

    record, _ = read_study(args.folder / name)
    made = make_evaluator(name, args.folder)
    front = pareto_front(record["trials"], record["objectives"])
    for point, trial in choose(front).items():
        place = args.folder / name / point
        shutil.rmtree(place, ignore_errors=True)
        told = _emitted(name, apply(record, trial["number"], made), place / "hardware")
        if told["design"] != trial["attributes"]["hardware"]["design"]:
            raise SystemExit(f"{name}, trial {trial['number']}: not the design that was scored")
        told |= {"trial": trial, "front": len(front), "commit": _commit()}
        (place / "point.json").write_text(json.dumps(told, indent=1))
        print(name, point, trial["values"], told["accuracy_test"], flush=True)


def _commit() -> str:
    """Of the sources that emit; empty where they are no checkout."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip()


def _emitted(name: str, graph: Any, hardware: Path) -> dict[str, Any]:
    from chop.hw.lower.design_cache import attached_design
    from chop.hw.lower.verify import verify
    from chop.hw.sim.emit import design_fingerprint

    lowered, data = attached_design(graph), digits()
    design = lowered.design
    verify(graph, lowered, data.test_images[:16])
    emit(design, hardware)
    codes = lowered.encode(data.test_images)
    golden = design.golden(codes)
    few = SIMULATED[name]
    arrays = {f"in.{n}": c[:few] for n, c in codes.items()}
    arrays |= {f"out.{n}": c[:few] for n, c in golden.items()}
    np.savez_compressed(hardware.parent / "vectors.npz", **arrays)
    (outputs,) = lowered.decode(golden)
    whole = trained(name, hardware.parents[2])
    return {
        "design": design_fingerprint(design),
        "accuracy_test": float((outputs.argmax(1) == data.test_labels).double().mean()),
        "accuracy_float": accuracy(whole, data.test_images, data.test_labels),
        "stages": [stage.name for stage in design.stages],
    }


def run_simulate(name: str, args: argparse.Namespace) -> None:
    """Test images through the RTL that was emitted; the pace of the RTL."""
    from chop.hw.sim.simulate import Simulator

    for point in POINTS:
        place = args.folder / name / point
        hardware = place / "hardware"
        interface = read_interface(hardware)
        vectors = dict(np.load(place / "vectors.npz"))
        parts = [
            {n.partition(".")[2]: v for n, v in vectors.items() if n.startswith(side)}
            for side in ("in.", "out.")
        ]
        simulator = Simulator(interface, hardware)
        verdict = simulator.run(parts[0], expected=parts[1]).require_exact()
        ends = verdict.timing.tensor_ends("data_out_0", interface.outputs["data_out_0"].beats)
        told = {
            "images_in_rtl": verdict.tensors,
            "values_compared": verdict.compared,
            "values_exact": verdict.compared - verdict.mismatches,
            "interval_in_rtl": (ends[-1] - ends[1]) / (len(ends) - 2),
        }
        (place / "simulated.json").write_text(json.dumps(told, indent=1))
        print(name, point, told, flush=True)


# -- route: needs only what was emitted ------------------------------------------------------------


def route_one(job: tuple[Path, int]) -> dict[str, Any]:
    """One design with one seed, in a copy of its folder."""
    place, seed = job
    copy = place / f"seed{seed}"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(place / "hardware", copy)
    stages = json.loads((place / "point.json").read_text())["stages"]
    watch = Stopwatch()
    options = RouteOptions((seed,), TARGET_MHZ, False)
    told = records(route(copy, read_interface(copy), PART, options, stages=stages))
    told |= {"seconds": watch.seconds, "bitstream": Path(told["bitstream"]).name}
    (place / f"routed{seed}.json").write_text(json.dumps(told, indent=1))
    shutil.rmtree(copy)
    print(place.parent.name, place.name, seed, told["mhz"], told["used"], flush=True)
    return told


def run_route(names: Sequence[str], args: argparse.Namespace) -> None:
    """All designs and seeds at once; those that take too long are given up."""
    jobs = [(args.folder / n / p, s) for n in reversed(names) for p in POINTS for s in SEEDS[n]]
    jobs = [(place, seed) for place, seed in jobs if (place / "point.json").exists()]
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        waiting = [pool.apply_async(route_one, (job,)) for job in jobs]
        deadline = Deadline(args.limit)
        for job, each in zip(jobs, waiting, strict=True):
            try:
                each.get(max(deadline.left, 0.1))
            except multiprocessing.TimeoutError:
                print(f"{job[0]} seed {job[1]}: not within {args.limit} s", flush=True)
            except Exception as error:  # the other designs are worth their rows
                print(f"{job[0]} seed {job[1]}: {error}", flush=True)
        pool.terminate()


# -- the table -------------------------------------------------------------------------------------


def row(name: str, point: str, place: Path) -> dict[str, Any]:
    """Predicted against routed, of one point; `routed` is None where that was not done."""
    told = json.loads((place / "point.json").read_text())
    seen = json.loads((place / "simulated.json").read_text())
    runs = [json.loads(f.read_text()) for f in sorted(place.glob("routed*.json"))]
    best = max(runs, key=lambda run: float(run["mhz"]), default=None)
    hardware = told["trial"]["attributes"]["hardware"]
    predicted = {**hardware["predicted"], "frames_per_second": _rate(told["trial"])}
    routed = None if best is None else _routed(best, seen["interval_in_rtl"])
    return {
        "model": name,
        "point": point,
        "trial": told["trial"]["number"],
        "params": told["trial"]["params"],
        "accuracy": {
            "searched": told["trial"]["values"]["accuracy"],
            "test": told["accuracy_test"],
            "float": told["accuracy_float"],
        },
        "interval": {"predicted": hardware["interval"], "rtl": seen["interval_in_rtl"]},
        "predicted": predicted,
        "routed": routed,
        "clocks": {str(run["seed"]): run["mhz"] for run in runs},
        "design": told["design"],
        "front": told["front"],
        "commit": told["commit"],
        **{k: seen[k] for k in ("images_in_rtl", "values_compared", "values_exact")},
    }


def _routed(best: Mapping[str, Any], interval: float) -> dict[str, Any]:
    rate = best["mhz"] * 1e6 / interval
    kept = {name: best[name] for name in ("mhz", "seed", "cells", "path", "bitstream", "seconds")}
    luts = luts_of(best["cells"], "ecp5")
    used = {**best["used"], "lut": luts, "lut_placed": best["used"]["lut"]}
    return {**used, **kept, "frames_per_second": rate}


KINDS = ("lut", "ff", "dsp", "bram", "mhz", "frames_per_second")
"""LUTs are those of the netlist, as the models count them; nextpnr takes more where carry chains
begin and end, which `lut_placed` has."""


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown, predicted -> routed."""
    cells = [
        {
            "design": f"{r['model']}, {r['point']} (trial {r['trial']})",
            "accuracy": f"{r['accuracy']['searched']:.3f} -> {r['accuracy']['test']:.3f}",
            **{k: _pair(r["predicted"][k], (r["routed"] or {}).get(k)) for k in KINDS},
            "LUTs placed": (r["routed"] or {}).get("lut_placed"),
        }
        for r in rows
    ]
    return tabulate(cells, headers="keys", tablefmt="github")


def _pair(predicted: float, routed: float | None) -> str:
    return f"{predicted:,.0f} -> {'not routed' if routed is None else f'{routed:,.0f}'}"


def run_table(args: argparse.Namespace) -> None:
    """Gather all rows, print and write them."""
    found = []
    for name in args.models:
        for point in POINTS:
            place = args.folder / name / point
            found += [row(name, point, place)] if (place / "simulated.json").exists() else []
    print(table(found))
    searches = {n: _search_told(args.folder / n) for n in args.models}
    results = {"part": PART, "target_mhz": TARGET_MHZ, "searches": searches, "rows": found}
    print(save("hardware_pareto", results))


def _search_told(folder: Path) -> dict[str, Any]:
    study = json.loads((folder / "study.json").read_text())
    states = [trial["state"] for trial in study["trials"]]
    ended = [t["reason"] or "" for t in study["trials"] if t["state"] == "pruned"]
    return {
        **json.loads((folder / "search.json").read_text()),
        **{state: states.count(state) for state in sorted(set(states))},
        "did_not_fit": sum("does not fit" in reason for reason in ended),
        "beaten_before_measuring": sum("before it is measured" in reason for reason in ended),
        "beaten_while_measuring": sum("rows." in reason for reason in ended),
    }


STEPS = ("search", "emit", "simulate", "route", "table")


def main() -> None:
    """Run a step, or all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("step", choices=[*STEPS, "all"])
    parser.add_argument("models", nargs="*", default=list(SPACES))
    parser.add_argument("--folder", type=Path, default=Path("out/pareto"))
    parser.add_argument("--trials", type=int)
    parser.add_argument("--workers", type=int, default=1, help="processes that search")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for all routing")
    args = parser.parse_args()
    args.folder = args.folder.resolve()
    steps = STEPS if args.step == "all" else (args.step,)
    each = {"search": run_search, "emit": run_emit, "simulate": run_simulate}
    for step in steps:
        if step == "route":
            run_route(args.models, args)
        elif step == "table":
            run_table(args)
        else:
            for name in args.models:
                each[step](name, args)


if __name__ == "__main__":
    main()
