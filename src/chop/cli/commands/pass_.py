"""`mase pass`: run any registered pass on a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from chop.cli.names import names
from chop.cli.session import Session
from chop.cli.shared_options import POSITIONAL, DataOptions, ModelOptions, OutputOptions
from chop.errors import ConfigError

EXAMPLES = (
    "mase pass summarize_graph_analysis_pass out/train",
    'mase pass report_node_meta_param_analysis_pass mlp --set args.which=["common"]',
    "mase pass remove_dropout_transform_pass prajjwal1/bert-tiny --out out/plain",
)


@dataclass(frozen=True, kw_only=True)
class PassConfig(ModelOptions, DataOptions, OutputOptions):
    """Pass."""

    name: Annotated[str | None, "Name of a registered pass (`mase list passes`)."] = field(
        default=None, metadata=names("passes", closed=True, **POSITIONAL)
    )
    args: Annotated[dict[str, Any], "Arguments of the pass, as in Python."] = field(
        default_factory=dict
    )
    out: Path = Path("out/pass")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is None:
            raise ConfigError("no pass given. `mase list passes` shows them.")


def run(config: PassConfig, session: Session) -> dict[str, Any]:
    """Run the pass, print its findings, and save the graph unless the pass only analyses."""
    from chop.cli.checkpoints import save_model
    from chop.cli.source import describe, load, tokenizer_of
    from chop.passes import PASSES
    from chop.passes.base import check_call

    name = str(config.name)
    source, _, graph = load(config)
    check_call(PASSES[name], graph, config.args)
    session.start_work()
    with session.console.progress(name):
        graph, info = PASSES[name](graph, config.args)
    plain = str | int | float | bool
    session.console.table(
        [{"found": key, "value": value} for key, value in info.items() if isinstance(value, plain)]
    )
    if not name.endswith("_analysis_pass"):
        save_model(session, graph, tokenizer_of(config, source))
    return {**describe(graph, source), "pass": config.name, "info": info}
