"""`mase shard`: how to split a model over devices."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from chop.actions.sharding import ShardArgs, shard
from chop.cli.checkpoints import save_model
from chop.cli.run_results import PLAN
from chop.cli.session import Session
from chop.cli.shared_options import DataOptions, ModelOptions, OutputOptions
from chop.cli.source import Source, describe, example_of, load, load_graph, tokenizer_of
from chop.distributed.mesh import mesh_shape_of
from chop.files import write_whole
from chop.ir.expert_mixtures import is_mixture
from chop.ir.graph import MaseGraph

DOCUMENT = "sharding_plan.json"
"""The plan alone, as `--against` reads it."""
MACHINE = "machine.json"
"""Measured constants, as `--machine` reads them."""
TRANSFORMERS = "transformers_plan.json"
"""Arguments of transformers' DistributedConfig."""
EXAMPLES = (
    "mase shard tiny_bert --mesh 2x2 --compare",
    "mase shard tiny_bert --mesh 2 --calibrate",
    "mase shard tiny_bert --mesh 2 --stages 2 --micro-batches 4",
    "mase shard tiny_bert --mesh-shape 1,4",
    "mase shard ./llama --mesh 4 --no-training --transformers",
    "mase shard prajjwal1/bert-tiny --mesh-shape 2,2 --memory 16000000 --verify",
)


@dataclass(frozen=True, kw_only=True)
class ShardConfig(ModelOptions, DataOptions, OutputOptions):
    """Input."""

    shard: ShardArgs = field(default_factory=ShardArgs, metadata={"prefix": ""})
    mesh: Annotated[
        str | None, "Devices along each axis, as 8x8. Default: the value of --mesh-shape."
    ] = None
    batch: Annotated[int | None, "Rows of the input. Default: those of the captured input."] = None
    out: Path = Path("out/shard")


class _WithExperts(ShardConfig):
    """The same options; each mixture of experts is captured as one layer."""

    joins_experts: ClassVar[bool] = True


def _planned_graph(config: ShardConfig, source: Source, graph: MaseGraph) -> MaseGraph:
    """Return the graph to plan: that of the output, or one whose experts can be split."""
    if source.model is None or not any(map(is_mixture, source.model.modules())):
        return graph
    options = {field.name: getattr(config, field.name) for field in fields(config)}
    return load_graph(_WithExperts(**options), source)


def run(config: ShardConfig, session: Session) -> dict[str, Any]:
    """Plan, verify the plan on processes of this machine if asked, save it."""
    args = config.shard
    if config.mesh is not None:
        args = replace(args, mesh_shape=mesh_shape_of(config.mesh))
    source, _, graph = load(config)
    example = example_of(graph, config.batch)
    planned = _planned_graph(config, source, graph)
    if session.is_dry:
        shard(planned, replace(args, verify=False, calibrate=False), example)
    session.start_work()
    with session.console.progress("plan and verify" if args.verify else "plan"):
        result = shard(planned, args, example)
    record = result.record()
    write_whole(session.folder / PLAN, json.dumps(record, indent=1))
    write_whole(session.folder / DOCUMENT, json.dumps(result.document, indent=1))
    if result.machine is not None:
        write_whole(session.folder / MACHINE, json.dumps(result.machine.record(), indent=1))
    if result.transformers is not None:
        write_whole(session.folder / TRANSFORMERS, json.dumps(result.transformers, indent=1))
    save_model(session, graph, tokenizer_of(config, source))
    session.console.say(result.table())
    names = ("cost", "verification", "comparison", "pipeline")
    facts = {name: record[name] for name in names}
    return {**describe(graph, source), "mesh": list(args.mesh_shape), **facts}
