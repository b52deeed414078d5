"""Whole designs, to hold the sums of predicted stages against: five, and variants for fitting.

    python bench/area_designs.py emit --to out/designs
    python bench/area_designs.py measure --to out/designs --jobs 4
    python bench/area_designs.py fit --to out/designs
    python bench/area_designs.py check

Weights are those of a seed, not trained: no dataset is needed, and the sizes are the same. `fit`
finds the factor between the sum of the stages of a variant and the whole, which is optimised across
their borders, and writes it beside the coefficients; the five are only compared.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from area_models import FAMILIES, cells
from hardware import linear_relu
from measuring.loading import load
from measuring.record import RESULTS, save
from torch import nn
from transformer_formats import fixed_rules
from transformer_models import DigitsVit, EncoderLayer

from chop import MaseGraph
from chop.hw.design.design import Design
from chop.hw.flow.predict import predict
from chop.hw.flow.predict.model import COEFFICIENTS, coefficients
from chop.hw.lower import Parallelism, lower
from chop.hw.sim.emit import emit
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import quantize_transform_pass

WIDTHS: dict[str, dict[str, int]] = {
    op: {} for op in ("conv2d", "linear", "layer_norm", "softmax", "gelu", "matmul", "add")
}


def _digits(name: str, lanes: int, multiplier: str = "array") -> Design:
    """A network of examples/digits_hardware.py."""
    torch.manual_seed(0)
    digits = load("examples/digits_hardware.py")
    graph = digits.quantize(digits.MODELS[name](), torch.rand(2, 1, 8, 8))
    return lower(graph, Parallelism(lanes, multiplier={"*": multiplier})).design


def _transformer(model: nn.Module, shape: tuple[int, ...], lanes: int) -> Design:
    graph = MaseGraph(model.eval(), dummy_in=torch.rand(4, *shape))
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    rules = fixed_rules(graph, (torch.rand(16, *shape),), WIDTHS)
    graph, _ = quantize_transform_pass(graph, rules)
    return lower(graph, Parallelism(lanes)).design


def _vit(lanes: int) -> Design:
    torch.manual_seed(0)
    return _transformer(DigitsVit(), (1, 8, 8), lanes)


def _encoder(lanes: int, size: int = 32) -> Design:
    torch.manual_seed(0)
    return _transformer(EncoderLayer(size, 2, 2 * size), (16, size), lanes)


CHECKED: Mapping[str, Callable[[], Design]] = {
    "Linear 16-16 + ReLU": linear_relu,
    "digits MLP, 4 lanes": lambda: _digits("mlp", 4),
    "digits CNN, 4 lanes": lambda: _digits("cnn", 4),
    "ViT, 2 lanes": lambda: _vit(2),
    "encoder layer, 2 lanes": lambda: _encoder(2),
}
FITTED: Mapping[str, Callable[[], Design]] = {
    "digits MLP, 2 lanes": lambda: _digits("mlp", 2),
    "digits MLP, 8 lanes": lambda: _digits("mlp", 8),
    "digits MLP, shift-add": lambda: _digits("mlp", 4, "shift_add"),
    "digits CNN, 1 lane": lambda: _digits("cnn", 1),
    "digits CNN, 8 lanes": lambda: _digits("cnn", 8),
    "encoder layer, 4 lanes": lambda: _encoder(4),
    "encoder layer of 8, 1 lane": lambda: _encoder(1, 8),
}
DESIGNS = {**CHECKED, **FITTED}
KINDS = ("lut", "ff", "dsp", "bram")


def folder_of(name: str) -> str:
    """A name for a folder."""
    return "".join(c if c.isalnum() else "_" for c in name)


def emit_all(args: argparse.Namespace) -> None:
    """Write the RTL of every design."""
    for name in args.designs:
        emit(DESIGNS[name](), args.to / folder_of(name))


def _measure(task: tuple[Path, str, str]) -> dict[str, Any]:
    folder, name, family = task
    return {"design": name, "on": family, **cells(folder / folder_of(name), family)}


def measure(args: argparse.Namespace) -> None:
    """Synthesise what was emitted; a row each."""
    tasks = [(args.to, name, family) for family in args.families for name in args.designs]
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for row in pool.imap_unordered(_measure, tasks):
            with (args.to / "designs.jsonl").open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(row["design"], row["on"], row["lut"], flush=True)


def fit(args: argparse.Namespace) -> None:
    """The factor of each family, the rows as they are kept, and the errors."""
    told = map(json.loads, (args.to / "designs.jsonl").read_text().splitlines())
    rows = [*{(row["design"], row["on"]): row for row in told}.values()]  # the last of each
    models = json.loads(COEFFICIENTS.read_text())
    designs = {name: make() for name, make in DESIGNS.items()}
    for family in models:
        models[family]["whole"] = {}
    COEFFICIENTS.write_text(json.dumps(models, indent=1, sort_keys=True) + "\n")
    coefficients.cache_clear()
    for family in models:
        mine = [r for r in rows if r["on"] == family and r["design"] in FITTED]
        for kind in ("lut", "ff"):
            sums = {r["design"]: getattr(predict(designs[r["design"]], family), kind) for r in mine}
            ratios = [r[kind] / sums[r["design"]] for r in mine]
            if ratios:
                models[family]["whole"][kind] = round(statistics.median(ratios), 3)
    COEFFICIENTS.write_text(json.dumps(models, indent=1, sort_keys=True) + "\n")
    coefficients.cache_clear()
    kept = [{key: row[key] for key in ("design", "on", *KINDS)} for row in rows]
    for row in kept:
        predicted = predict(designs[row["design"]], row["on"]) if row["on"] in models else None
        row["predicted"] = {k: getattr(predicted, k) for k in KINDS} if predicted else None
        row["is_fitted"] = row["design"] in FITTED
    save("area_designs", kept)
    check(args)


def check(args: argparse.Namespace) -> None:
    """What was predicted of each design beside what was measured."""
    for row in json.loads((RESULTS / "area_designs.json").read_text())["results"]:
        told = row["predicted"] or {}
        errors = [f"{k} {row[k]} predicted {told[k]}" for k in KINDS if k in told]
        share = f"{told['lut'] / row['lut'] - 1:+.1%}" if told else ""
        print(f"{row['on']} {row['design']}: LUT {share}; {', '.join(errors)}")


COMMANDS = {"emit": emit_all, "measure": measure, "fit": fit, "check": check}


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=[*COMMANDS])
    parser.add_argument("--to", type=Path, default=Path("out/designs"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--designs", nargs="+", default=[*DESIGNS], choices=[*DESIGNS])
    parser.add_argument("--families", nargs="+", default=[*FAMILIES])
    args = parser.parse_args()
    COMMANDS[args.command](args)


if __name__ == "__main__":
    main()
