"""`mase trace`: a model as an annotated graph."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from chop.cli.session import Session
from chop.cli.shared_options import DataOptions, ModelOptions, OutputOptions

EXAMPLES = (
    "mase trace mlp",
    "mase trace prajjwal1/bert-tiny --inputs input_ids,attention_mask,labels",
    "mase trace my_project.models:build --input-shape 1,3,32,32 --out out/mine",
)


@dataclass(frozen=True, kw_only=True)
class TraceConfig(ModelOptions, DataOptions, OutputOptions):
    """Capture."""

    draw: Annotated[bool, "Write a picture of the graph."] = True
    out: Path = Path("out/trace")


def run(config: TraceConfig, session: Session) -> dict[str, Any]:
    """Capture, annotate, verify, summarise, draw and save a model."""
    from chop.actions.records import write_csv
    from chop.cli.checkpoints import save_model
    from chop.cli.source import describe, load, tokenizer_of
    from chop.cli.units import with_units
    from chop.ir.meta import mase_meta
    from chop.passes import summarize_graph_analysis_pass, verify_metadata_analysis_pass

    console = session.console
    with console.progress(f"trace {config.model}"):
        source, _, graph = load(config)
        verify_metadata_analysis_pass(graph)
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
    return {**facts, "source": source.kind, "types": dict(types), "total": summary["total"]}
