"""Traces, annotates, reports and draws a real model: what `make demo` runs.

BERT with two layers classifies sequences; no network is needed, so its weights are random.
Results go to out/: a picture of the graph (SVG), a report (Markdown) and the graph itself.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tabulate import tabulate

import chop.passes as passes
from chop import MaseGraph
from chop.log import get_report_logger

OUT = Path("out")


def build() -> torch.nn.Module:
    """BERT-tiny's architecture: 2 layers, hidden size 128, 2 heads."""
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512
    )
    return transformers.BertForSequenceClassification(config).eval()


def capture(model: torch.nn.Module) -> MaseGraph:
    """The model as an annotated graph."""
    graph = MaseGraph(model, hf_input_names=["input_ids", "attention_mask", "labels"])
    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(graph)
    return graph


def write_report(graph: MaseGraph, path: Path) -> None:
    """Nodes by type and the cost of every node, as Markdown."""
    _, summary = passes.summarize_graph_analysis_pass(graph)
    counts = Counter(node.meta["mase"]["common"]["mase_type"] for node in graph.nodes)
    lines = ["# BERT-tiny as a MaseGraph", "", "![the graph](graph.svg)", ""]
    lines += ["## Nodes by type", "", markdown(counts.most_common(), ("type", "nodes")), ""]
    lines += ["## In all", "", markdown(summary["total"].items(), ("measure", "value")), ""]
    rows = [list(row.values()) for row in summary["table"]]
    lines += ["## Each node", "", markdown(rows, list(summary["table"][0])), ""]
    path.write_text("\n".join(lines))


def markdown(rows: Iterable[Any], headers: Sequence[str]) -> str:
    """A Markdown table."""
    return tabulate(rows, headers=headers, tablefmt="github", intfmt=",")


def main() -> None:
    """Run the demonstration and say where its results are."""
    OUT.mkdir(exist_ok=True)
    get_report_logger().setLevel(logging.WARNING)  # the tables go to the report instead
    start = time.perf_counter()
    model = build()
    graph = capture(model)
    print(f"traced and annotated {graph} in {time.perf_counter() - start:.1f} s")
    _, verdict = passes.verify_metadata_analysis_pass(graph)
    print(f"verified: {verdict}")
    picture = graph.draw(OUT / "graph.svg")
    write_report(graph, OUT / "report.md")
    graph.export(OUT / "graph")
    print(
        f"picture:    {picture}\nreport:     {OUT / 'report.md'}\ncheckpoint: {OUT / 'graph'}.json"
    )


if __name__ == "__main__":
    main()
