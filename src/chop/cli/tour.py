"""The stages of `mase demo`.

Each stage is short and reads the files of the stage before, so that it can serve as the start of
your own program.
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
from chop.actions.study_subject import Subject
from chop.actions.sweeps import sweep
from chop.actions.trials import candidates
from chop.cli.checkpoints import GRAPH
from chop.cli.commands.demo import DemoConfig
from chop.cli.commands.train import TrainConfig
from chop.cli.data import Data
from chop.cli.source import find_source, load_graph
from chop.cli.stages import DemoStage, Results
from chop.cli.subjects import make_subject
from chop.cli.train_and_measure import measure
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
PRINTED_WIDTH = 4
"""Width, in bits, whose accuracy is printed."""
SWEPT_WIDTHS, SWEPT_SPARSITIES = (3, 4, 6, 8), (0.3, 0.5, 0.7, 0.9)
VALIDATION_SHARE = 0.2
"""Share of the training digits; with fewer rows the trials of a search look equal."""
LEARNING_RATE = 5e-3
TUNING_RATE = 1e-3


def headline(results: Results) -> dict[str, Any]:
    """Return the five main results."""
    return {
        "float accuracy": results["train"]["accuracy"],
        "compressed accuracy": results["compress"]["accuracy"],
        "bytes": results["compress"]["bytes"],
        "cycles": results["hardware"]["cycles"],
        "bit-exact": results["hardware"]["verdict"],
    }


def missing_tools() -> str:
    """Return the reason why nothing can be simulated here, or an empty text."""
    return toolchain.missing("verilator", "g++")


def shown(value: Any) -> str:
    """Return a number as readable text."""
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


class Tour:
    """The stages of the demonstration, and the parts that they share."""

    def __init__(self, config: DemoConfig, out: Path) -> None:
        self.config, self.out = config, out

    def stages(self) -> list[DemoStage]:
        """Return the stages in order, with the settings on which each depends."""
        c = self.config
        start = {"epochs": c.epochs, "seed": c.seed, "test_rows": c.test_rows}
        tools = {"missing": missing_tools(), "synthesize": c.synthesize}
        return [
            DemoStage("train", "train", self.train, start),
            DemoStage("trace", "trace and annotate", self.trace, {}),
            DemoStage("quantize", "quantise (PTQ, QAT)", self.quantize, {"epochs": c.tune_epochs}),
            DemoStage("prune", "prune", self.prune, {"sparsity": c.sparsity}),
            DemoStage("search", "search precision by layer", self.search, {"trials": c.trials}),
            DemoStage("compress", "pick from the front", self.compress, {"tolerance": c.tolerance}),
            DemoStage("hardware", "emit and simulate SystemVerilog", self.hardware, tools),
            DemoStage("report", "report", self.report, {}),
        ]

    @functools.cached_property
    def data(self) -> Data:
        """Digits, split into training, validation and test rows."""
        splits = get_dataset("digits", seed=self.config.seed)
        rows = range(min(self.config.test_rows, len(splits["test"])))
        train, validation = hold_out(splits["train"], VALIDATION_SHARE)
        test = splits["test"].select(rows)
        return Data({"train": train, "test": test, "validation": validation})

    def subject(self, graph: MaseGraph, epochs: float, rate: float) -> Subject:
        """Return `graph` as a subject that is evaluated on the validation rows."""
        settings = TrainConfig(
            epochs=epochs, learning_rate=rate, seed=self.config.seed, eval_batch_size=360
        )
        return make_subject(graph, self.data.for_choosing(), settings)

    def on_test_rows(self, graph: MaseGraph) -> float:
        """Return the accuracy on the test rows."""
        return measure(graph, self.data, TrainConfig(seed=self.config.seed))["accuracy"]

    def tuning(self, graph: MaseGraph) -> Subject:
        """Return the subject of sweeps and searches."""
        return self.subject(graph, self.config.tune_epochs, TUNING_RATE)

    def recover(self, graph: MaseGraph) -> float:
        """Train a compressed graph for half of the first training; return its accuracy."""
        subject = self.subject(graph, self.config.epochs / 2, TUNING_RATE)
        subject.train(graph, self.config.seed)
        return subject.evaluate(graph)

    def load(self, stage: str) -> MaseGraph:
        """Load the graph that a stage wrote."""
        options = TrainConfig(model=str(self.out / stage))
        return load_graph(options, find_source(options), self.data)

    def train(self, folder: Path, results: Results) -> dict[str, Any]:
        """Train a perceptron from random weights."""
        options = TrainConfig(model="mlp", model_options=MODEL, seed=self.config.seed)
        graph = load_graph(options, find_source(options), self.data)
        subject = self.subject(graph, self.config.epochs, LEARNING_RATE)
        subject.train(graph, self.config.seed)
        reached, held_out = self.on_test_rows(graph), subject.evaluate(graph)
        graph.export(folder / GRAPH)
        summary = f"accuracy {reached:.4f} on test digits, {held_out:.4f} on validation digits"
        return {"accuracy": reached, "validation": held_out, "summary": summary}

    def trace(self, folder: Path, results: Results) -> dict[str, Any]:
        """Verify, summarise and draw the graph of the trained model."""
        graph = self.load("train")
        verify_metadata_analysis_pass(graph)
        _, summary = summarize_graph_analysis_pass(graph)
        graph.draw(folder / "graph.svg")
        total = summary["total"]
        nodes, parameters, macs = len(graph.nodes), total["parameters"], total["macs"]
        text = f"{nodes} nodes, {parameters:,} parameters, {macs:,} MACs"
        return {**total, "nodes": nodes, "summary": text}

    def quantize(self, folder: Path, results: Results) -> dict[str, Any]:
        """Quantise to fixed point of several widths, before (PTQ) and after training (QAT)."""
        graph = self.load("train")
        records = self._sweep("fixed_point_width", graph, folder, SWEPT_WIDTHS, results)
        fitted = [record for record in records if record["split"] == "fitted"]
        narrow = next(record for record in fitted if record["width"] == PRINTED_WIDTH)
        text = f"at {narrow['width']} bits PTQ {narrow['before']:.4f}, QAT {narrow['after']:.4f}"
        return {"records": records, "summary": text}

    def prune(self, folder: Path, results: Results) -> dict[str, Any]:
        """Sweep sparsities, then prune the model to the chosen one and train it."""
        graph = self.load("train")
        records = self._sweep("sparsity", graph, folder, SWEPT_SPARSITIES, results)
        weight = {"sparsity": self.config.sparsity, "method": "l1-norm", "scope": "global"}
        _, info = prune_transform_pass(graph, {"weight": weight, "seed": self.config.seed})
        reached = self.recover(graph)
        graph.export(folder / GRAPH)
        text = f"{info['sparsity']:.0%} of the weights are zero, validation accuracy {reached:.4f}"
        facts = {"validation": reached, "sparsity": info["sparsity"], "summary": text}
        return {"records": records, **facts}

    def _sweep(
        self, name: str, graph: MaseGraph, folder: Path, values: tuple[float, ...], results: Results
    ) -> list[dict[str, Any]]:
        seeds = (self.config.seed,)
        records = sweep(name, self.tuning(graph), folder, seeds, values, lambda progress: None)
        draw_sweep(name, records, folder / name, levels={"float": results["train"]["validation"]})
        return records

    def search(self, folder: Path, results: Results) -> dict[str, Any]:
        """Search the bits of inputs and weights of each layer: accuracy against bytes."""
        graph = self.load("prune")
        subject = self.tuning(graph)
        ranges = observe_ranges(graph, subject.batches())

        def evaluate(point: Mapping[str, Any], trial: Any) -> dict[str, float]:
            changed = quantize_to_widths(copy.deepcopy(graph), ranges, point)
            return {"accuracy": subject.evaluate(changed), "bytes": model_size(changed)["bytes"]}

        result = search(
            width_space(ranges),
            evaluate,
            {"accuracy": "maximize", "bytes": "minimize"},
            trials=self.config.trials,
            name="precision of each layer",
            seed=self.config.seed,
            storage=folder / "study.db",
            initial=[dict.fromkeys(width_space(ranges).dimensions, WIDTHS[-1])],
        )
        result.save(folder)
        front = result.pareto_front()
        tried = len(candidates(result.trials))
        if not tried:
            raise SearchError(f"no trial has a result: {result.trials[-1]['reason']}")
        text = f"{tried} trials, {len(front)} on the front"
        return {"study": result.record, "ranges": ranges, "summary": text}

    def compress(self, folder: Path, results: Results) -> dict[str, Any]:
        """Train the smallest model of the front that loses little, in its formats."""
        study, ranges = results["search"]["study"], results["search"]["ranges"]
        trial = choose_trial(study, "best", self.config.tolerance)
        graph = quantize_to_widths(self.load("prune"), ranges, trial["params"])
        self.recover(graph)
        reached = self.on_test_rows(graph)
        graph.export(folder / GRAPH)
        size = model_size(graph)
        text = f"trial {trial['number']}: {size['bytes']:,} bytes, accuracy {reached:.4f}"
        return {
            "trial": trial["number"],
            "accuracy": reached,
            "bytes": size["bytes"],
            "weight_bits": size["weight_bits"],
            "summary": text,
        }

    def hardware(self, folder: Path, results: Results) -> dict[str, Any]:
        """Simulate every test image and compare every bit with the model."""
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
        """Write the RTL and predict its cycles, without a simulator."""
        add_hardware_metadata_analysis_pass(graph)
        lowered, _ = emit_hardware(graph, folder, inputs=images)
        reason = f"not simulated: {missing_tools()}"
        cycles = round(interval(lowered.design))
        return {"cycles": cycles, "verdict": reason, "is_exact": None, "summary": reason}

    def report(self, folder: Path, results: Results) -> dict[str, Any]:
        """Write one page about all stages."""
        numbers = headline(results)
        hardware = self.out / "hardware" / "hardware"
        simulated = hardware / "report.json"
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
            hardware=with_links(json.loads(simulated.read_text()), hardware, self.out / "report")
            if simulated.is_file()
            else None,
        )
        page = write_report(folder / "report.html", report)
        return {"bytes": page.stat().st_size, "summary": f"{page.stat().st_size / 1e6:.2f} MB"}
