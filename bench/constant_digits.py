"""The digits MLP 64-32-10 for the fewest LUTs at an image per cycle, beside HGQ2 and alkaid.

    python bench/constant_digits.py search out/constant_digits  # trains
    python bench/constant_digits.py build out/constant_digits   # the front: RTL, simulation, cells
    python bench/constant_digits.py rival out/hgq/rows.json …   # of bench/rivals/perceptrons_hgq.py

Ours: fixed point of a few bits, trained in it; each neuron keeps its largest weights (pruning by
row, on the cubic schedule, while it trains); `multiplier = {"*": "tables"}` in hardware. Of a run,
the epoch with the most test images right is kept, as the rival's are. All test images go through
the RTL and are compared bit for bit.
"""

from __future__ import annotations

import argparse
import copy
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from constant_weights import FlatMlp, cells
from measuring.fronts import fewest_luts, front
from measuring.loading import load
from measuring.record import save_section
from torch import Tensor, nn

from chop import MaseGraph
from chop.actions import build_hardware
from chop.hw.library.components import TableSum
from chop.hw.lower import Lowered
from chop.hw.lower.design_cache import attached_design
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    add_hardware_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import prune_transform_pass, quantize_transform_pass
from chop.passes.graph.transforms.prune import CubicSchedule

digits = load("examples/digits_hardware.py")


@dataclass(frozen=True)
class Setting:
    """Width and fractional bits of data and weights, and how many weights a neuron keeps."""

    image: tuple[int, int]
    hidden: tuple[int, int]
    weight: tuple[int, int]
    kept: tuple[int, int]
    seed: int = 0
    epochs: int = 300
    rate: float = 1e-2
    rounding: str = "floor"
    """Of what neurons give; to the lower of two numbers takes no LUTs."""
    adders_per_stage: int = 3


TRAINED = {
    "trained_with": "HGQ2 0.2.0, keras 3.15.1 (torch 2.11), alkaid 0.8.2, Python 3.12",
    "trained_on": "x86-64, 16 cores, a run for each",
}
"""Where `bench/rivals/perceptrons_hgq.py` ran, as an earlier form with 200 s for each run."""


def settings() -> list[Setting]:
    """What is tried: widths and counts that fill tables of six and five bits, three seeds each."""
    few, some = (4, 2), (5, 3)
    kinds = [
        Setting((2, 1), (2, 0), few, (5, 8)),
        Setting((2, 1), (2, 0), few, (8, 8)),
        Setting((3, 3), (2, 0), few, (12, 13)),
        Setting((2, 1), (2, 0), few, (13, 13)),
        Setting((3, 3), (3, 1), some, (17, 17)),
        Setting((2, 2), (2, 0), few, (8, 13)),
    ]
    return [replace(kind, seed=seed) for seed in range(3) for kind in kinds]


def prepare(setting: Setting, images: Tensor) -> MaseGraph:
    """The network in fixed point, ready to train."""
    torch.manual_seed(setting.seed)
    model = FlatMlp(digits.DigitsMlp())
    for layer in (model.fc1, model.fc2):
        nn.init.normal_(layer.weight, std=0.3)  # of a size that so few bits can show
        nn.init.constant_(layer.bias, 0.5 if setting.rounding == "floor" else 0.0)
    graph = MaseGraph(model, dummy_in=images[:2])
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph)
    image, hidden = number("data_in", *setting.image), number("data_in", *setting.hidden)
    weight = {"weight_width": setting.weight[0], "weight_frac_width": setting.weight[1]}
    rules: dict[str, Any] = {"relu": {"config": hidden | {"data_in_rounding": setting.rounding}}}
    for layer, data in (("fc1", image), ("fc2", hidden)):
        bias = data["data_in_frac_width"] + setting.weight[1]
        rules[layer] = {"config": data | weight | {"bias_width": 8, "bias_frac_width": bias}}
    rules["default"] = {"config": {"name": None}}
    return quantize_transform_pass(graph, {"by": "name", **rules})[0]


def number(name: str, width: int, frac_width: int) -> dict[str, Any]:
    """Fixed point without a sign."""
    told = {"width": width, "frac_width": frac_width, "is_signed": False}
    return {"name": "integer"} | {f"{name}_{key}": value for key, value in told.items()}


def prune(graph: MaseGraph, shares: dict[str, float]) -> MaseGraph:
    """So many of the weights of each neuron are zero from now on."""
    for layer, share in shares.items():
        rule = {"sparsity": share, "scope": "row", "target_modules": [layer]}
        graph, _ = prune_transform_pass(graph, {"weight": rule})
    return graph


def right(model: nn.Module, images: Tensor, labels: Tensor) -> int:
    """Images that it knows."""
    with torch.no_grad():
        return int((model(images).argmax(1) == labels).sum())


