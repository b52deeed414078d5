"""`mase search`: the cheapest formats and sparsities that keep the accuracy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from chop.actions.metrics import direction_of
from chop.actions.trials import candidates, evaluated, failures, pareto_front
from chop.actions.weighted_layers import weighted_ops
from chop.cli.checkpoints import save_model
from chop.cli.configs import SearchConfig
from chop.cli.console import Console
from chop.cli.hardware_trials import make_evaluator
from chop.cli.model_under_study import ModelAndData, SubjectMaker, load_subject
from chop.cli.runs import question, run_folder
from chop.cli.session import Session
from chop.cli.source import describe, tokenizer_of
from chop.cli.training import measure
from chop.cli.units import titled
from chop.ir.graph import MaseGraph
from chop.report.search import draw_best_so_far, draw_pareto
from chop.search import SearchPlan
from chop.search import search as run_search
from chop.search.apply import apply, check_trial_name, choose_trial
from chop.search.compression import factor
from chop.search.costs import direction_of_cost
from chop.search.energy import energy_in_words, measure_energy
from chop.search.evaluate import EVALUATORS, ModelEvaluator
from chop.search.hardware_evaluate import HardwareEvaluator
from chop.search.hardware_space import HardwareSpace
from chop.search.space import Space, Value
from chop.search.study import SearchResult, check_storage, save_study
from chop.search.worker_loop import INTERRUPTED

STUDY = "study"
DEFAULT_FORMATS = ("mxint",)
"""What is searched where nothing is said: one format that hardware and kernels have, by width."""
EFFORT = (
    *("trials", "workers", "engine", "timeout", "apply", "tolerance", "storage", "name"),
    "carbon_intensity",
)
"""Settings that say how much is searched, not what."""


def run(config: SearchConfig, session: Session) -> dict[str, Any]:
    """Search up to the number of trials, show the front, save the model chosen."""
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
    measure(loaded.graph, loaded.data.few(), config, loaded.graph)
    if session.is_dry:
        check_storage(plan, session.folder)
    session.start_work()
    with measure_energy() as energy:
        result = _search(config, session, plan)
    if result.stopped == INTERRUPTED:
        raise KeyboardInterrupt
    front = pareto_front(result.trials, result.objectives)
    _show(session.console, result, front)
    if front and factor(space, HardwareSpace) is not None:
        session.console.say(f"\nemit one of them: mase emit {config.out} --trial NUMBER")
    study = dict(result.record)
    applied = _apply(config, study, evaluator, loaded, session)
    if applied is not None:
        study["applied"] = applied["number"]
    save_study(study, session.folder)
    _draw(result, session)
    spent = energy.record(config.carbon_intensity)
    session.console.say(f"\n{energy_in_words(spent)}")
    return {
        **describe(loaded.graph, loaded.source),
        "objectives": dict(result.objectives),
        "finished": len(evaluated(result.trials)),
        "stopped": result.stopped,
        "front": front,
        "applied": applied,
        "energy": spent,
    }


def _evaluator(config: SearchConfig, loaded: ModelAndData, space: Space) -> ModelEvaluator:
    """What a point is worth: as a model, or as a design where the space is one of hardware."""
    if factor(space, HardwareSpace) is not None:
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
    """Return the search that a configuration asks for, without its folder."""
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
        about=question(config, loaded.graph, loaded.data, leave_out=EFFORT),
    )


def _search(config: SearchConfig, session: Session, plan: SearchPlan) -> SearchResult:
    folder = run_folder(session.out / STUDY, plan.about, resume=config.resume)
    storage = plan.storage or folder / "study.db"
    plan = dataclasses.replace(plan, storage=storage, directory=folder / "trials")
    with session.console.progress("search", config.trials) as progress:
        result: SearchResult = run_search(
            plan,
            on_reused=lambda known: session.console.say(
                f"{known} trials were evaluated before with this model, data and settings; "
                "--no-resume starts afresh."
            ),
            on_progress=lambda told: progress.to(told.finished, told.describe()),
        )
    return result


def _initial(space: Space, trials: int) -> list[dict[str, Value]]:
    """Designs to begin with, at most half of the trials."""
    found = factor(space, HardwareSpace)
    if found is None or found is not space:
        return []  # a point has to name every dimension
    return found.initial()[: max(1, trials // 2)]


def space_tables(config: SearchConfig, graph: MaseGraph) -> Mapping[str, Any]:
    """The tables of the space, as the file gives them, as the flags ask for, or the default."""
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
    """What is searched, for people."""
    parts = tables.get("compression")
    if not isinstance(parts, Mapping):
        return ", ".join(tables)
    told = []
    if isinstance(parts.get("quantize"), Mapping):
        rules = parts["quantize"]
        told.append(
            f"formats {', '.join(map(str, rules.get('formats', ())))} for "
            f"{', '.join(map(str, rules.get('ops', ('linear',))))} by {rules.get('by', 'name')}"
        )
    if isinstance(parts.get("prune"), Mapping):
        told.append(f"sparsity {parts['prune'].get('sparsity')}")
    return "; ".join(told) or "compression"


def _draw(result: SearchResult, session: Session) -> None:
    """The figures of a study that has something to draw."""
    if candidates(result.trials):
        draw_best_so_far(session.folder / "best", {result.sampler: result.record})
        first, *rest = result.objectives
        for number, cost in enumerate(rest):
            name = f"pareto_{cost}" if number else "pareto"
            draw_pareto(session.folder / name, result.record, cost, first)


def _show(console: Console, result: SearchResult, front: list[Any]) -> None:
    rows = [
        titled({"trial": trial["number"], **trial["values"], "seconds": trial["seconds"]})
        for trial in sorted(front, key=lambda t: list(t["values"].values())[-1])
    ]
    own, failed = evaluated(result.trials), failures(result.trials)
    ended = sum(trial["state"] == "pruned" for trial in own)
    pruned = f", {ended} ended early" if ended else ""
    console.say(f"{len(own)} trials, {len(failed)} failed{pruned}; not beaten by any other:")
    console.table(rows, floatfmt=".4g")
    if failed:
        console.say(f"the last failure: {failed[-1]['reason']}")
    hopeless = [t for t in own if t["state"] == "pruned" and t["reason"]]
    if hopeless:
        last = hopeless[-1]
        console.say(f"the last that ended early, trial {last['number']}: {last['reason']}")


# -- the trial to keep -----------------------------------------------------------------------------


def _apply(
    config: SearchConfig,
    study: Mapping[str, Any],
    evaluator: ModelEvaluator,
    loaded: ModelAndData,
    session: Session,
) -> dict[str, Any] | None:
    """Save the model of the chosen trial, and measure it on the test rows: the only time."""
    if config.apply is None:
        return None
    trial = choose_trial(study, config.apply, config.tolerance)
    graph = apply(study, int(trial["number"]), evaluator)
    save_model(graph, session.folder, tokenizer_of(config, loaded.source))
    test = {
        "rows": len(loaded.data.test),
        "uncompressed": measure(loaded.graph, loaded.data, config, loaded.graph)[config.measure],
        "applied": measure(graph, loaded.data, config, loaded.graph)[config.measure],
    }
    told = ", ".join(f"{name} {value:.4g}" for name, value in trial["values"].items())
    session.console.say(
        f"\napplied trial {trial['number']}: {told} (validation rows)\n"
        f"on {test['rows']} test rows: {config.measure} {test['applied']:.4f}, "
        f"uncompressed {test['uncompressed']:.4f}"
    )
    return {**trial, "test": test}
