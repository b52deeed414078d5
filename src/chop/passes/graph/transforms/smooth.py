"""Move scales of activations into the weights that read them, before rounding either."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module
from chop.log import get_logger, log_step
from chop.nn.modules.lora import adapted_layer
from chop.nn.quantized.convert import quantized_class
from chop.nn.quantizers import Bypass, Quantizer
from chop.passes.base import PassResult, graph_pass
from chop.passes.graph.transforms.quantize import chosen_formats
from chop.passes.ptq.observe.held_back import KEPT, METHOD, NEAREST, RowSplit, note_fallbacks
from chop.passes.ptq.observe.layerwise_run import LayerwiseRun, calibration_batches
from chop.passes.ptq.sites.rounded_layers import decibels
from chop.passes.ptq.sites.scaling_sites import Site, apply_factors, scaling_sites
from chop.passes.ptq.solve.factor_search import (
    ALPHAS,
    ROWS_KEPT,
    ChannelStatistics,
    FactorChoice,
    FactorProblem,
    Maker,
    best_factors,
    checked_factors,
    factors_of,
    split_statistics,
)
from chop.passes.quantization_rules import QuantizeArgs, modern_beside

logger = get_logger(__name__)

WHERE = "smooth"
OWN = ("data", "num_samples", "style", "alpha")


@dataclass(frozen=True)
class SmoothArgs(QuantizeArgs):
    """Settings of `smooth_transform_pass`.

    `data`: calibration batches, an iterable or a function that returns one. `num_samples`: rows to
    use. `style`: "smooth" balances the largest magnitudes of inputs and weights; "awq" enlarges
    columns that strong inputs read. `alpha`: strength from 0 to 1; without it the best is searched
    for each site. All other keys are rules as for quantize_transform_pass: the formats that errors
    are measured in. Without rules `alpha` is required.
    """

    data: Any = None
    num_samples: int | None = None
    style: Literal["smooth", "awq"] = "smooth"
    alpha: float | None = None

    modern = staticmethod(modern_beside(OWN))

    def __post_init__(self) -> None:
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise ConfigError(f"{WHERE}.alpha: must be from 0 to 1, got {self.alpha}.")


@graph_pass("smooth_transform_pass", SmoothArgs, rewrites=True)
def smooth_transform_pass(graph: MaseGraph, args: SmoothArgs) -> PassResult:
    """Divide channels that linear layers read by factors, and multiply their columns by them.

        rules = {"linear": {"config": {"name": "scale_integer", "weight_width": 4, ...}}}
        smooth_transform_pass(mg, {"data": batches, **rules})
        quantize_transform_pass(mg, rules)

    The channels are divided at their source: in the weight of a norm, the rows of a linear layer
    (also through attention, from values to the output projection), or one factor of an elementwise
    product. A value with readers that are no linear layers stays unchanged, as does a parameter
    that is used twice. The output stays the same up to rounding. Factors minimise the error of the
    quantised layers, including the one that makes the channels, on the data. One row in eight is
    held back: a site whose factors are worse on these rows has none. `info["sites"]` has the
    signal-to-noise ratio of each value's readers' outputs in dB, before and after, and what was
    `kept`.
    """
    forms = _formats(graph, args)
    if not forms and args.alpha is None:
        raise ConfigError(
            f"{WHERE}: give rules to choose factors by (as to quantize_transform_pass), or alpha."
        )
    batches = calibration_batches(args.data, args.num_samples, f"{WHERE}.data")
    sites = [
        site
        for site in scaling_sites(graph, batches[0], f"{WHERE}.data")
        if not forms or any(node in forms for node in site.readers)
    ]
    choices = _choices(graph, sites, batches, forms, args)
    for site, choice, _ in choices:
        apply_factors(graph, site, choice.factors)
    records = [_record(*each) for each in choices]
    note_fallbacks(logger, records, WHERE)
    return graph, {"sites": records}


Forms = Mapping[fx.Node, Mapping[str, Quantizer]]


def _formats(graph: MaseGraph, args: SmoothArgs) -> dict[fx.Node, Mapping[str, Quantizer]]:
    """Return the formats that the rules set for the operands of layers."""
    if not args.rules and not args.default.config:
        return {}
    formats: dict[fx.Node, Mapping[str, Quantizer]] = {}
    for node, _, choice in chosen_formats(graph, args.rule_args):
        if choice is not None and node.op == "call_module":
            layer = adapted_layer(node_module(node))
            cls = quantized_class(layer, choice.config["name"], where=choice.where)
            formats[node] = cls.parse(choice.config, choice.where)[1]
    return formats


def _choices(
    graph: MaseGraph,
    sites: Sequence[Site],
    batches: Sequence[Any],
    forms: Forms,
    args: SmoothArgs,
) -> list[tuple[Site, FactorChoice, float]]:
    """Return the factors of each site and the power of its readers' outputs."""
    choices: list[tuple[Site, FactorChoice, float]] = []
    per_batch = -(-ROWS_KEPT // len(batches))
    with LayerwiseRun(graph, batches, f"{WHERE}.data") as run:
        place = {node: i for i, node in enumerate(run.nodes)}
        makers = {site.value: node for site in sites if (node := _maker_node(run, site, forms))}
        powers: dict[fx.Node, Tensor] = {}
        first = {min(site.readers, key=place.__getitem__): site for site in sites}
        stops = sorted({*first, *makers.values()}, key=place.__getitem__)
        for node in stops:
            if node in makers.values():
                powers[node] = _power(run.operands(node))
            if node not in first:
                continue
            site = first[node]
            log_step(logger, "smooth: site", len(choices) + 1, len(sites), site.value.name)
            rows = split_statistics(run.operands(node), per_batch)
            weights = [layer.weight.detach().float() for layer in site.layers]  # type: ignore[operator]
            formats = [forms.get(reader, PLAIN) for reader in site.readers]
            readers = list(zip(weights, formats, strict=True))
            index, maker = site.index.to(weights[0].device), makers.get(site.value)
            made_by = None if maker is None else _maker(maker, forms[maker], powers[maker])
            problem = FactorProblem(rows.whole or rows.fitted, readers, index, made_by)
            choices.append((site, _choice(problem, rows, args, bool(forms)), problem.power))
    return choices


def _maker_node(run: LayerwiseRun, site: Site, forms: Forms) -> fx.Node | None:
    """Return the linear layer that makes the channels, if it will be rounded."""
    paths = {scaled.path for scaled in site.made_by}
    calls = [n for n in run.nodes if n.op == "call_module" and n.target in paths and n in forms]
    is_linear = calls and isinstance(node_module(calls[0]), nn.Linear)
    return calls[0] if is_linear else None


def _power(inputs: Iterable[Tensor]) -> Tensor:
    """Return the mean square of each column of a layer's input."""
    total, count = torch.zeros(()), 0
    for x in inputs:
        rows = x.detach().float().reshape(-1, x.shape[-1])
        total, count = total.to(rows) + rows.square().sum(0), count + len(rows)
    return total / count


PLAIN: Mapping[str, Quantizer] = {"data_in": Bypass(), "weight": Bypass()}


def _maker(node: fx.Node, formats: Mapping[str, Quantizer], power: Tensor) -> Maker:
    layer: Any = node_module(node)
    rows, has_bias = layer.weight.detach().float(), layer.bias is not None
    if has_bias:
        rows = torch.cat([rows, layer.bias.detach().float()[:, None]], 1)
        power = torch.cat([power, power.new_ones(1)])
    return Maker(rows, has_bias, formats, power)


def _choice(
    problem: FactorProblem, rows: RowSplit[ChannelStatistics], args: SmoothArgs, has_rules: bool
) -> FactorChoice:
    """Return the factors of a site; with rules they are tested on the held-back rows."""

    def fixed(problem: FactorProblem, alpha: float) -> FactorChoice:
        factors = factors_of(args.style, problem.statistics, problem.weights, problem.index, alpha)
        if not has_rules:
            return FactorChoice(factors, alpha, 0.0, 0.0)
        none = torch.ones_like(factors)
        return FactorChoice(factors, alpha, problem.error(none), problem.error(factors))

    alpha = args.alpha
    if alpha is None:
        return checked_factors(lambda one: best_factors(args.style, one, ALPHAS), problem, rows)
    if not has_rules:
        return fixed(problem, alpha)
    return checked_factors(lambda one: fixed(one, alpha), problem, rows)


def _record(site: Site, choice: FactorChoice, power: float) -> dict[str, Any]:
    return {
        "value": site.value.name,
        "readers": [str(node.target) for node in site.readers],
        "alpha": choice.alpha,
        "before": decibels(power, choice.before),
        "after": decibels(power, choice.after),
        KEPT: NEAREST if choice.is_fallback else METHOD,
    }
