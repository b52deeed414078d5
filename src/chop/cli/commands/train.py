"""`mase train`: train a model on a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from chop.cli.session import Session
from chop.cli.shared_options import DataOptions, ModelOptions, OutputOptions, TrainingOptions

EXAMPLES = (
    "mase train mlp --dataset digits --epochs 8 --learning-rate 3e-3",
    "mase train prajjwal1/bert-tiny --dataset imdb --epochs 1 --batch-size 16",
)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(ModelOptions, DataOptions, TrainingOptions, OutputOptions):
    """Length."""

    keeps_cache: ClassVar[bool] = True

    epochs: Annotated[float, "Passes over the training rows."] = 1.0
    out: Path = Path("out/train")


def run(config: TrainConfig, session: Session) -> dict[str, Any]:
    """Capture, train from the last checkpoint if there is one, evaluate, save."""
    from chop.cli.checkpoints import save_model
    from chop.cli.source import describe, load_with_data, tokenizer_of
    from chop.cli.train_and_measure import fit, forget_checkpoints, measure

    source, data, graph = load_with_data(config, "train")
    trained = fit(graph, data, config, config.epochs, session)
    metrics = measure(graph, data, config)
    save_model(session, graph, tokenizer_of(config, source))
    text = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    session.console.say(f"trained {config.model} on {config.dataset}: {text}")
    forget_checkpoints(session)
    return {**describe(graph, source), "train": trained, "eval": metrics}
