"""`mase trace`: a model as an annotated graph."""

from __future__ import annotations

from collections import Counter
from typing import Any

from chop.actions.records import write_csv
from chop.cli.checkpoints import save_model
from chop.cli.configs import TraceConfig
from chop.cli.data import load_data
from chop.cli.session import Session
from chop.cli.source import describe, find_source, load_graph, tokenizer_of
from chop.cli.units import with_units
from chop.ir.meta import mase_meta
from chop.passes import summarize_graph_analysis_pass, verify_metadata_analysis_pass


def run(config: TraceConfig, session: Session) -> dict[str, Any]:
    """Capture, annotate, verify, summarise, draw, save."""
    console = session.console
    with console.progress(f"trace {config.model}"):
        source = find_source(config)
        graph = load_graph(config, source, load_data(config, source.place))
        verify_metadata_analysis_pass(graph)
    session.start_work()
    _, summary = summarize_graph_analysis_pass(graph)
    types = Counter(str(mase_meta(node).common.mase_type) for node in graph.nodes)
    save_model(graph, session.folder, tokenizer_of(config, source))
    write_csv(session.folder / "nodes.csv", summary["table"])
    if config.draw:
        graph.draw(session.folder / "graph.svg")
    facts = describe(graph, source)
    console.say(f"{facts['class']} ({source.kind}): {facts['nodes']} nodes")
    console.table([{"type": t, "nodes": n} for t, n in types.most_common()])
    console.say()
    total = [{"in all": name, "value": value} for name, value in summary["total"].items()]
    console.table(with_units(total), intfmt=",")
    return {**facts, "source": source.kind, "types": dict(types), "total": summary["total"]}
