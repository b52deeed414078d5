"""`mase lora`: train adapters, fuse them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from chop.cli.checkpoints import save_model
from chop.cli.session import Session
from chop.cli.settings import to_table
from chop.cli.shared_options import (
    DataOptions,
    ModelOptions,
    OutputOptions,
    TeacherOptions,
    TrainingOptions,
)
from chop.cli.source import describe, load_with_data, tokenizer_of
from chop.cli.teacher import load_teacher
from chop.cli.train_and_measure import fit, forget_checkpoints, measure, measured
from chop.passes import (
    fuse_lora_weights_transform_pass,
    insert_lora_adapter_transform_pass,
    save_lora_adapter_interface_pass,
)
from chop.passes.graph.transforms.low_rank_adapters import InsertLoraArgs

EXAMPLES = (
    "mase lora out/train --dataset digits --rank 4 --epochs 2",
    "mase lora prajjwal1/bert-tiny --dataset imdb --rank 8 --modules-to-save classifier",
)


@dataclass(frozen=True, kw_only=True)
class LoraConfig(ModelOptions, DataOptions, TrainingOptions, TeacherOptions, OutputOptions):
    """Adapters."""

    keeps_cache: ClassVar[bool] = True

    adapter: InsertLoraArgs = field(default_factory=InsertLoraArgs, metadata={"prefix": ""})
    epochs: Annotated[float, "Passes over the training rows."] = 1.0
    fuse: Annotated[bool, "Add the adapters to the weights at the end."] = True
    out: Path = Path("out/lora")


def run(config: LoraConfig, session: Session) -> dict[str, Any]:
    """Insert adapters, train and save them, fuse them, save the graph."""
    source, data, graph = load_with_data(config, "lora")
    metrics = {"before": measured(session, graph, data, config)}
    _, adapters = insert_lora_adapter_transform_pass(graph, to_table(config.adapter))
    trained = fit(graph, data, config, config.epochs, session, "adapters", load_teacher(config))
    save_lora_adapter_interface_pass(graph, {"path": session.folder / "adapter"})
    if config.fuse:
        fuse_lora_weights_transform_pass(graph)
    metrics["after"] = measure(graph, data, config)
    save_model(session, graph, tokenizer_of(config, source))
    metric = config.measure
    session.console.say(
        f"{adapters['trainable']:,} of {adapters['total']:,} parameters trained "
        f"({adapters['share']:.2%}); {metric} {metrics['before'][metric]:.4f} -> "
        f"{metrics['after'][metric]:.4f}{'; fused' if config.fuse else ''}"
    )
    forget_checkpoints(session)
    return {**describe(graph, source), "lora": adapters, "train": trained, "eval": metrics}
