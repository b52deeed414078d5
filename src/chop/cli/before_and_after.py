"""What quantising and pruning share: change a graph, train it on, compare with before."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chop.actions.language import AGREEMENT
from chop.actions.model_size import model_size
from chop.cli.checkpoints import save_model
from chop.cli.data import Data, load_data
from chop.cli.failures import UsageError
from chop.cli.session import Session
from chop.cli.source import describe, find_source, load_graph, tokenizer_of
from chop.cli.training import check_fit, fit, forget_checkpoints, measured
from chop.cli.units import with_units
from chop.ir.graph import MaseGraph


@dataclass(frozen=True)
class Compression:
    """`change` compresses the graph and says how; then it trains for `epochs`, called `stage`."""

    name: str
    change: Callable[[MaseGraph, Data | None], dict[str, Any]]
    epochs: float
    stage: str
    is_measured: bool


def compress(config: Any, session: Session, plan: Compression) -> tuple[MaseGraph, dict[str, Any]]:
    """The compressed graph, which is saved, and the record of what was done to it."""
    source = find_source(config)
    data = load_data(config, source.place)
    if data is None and (plan.epochs or plan.is_measured):
        raise UsageError(f"{plan.name}: to measure or train give --dataset.")
    graph = load_graph(config, source, data)
    if data is not None and plan.epochs:
        check_fit(graph, data, config, plan.epochs)
    reference = copy.deepcopy(graph) if config.measure == AGREEMENT else None
    facts = functools.partial(
        _facts, session, graph, data=data, config=config, plan=plan, reference=reference
    )
    before = facts()
    info = plan.change(graph, data)
    stages = {"before": before, "after": facts()}
    if plan.epochs:
        assert data is not None, "checked above"
        info["train"] = fit(graph, data, config, plan.epochs, session, plan.stage)
        stages[f"after {plan.stage}"] = facts()
        forget_checkpoints(session)
    session.start_work()
    last = list(stages)[-1]
    rows = with_units(before_and_after(before, stages[last]))
    session.console.table(rows, disable_numparse=True)
    save_model(graph, session.folder, tokenizer_of(config, source))
    return graph, {**describe(graph, source), **info, "stages": stages}


def _facts(
    session: Session,
    graph: MaseGraph,
    data: Data | None,
    config: Any,
    plan: Compression,
    reference: MaseGraph | None,
) -> dict[str, Any]:
    found = model_size(graph)
    if data is not None and (plan.is_measured or plan.epochs):
        found |= measured(session, graph, data, config, reference)
    return found


def before_and_after(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """Two records of `_facts` as rows of a table."""
    return [
        {"": name.replace("_", " "), "before": _show(before.get(name)), "after": _show(value)}
        for name, value in after.items()
        if value is not None
    ]


def _show(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value if value is not None else "")
