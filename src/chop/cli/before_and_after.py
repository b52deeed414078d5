"""Compression of a model: change its graph, train it, compare with before, save it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chop.actions.language import AGREEMENT
from chop.actions.model_size import model_size
from chop.cli.checkpoints import save_model
from chop.cli.data import Data
from chop.cli.failures import UsageError
from chop.cli.session import Session
from chop.cli.source import describe, load, tokenizer_of
from chop.cli.train_and_measure import (
    check_fit,
    fit,
    forget_checkpoints,
    measured,
    rows_to_measure,
)
from chop.cli.units import with_units
from chop.ir.graph import MaseGraph


@dataclass(frozen=True)
class Compression:
    """`change` compresses the graph and returns a record; training for `epochs` follows.

    `stage`: name of that training. `is_measured`: evaluate before and after. `save_format`: that of
    `MaseGraph.export`.
    """

    name: str
    change: Callable[[MaseGraph, Data | None], dict[str, Any]]
    epochs: float
    stage: str
    is_measured: bool
    save_format: str = "graph"


def compress(config: Any, session: Session, plan: Compression) -> tuple[MaseGraph, dict[str, Any]]:
    """Compress, compare and save a model; return its graph and the record."""
    if config.dataset is None and (plan.epochs or plan.is_measured):
        raise UsageError(f"{plan.name}: to measure or train give --dataset.")
    source, data, graph = load(config)
    if data is not None and plan.epochs:
        check_fit(graph, data, config, plan.epochs)
    reference = copy.deepcopy(graph) if config.measure == AGREEMENT else None
    tested = None
    if data is not None and (plan.is_measured or plan.epochs):
        tested = rows_to_measure(session, graph, data, config)

    def facts() -> dict[str, Any]:
        record = model_size(graph)
        if tested is not None:
            record |= measured(session, graph, tested, config, reference)
        return record

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
    table = with_units(before_and_after(before, stages[last]))
    session.console.table(table, disable_numparse=True)
    save_model(session, graph, tokenizer_of(config, source), save_format=plan.save_format)
    rows = {} if tested is None else {"rows": len(tested.test)}
    return graph, {**describe(graph, source), **info, **rows, "stages": stages}


def before_and_after(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """Return two records of facts as the rows of a table."""
    return [
        {"": name.replace("_", " "), "before": _show(before.get(name)), "after": _show(value)}
        for name, value in after.items()
        if value is not None
    ]


def _show(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value if value is not None else "")
