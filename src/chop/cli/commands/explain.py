"""`mase explain`: which layers make a quantised model worse, and what would help."""

from __future__ import annotations

import dataclasses
from typing import Any

from chop.actions.explain_figure import explain_figure
from chop.actions.records import write_csv
from chop.cli.configs import ExplainConfig
from chop.cli.data import require_data
from chop.cli.session import Session
from chop.cli.source import describe, find_source, load_graph
from chop.passes import explain_analysis_pass


def run(config: ExplainConfig, session: Session) -> dict[str, Any]:
    """Look for the layers, say what was found, and draw it."""
    source = find_source(config)
    data = require_data(config, source.place, "explain")
    graph = load_graph(config, source, data)
    reference = None
    if config.against is not None:
        other = dataclasses.replace(config, model=config.against)
        reference = load_graph(other, find_source(other), data)
    rows = min(config.rows_measured_at_once, config.rows)
    batches = data.batches(graph.model, rows, -(-config.rows // rows))
    session.start_work()
    settings = {"reference": reference, "share": config.share, "most": config.most}
    with session.console.progress(f"explain on {config.rows} rows"):
        _, found = explain_analysis_pass(graph, {"data": batches, **settings})
    _tell(session, found)
    write_csv(session.folder / "layers.csv", [_flat(row) for row in found["layers"]])
    write_csv(session.folder / "kernels.csv", found["kernels"])
    explain_figure(found["loss"], found["layers"], session.folder / "explain.svg")
    return {**describe(graph, source), "explained": found}


def _tell(session: Session, found: dict[str, Any]) -> None:
    say, table = session.console.say, session.console.table
    say(f"divergence from the float model: {found['loss']:.3g} nats a row ({found['runs']} runs)")
    if not found["layers"]:
        say("no layer stands out.")
    table([_flat(row) for row in found["layers"]])
    for row in found["layers"]:
        say(f"{row['layer']}: {'; or '.join(row['advice'])}")
    say("\nwhat the layers run on here, against float:")
    table([_kernel(row) for row in found["kernels"]])


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "layer": row["layer"],
        "loss alone (nats)": f"{row['loss']:.3g}",
        "model without it (nats)": f"{row['without']:.3g}",
        **{f"{role} alone (nats)": f"{loss:.3g}" for role, loss in row["operands"].items()},
    }


def _kernel(row: dict[str, Any]) -> dict[str, Any]:
    is_faster = row["ratio"] < 1
    return {
        "layer": row["layer"],
        "alike": row["alike"],
        "kernel": row["kernel"],
        "time (ms)": f"{row['seconds'] * 1e3:.3g}",
        "float (ms)": f"{row['float_seconds'] * 1e3:.3g}",
        "": f"{row['ratio']:.2f} of float: {'faster' if is_faster else 'slower'}",
    }
