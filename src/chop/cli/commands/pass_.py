"""`mase pass`: any registered pass on a model."""

from __future__ import annotations

from typing import Any

from chop.cli.checkpoints import save_model
from chop.cli.configs import PassConfig
from chop.cli.data import load_data
from chop.cli.session import Session
from chop.cli.source import describe, find_source, load_graph, tokenizer_of
from chop.passes import PASSES
from chop.passes.base import check_call


def run(config: PassConfig, session: Session) -> dict[str, Any]:
    """Run the pass, tell what it found, and save the graph where the pass may have changed it."""
    chosen = PASSES[str(config.name)]
    source = find_source(config)
    graph = load_graph(config, source, load_data(config, source.place))
    check_call(chosen, graph, config.args)
    session.start_work()
    with session.console.progress(str(config.name)):
        graph, info = chosen(graph, config.args)
    plain = {key: value for key, value in info.items() if _is_short(value)}
    session.console.table([{"found": key, "value": value} for key, value in plain.items()])
    is_analysis = str(config.name).endswith("_analysis_pass")
    if not is_analysis:
        save_model(graph, session.folder, tokenizer_of(config, source))
    return {**describe(graph, source), "pass": config.name, "info": info}


def _is_short(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)
