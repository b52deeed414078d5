"""`mase search`: the cheapest formats and sparsities that keep the accuracy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from chop.cli.names import SPELLING, names
from chop.cli.session import Session
from chop.cli.shared_options import DataOptions, ModelOptions, OutputOptions, TrainingOptions
from chop.errors import ConfigError

EXAMPLES = (
    "mase search out/train --dataset digits --formats integer,mxint --trials 40",
    "mase search out/train --dataset digits --formats integer --sparsities 0,0.5,0.9 \\\n"
    "    --costs model_bytes --workers 2 --apply best",
    "mase search --config search.toml --storage postgresql://host/studies",
    "mase search out/train --dataset digits --space hardware --trials 40",
)
SearchMode = Literal[
    "compress",
    "compress->train",
    "train",
    "train->compress",
    "train->compress->train",
]


@dataclass(frozen=True, kw_only=True)
class SearchConfig(ModelOptions, DataOptions, TrainingOptions, OutputOptions):
    """Search."""

    trials: Annotated[int, "Number of trials, those of earlier runs included."] = 20
    sampler: Annotated[str, "Sampler that proposes the trials (`mase list samplers`)."] = field(
        default="tpe", metadata=names("samplers", closed=True)
    )
    pruner: Annotated[
        str,
        "Pruner that stops bad trainings early, by the metric; hypervolume also uses the costs.",
    ] = field(default="none", metadata=names("pruners", closed=True))
    workers: Annotated[int, "Number of parallel processes."] = 1
    engine: Annotated[str, "Processes of this machine, or ray."] = field(
        default="processes", metadata=names("engines", closed=True)
    )
    storage: Annotated[
        str | None, "Storage of the study: a file, or a postgresql:// URL shared by machines."
    ] = None
    name: Annotated[str, "Name of the study in its storage."] = "search"
    timeout: Annotated[float | None, "Seconds after which no trial is started."] = None
    formats: Annotated[
        tuple[str, ...],
        "Number formats to choose from for each layer: names, whose settings are searched, or "
        "spellings as mxint4 and fixed8.4. Default: mxint.",
    ] = field(default=(), metadata=names("formats", check=SPELLING))
    sparsities: Annotated[tuple[float, ...], "Shares of pruned weights to choose from."] = ()
    by: Annotated[
        Literal["name", "type"], "Choose for each layer (name) or for all layers of a type."
    ] = "name"
    ops: Annotated[
        tuple[str, ...] | None,
        "Ops whose formats are searched. Default: those with weights, as linear, conv2d …",
    ] = field(default=None, metadata=names("ops"))
    costs: Annotated[
        tuple[str, ...],
        "Costs to minimise besides the metric: average_bits, model_bytes, cycles, multipliers, "
        "latency, flops …",
    ] = field(default=("average_bits",), metadata=names("costs", closed=True))
    mode: Annotated[SearchMode, "Steps of a trial before it is measured."] = "compress"
    epochs: Annotated[float, "Epochs of each training."] = 1.0
    apply: Annotated[
        str | None,
        "Save the model of one trial: its number, an objective (the best by it), or best.",
    ] = None
    tolerance: Annotated[
        float, "With several objectives, best is the cheapest trial that loses at most this much."
    ] = 0.01
    carbon_intensity: Annotated[
        float,
        "CO2 of this machine's electricity, in grams per kWh. The default is the world's average "
        "of 2024 (Ember).",
    ] = 473.0
    space: Annotated[
        dict[str, Any],
        "Kinds of space to search (`mase list spaces`), such as hardware. A file holds their "
        "tables; --formats and --sparsities are a short form.",
    ] = field(default_factory=dict, metadata=names("spaces", tables=True))
    out: Path = Path("out/search")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.formats or self.sparsities) and self.space:
            raise ConfigError("formats and sparsities exclude 'space'; give one or the other.")


def run(config: SearchConfig, session: Session) -> dict[str, Any]:
    """Run the trials, print the Pareto front, save the chosen model."""
    from chop.actions.trials import evaluated, pareto_front
    from chop.cli import search_run
    from chop.cli.source import describe
    from chop.search.energy import energy_in_words, measure_energy
    from chop.search.study import save_study
    from chop.search.worker_loop import INTERRUPTED

    loaded, evaluator, plan = search_run.prepare(config, session)
    session.start_work()
    with measure_energy() as energy:
        result = search_run.search(config, session, plan)
    if result.stopped == INTERRUPTED:
        raise KeyboardInterrupt
    front = pareto_front(result.trials, result.objectives)
    search_run.show(session.console, result, front)
    if front and search_run.is_of_hardware(plan.space):
        session.console.say(f"\nemit one of them: mase emit {config.out} --trial NUMBER")
    study = dict(result.record)
    applied = search_run.apply_trial(config, study, evaluator, loaded, session)
    if applied is not None:
        study["applied"] = applied["number"]
    save_study(study, session.folder)
    search_run.draw(result, session)
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
