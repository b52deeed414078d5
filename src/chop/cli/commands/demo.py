"""`mase demo`: from scikit-learn's digits to hardware checked bit for bit, in about two minutes.

Each stage is short and reads what the one before it wrote, so that any of them may serve as a
start for a program of one's own.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from chop import toolchain
from chop.actions.fixed_point import observe_ranges
from chop.actions.hardware import build_hardware, emit_hardware
from chop.actions.model_size import model_size
from chop.actions.model_under_study import Subject
from chop.actions.sweeps import sweep
from chop.actions.trials import candidates
from chop.cli.checkpoints import GRAPH
from chop.cli.configs import DemoConfig, TrainConfig
from chop.cli.data import Data
from chop.cli.model_under_study import make_subject
from chop.cli.session import Session
from chop.cli.source import find_source, load_graph
from chop.cli.stages import Results, Stage, run_stages
from chop.cli.training import measure
from chop.cli.units import with_units
from chop.dataset import get_dataset
from chop.dataset.row_selection import hold_out
from chop.errors import SearchError
from chop.hw.timing.cycles import interval
from chop.ir.graph import MaseGraph
from chop.passes import (
    prune_transform_pass,
    summarize_graph_analysis_pass,
    verify_metadata_analysis_pass,
)
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from chop.report import draw_sweep
from chop.report.html import Report, write_report
from chop.report.page_parts import with_links
from chop.search import search
from chop.search.apply import choose_trial
from chop.search.fixed_point_widths import WIDTHS, quantize_to_widths, width_space

MODEL = {"hidden": [32, 16]}
TOLD_WIDTH = 4
SWEPT_WIDTHS, SWEPT_SPARSITIES = (3, 4, 6, 8), (0.3, 0.5, 0.7, 0.9)
VALIDATION_SHARE = 0.2
"""Of the training digits: few are too few to tell the models of a search apart."""
LEARNING_RATE = 5e-3
TUNING_RATE = 1e-3


def run(config: DemoConfig, session: Session) -> dict[str, Any]:
    """Run what is not done yet, then tell where the report is and the numbers that matter."""
    session.start_work()
    tour = Tour(config, session.out)
    results = run_stages(tour.stages(), session.out, session.console, fresh=config.fresh)
    numbers = headline(results)
    page = config.out / "report" / "report.html"
    session.console.say(f"\nreport: {page}\n")
    rows = [{"": name, "value": shown(value)} for name, value in numbers.items()]
    session.console.table(with_units(rows))
    return {"report": str(page), **numbers, "stages": results}


def headline(results: Results) -> dict[str, Any]:
    """The five numbers that matter."""
    return {
        "float accuracy": results["train"]["accuracy"],
        "compressed accuracy": results["compress"]["accuracy"],
        "bytes": results["compress"]["bytes"],
        "cycles": results["hardware"]["cycles"],
        "bit-exact": results["hardware"]["verdict"],
    }


def missing_tools() -> str:
    """Why nothing can be simulated here; empty where it can."""
    return toolchain.missing("verilator", "g++")


def shown(value: Any) -> str:
    """A number as people read it."""
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


class Tour:
    """The stages of the demonstration, and what they share."""

    def __init__(self, config: DemoConfig, out: Path) -> None:
        self.config, self.out = config, out

    def stages(self) -> list[Stage]:
        """In order, with the settings that each depends on."""
        c = self.config
        start = {"epochs": c.epochs, "seed": c.seed, "test_rows": c.test_rows}
        tools = {"missing": missing_tools(), "synthesize": c.synthesize}
        return [
            Stage("train", "train", self.train, start),
            Stage("trace", "trace and annotate", self.trace, {}),
            Stage("quantize", "quantise (PTQ, QAT)", self.quantize, {"epochs": c.tune_epochs}),
            Stage("prune", "prune", self.prune, {"sparsity": c.sparsity}),
            Stage("search", "search precision by layer", self.search, {"trials": c.trials}),
            Stage("compress", "pick from the front", self.compress, {"tolerance": c.tolerance}),
            Stage("hardware", "emit and simulate SystemVerilog", self.hardware, tools),
            Stage("report", "report", self.report, {}),
        ]

    # -- what stages share -------------------------------------------------------------------------

    @functools.cached_property
    def data(self) -> Data:
        """The digits."""
        splits = get_dataset("digits", seed=self.config.seed)
        rows = range(min(self.config.test_rows, len(splits["test"])))
        train, held = hold_out(splits["train"], VALIDATION_SHARE)
        return Data({"train": train, "test": splits["test"].select(rows), "validation": held})

    def subject(self, graph: MaseGraph, epochs: float, rate: float) -> Subject:
        """`graph` with a way to train and to compare it: on the rows held out for choosing."""
        settings = TrainConfig(
            epochs=epochs, learning_rate=rate, seed=self.config.seed, eval_batch_size=360
        )
        return make_subject(graph, self.data.for_choosing(), settings)

    def on_test_rows(self, graph: MaseGraph) -> float:
        """Accuracy on the digits that nothing was trained or chosen on."""
        return measure(graph, self.data, TrainConfig(seed=self.config.seed))["accuracy"]

    def tuning(self, graph: MaseGraph) -> Subject:
        """The subject of sweeps and searches."""
        return self.subject(graph, self.config.tune_epochs, TUNING_RATE)

    def recover(self, graph: MaseGraph) -> float:
        """Train a compressed graph for half as long as the first training; its accuracy."""
        subject = self.subject(graph, self.config.epochs / 2, TUNING_RATE)
        subject.train(graph, self.config.seed)
        return subject.evaluate(graph)

    def load(self, stage: str) -> MaseGraph:
        """The graph that a stage wrote."""
        options = TrainConfig(model=str(self.out / stage))
        return load_graph(options, find_source(options), self.data)

    # -- the stages --------------------------------------------------------------------------------

    def train(self, folder: Path, results: Results) -> dict[str, Any]:
        """A perceptron, from random weights."""
        options = TrainConfig(model="mlp", model_options=MODEL, seed=self.config.seed)
        graph = load_graph(options, find_source(options), self.data)
        subject = self.subject(graph, self.config.epochs, LEARNING_RATE)
        subject.train(graph, self.config.seed)
        reached, held_out = self.on_test_rows(graph), subject.evaluate(graph)
        graph.export(folder / GRAPH)
        told = f"accuracy {reached:.4f} on unseen digits, {held_out:.4f} on those to choose by"
        return {"accuracy": reached, "validation": held_out, "summary": told}

    def trace(self, folder: Path, results: Results) -> dict[str, Any]:
        """The trained model as an annotated, verified graph, drawn."""
        graph = self.load("train")
        verify_metadata_analysis_pass(graph)
        _, summary = summarize_graph_analysis_pass(graph)
        graph.draw(folder / "graph.svg")
        total = summary["total"]
        told = (
            f"{len(graph.nodes)} nodes, {total['parameters']:,} parameters, {total['macs']:,} MACs"
        )
        return {**total, "nodes": len(graph.nodes), "summary": told}

    def quantize(self, folder: Path, results: Results) -> dict[str, Any]:
        """Fixed point of several widths, before (PTQ) and after training in it (QAT)."""
        graph = self.load("train")
        records = self._sweep("fixed_point_width", graph, folder, SWEPT_WIDTHS, results)
        fitted = [record for record in records if record["split"] == "fitted"]
        narrow = next(record for record in fitted if record["width"] == TOLD_WIDTH)
        told = f"at {narrow['width']} bits PTQ {narrow['before']:.4f}, QAT {narrow['after']:.4f}"
        return {"records": records, "summary": told}

    def prune(self, folder: Path, results: Results) -> dict[str, Any]:
        """Curves over sparsities; then the model pruned as asked and trained on."""
        graph = self.load("train")
        records = self._sweep("sparsity", graph, folder, SWEPT_SPARSITIES, results)
        weight = {"sparsity": self.config.sparsity, "method": "l1-norm", "scope": "global"}
        _, info = prune_transform_pass(graph, {"weight": weight, "seed": self.config.seed})
        reached = self.recover(graph)
        graph.export(folder / GRAPH)
        told = f"{info['sparsity']:.0%} of the weights are zero, validation accuracy {reached:.4f}"
        return {
            "records": records,
            "validation": reached,
            "sparsity": info["sparsity"],
            "summary": told,
        }

    def _sweep(
        self, name: str, graph: MaseGraph, folder: Path, values: tuple[float, ...], results: Results
    ) -> list[dict[str, Any]]:
        seeds = (self.config.seed,)
        records = sweep(name, self.tuning(graph), folder, seeds, values, lambda progress: None)
        draw_sweep(name, records, folder / name, levels={"float": results["train"]["validation"]})
        return records

    def search(self, folder: Path, results: Results) -> dict[str, Any]:
        """Bits of the input and the weights of each layer: accuracy against bytes."""
        graph = self.load("prune")
        subject = self.tuning(graph)
        ranges = observe_ranges(graph, subject.batches())

        def evaluate(point: Mapping[str, Any], trial: Any) -> dict[str, float]:
            changed = quantize_to_widths(copy.deepcopy(graph), ranges, point)
            return {"accuracy": subject.evaluate(changed), "bytes": model_size(changed)["bytes"]}

        found = search(
            width_space(ranges),
            evaluate,
            {"accuracy": "maximize", "bytes": "minimize"},
            trials=self.config.trials,
            name="precision of each layer",
            seed=self.config.seed,
            storage=folder / "study.db",
            initial=[dict.fromkeys(width_space(ranges).dimensions, WIDTHS[-1])],
        )
        found.save(folder)
        front = found.pareto_front()
        tried = len(candidates(found.trials))
        if not tried:
            raise SearchError(f"no trial has a result: {found.trials[-1]['reason']}")
        told = f"{tried} trials, {len(front)} on the front"
        return {"study": found.record, "ranges": ranges, "summary": told}

    def compress(self, folder: Path, results: Results) -> dict[str, Any]:
        """The smallest model of the front that loses little, trained in its formats."""
        study, ranges = results["search"]["study"], results["search"]["ranges"]
        trial = choose_trial(study, "best", self.config.tolerance)
        graph = quantize_to_widths(self.load("prune"), ranges, trial["params"])
        self.recover(graph)
        reached = self.on_test_rows(graph)
        graph.export(folder / GRAPH)
        size = model_size(graph)
        told = f"trial {trial['number']}: {size['bytes']:,} bytes, accuracy {reached:.4f}"
        return {
            "trial": trial["number"],
            "accuracy": reached,
            "bytes": size["bytes"],
            "weight_bits": size["weight_bits"],
            "summary": told,
        }

    def hardware(self, folder: Path, results: Results) -> dict[str, Any]:
        """The accelerator; every test image through its simulation, every bit compared."""
        graph = self.load("compress")
        images = self.data.splits["test"].columns["pixel_values"]
        if missing_tools():
            return self._emit_only(graph, folder, images)
        has_yosys = self.config.synthesize and not toolchain.missing("pyosys")
        built = build_hardware(graph, folder, inputs=images, family="xc7" if has_yosys else None)
        (scores,) = built.lowered.decode(built.verdict.outputs)
        labels = self.data.splits["test"].columns["labels"]
        reached = float((scores.argmax(1) == labels).double().mean())
        return {
            "cycles": round(interval(built.lowered.design)),
            "verdict": f"yes: {built.verdict}",
            "is_exact": built.verdict.is_exact,
            "accuracy": reached,
            "area": None if built.area is None else str(built.area),
            "summary": f"{built.verdict}, accuracy {reached:.4f}",
        }

    def _emit_only(self, graph: MaseGraph, folder: Path, images: Tensor) -> dict[str, Any]:
        """Without a simulator: the RTL, and the cycles that the cycle model foretells."""
        add_hardware_metadata_analysis_pass(graph)
        lowered, _ = emit_hardware(graph, folder, inputs=images)
        told = f"not simulated: {missing_tools()}"
        cycles = round(interval(lowered.design))
        return {"cycles": cycles, "verdict": told, "is_exact": None, "summary": told}

    def report(self, folder: Path, results: Results) -> dict[str, Any]:
        """Everything above on one page."""
        numbers = headline(results)
        hardware = self.out / "hardware" / "hardware"
        told = hardware / "report.json"
        report = Report(
            title="Digits: from a trained network to checked hardware",
            graphs={"float": self.load("train"), "compressed": self.load("compress")},
            metrics={
                "accuracy": (numbers["float accuracy"], numbers["compressed accuracy"]),
                "cycles per image": numbers["cycles"],
                "bit-exact": results["hardware"]["verdict"].partition(":")[0],
            },
            studies=[{**results["search"]["study"], "applied": results["compress"]["trial"]}],
            sweeps=[results["quantize"]["records"], results["prune"]["records"]],
            hardware=with_links(json.loads(told.read_text()), hardware, self.out / "report")
            if told.is_file()
            else None,
        )
        page = write_report(folder / "report.html", report)
        return {"bytes": page.stat().st_size, "summary": f"{page.stat().st_size / 1e6:.2f} MB"}
