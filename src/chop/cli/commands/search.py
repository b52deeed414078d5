"""`mase search`: the cheapest formats and sparsities that keep the accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from chop.actions.trials import COPIED_FROM, TrialRecord, candidates, pareto_front
from chop.cli.commands.trace import GRAPH
from chop.cli.configs import SearchConfig
from chop.cli.console import Console
from chop.cli.session import Session
from chop.cli.settings import identity
from chop.cli.source import describe
from chop.cli.subject import SubjectMaker, load_subject
from chop.cli.training import check_identity
from chop.report.search import draw_best_so_far, draw_pareto
from chop.search import search as run_search
from chop.search.apply import apply, find_trial
from chop.search.evaluate import (
    ArchitectureEvaluator,
    CompressionEvaluator,
    ModelEvaluator,
    PrecisionEvaluator,
)
from chop.search.loop import INTERRUPTED
from chop.search.space import Space
from chop.search.study import SearchResult

STUDY = "study"
EFFORT = ("trials", "workers", "engine", "timeout", "apply", "tolerance", "storage", "name")
"""Settings that say how much is searched, not what."""
EVALUATORS: dict[str, Callable[..., ModelEvaluator]] = {
    "compress": PrecisionEvaluator,
    "compress->train": partial(PrecisionEvaluator, train_after=True),
    "train": ArchitectureEvaluator,
    "train->compress": partial(CompressionEvaluator, mode="train->compress"),
    "train->compress->train": partial(CompressionEvaluator, mode="train->compress->train"),
}


def run(config: SearchConfig, session: Session) -> dict[str, Any]:
    """Search up to the number of trials, show the front, save the model chosen."""
    source, graph, subject = load_subject(config, "search")
    space = Space.from_config(space_tables(config), "search.space", graph)
    evaluator = EVALUATORS[config.mode](
        subject if config.workers == 1 else SubjectMaker.of(config),
        space,
        costs=config.costs,
        objective=config.metric,
    )
    folder = session.out / STUDY
    check_identity(folder, _question(config), resume=config.resume)
    with session.console.progress("search", config.trials) as progress:
        result = run_search(
            space,
            evaluator,
            objectives(config),
            trials=config.trials,
            name=config.name,
            sampler=config.sampler,
            pruner=config.pruner,
            storage=config.storage or folder / "study.db",
            directory=folder / "trials",
            seed=config.seed,
            workers=config.workers,
            engine=config.engine,
            timeout=config.timeout,
            on_progress=lambda told: progress.to(told.finished, told.describe()),
        )
    if result.stopped == INTERRUPTED:
        raise KeyboardInterrupt
    result.save(session.folder)
    _draw(result, session)
    front = pareto_front(result.trials, result.objectives)
    _show(session.console, result, front)
    applied = _apply(config, result.record, evaluator, session)
    return {
        **describe(graph, source),
        "objectives": dict(result.objectives),
        "finished": len(own_trials(result)),
        "stopped": result.stopped,
        "front": front,
        "applied": applied,
    }


def _question(config: SearchConfig) -> dict[str, Any]:
    return {key: value for key, value in identity(config).items() if key not in EFFORT}


def space_tables(config: SearchConfig) -> Mapping[str, Any]:
    """The tables of the space, as the file gives them or as the flags ask for."""
    if config.space:
        return config.space
    parts: dict[str, Any] = {}
    if config.formats:
        formats = list(config.formats)
        parts["quantize"] = {"formats": formats, "by": config.by, "ops": list(config.ops)}
    if config.sparsities:
        parts["prune"] = {"sparsity": list(config.sparsities)}
    return {"compression": parts}


def objectives(config: SearchConfig) -> dict[str, str]:
    """The metric, to be maximised, unless it is an error; costs, to be minimised."""
    is_error = config.metric in ("mse", "mae")
    direction = "minimize" if is_error else "maximize"
    return {config.metric: direction, **dict.fromkeys(config.costs, "minimize")}


def own_trials(result: SearchResult) -> list[TrialRecord]:
    """The trials that were evaluated: not those that repeat another's point."""
    return [trial for trial in result.trials if COPIED_FROM not in trial["attributes"]]


def _draw(result: SearchResult, session: Session) -> None:
    """The figures of a study that has something to draw."""
    if candidates(result.trials):
        draw_best_so_far(session.folder / "best", {result.sampler: result.record})
        if len(result.objectives) > 1:
            draw_pareto(session.folder / "pareto", result.record)


def _show(console: Console, result: SearchResult, front: list[Any]) -> None:
    rows = [
        {"trial": trial["number"], **trial["values"], "seconds": trial["seconds"]}
        for trial in sorted(front, key=lambda t: list(t["values"].values())[-1])
    ]
    own = own_trials(result)
    failed = [trial for trial in own if trial["state"] == "failed"]
    console.say(f"{len(own)} trials, {len(failed)} failed; not beaten by any other:")
    console.table(rows, floatfmt=".4g")
    if failed:
        console.say(f"the last failure: {failed[-1]['reason']}")


# -- the trial to keep -----------------------------------------------------------------------------


def _apply(
    config: SearchConfig, study: Mapping[str, Any], evaluator: ModelEvaluator, session: Session
) -> dict[str, Any] | None:
    if config.apply is None:
        return None
    trial = choose(study, config.apply, config.tolerance)
    graph = apply(study, int(trial["number"]), evaluator)
    graph.export(session.folder / GRAPH)
    told = ", ".join(f"{name} {value:.4g}" for name, value in trial["values"].items())
    session.console.say(f"\napplied trial {trial['number']}: {told}")
    return dict(trial)


def choose(study: Mapping[str, Any], wanted: str, tolerance: float) -> Mapping[str, Any]:
    """The trial `wanted`: with several objectives, "best" is the cheapest that loses little.

    Little is `tolerance` of the first objective; cheap is by the second.
    """
    names = list(study["objectives"])
    if wanted != "best" or len(names) == 1:
        return find_trial(study, wanted)
    first, second = names[0], names[1]
    sign = {"maximize": 1.0, "minimize": -1.0}
    up, cheap = sign[study["objectives"][first]], sign[study["objectives"][second]]
    top = up * find_trial(study, first)["values"][first]
    near = [
        trial
        for trial in pareto_front(study["trials"], study["objectives"])
        if up * trial["values"][first] >= top - tolerance
    ]
    return max(near, key=lambda trial: cheap * trial["values"][second])
