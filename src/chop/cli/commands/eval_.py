"""`mase eval`: evaluate a model on a dataset."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from chop.cli.failures import UsageError
from chop.cli.session import Session
from chop.cli.shared_options import DataOptions, ModelOptions, OutputOptions

if TYPE_CHECKING:
    from chop.cli.data import Data
    from chop.ir.graph import MaseGraph

EXAMPLES = (
    "mase eval out/train --dataset digits",
    "mase eval out/quantize --dataset digits --json",
    "mase eval ./llama --metric perplexity --dataset ./text --test-rows 64",
    "mase eval out/quantize --metric token_agreement --against ./llama --dataset ./text",
)
AGREEMENT = "token_agreement"


@dataclass(frozen=True, kw_only=True)
class EvalConfig(ModelOptions, DataOptions, OutputOptions):
    """Reference."""

    keeps_packed: ClassVar[bool] = True

    against: Annotated[str | None, "Reference model for the metric token_agreement."] = None
    out: Path = Path("out/eval")


def run(config: EvalConfig, session: Session) -> dict[str, Any]:
    """Return the loss and the metric on the test rows."""
    from chop.cli.source import describe, load_with_data
    from chop.cli.train_and_measure import measured, rows_to_measure

    source, data, graph = load_with_data(config, "eval")
    reference = _reference(config, data)
    data = rows_to_measure(session, graph, data, config)
    with session.console.progress(f"evaluate on {len(data.test)} rows"):
        metrics = measured(session, graph, data, config, reference)
    for name, value in metrics.items():
        session.console.say(f"{name}: {value:.4f}")
    return {**describe(graph, source), "rows": len(data.test), "eval": metrics}


def _reference(config: EvalConfig, data: Data) -> MaseGraph | None:
    from chop.cli.source import find_source, load_graph

    if config.against is None:
        if config.measure == AGREEMENT:
            raise UsageError(f"--metric {AGREEMENT} compares with another model: give --against.")
        return None
    if config.measure != AGREEMENT:
        raise UsageError(f"--against is for --metric {AGREEMENT}, got --metric {config.measure}.")
    other = dataclasses.replace(config, model=config.against)
    return load_graph(other, find_source(other, is_alone=False), data)
