"""`mase lora`: train adapters, fuse them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chop.cli.checkpoints import save_model
from chop.cli.configs import DataOptions, ModelOptions, OutputOptions, TrainingOptions
from chop.cli.data import require_data
from chop.cli.session import Session
from chop.cli.settings import to_table
from chop.cli.source import describe, find_source, load_graph, tokenizer_of
from chop.cli.training import fit, forget_checkpoints, measure, measured
from chop.passes import (
    fuse_lora_weights_transform_pass,
    insert_lora_adapter_transform_pass,
    save_lora_adapter_interface_pass,
)
from chop.passes.graph.transforms.lora import InsertLoraArgs


@dataclass(frozen=True, kw_only=True)
class LoraConfig(ModelOptions, DataOptions, TrainingOptions, OutputOptions):
    """Training of adapters.

    `epochs`: passes over the training rows. `fuse`: add the adapters to the weights at the end.
    """

    adapter: InsertLoraArgs = field(default_factory=InsertLoraArgs, metadata={"prefix": ""})
    epochs: float = 1.0
    fuse: bool = True
    out: Path = Path("out/lora")


def run(config: LoraConfig, session: Session) -> dict[str, Any]:
    """Insert, train, save the adapters alone, fuse, save the graph."""
    source = find_source(config)
    data = require_data(config, source.place, "lora")
    graph = load_graph(config, source, data)
    found = {"before": measured(session, graph, data, config)}
    _, adapters = insert_lora_adapter_transform_pass(graph, to_table(config.adapter))
    trained = fit(graph, data, config, config.epochs, session, "adapters")
    save_lora_adapter_interface_pass(graph, {"path": session.folder / "adapter"})
    if config.fuse:
        fuse_lora_weights_transform_pass(graph)
    found["after"] = measure(graph, data, config)
    save_model(graph, session.folder, tokenizer_of(config, source))
    metric = config.measure
    session.console.say(
        f"{adapters['trainable']:,} of {adapters['total']:,} parameters trained "
        f"({adapters['share']:.2%}); {metric} {found['before'][metric]:.4f} -> "
        f"{found['after'][metric]:.4f}{'; fused' if config.fuse else ''}"
    )
    forget_checkpoints(session)
    return {**describe(graph, source), "lora": adapters, "train": trained, "eval": found}
