"""Plans as small JSON documents: save, load at the shapes of a graph, compare.

A document has a version, the mesh with its cost constants, the shapes it was planned for, and what
the plan decides. Loading always prices the plan again for the graph that it is loaded for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from chop.arguments import an, takes
from chop.distributed.domains import Option, Setting, options_of, structure_of
from chop.distributed.layouts import Use
from chop.distributed.mesh import Mesh
from chop.distributed.plan import Plan
from chop.distributed.pricing import Decisions, price_decisions
from chop.distributed.program import Program, program_of
from chop.distributed.strategies import Strategy
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph

VERSION = 3
"""Version of the document.

| version | adds |
|---|---|
| 1 | `Plan.record()` alone |
| 2 | version, shapes, published, recomputed |
| 3 | `cuts` of a strategy, `overlaps` of the mesh |
"""
SAME_COST = 1e-9
"""Relative difference up to which two costs are equal."""


@dataclass(frozen=True)
class LoadedPlan:
    """Plan of a document, priced for a graph.

    `changed_shapes`: values whose shape differs from the document, with both shapes.
    `saved_seconds`: step time in the document.
    """

    plan: Plan
    changed_shapes: Mapping[str, tuple[Any, Any]]
    saved_seconds: float


@takes(plan=an(Plan), graph=an(MaseGraph))
def plan_document(plan: Plan, graph: MaseGraph) -> dict[str, Any]:
    """Return the plan as JSON data with its version and the shapes of `graph`."""
    record = plan.record()
    record["cost"] = {n: v for n, v in record["cost"].items() if n != "talks"}
    return {"version": VERSION, "shapes": _shapes(program_of(graph)), **record}


def _shapes(program: Program) -> dict[str, list[int]]:
    """Return the shapes of inputs and parameters; all others follow from them."""
    own = [v for v in program.values if not v.references and v.call.results]
    return {value.name: list(value.call.result) for value in own}


@takes(graph=an(MaseGraph))
def load_plan(document: Mapping[str, Any], graph: MaseGraph) -> LoadedPlan:
    """Return the plan of a document, priced at the shapes of an annotated graph.

    The bound of the document is valid only for its shapes and its cost: otherwise it is dropped.
    """
    version = document.get("version", 1)
    if version not in range(1, VERSION + 1):
        raise ConfigError(
            f"plan: version {version!r} of the document is unknown. Known: 1 to {VERSION}. Update "
            "MASE to read a plan of a newer version, or plan again."
        )
    program = program_of(graph)
    settings: dict[str, Any] = dict(_part(document, "mesh"))
    settings |= {n: tuple(v) for n, v in settings.items() if isinstance(v, list)}
    mesh = Mesh(**_known(settings, Mesh, "mesh"))
    training = bool(document.get("training", True))
    decisions = _decisions(document)
    _check(program, Setting(mesh, training, shards_states=True), decisions)
    cost = price_decisions(program, mesh, decisions, training=training)
    saved = float(dict(_part(document, "cost")).get("step_seconds", 0.0))
    is_same = abs(cost.step_seconds - saved) <= SAME_COST * max(saved, cost.step_seconds)
    plan = Plan(
        mesh,
        training,
        decisions.options,
        cost,
        is_same and bool(document.get("is_exact", False)),
        cost.step_seconds,
        float(document.get("bound_seconds", 0.0)) if is_same else 0.0,
        decisions.published,
        tuple(tuple(names) for names in decisions.recomputed),
    )
    return LoadedPlan(plan, _changed(document.get("shapes", {}), _shapes(program)), saved)


def _part(document: Mapping[str, Any], name: str) -> Any:
    if not isinstance(document.get(name), Mapping):
        raise ConfigError(f"plan: no '{name}' in the document. It is not a sharding plan.")
    return document[name].items()


def _known(data: Mapping[str, Any], owner: type, where: str) -> dict[str, Any]:
    """Return `data` if `owner` has all of its fields; raise a ConfigError for others."""
    names = [field.name for field in fields(owner)]
    unknown = [name for name in data if name not in names]
    if unknown:
        raise ConfigError(
            f"plan: {where} has unknown keys {unknown}. Known: {', '.join(names)}. A newer MASE "
            "may have written it."
        )
    return dict(data)


def _decisions(document: Mapping[str, Any]) -> Decisions:
    options = {
        name: tuple(Strategy(**_known(s, Strategy, f"strategy of '{name}'")) for s in each)
        for name, each in _part(document, "strategies")
    }
    shared = {
        name: tuple(Use(*use) for use in uses)
        for name, uses in document.get("published", {}).items()
    }
    return Decisions(options, shared, [tuple(n) for n in document.get("recomputed", [])])


def _check(program: Program, setting: Setting, decisions: Decisions) -> None:
    """Raise a ConfigError if the plan is not one of the graph or does not divide its shapes."""
    names = [value.name for value in program.values]
    unknown = [n for n in decisions.options if n not in names]
    missing = [n for n in names if n not in decisions.options]
    if unknown or missing:
        raise ConfigError(
            f"plan: it is for another model. Values that the model does not have: {unknown[:3]}; "
            f"values without a strategy: {missing[:3]}."
        )
    options: dict[Any, list[Option]] = {}
    for value in program.values:
        key = structure_of(value)
        if key not in options:
            options[key] = options_of(value, setting)
        option = decisions.options[value.name]
        if option not in options[key]:
            raise ConfigError(
                f"plan: value '{value.name}' of shape {list(value.call.result)} cannot be split as "
                f"{' × '.join(s.name for s in option)} over {list(setting.mesh.shape)} devices. "
                "Plan again at these shapes."
            )


def _changed(
    before: Mapping[str, list[int]], after: Mapping[str, list[int]]
) -> dict[str, tuple[Any, Any]]:
    names = [n for n in after if n in before and before[n] != after[n]]
    return {name: (before[name], after[name]) for name in names}


def pins_of(words: Mapping[str, str], program: Program, mesh: Mesh) -> dict[str, Option]:
    """Return pinned strategies from words: value -> names of strategies, one per axis, by "/".

    "split 0/column" splits the batch along the first axis and columns along the second.
    """
    values = {value.name: value for value in program.values}
    pins = {}
    for name, text in words.items():
        if name not in values:
            raise ConfigError(f"pin '{name}': no such value in the model.")
        options = options_of(values[name], Setting(mesh))
        strategies = [part.strip() for part in text.split("/")]
        match = [o for o in options if [s.name for s in o] == strategies]
        if not match:
            allowed = sorted({" / ".join(s.name for s in o) for o in options})
            raise ConfigError(f"pin '{name}': no strategy '{text}'. Known: {', '.join(allowed)}.")
        pins[name] = match[0]
    return pins


@takes(before=an(Plan), after=an(Plan))
def plan_differences(before: Plan, after: Plan) -> list[dict[str, str]]:
    """Return one record per value whose strategies differ; a value that is missing has none."""
    names = dict.fromkeys([*before.strategies, *after.strategies])
    rows = [{"value": n, "before": _words(before, n), "after": _words(after, n)} for n in names]
    return [row for row in rows if row["before"] != row["after"]]


def _words(plan: Plan, name: str) -> str:
    option = plan.strategies.get(name)
    if option is None:
        return "none"
    text = " × ".join(s.name for s in option)
    is_freed = any(s.is_freed for s in option)
    is_again = any(name in names for names in plan.recomputed)
    return text + ", freed" * is_freed + ", recomputed" * is_again
