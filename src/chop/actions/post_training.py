"""Quantise with data and without training: formats under a budget, weights rounded by effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chop.actions.weight_budget import WeightBudget
from chop.errors import ConfigError, RegistryError
from chop.ir.graph import MaseGraph
from chop.ir.trace.environment import evaluation_mode
from chop.log import get_logger
from chop.passes import (
    allocate_bits_analysis_pass,
    calibrate_analysis_pass,
    clip_transform_pass,
    correct_bias_transform_pass,
    equalize_transform_pass,
    fuse_conv_bn_transform_pass,
    gptq_transform_pass,
    learned_rounding_transform_pass,
    quantize_transform_pass,
    rotate_transform_pass,
    sensitivity_analysis_pass,
    smooth_transform_pass,
)
from chop.passes.rewrite.lift_layers import lift_products
from chop.registry import Registry, suggest

logger = get_logger(__name__)

WIDTHS = (2, 3, 4, 5, 6, 8)
"""Bits of a weight's elements to choose from, layer by layer."""
BUDGET_FORMATS = ("mxint", "block_fp")
"""Formats that an average of bits can be asked of: a width, and exponents shared by blocks."""


CALIBRATE = "calibrate"
"""The key of the observer's options."""


def weight_formats(name: str) -> dict[str, dict[str, Any]]:
    """Configs of a layer whose weight alone is in the format `name`, one for each width."""
    if name not in BUDGET_FORMATS:
        raise ConfigError(
            f"quantize.bits: chooses widths of {' or '.join(BUDGET_FORMATS)}, not of '{name}'."
        )
    return {
        f"{name}{width}": {
            "name": name,
            "weight_width": width,
            "data_in_width": "NA",
            "bias_width": "NA",
        }
        for width in WIDTHS
    }


