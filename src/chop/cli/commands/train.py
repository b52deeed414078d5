"""`mase train`: train a model on a dataset."""

from __future__ import annotations

from typing import Any

from chop.cli.checkpoints import save_model
from chop.cli.configs import TrainConfig
from chop.cli.data import require_data
from chop.cli.session import Session
from chop.cli.source import describe, find_source, load_graph, tokenizer_of
from chop.cli.training import fit, forget_checkpoints, measure


def run(config: TrainConfig, session: Session) -> dict[str, Any]:
    """Trace, train from the last checkpoint if there is one, measure, save."""
    source = find_source(config)
    data = require_data(config, source.place, "train")
    graph = load_graph(config, source, data)
    trained = fit(graph, data, config, config.epochs, session)
    found = measure(graph, data, config)
    save_model(graph, session.folder, tokenizer_of(config, source))
    told = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
    session.console.say(f"trained {config.model} on {config.dataset}: {told}")
    forget_checkpoints(session)
    return {**describe(graph, source), "train": trained, "eval": found}
