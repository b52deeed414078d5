"""`mase trace`: a model as an annotated graph."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from chop.cli.names import names
from chop.cli.session import Session
from chop.cli.shared_options import DataOptions, ModelOptions, OutputOptions

if TYPE_CHECKING:
    from chop.cli.data import Data
    from chop.cli.source import Source
    from chop.ir.graph import MaseGraph

EXAMPLES = (
    "mase trace mlp",
    "mase trace prajjwal1/bert-tiny --inputs input_ids,attention_mask,labels",
    "mase trace out/quantize --against out/train --dataset digits",
    "mase trace my_project.models:build --input-shape 1,3,32,32 --out out/mine",
)


@dataclass(frozen=True, kw_only=True)
class TraceConfig(ModelOptions, DataOptions, OutputOptions):
    """Capture."""

    draw: Annotated[bool, "Write a picture of the graph."] = True
    against: Annotated[
        str | None,
        "Model whose outputs to compare with, before capture: the largest difference, SQNR and "
        "agreement on test rows, or on the example inputs without --dataset. The same name "
        "compares the graph with the original model.",
    ] = field(default=None, metadata=names("models"))
    out: Path = Path("out/trace")


def run(config: TraceConfig, session: Session) -> dict[str, Any]:
    """Capture, annotate, verify, summarise, draw and save a model."""
    from chop.actions.records import write_csv
    from chop.cli.checkpoints import save_model
    from chop.cli.data import load_data
    from chop.cli.source import describe, find_source, load_graph, tokenizer_of
    from chop.cli.units import with_units
    from chop.ir.meta import mase_meta
    from chop.passes import summarize_graph_analysis_pass, verify_metadata_analysis_pass

    console = session.console
    with console.progress(f"trace {config.model}"):
        source, other = find_source(config), _other_source(config)
        place = source.place or (None if other is None else other.place)
        data = load_data(config, place)
        graph = load_graph(config, source, data)
        verify_metadata_analysis_pass(graph)
    reference = _model_of(other)
    session.start_work()
    _, summary = summarize_graph_analysis_pass(graph)
    types = Counter(str(mase_meta(node).common.mase_type) for node in graph.nodes)
    save_model(session, graph, tokenizer_of(config, source))
    write_csv(session.folder / "nodes.csv", summary["table"])
    if config.draw:
        graph.draw(session.folder / "graph.svg")
    facts = describe(graph, source)
    console.say(f"{facts['class']} ({source.kind}): {facts['nodes']} nodes")
    console.table([{"type": t, "nodes": n} for t, n in types.most_common()])
    console.say()
    total = [{"in all": name, "value": value} for name, value in summary["total"].items()]
    console.table(with_units(total), intfmt=",")
    record = {**facts, "source": source.kind, "types": dict(types), "total": summary["total"]}
    if reference is None:
        return record
    return {**record, "against": _compare(config, session, graph, reference, data)}


def _other_source(config: TraceConfig) -> Source | None:
    """Return the model of `--against`; its tokenizer serves a model without one."""
    from chop.cli.source import find_source

    if config.against is None:
        return None
    return find_source(dataclasses.replace(config, model=config.against), is_alone=False)


def _model_of(source: Source | None) -> Any:
    """Return the model of a source, without capture; None if there is none."""
    if source is None:
        return None
    return source.model if source.graph is None else source.graph.model


def _compare(
    config: TraceConfig, session: Session, graph: MaseGraph, reference: Any, data: Data | None
) -> dict[str, Any]:
    """Return the comparison of the outputs of `graph` and `reference`, and print it."""
    from chop.actions.output_comparison import compare_outputs
    from chop.cli.source import example_of

    if data is None:
        inputs = example_of(graph)
    else:
        inputs = data.labelled_test_rows(graph.model, config.rows_measured_at_once)
    comparison = dataclasses.asdict(compare_outputs(graph.model, reference, inputs))
    session.console.say(f"\noutputs against {config.against}:")
    session.console.table([{"": name, "value": value} for name, value in comparison.items()])
    return comparison
