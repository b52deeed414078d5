"""`mase shard`: how to split a model over devices."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chop.actions.sharding import ShardArgs, shard
from chop.cli.checkpoints import save_model
from chop.cli.configs import DataOptions, ModelOptions, OutputOptions
from chop.cli.data import load_data
from chop.cli.session import Session
from chop.cli.source import describe, example_of, find_source, load_graph, tokenizer_of
from chop.files import write_whole

PLAN = "plan.json"


@dataclass(frozen=True, kw_only=True)
class ShardConfig(ModelOptions, DataOptions, OutputOptions):
    """Splitting.

    `batch`: rows of the input to plan for, by default as the model was traced.
    """

    shard: ShardArgs = field(default_factory=ShardArgs, metadata={"prefix": ""})
    batch: int | None = None
    out: Path = Path("out/shard")


def run(config: ShardConfig, session: Session) -> dict[str, Any]:
    """Plan, run the plan on processes of this machine where asked, save it."""
    source = find_source(config)
    graph = load_graph(config, source, load_data(config, source.place))
    example = example_of(graph, config.batch)
    if session.is_dry:
        shard(graph, replace(config.shard, verify=False), example)
    session.start_work()
    with session.console.progress("plan and verify" if config.shard.verify else "plan"):
        found = shard(graph, config.shard, example)
    record = found.record()
    write_whole(session.folder / PLAN, json.dumps(record, indent=1))
    save_model(graph, session.folder, tokenizer_of(config, source))
    session.console.say(found.table())
    told = {name: record[name] for name in ("cost", "verification")}
    return {**describe(graph, source), "mesh": list(config.shard.mesh_shape), **told}
