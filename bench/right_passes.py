"""Sequences of passes in every order, compared step by step with what they should give.

Every pair and every triple of steps (prune, quantise, LoRA, fuse LoRA, fuse attention, fuse
patterns, pack, export and reload, deepcopy) over one model of each kind, and every pair over the
models of the coverage table. A sequence is right, refused (its last step raised a clear error), or
wrong. The counts go to section "passes" of bench/results/right.json.

    python bench/right_passes.py [triples|zoo|all] [--models NAME ...] [--workers N]
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.append(sys.path.pop(0))  # this folder last: its graph.py is not the package
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
import zoo
from measuring.progress import Stopwatch
from measuring.record import read_section, save_section
from pass_sequences import State, Verdict, try_all
from sequence_models import MODELS, graph_and_inputs
from traced_zoo import traced

SECTION = "passes"
DEPTHS = {"triples": 3, "zoo": 2}
ACROSS_THE_ZOO = ("prune", "quantise", "LoRA", "fuse LoRA", "fuse attention", "pack", "reload")
"""The steps tried over the whole table; `deepcopy` happens before each of them anyway."""


def states(part: str, wanted: list[str]) -> dict[str, Any]:
    """The models of a part, by name, as functions that give a state."""
    names = list(MODELS if part == "triples" else zoo.ZOO)
    return {name: _maker(part, name) for name in names if not wanted or name in wanted}


def _maker(part: str, name: str) -> Any:
    if part == "triples":
        return lambda: State(*graph_and_inputs(name))
    return lambda: State(traced(name), zoo.case(name).inputs)


def record(verdicts: list[Verdict], seconds: float) -> dict[str, Any]:
    """Counts of a model, with what is wrong and the reasons of refusals."""
    kinds = Counter(v.kind for v in verdicts)
    refusals = Counter(f"{v.sequence[-1]}: {v.reason}" for v in verdicts if v.kind == "refused")
    return {
        "tried": len(verdicts),
        "right": kinds["right"],
        "refused": kinds["refused"],
        "wrong": kinds["wrong"],
        "seconds": round(seconds, 1),
        "refusals": dict(refusals),
        "faults": [[*v.sequence, v.reason] for v in verdicts if v.kind == "wrong"],
    }


def save(part: str, models: dict[str, Any]) -> None:
    """Add the models of a part to the section, with its sums; other sections stay."""
    parts = read_section("right", SECTION).get("parts", {})
    parts[part] = {**parts.get(part, {}), **models}
    counted = [model for each in parts.values() for model in each.values()]
    sums = {key: sum(m[key] for m in counted) for key in ("tried", "right", "refused", "wrong")}
    save_section("right", SECTION, {"models": len(counted), **sums, "parts": parts})


def try_model(part: str, name: str) -> dict[str, Any]:
    """Every sequence over one model."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # requests that change nothing are part of the plan
    watch = Stopwatch()
    torch.manual_seed(0)
    steps = {} if part == "triples" else {"steps": ACROSS_THE_ZOO}
    state = states(part, [name])[name]()
    return record(try_all(state, DEPTHS[part], **steps), watch.seconds)


def run(part: str, wanted: list[str], workers: int) -> int:
    """Try a part, write each model down as it is done; how many sequences are wrong."""
    wrong = 0
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=1) as pool:
        found = {name: pool.apply_async(try_model, (part, name)) for name in states(part, wanted)}
        for name, waiting in found.items():
            counts = waiting.get()
            save(part, {name: counts})
            wrong += counts["wrong"]
            print(f"{part}, {name}: {counts['tried']} tried, {counts['wrong']} wrong", flush=True)
            for fault in counts["faults"]:
                print(f"    {fault}", flush=True)
    return wrong


def main() -> int:
    """Try what is asked for; 1 where a sequence is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=[*DEPTHS, "all"], default="all")
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--workers", type=int, default=1, help="processes, a model each")
    options = parser.parse_args()
    parts = list(DEPTHS) if options.part == "all" else [options.part]
    return int(sum(run(part, options.models, options.workers) for part in parts) > 0)


if __name__ == "__main__":
    sys.exit(main())
