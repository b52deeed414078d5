"""Post-training quantisation with data: formats under a budget, and methods that round weights."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from chop.actions.fused_layers import fused_groups, one_row_per_group
from chop.actions.weight_budget import WeightBudget
from chop.actions.wider_layers import WIDER, WiderFormat, widen_layers
from chop.errors import ConfigError, RegistryError
from chop.ir.graph import MaseGraph
from chop.ir.trace.environment import evaluation_mode
from chop.log import get_logger
from chop.passes import (
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
from chop.passes.graph.analysis.allocate_bits import AllocateBitsArgs, Problem
from chop.passes.graph.analysis.sensitivity import layers_with_weights, outputs
from chop.passes.ptq.observe.held_back import fallbacks
from chop.passes.rewrite.lift_layers import lift_products
from chop.passes.rewrite.split_experts import split_experts
from chop.registry import Registry, suggest

logger = get_logger(__name__)

WIDTHS = (2, 3, 4, 5, 6, 8)
"""Bits per weight to choose from, for each layer."""
BUDGET_FORMATS = ("mxint", "block_fp")
"""Formats for a budget of bits: a width, and exponents shared by blocks."""

NEAREST = "nearest"
LOSS_STEPS = 10
"""Halvings of the range of bits that a loss is searched in."""
CALIBRATE = "calibrate"
"""Key of the observer's options."""


def weight_formats(name: str, widths: Sequence[int] = WIDTHS) -> dict[str, dict[str, Any]]:
    """Return one config for each width, with only the weight in the format `name`."""
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
        for width in widths
    }