def rules_for_bits(
    graph: MaseGraph, batches: Sequence[Any], bits: float, form: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arguments of quantize_transform_pass for `bits` per weight on average, and the costs.

    The average is over all weights of the model: matrices, kernels and tables of embeddings. Those
    that no width can be chosen for stay floats and count as such; biases and norms do not count.
    Of all assignments of widths to layers it is the one with the least predicted loss.
    """
    formats = weight_formats(form)
    budget = WeightBudget.of(graph, formats)
    budget.check(bits)
    _, found = sensitivity_analysis_pass(graph, {"data": batches, "formats": formats})
    table = budget.merged(found["table"])
    args = {"table": table, "formats": formats, "budget": budget.chosen_bits(bits)}
    _, chosen = allocate_bits_analysis_pass(graph, args)
    told = {
        "assignment": budget.spread(chosen["assignment"]),
        "bits": budget.overall_bits(chosen["cost"]),
        "weights": budget.total,
        "floats": budget.total - budget.covered,
        "loss": chosen["loss"],
    }
    rules = {node: {"config": dict(formats[label])} for node, label in told["assignment"].items()}
    record = sensitivity_record(found["table"], told)
    return {"by": "name", **rules}, {**told, "sensitivity": record}


def sensitivity_record(
    table: Sequence[Mapping[str, Any]], told: Mapping[str, Any]
) -> dict[str, Any]:
    """What reports show of an allocation: the loss of each layer in each format, and the choice."""
    layer_of = {row["node"]: row["module"] for row in table}
    keys = ("format", "elements", "bits", "loss")
    return {
        "table": [{"layer": row["module"], **{key: row[key] for key in keys}} for row in table],
        "assignment": {layer_of[node]: label for node, label in told["assignment"].items()},
        "bits": told["bits"],
        "loss": told["loss"],
    }


@dataclass(frozen=True)
class Settings:
    """What a method may ask for.

    `rules`: the arguments of quantize_transform_pass that the graph is quantised by. `options`:
    further arguments of the method's own pass. `keep`: a folder for finished layers.
    """

    rules: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    keep: Path | None = None


When = Literal["before", "after"]
Run = Callable[[MaseGraph, Sequence[Any], Settings], dict[str, Any]]


@dataclass(frozen=True)
class Method:
    """One way to keep accuracy without training; it changes the graph, and gives its records.

    `when`: on the float graph, before layers are quantised, or on the quantised one.
    """

    run: Run
    when: When

    @property
    def label(self) -> str:
        """What it does, in one line."""
        return (self.run.__doc__ or "").split("\n")[0]


METHODS: Registry[Method] = Registry("method")
"""Every method of `mase quantize --method` and of `quantize_with_data`, by name.

To add one, write `function(graph, batches, settings) -> records` under `@method(name, when=…)`.
"""


def method(name: str, *, when: When) -> Callable[[Run], Run]:
    """Register a function as the method `name`."""

    def add(run: Run) -> Run:
        METHODS.register(name, Method(run, when))
        return run

    return add


@method("nearest", when="after")
def _nearest(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Each weight at the nearest value of its format."""
    return {}


@method("rotate", when="before")
def _rotate(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """The residual stream and values within heads rotated, so that no channel stands out."""
    _, rotated = rotate_transform_pass(graph, dict(settings.options))
    return {"rotated": rotated}


@method("equalize", when="before")
def _equalize(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Channels between layers scaled so that both weights have the same range in each."""
    _, equalized = equalize_transform_pass(graph, dict(settings.options))
    return {"equalized": equalized["pairs"]}


@method("clip", when="after")
def _clip(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Ranges of weights searched, the largest clipped where that is better for the rest."""
    _, clipped = clip_transform_pass(graph, {**settings.options, "data": batches})
    return {"layers": clipped["layers"]}


@method("correct_bias", when="after")
def _correct_bias(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """The mean error of each channel of a layer's output put into its bias."""
    _, corrected = correct_bias_transform_pass(graph, {**settings.options, "data": batches})
    return {"biases": corrected["layers"]}


@method("gptq", when="after")
def _gptq(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Weights rounded one column after the other, each making up for the errors before it."""
    _, rounded = gptq_transform_pass(
        graph, {"keep": settings.keep, **settings.options, "data": batches}
    )
    return {"layers": rounded["layers"]}


@method("learned_rounding", when="after")
def _learned(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Rounding and ranges of weights learned block by block, from the float model's values."""
    _, learned = learned_rounding_transform_pass(
        graph, {"keep": settings.keep, **settings.options, "data": batches}
    )
    return {"blocks": learned["blocks"]}


@method("fold_batch_norm", when="before")
def _fold(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Batch norms taken into the convolutions before them: what is rounded is what will run."""
    with evaluation_mode(graph.model):  # by the running statistics
        _, info = fuse_conv_bn_transform_pass(graph)
    return {"folded": info["fused"]}


@method("smooth", when="before")
def _smooth(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Scales moved from activations into weights, so that both are rounded less."""
    given = {**settings.rules, **settings.options, "data": batches}
    _, moved = smooth_transform_pass(graph, given)
    return {"smooth": moved["sites"]}


@method("awq", when="before")
def _awq(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Columns of weights that strong activations read made larger, so that they err less."""
    given = {**settings.rules, "style": "awq", **settings.options, "data": batches}
    _, moved = smooth_transform_pass(graph, given)
    return {"awq": moved["sites"]}


def methods_named(given: str | Sequence[str]) -> dict[str, Method]:
    """The methods that `given` names: one, several, or a text with commas; an unknown one is told.

    >>> list(methods_named("nearest,gptq"))
    ['nearest', 'gptq']
    """
    names = given.split(",") if isinstance(given, str) else list(given)
    try:
        return {name.strip(): METHODS[name.strip()] for name in names}
    except RegistryError as error:
        raise ConfigError(f"quantize.method: {error}") from error


def check_options(options: Mapping[str, Any]) -> None:
    """Raise where `options` has the key of no method."""
    known = (*METHODS, CALIBRATE)
    unknown = [name for name in options if name not in known]
    if unknown:
        told = suggest(unknown[0], known)
        raise ConfigError(f"quantize.options: unknown method '{unknown[0]}'. {told}")


def quantize_with_data(
    graph: MaseGraph,
    rules: Mapping[str, Any],
    batches: Sequence[Any],
    method: str | Sequence[str] = "nearest",
    options: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    observer: str | Mapping[str, Any] | None = None,
    keep: Path | None = None,
) -> dict[str, Any]:
    """Quantise by `rules` with the methods that `method` names; what was done to each layer.

    Methods for the float graph go first. Then an `observer` chooses what the rules leave open (the
    point of fixed point, scales that are not measured anew at each call), layers are quantised, and
    the methods for the quantised graph follow; those of one kind in the order they are named.
    `options` has further arguments of a pass by the method's name, "calibrate" for the observer's.
    `keep`: a folder where methods that go layer by layer keep those that are done; after an
    interruption the same call goes on there.
    """
    chosen, more = methods_named(method), options or {}
    check_options(more)
    records: dict[str, Any] = {}

    def apply(when: When) -> None:
        for name, each in chosen.items():
            if each.when == when:
                logger.info("quantize: %s", name)
                records.update(each.run(graph, batches, Settings(rules, more.get(name, {}), keep)))

    lift_products(graph)  # what a method changes are the layers that are quantised
    apply("before")
    if observer is not None:
        given = {**rules, **more.get(CALIBRATE, {}), "data": batches, "observer": observer}
        _, found = calibrate_analysis_pass(graph, given)
        rules, records["calibration"] = found["config"], found["table"]
    _, info = quantize_transform_pass(graph, rules)
    apply("after")
    return {"quantized": info["quantized"], **records}