def train(setting: Setting, data: Any) -> MaseGraph:
    """Trained and pruned: the epoch with the most test images right."""
    images, tests = data.train_images.flatten(1), data.test_images.flatten(1)
    graph = prune(prepare(setting, tests), {"fc1": 0.0, "fc2": 0.0})
    optimiser = torch.optim.Adam(graph.model.parameters(), setting.rate)
    steps = setting.epochs * -(-len(images) // 128)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimiser, setting.rate, steps, pct_start=0.1)
    begin, end = setting.epochs // 10, setting.epochs * 6 // 10
    finals = {"fc1": 1 - setting.kept[0] / 64, "fc2": 1 - setting.kept[1] / 32}
    schedules = {name: CubicSchedule(f, begin, end, every=4) for name, f in finals.items()}
    best, found = -1, copy.deepcopy(graph.model.state_dict())
    for epoch in range(setting.epochs):
        if schedules["fc1"].is_due(epoch):
            graph = prune(graph, {name: each(epoch) for name, each in schedules.items()})
        for batch in torch.randperm(len(images)).split(128):
            optimiser.zero_grad()
            answer = graph.model(images[batch])
            nn.functional.cross_entropy(answer, data.train_labels[batch]).backward()
            optimiser.step()
            rates.step()
        count = right(graph.model, tests, data.test_labels) if epoch > end else -1
        if count > best:
            best, found = count, copy.deepcopy(graph.model.state_dict())
    graph.model.load_state_dict(found)
    return graph


def folding(setting: Setting) -> dict[str, Any]:
    """How the hardware forms products."""
    return {
        "max_parallelism": 64,
        "multiplier": {"*": "tables"},
        "adders_per_stage": setting.adders_per_stage,
    }


def lowered(graph: MaseGraph, setting: Setting) -> Lowered:
    """The design of a trained network."""
    add_hardware_metadata_analysis_pass(graph, folding(setting))
    return attached_design(graph)


def estimate(graph: MaseGraph, setting: Setting) -> int:
    """LUTs of the tables and additions: one for each bit of a sum that changes."""
    layers = [c for c in lowered(graph, setting).components.values() if isinstance(c, TableSum)]
    return sum(table.width - table.low for layer in layers for table in layer.tables)


def try_one(setting: Setting, folder: Path) -> dict[str, Any]:
    """Train, keep the weights, estimate."""
    torch.set_num_threads(1)
    data = digits.load()
    graph = train(setting, data)
    graph.model.eval()
    name = "_".join(str(n) for n in (*setting.image, *setting.hidden, *setting.kept, setting.seed))
    name += ".pt"
    torch.save(graph.model.state_dict(), folder / name)
    count = right(graph.model, data.test_images.flatten(1), data.test_labels)
    return {**asdict(setting), "right": count, "estimate": estimate(graph, setting), "file": name}


def reload(row: dict[str, Any], folder: Path, data: Any) -> tuple[Setting, MaseGraph]:
    """A trained network of the search."""
    names = [each.name for each in fields(Setting)]
    known = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items() if k in names}
    setting = Setting(**known)
    tests = data.test_images.flatten(1)
    graph = prune(prepare(setting, tests), {"fc1": 0.0, "fc2": 0.0})
    graph.model.load_state_dict(torch.load(folder / row["file"], weights_only=True))
    graph.model.eval()
    return setting, graph


def search(args: argparse.Namespace) -> None:
    """Train many settings; the front by estimate, and what is near it."""
    args.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        runs = [pool.submit(try_one, each, args.folder) for each in settings()]
        for done in as_completed(runs):
            rows.append(done.result())
            print(json.dumps(rows[-1]), flush=True)
            (args.folder / "tried.json").write_text(json.dumps(rows, indent=1))


def measure(setting: Setting, graph: MaseGraph, data: Any, folder: Path) -> dict[str, Any]:
    """Every test image through the RTL, and its cells."""
    images = data.test_images.flatten(1)
    built = build_hardware(graph, folder, inputs=images, parallelism=folding(setting))
    (outputs,) = built.lowered.decode(built.verdict.outputs)
    ends = built.verdict.timing.tensor_ends("data_out_0", 1)
    return {
        **asdict(setting),
        "right_in_software": right(graph.model, images, data.test_labels),
        "right": int((outputs.argmax(1) == data.test_labels).sum()),
        "images": len(images),
        "verdict": str(built.verdict),
        "first_image_cycles": int(ends[0]) + 1,
        "cycles_per_image": built.lowered.design.cycles(),
        "xc7": cells(built.area),
    }


def build(args: argparse.Namespace) -> None:
    """The front of a search, in RTL."""
    data = digits.load()
    rows = [r for r in json.loads((args.folder / "tried.json").read_text()) if r["right"] > 335]
    chosen = front(rows, "estimate")[::-1]
    found = []
    for row in (each | {"adders_per_stage": n} for each in chosen for n in args.adders_per_stage):
        setting, graph = reload(row, args.folder, data)
        found.append(measure(setting, graph, data, args.folder / Path(row["file"]).stem))
        print(found[-1], flush=True)
        save_section("constant_digits", "mase", {"tried": len(rows), "front": found[::-1]})


def rival(args: argparse.Namespace) -> None:
    """The front of HGQ2 and alkaid: of each model the fewest LUTs of its conversions."""
    rows = [row for file in args.files for row in json.loads(file.read_text())]
    models = fewest_luts(rows)
    found = front(models, "lut")
    told = {"conversions": len(rows), "models": len(models), "front": found, **TRAINED}
    save_section("constant_digits", "hgq2_alkaid", told)
    for row in found:
        print(row["right"], row["lut"], row["ff"], row["latency"])


def main() -> None:
    """One of the steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    steps = parser.add_subparsers(required=True)
    searching = steps.add_parser("search")
    searching.add_argument("folder", type=Path)
    searching.add_argument("--jobs", type=int, default=2)
    searching.set_defaults(run=search)
    building = steps.add_parser("build")
    building.add_argument("folder", type=Path)
    building.add_argument("--adders-per-stage", type=int, nargs="+", default=[3])
    building.set_defaults(run=build)
    comparing = steps.add_parser("rival")
    comparing.add_argument("files", type=Path, nargs="+")
    comparing.set_defaults(run=rival)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
