"""Parts of `mase search`: its space, its evaluation of trials, its figures, the model to save."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from chop.actions.metrics import direction_of
from chop.actions.trials import candidates, evaluated, failures
from chop.actions.weighted_layers import weighted_ops
from chop.cli.checkpoints import save_model
from chop.cli.commands.search import SearchConfig
from chop.cli.console import Console
from chop.cli.hardware_trials import make_evaluator
from chop.cli.run_identity import run_folder, run_identity
from chop.cli.session import Session
from chop.cli.source import tokenizer_of
from chop.cli.subjects import ModelAndData, SubjectMaker, load_subject
from chop.cli.train_and_measure import measure
from chop.cli.units import titled
from chop.ir.graph import MaseGraph
from chop.report.search_figures import draw_best_so_far, draw_pareto
from chop.search import SearchPlan
from chop.search import search as run_search
from chop.search.apply import apply, check_trial_name, choose_trial
from chop.search.compression import factor
from chop.search.costs import direction_of_cost
from chop.search.evaluate import EVALUATORS, ModelEvaluator
from chop.search.hardware_evaluate import HardwareEvaluator
from chop.search.hardware_space import HardwareSpace
from chop.search.space import ParameterValue, Space
from chop.search.study import SearchResult, check_storage

STUDY = "study"
DEFAULT_FORMATS = ("mxint",)
"""Format to search by width if no option names one: hardware and kernels both have it."""
EFFORT = (
    *("trials", "workers", "engine", "timeout", "apply", "tolerance", "storage", "name"),
    "carbon_intensity",
)
"""Settings that decide how long to search, not what."""


def prepare(
    config: SearchConfig, session: Session
) -> tuple[ModelAndData, ModelEvaluator, SearchPlan]:
    """Load the model and the data, and check the whole search before its first trial."""
    loaded = load_subject(config, "search")
    tables = space_tables(config, loaded.graph)
    space = Space.from_config(tables, "search.space", loaded.graph)
    session.console.note(f"space: {space_in_words(tables)}, {len(space.dimensions)} dimensions")
    evaluator = _evaluator(config, loaded, space)
    is_partial = isinstance(evaluator, HardwareEvaluator)
    if config.pruner != "none" and "train" not in config.mode and not is_partial:
        session.console.note(f"--pruner stops trainings, and --mode {config.mode} has none")
    plan = _plan(config, loaded, space, evaluator)
    check_trial_name(config.apply, plan.objectives, config.name)
    measure(loaded.graph, loaded.data.few(loaded.graph), config, loaded.graph)
    if session.is_dry:
        check_storage(plan, session.folder)
    return loaded, evaluator, plan


def is_of_hardware(space: Space) -> bool:
    """Return True if the search chooses designs."""
    return factor(space, HardwareSpace) is not None


def _evaluator(config: SearchConfig, loaded: ModelAndData, space: Space) -> ModelEvaluator:
    if is_of_hardware(space):
        return make_evaluator(config, loaded, space)
    return EVALUATORS[config.mode](
        loaded.subject if config.workers == 1 else SubjectMaker.of(config),
        space,
        costs=config.costs,
        objective=config.measure,
    )


def _plan(
    config: SearchConfig, loaded: ModelAndData, space: Space, evaluator: ModelEvaluator
) -> SearchPlan:
    """Return the search of a configuration, without its folder."""
    return SearchPlan(
        space,
        evaluator,
        {
            config.measure: direction_of(config.measure),
            **{name: direction_of_cost(name) for name in evaluator.costs},
        },
        trials=config.trials,
        name=config.name,
        sampler=config.sampler,
        pruner=config.pruner,
        storage=config.storage,
        seed=config.seed,
        workers=config.workers,
        engine=config.engine,
        timeout=config.timeout,
        initial=_initial(space, config.trials),
        about=run_identity(config, loaded.graph, loaded.data, leave_out=EFFORT),
    )


def search(config: SearchConfig, session: Session, plan: SearchPlan) -> SearchResult:
    """Run the trials of a plan, or resume them."""
    folder = run_folder(session.out / STUDY, plan.about, resume=config.resume)
    storage = plan.storage or folder / "study.db"
    plan = dataclasses.replace(plan, storage=storage, directory=folder / "trials")
    with session.console.progress("search", config.trials) as progress:
        result: SearchResult = run_search(
            plan,
            on_reused=lambda count: session.console.say(
                f"{count} trials were evaluated before with this model, data and settings; "
                "--no-resume starts afresh."
            ),
            on_progress=lambda state: progress.to(state.finished, state.describe()),
        )
    return result


def _initial(space: Space, trials: int) -> list[dict[str, ParameterValue]]:
    """Return designs to start with, at most half of the trials."""
    hardware = factor(space, HardwareSpace)
    if hardware is None or hardware is not space:
        return []  # a point has to name every dimension
    return hardware.initial()[: max(1, trials // 2)]


def space_tables(config: SearchConfig, graph: MaseGraph) -> Mapping[str, Any]:
    """Return the tables of the space: those of the file, those of the flags, or the default."""
    if config.space:
        return config.space
    parts: dict[str, Any] = {}
    if config.formats or not config.sparsities:
        formats, ops = list(config.formats or DEFAULT_FORMATS), config.ops or weighted_ops(graph)
        parts["quantize"] = {"formats": formats, "by": config.by, "ops": list(ops)}
    if config.sparsities:
        parts["prune"] = {"sparsity": list(config.sparsities)}
    return {"compression": parts}


def space_in_words(tables: Mapping[str, Any]) -> str:
    """Return a short description of a space."""
    parts = tables.get("compression")
    if not isinstance(parts, Mapping):
        return ", ".join(tables)
    words = []
    rules = parts.get("quantize")
    if isinstance(rules, Mapping):
        words.append(
            f"formats {', '.join(map(str, rules.get('formats', ())))} for "
            f"{', '.join(map(str, rules.get('ops', ('linear',))))} by {rules.get('by', 'name')}"
        )
    if isinstance(parts.get("prune"), Mapping):
        words.append(f"sparsity {parts['prune'].get('sparsity')}")
    return "; ".join(words) or "compression"


def draw(result: SearchResult, session: Session) -> None:
    """Draw the best value so far and the Pareto fronts, if a trial has a result."""
    if candidates(result.trials):
        draw_best_so_far(session.folder / "best", {result.sampler: result.record})
        first, *rest = result.objectives
        for number, cost in enumerate(rest):
            name = f"pareto_{cost}" if number else "pareto"
            draw_pareto(session.folder / name, result.record, cost, first)


def show(console: Console, result: SearchResult, front: list[Any]) -> None:
    """Print the Pareto front, and why trials failed or ended early."""
    rows = [
        titled({"trial": trial["number"], **trial["values"], "seconds": trial["seconds"]})
        for trial in sorted(front, key=lambda t: list(t["values"].values())[-1])
    ]
    own, failed = evaluated(result.trials), failures(result.trials)
    stopped = [trial for trial in own if trial["state"] == "pruned"]
    early = f", {len(stopped)} ended early" if stopped else ""
    console.say(f"{len(own)} trials, {len(failed)} failed{early}; not beaten by any other:")
    console.table(rows, floatfmt=".4g")
    if failed:
        console.say(f"the last failure: {failed[-1]['reason']}")
    for last in [trial for trial in stopped if trial["reason"]][-1:]:
        console.say(f"the last that ended early, trial {last['number']}: {last['reason']}")


def apply_trial(
    config: SearchConfig,
    study: Mapping[str, Any],
    evaluator: ModelEvaluator,
    loaded: ModelAndData,
    session: Session,
) -> dict[str, Any] | None:
    """Save the model of the chosen trial and evaluate it on the test rows, the only time."""
    if config.apply is None:
        return None
    trial = choose_trial(study, config.apply, config.tolerance)
    graph = apply(study, int(trial["number"]), evaluator)
    save_model(session, graph, tokenizer_of(config, loaded.source))
    test = {
        "rows": len(loaded.data.test),
        "uncompressed": measure(loaded.graph, loaded.data, config, loaded.graph)[config.measure],
        "applied": measure(graph, loaded.data, config, loaded.graph)[config.measure],
    }
    values = ", ".join(f"{name} {value:.4g}" for name, value in trial["values"].items())
    session.console.say(
        f"\napplied trial {trial['number']}: {values} (validation rows)\n"
        f"on {test['rows']} test rows: {config.measure} {test['applied']:.4f}, "
        f"uncompressed {test['uncompressed']:.4f}"
    )
    return {**trial, "test": test}
