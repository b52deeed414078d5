"""`mase prune`: zeros, or smaller layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from chop.actions.expert_pruning import prune_experts
from chop.actions.gradient_scores import gradient_scores
from chop.actions.records import write_csv
from chop.cli.before_and_after import Compression, compress
from chop.cli.data import Data
from chop.cli.failures import UsageError
from chop.cli.session import Session
from chop.cli.settings import to_table
from chop.cli.shared_options import DataOptions, ModelOptions, OutputOptions, TrainingOptions
from chop.cli.units import titled
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.passes import prune_transform_pass
from chop.passes.prune.importance import METHODS
from chop.passes.prune.pruning_config import PruneActivation, PruneWeight

EXAMPLES = (
    "mase prune out/train --sparsity 0.5 --method l1-norm --scope global",
    "mase prune out/train --granularity 2:4",
    "mase prune ./mixtral --experts 6 --dataset text.txt",
    "mase prune out/train --granularity channel --sparsity 0.5 \\\n"
    "    --dataset digits --finetune-epochs 2 --evaluate",
)
SCORED_BATCHES = 4
"""Batches for methods that score weights by gradients or by inputs."""


@dataclass(frozen=True, kw_only=True)
class PruneConfig(ModelOptions, DataOptions, TrainingOptions, OutputOptions):
    """Pruning."""

    keeps_cache: ClassVar[bool] = True

    weight: PruneWeight | None = field(default=None, metadata={"prefix": ""})
    activation: PruneActivation | None = None
    experts: Annotated[
        int | None,
        "Experts to keep in each layer of a mixture: those that the router chooses most on the "
        "dataset. Smaller weights, without zeros.",
    ] = None
    calibration_rows: Annotated[int, "Number of training rows for --experts."] = 128
    evaluate: Annotated[bool, "Evaluate the model before and after."] = False
    finetune_epochs: Annotated[
        float, "Epochs of training after pruning; pruned weights stay zero."
    ] = 0.0
    out: Path = Path("out/prune")

    def __post_init__(self) -> None:
        super().__post_init__()
        pruned = self.weight is not None or self.activation is not None
        if not pruned and self.experts is None:
            raise ConfigError(
                "nothing to prune: give --sparsity or --granularity N:M, --activation-sparsity, or "
                "--experts."
            )
        if pruned and self.experts is not None:
            raise ConfigError("experts removes whole experts: prune weights in a second command.")
        if self.calibration_rows < 1:
            raise ConfigError(f"calibration_rows must be at least 1, got {self.calibration_rows}.")


def run(config: PruneConfig, session: Session) -> dict[str, Any]:
    """Prune a model, train it if asked, compare with before, save."""
    if config.experts is not None:
        return _run_experts(config, config.experts, session)

    def change(graph: MaseGraph, data: Data | None) -> dict[str, Any]:
        _, info = prune_transform_pass(graph, pass_arguments(config, graph, data))
        return info

    plan = Compression("prune", change, config.finetune_epochs, "fine-tuning", config.evaluate)
    _, result = compress(config, session, plan)
    rows = [{"layer": path, "sparsity": share} for path, share in result["layers"].items()]
    write_csv(session.folder / "layers.csv", rows)
    session.console.say()
    session.console.table([titled(row) for row in rows], floatfmt=".3f")
    for removed in result.get("structure", {}).get("removed", ()):
        layers = ", ".join(removed["layers"])
        session.console.say(
            f"{removed['kind']} {removed['before']} -> {removed['after']}: {layers}"
        )
    return result


def _run_experts(config: PruneConfig, keep: int, session: Session) -> dict[str, Any]:
    """Remove experts, and print which and how often they were routed."""
    if config.dataset is None:
        raise UsageError("--experts counts the tokens of each expert: give --dataset.")

    def change(graph: MaseGraph, data: Data | None) -> dict[str, Any]:
        assert data is not None, "checked above"
        rows = min(config.rows_measured_at_once, config.calibration_rows)
        batches = data.batches(graph.model, rows, -(-config.calibration_rows // rows))
        return prune_experts(graph, batches, keep)

    plan = Compression("prune", change, config.finetune_epochs, "fine-tuning", config.evaluate)
    _, result = compress(config, session, plan)
    rows = [
        {**row, "experts": " ".join(map(str, row["experts"])), "tokens": sum(row["tokens"])}
        for row in result["removed"]
    ]
    write_csv(session.folder / "experts.csv", rows)
    session.console.say("\nremoved experts, and the share of the tokens that went to them:")
    session.console.table(rows, floatfmt=".3f")
    loss = result["loss"]
    if loss["before"] is not None:
        session.console.say(
            f"loss of the next token {loss['before']:.4g} -> {loss['after']:.4g} nats on the "
            "calibration rows"
        )
    return result


def pass_arguments(config: PruneConfig, graph: MaseGraph, data: Data | None) -> dict[str, Any]:
    """Return the arguments of prune_transform_pass, with batches for methods that need them."""
    args: dict[str, Any] = {"seed": config.seed}
    for name in ("weight", "activation"):
        part = getattr(config, name)
        if part is not None:
            args[name] = to_table(part)
    method = None if config.weight is None else METHODS[config.weight.method]
    if config.weight is None or method is None or not (method.product or method.needs_inputs):
        return args
    if data is None:
        what = "gradients" if method.product else "data to calibrate on"
        raise UsageError(f"method '{config.weight.method}' needs {what}: give --dataset.")
    batches = data.batches(graph.model, config.rows_trained_at_once, SCORED_BATCHES)
    if method.product:
        args["scores"] = gradient_scores(graph.model, batches, config.weight.method)
    else:
        args["batches"] = list(batches)
    return args