def rules_for_bits(
    graph: MaseGraph,
    batches: Sequence[Any],
    bits: float,
    form: str | Mapping[str, Mapping[str, Any]],
    *,
    fusable: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arguments of quantize_transform_pass for `bits` per weight, and a record.

    `form`: a format whose widths are chosen, or the configs to choose from, by label. `fusable`: a
    server (`chop.actions.fused_layers.FUSABLE`); layers that it joins have one format.
    The average is over all weights of the model: matrices, kernels and embedding tables. Weights
    without a choice of widths stay floats and count as such; biases and norms do not count. The
    assignment of widths is the one with the least predicted loss.
    """
    formats = weight_formats(form) if isinstance(form, str) else dict(form)
    WeightBudget.of(graph, formats).check(bits)
    return FormatChoices.measured(graph, batches, formats, fusable).within_bits(bits)


def rules_for_loss(
    graph: MaseGraph,
    batches: Sequence[Any],
    loss: float,
    form: str | Mapping[str, Mapping[str, Any]],
    *,
    fusable: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the same for the fewest bits with a predicted loss of at most `loss` nats per row.

    A loss of x nats raises the perplexity by the factor exp(x).
    """
    formats = weight_formats(form) if isinstance(form, str) else dict(form)
    return FormatChoices.measured(graph, batches, formats, fusable).within_loss(loss)


@dataclass(frozen=True)
class FormatChoices:
    """Measured losses of all layers in all formats, from which assignments are chosen.

    `table`: record of `sensitivity_analysis_pass`. `groups`: the first node of the group of layers
    with one format, by node.
    """

    formats: Mapping[str, Mapping[str, Any]]
    budget: WeightBudget
    table: Sequence[Mapping[str, Any]]
    groups: Mapping[str, str]

    @staticmethod
    def measured(
        graph: MaseGraph,
        batches: Sequence[Any],
        formats: Mapping[str, Mapping[str, Any]],
        fusable: str | None,
    ) -> FormatChoices:
        """Measure the losses."""
        _, info = sensitivity_analysis_pass(graph, {"data": batches, "formats": formats})
        groups = fused_groups(layers_with_weights(graph), fusable)
        return FormatChoices(formats, WeightBudget.of(graph, formats), info["table"], groups)

    def within_bits(self, bits: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the rules with the least loss for `bits` per weight, and their record."""
        budget = self.budget
        table = one_row_per_group(budget.merged(self.table), self.groups)
        limit = budget.chosen_bits(bits)
        problem = Problem.of(AllocateBitsArgs(table=table, budget=limit))
        rows = problem.best()
        own = {table[i]["node"]: table[i]["format"] for i in rows}
        assignment = {node: own[first] for node, first in self.groups.items() if first in own}
        record = {
            "assignment": budget.spread(assignment),
            "bits": budget.overall_bits(problem.cost(rows)),
            "weights": budget.total,
            "floats": budget.total - budget.covered,
            "loss": problem.loss(rows),
        }
        labels = record["assignment"]
        modules = {row["node"]: row["module"] for row in self.table}  # every call of a module
        rules = {modules[n]: {"config": dict(self.formats[form])} for n, form in labels.items()}
        more = {"sensitivity": sensitivity_record(self.table, record)}
        return {"by": "name", **rules}, {**record, **more}

    def within_loss(self, loss: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the rules with the fewest bits for a loss, and their record."""
        budget = self.budget
        low = (budget.least_bits + budget.rest_bits) / budget.total
        widest = max(row["bits"] for row in self.table)
        high = budget.overall_bits(widest)
        best = self.within_bits(high)
        if best[1]["loss"] > loss:
            raise ConfigError(
                f"quantize.budget: {percent(loss)} more perplexity, and the widest formats are "
                f"predicted to add {percent(best[1]['loss'])}. Allow more, or give wider formats."
            )
        for _ in range(LOSS_STEPS):
            middle = (low + high) / 2
            rules = self.within_bits(middle)
            if rules[1]["loss"] <= loss:
                best, high = rules, middle
            else:
                low = middle
        return best


def percent(loss: float) -> str:
    """Return a loss in nats as the increase of the perplexity.

    >>> percent(0.01)
    '1.01 %'
    """
    return f"{100 * math.expm1(loss):.3g} %"


def sensitivity_record(
    table: Sequence[Mapping[str, Any]], allocation: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an allocation for reports: the loss of each layer in each format, and the choice."""
    layer_of = {row["node"]: row["module"] for row in table}
    keys = ("format", "elements", "bits", "loss")
    return {
        "table": [{"layer": row["module"], **{key: row[key] for key in keys}} for row in table],
        "assignment": {layer_of[node]: label for node, label in allocation["assignment"].items()},
        "bits": allocation["bits"],
        "loss": allocation["loss"],
    }


@dataclass(frozen=True)
class Settings:
    """Inputs of a method.

    `rules`: arguments of quantize_transform_pass. `options`: further arguments of the method's
    pass. `keep`: folder of finished layers.
    """

    rules: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    keep: Path | None = None


When = Literal["before", "after"]
Run = Callable[[MaseGraph, Sequence[Any], Settings], dict[str, Any]]


@dataclass(frozen=True)
class QuantizationMethod:
    """A method that keeps accuracy without training; it changes the graph and returns records.

    `when`: it runs on the float graph (before) or on the quantised one (after). `is_checked`: it
    does not test its layers itself, so the quantised model is compared with and without it.
    """

    run: Run
    when: When
    is_checked: bool = False

    @property
    def label(self) -> str:
        """First line of its documentation."""
        return (self.run.__doc__ or "").split("\n")[0]


METHODS: Registry[QuantizationMethod] = Registry("method")
"""Every method of `mase quantize --method` and of `quantize_with_data`, by name.

To add one, write `function(graph, batches, settings) -> records` under `@method(name, when=…)`.
"""


def method(name: str, *, when: When, is_checked: bool = False) -> Callable[[Run], Run]:
    """Register a function as the method `name`."""

    def add(run: Run) -> Run:
        METHODS.register(name, QuantizationMethod(run, when, is_checked))
        return run

    return add


@method(NEAREST, when="after")
def _nearest(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Round each weight to the nearest value of its format."""
    return {}


@method("rotate", when="before", is_checked=True)
def _rotate(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Rotate the residual stream and the values within heads, so that no channel stands out."""
    _, rotated = rotate_transform_pass(graph, dict(settings.options))
    return {"rotated": rotated}


@method("equalize", when="before", is_checked=True)
def _equalize(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Scale the channels between two layers so that both weights have the same range."""
    _, equalized = equalize_transform_pass(graph, dict(settings.options))
    return {"equalized": equalized["pairs"]}


@method("clip", when="after")
def _clip(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Search the ranges of weights; clip the largest if the others gain more."""
    _, clipped = clip_transform_pass(graph, {**settings.options, "data": batches})
    return {"layers": clipped["layers"]}


@method("correct_bias", when="after")
def _correct_bias(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Subtract the mean error of each output channel from the bias."""
    _, corrected = correct_bias_transform_pass(graph, {**settings.options, "data": batches})
    return {"biases": corrected["layers"]}


@method("gptq", when="after")
def _gptq(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Round weights column by column; later columns compensate the errors of earlier ones."""
    _, rounded = gptq_transform_pass(
        graph, {"keep": settings.keep, **settings.options, "data": batches}
    )
    return {"layers": rounded["layers"]}


@method("learned_rounding", when="after")
def _learned(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Learn the rounding and the ranges of weights block by block from the float model."""
    _, learned = learned_rounding_transform_pass(
        graph, {"keep": settings.keep, **settings.options, "data": batches}
    )
    return {"blocks": learned["blocks"]}


@method("fold_batch_norm", when="before")
def _fold(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Fold batch norms into the convolutions before them, so that the final weights are rounded."""
    with evaluation_mode(graph.model):  # uses the running statistics
        _, info = fuse_conv_bn_transform_pass(graph)
    return {"folded": info["fused"]}


@method("smooth", when="before")
def _smooth(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Move scales from activations into weights, so that both lose less."""
    args = {**settings.rules, **settings.options, "data": batches}
    _, moved = smooth_transform_pass(graph, args)
    return {"smooth": moved["sites"]}


@method("awq", when="before")
def _awq(graph: MaseGraph, batches: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """Scale up the weight columns with strong activations, so that they lose less."""
    args = {**settings.rules, "style": "awq", **settings.options, "data": batches}
    _, moved = smooth_transform_pass(graph, args)
    return {"awq": moved["sites"]}


def methods_named(names: str | Sequence[str]) -> dict[str, QuantizationMethod]:
    """Return the methods by name: one, several, or a text with commas; unknown names raise.

    >>> list(methods_named("nearest,gptq"))
    ['nearest', 'gptq']
    """
    listed = names.split(",") if isinstance(names, str) else names
    try:
        return {name.strip(): METHODS[name.strip()] for name in listed}
    except RegistryError as error:
        raise ConfigError(f"quantize.method: {error}") from error


def check_options(options: Mapping[str, Any]) -> None:
    """Raise if a key of `options` is no method."""
    for name in options:
        if name not in (*METHODS, CALIBRATE):
            hint = suggest(name, (*METHODS, CALIBRATE))
            raise ConfigError(f"quantize.options: unknown method '{name}'. {hint}")


@dataclass(frozen=True)
class _Plan:
    """Rules for formats, and the observer that chooses what they leave open."""

    rules: Mapping[str, Any]
    batches: Sequence[Any]
    observer: str | Mapping[str, Any] | None
    options: Mapping[str, Any]

    def quantize(self, graph: MaseGraph) -> dict[str, Any]:
        """Quantise the graph plainly; return records."""
        rules, records = self.rules, {}
        if self.observer is not None:
            data = {"data": self.batches, "observer": self.observer}
            _, calibrated = calibrate_analysis_pass(graph, {**rules, **self.options, **data})
            rules, records["calibration"] = calibrated["config"], calibrated["table"]
        _, info = quantize_transform_pass(graph, rules)
        return {"quantized": info["quantized"], **records}

    def error(self, graph: MaseGraph, expected: Sequence[Tensor]) -> float:
        """Return the squared error of the outputs if `graph` is quantised; it stays unchanged."""
        trial = _copy_with_same_tensors(graph)
        self.quantize(trial)
        results = zip(outputs(trial, [*self.batches], "quantize"), expected, strict=True)
        return sum(float((a.double() - b.double()).square().sum()) for a, b in results)

    def is_worse_with(self, each: QuantizationMethod, graph: MaseGraph, own: Settings) -> bool:
        """Return True if the quantised model is worse with a method than without it."""
        if not self.batches:
            return False
        changed = _copy_with_same_tensors(graph)
        each.run(changed, self.batches, own)
        expected = list(outputs(graph, [*self.batches], "quantize"))
        return self.error(changed, expected) > self.error(graph, expected)


def _copy_with_same_tensors(graph: MaseGraph) -> MaseGraph:
    """Return a copy of the graph that shares the parameters and buffers."""
    shared = {id(t): t for t in (*graph.model.parameters(), *graph.model.buffers())}
    return copy.deepcopy(graph, shared)


FALLBACKS = "fallbacks"
"""Key of the record with the modules that each method left plain."""
WHOLE_MODEL = "the whole model"


def quantize_with_data(
    graph: MaseGraph,
    rules: Mapping[str, Any],
    batches: Sequence[Any],
    method: str | Sequence[str] = "nearest",
    options: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    observer: str | Mapping[str, Any] | None = None,
    keep: Path | None = None,
    wider: WiderFormat | None = None,
) -> dict[str, Any]:
    """Quantise by `rules` with the methods that `method` names; return records of the layers.

    Methods for the float graph run first. Then an `observer` chooses what the rules leave open
    (fractional bits, scales that are not measured at each call), layers are quantised, and the
    methods for the quantised graph run. Methods of one kind run in the order of their names.
    `options`: further arguments of a method's pass by name, "calibrate" for the observer. `keep`:
    folder of finished layers, from which the same call resumes after an interruption.
    The experts of a mixture become a layer each, except with "nearest" alone.
    `wider`: format for layers whose error at the output stands out, if they are rounded to nearest;
    the record `wider` names them. It needs rules by name.
    The record `fallbacks` has, by method, the modules for which rounding to nearest was better.
    """
    chosen, more = methods_named(method), options or {}
    check_options(more)
    records: dict[str, Any] = {FALLBACKS: {}}
    plan = _Plan(rules, batches, observer, more.get(CALIBRATE, {}))

    def apply(when: When) -> None:
        for name, each in chosen.items():
            if each.when == when:
                logger.info("quantize: %s", name)
                settings = Settings(rules, more.get(name, {}), keep)
                if each.is_checked and plan.is_worse_with(each, graph, settings):
                    logger.warning("quantize: %s makes the model worse and is left out.", name)
                    records[FALLBACKS][name] = [WHOLE_MODEL]
                    continue
                own = each.run(graph, batches, settings)
                records[FALLBACKS].update(_fallbacks(name, own))
                records.update(own)

    lift_products(graph)  # so that methods change the layers that are quantised
    if any(name != NEAREST for name in chosen):
        split_experts(graph)  # each has inputs of its own
    apply("before")
    if wider is not None:
        trial = _copy_with_same_tensors(graph)
        plan.quantize(trial)
        records[WIDER] = widen_layers(trial, graph, wider)
        rules = {**rules, **wider.rules(records[WIDER]["layers"])}
        plan = dataclasses.replace(plan, rules=rules)
    records.update(plan.quantize(graph))
    apply("after")
    return records


def _fallbacks(name: str, records: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the modules that the method `name` left plain, by its name; {} if there are none."""
    rows = [row for part in records.values() if isinstance(part, list) for row in part]
    modules = fallbacks([row for row in rows if isinstance(row, Mapping)])
    return {name: modules} if modules else {}
