"""`mase explain`: which layers make a quantised model worse, and what would help."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from chop.cli.session import Session
from chop.cli.shared_options import DataOptions, ModelOptions, OutputOptions
from chop.errors import ConfigError

EXAMPLES = (
    "mase explain out/quantize --dataset digits",
    "mase explain out/quantize --dataset digits --against out/train --rows 256",
)


SAME_LAYERS = "the same layers without their formats"
ROUNDED = (
    "explain: the saved weights of '{model}' are rounded, and {why}. Give --against with the model "
    "before quantisation."
)


@dataclass(frozen=True, kw_only=True)
class ExplainConfig(ModelOptions, DataOptions, OutputOptions):
    """Analysis."""

    against: Annotated[
        str | None,
        "The float model. Default: the one that the run in the folder was made from; for saved "
        "float weights, the same layers without their formats.",
    ] = None
    rows: Annotated[int, "Number of training rows to run."] = 64
    share: Annotated[float, "Skip layer groups that cause less than this share of the loss."] = 0.02
    most: Annotated[int, "Largest number of layers to analyse."] = 8
    out: Path = Path("out/explain")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows < 1:
            raise ConfigError(f"rows must be at least 1, got {self.rows}.")


def run(config: ExplainConfig, session: Session) -> dict[str, Any]:
    """Measure the loss of each layer, print the worst with advice, and draw them."""
    from chop.actions.explain_figure import explain_figure
    from chop.actions.records import write_csv
    from chop.cli.source import describe, load_with_data
    from chop.passes import explain_analysis_pass

    source, data, graph = load_with_data(config, "explain")
    against, reference = _float_model(config, graph, data)
    rows = min(config.rows_measured_at_once, config.rows)
    batches = data.batches(graph.model, rows, -(-config.rows // rows))
    session.start_work()
    settings = {"reference": reference, "share": config.share, "most": config.most}
    with session.console.progress(f"explain on {config.rows} rows"):
        _, info = explain_analysis_pass(graph, {"data": batches, **settings})
    session.console.say(f"compared with {against}")
    _print(session, info)
    _print_notes_of_run(session, Path(source.name))
    write_csv(session.folder / "layers.csv", [_flat(row) for row in info["layers"]])
    write_csv(session.folder / "kernels.csv", info["kernels"])
    explain_figure(info["loss"], info["layers"], session.folder / "explain.svg")
    return {**describe(graph, source), "against": against, "explained": info}


def _float_model(config: ExplainConfig, graph: Any, data: Any) -> tuple[str, Any]:
    """Return the name of the float model and its graph; None for the layers without formats."""
    from chop.cli.failures import SourceError
    from chop.cli.source import find_source, load_graph
    from chop.passes.ptq.observe.quantized_parts import has_rounded_weights

    name = config.against
    if name is None and not has_rounded_weights(graph):
        return SAME_LAYERS, None
    name = name or _model_before(Path(str(config.model)))
    if name is None:
        raise ConfigError(ROUNDED.format(model=config.model, why="no file names the float model"))
    other = dataclasses.replace(config, model=name)
    try:
        return name, load_graph(other, find_source(other), data)
    except SourceError as error:
        if config.against is not None:
            raise
        why = f"its float model '{name}' is not there"
        raise ConfigError(ROUNDED.format(model=config.model, why=why)) from error


def _model_before(folder: Path) -> str | None:
    """Return the model that the run in `folder` quantised; None if it is unknown."""
    from chop.cli.execute import CONFIG
    from chop.cli.settings import read_table

    file = folder / CONFIG
    name = read_table(file, "quantize").get("model") if file.is_file() else None
    return name if isinstance(name, str) and name != "NA" else None


def _print(session: Session, info: dict[str, Any]) -> None:
    say, table = session.console.say, session.console.table
    say(f"divergence from the float model: {info['loss']:.3g} nats a row ({info['runs']} runs)")
    if not info["layers"]:
        say("no layer stands out.")
    table([_flat(row) for row in info["layers"]])
    for row in info["layers"]:
        say(f"{row['layer']}: {'; or '.join(row['advice'])}")
    say("\nkernels of the layers on this machine, compared with float:")
    table([_kernel(row) for row in info["kernels"]])


def _print_notes_of_run(session: Session, folder: Path) -> None:
    """Print what the run in `folder` found: layers in a wider format, and methods that were worse.

    A layer is named with a method if rounding to nearest was better.
    """
    from chop.actions.post_training import FALLBACKS
    from chop.actions.wider_layers import WIDER, wider_text
    from chop.cli.execute import RESULT
    from chop.errors import ChopError
    from chop.files import read_json

    file = folder / RESULT
    content = read_json(file, ChopError) if file.is_file() else {}
    record = content if isinstance(content, dict) else {}
    by_method = record.get(FALLBACKS)
    for name, modules in (by_method if isinstance(by_method, dict) else {}).items():
        session.console.say(
            f"\n{name}: rounding to nearest was better on held-back rows, and was kept for "
            f"{', '.join(map(str, modules))}"
        )
    wider = record.get(WIDER)
    text = wider_text(wider) if isinstance(wider, dict) else ""
    if text:
        session.console.say(f"\nwhen it was quantised: {text}")


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "layer": row["layer"],
        "loss alone (nats)": f"{row['loss']:.3g}",
        "model without it (nats)": f"{row['without']:.3g}",
        **{f"{role} alone (nats)": f"{loss:.3g}" for role, loss in row["operands"].items()},
    }


def _kernel(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "layer": row["layer"],
        "alike": row["alike"],
        "kernel": row["kernel"],
        "time (ms)": f"{row['seconds'] * 1e3:.3g}",
        "float (ms)": f"{row['float_seconds'] * 1e3:.3g}",
        "": f"{row['ratio']:.2f} of float: {'faster' if row['ratio'] < 1 else 'slower'}",
    }
