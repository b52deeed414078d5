"""The formats that the options of `mase quantize` choose, and their application to a graph."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx, nn

from chop.actions.fixed_point import OPERANDS, fitted_fixed_point, observe_ranges
from chop.actions.fused_layers import fused_groups
from chop.actions.post_training import (
    BUDGET_FORMATS,
    check_options,
    percent,
    quantize_with_data,
    rules_for_bits,
    rules_for_loss,
    weight_formats,
)
from chop.actions.records import write_csv
from chop.actions.targets import (
    DEFAULT_TARGET,
    SHIPPED_WIDTHS,
    WIDE,
    Target,
    check_target,
    is_convolution,
)
from chop.actions.targets import layer_config as weight_config
from chop.actions.weight_budget import WeightBudget
from chop.actions.weighted_layers import weight_count, weighted_layers, weighted_ops
from chop.actions.wider_layers import WIDER, WiderFormat, wider_text
from chop.cli.allocation_budget import parsed_budget
from chop.cli.commands.quantize import QuantizeConfig
from chop.cli.data import Data
from chop.cli.run_results import SENSITIVITY
from chop.cli.session import Session
from chop.cli.train_and_measure import CHECKPOINTS, forget_checkpoints
from chop.errors import ConfigError
from chop.files import remove_whole, write_whole
from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module
from chop.nn.quantizers.formats import find_format, spelled_settings
from chop.passes import learn_scales_transform_pass, sensitivity_analysis_pass
from chop.passes.graph.analysis.sensitivity import is_measured, layers_with_weights
from chop.passes.graph.transforms.quantize import check_quantization
from chop.passes.rewrite.lift_layers import lift_experts, lift_products
from chop.passes.rewrite.split_experts import split_experts

OBSERVED_BATCHES = 4
"""Batches from which `--fit` chooses fractional bits."""
DEFAULT_FORMAT = "mxint8"
"""Format of weights and inputs if no option names one: nearly as accurate as floats."""
WIDE_SHARE = 0.1
"""Largest share of the weights that `--bits 4` widens to 8 bits because of their loss."""
CHECKED_ROWS = 8
"""Rows, the last of the calibration rows, on which 8 bits are compared with float."""
OUTLIER = 4.0
"""Factor over the median loss per weight from which a layer needs 8 bits."""
WIDTH_ALONE = "integer"
"""Format if --width is given alone."""


def quantize_graph(
    config: QuantizeConfig, session: Session, graph: MaseGraph, data: Data | None
) -> dict[str, Any]:
    """Choose the formats, quantise, and round the weights by the methods of `config`."""
    batches = []
    if config.calibrated_flags and data is not None:
        rows = min(config.rows_measured_at_once, config.calibration_rows)
        most = -(-config.calibration_rows // config.rows_measured_at_once)
        batches = data.batches(graph.model, rows, most)
    check_options(config.options)
    lift_products(graph)
    if config.calibrated_flags or (config.bits is not None and data is not None):
        split_experts(graph)  # each is measured with its own tokens
    elif not config.rules:
        lift_experts(graph)
    record: dict[str, Any] = {}
    wider: WiderFormat | None = None
    if config.bits is None and config.budget is None and config.for_ is not None:
        width = check_target(config.for_, config.format).width_of(config.format)
        config = dataclasses.replace(config, bits=float(width), format=None)
    if config.bits is not None and not config.is_average:
        rules, record["allocation"] = _fixed_width(config, int(config.bits), session, graph, data)
        if data is not None and config.bits == max(SHIPPED_WIDTHS):
            wider = _wider_format(config, graph, data, [path for path in rules if path != "by"])
    elif not config.is_average:
        rules = pass_arguments(config, graph, data)
        check_quantization(graph, rules)
        if not config.rules and _is_default(config):
            ops = ", ".join(key for key in rules if key != "by")
            session.console.note(f"no format given: {DEFAULT_FORMAT} for {ops}")
        session.start_work()
    else:
        rules, record["allocation"] = _allocate(config, session, graph, batches)
    layers = session.out / CHECKPOINTS / "layers"
    if not config.resume:
        remove_whole(layers)
    forget_checkpoints(session)
    info = quantize_with_data(
        graph,
        rules,
        batches,
        config.method,
        config.options,
        observer=config.observer,
        keep=layers,
        wider=wider,
    )
    if WIDER in info:
        _note_wider(info[WIDER], record["allocation"]["assignment"], session, graph)
    if "calibration" in info:
        write_csv(session.folder / "calibration.csv", info["calibration"])
    if config.learn_scales:
        record["learned"] = learn_scales_transform_pass(graph)[1]["parameters"]
    return {**record, **info}


def _fixed_width(
    config: QuantizeConfig, width: int, session: Session, graph: MaseGraph, data: Data | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return rules with weights of `width` bits, and with 8 where a layer needs it.

    With data these are the layers with the largest loss, up to a share of the weights. Without
    data they are the embedding and the head of a language model.
    """
    target = check_target(config.for_ or DEFAULT_TARGET, config.format)
    configs = target.all_configs()
    nodes = _layers_for(target, weighted_layers(graph), config.for_ or DEFAULT_TARGET)
    widest = max(target.formats)
    low, high = (
        {node: target.format_of(node_module(node), bits) for node in nodes}
        for bits in (width, widest)
    )
    session.start_work()
    wide = set() if width == widest else _layers_of_words(graph, nodes)
    if data is not None and width != widest:
        rows = min(config.rows_measured_at_once, config.calibration_rows)
        batches = data.batches(graph.model, rows, -(-config.calibration_rows // rows))
        wide |= _layers_that_lose_most(graph, nodes, batches, configs, low, high)
    groups = fused_groups(nodes, config.joined_for)
    joined = {groups[node.name] for node in wide if node.name in groups}
    wide |= {node for node in nodes if groups[node.name] in joined}
    labels = {node.name: high[node] if node in wide else low[node] for node in nodes}
    counts = Counter(labels.values())
    names = f": {', '.join(sorted(n.name for n in wide))} in {widest} bits" if wide else ""
    listed = ", ".join(f"{count} layers in {form}" for form, count in counts.items())
    session.console.note(f"{listed}{names}")
    modules = {node.name: str(node.target) for node in nodes}  # a rule for every call of a module
    rules = {modules[name]: {"config": dict(configs[label])} for name, label in labels.items()}
    return {"by": "name", **rules}, {"assignment": labels}


def _wider_format(
    config: QuantizeConfig, graph: MaseGraph, data: Data, layers: list[str]
) -> WiderFormat:
    """Return the format for layers that 8 bits cannot hold; a target may have none."""
    target = check_target(config.for_ or DEFAULT_TARGET, config.format)
    forms = target.wide if config.for_ is not None else WIDE  # a target runs its own formats only
    count = min(config.calibration_rows, len(data.splits["train"]))
    rows = data.pinned_rows(graph) or min(CHECKED_ROWS, count)
    last = data.batches(graph.model, rows, max(count // rows, 1))[-1:]
    name = forms[min(forms)] if forms else ""
    return WiderFormat(layers, last, name, weight_config(name) if name else {})


def _note_wider(
    record: Mapping[str, Any], assignment: dict[str, str], session: Session, graph: MaseGraph
) -> None:
    """Print which layers became wider, and correct their formats in `assignment`."""
    text = wider_text(record)
    if text:
        session.console.note(text)
    wide = {row["layer"] for row in record["layers"]} if record["format"] else set()
    for node in graph.nodes:
        if node.name in assignment and str(node.target) in wide:
            assignment[node.name] = record["format"]


def _layers_for(target: Target, layers: Mapping[fx.Node, nn.Module], name: str) -> list[fx.Node]:
    """Return the layers whose weights the target takes; raise if there is none."""
    refusals = {node: target.refusal(layer) for node, layer in layers.items()}
    nodes = [node for node, refusal in refusals.items() if not refusal]
    if not nodes:
        reasons = " and ".join(dict.fromkeys(refusals.values()))
        raise ConfigError(
            f"quantize.for: target {name} {reasons}, and no layer of the model is one of these. "
            "Give another target, or --format."
        )
    return nodes


def _layers_of_words(graph: MaseGraph, nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Return the embedding and the head of a language model, which lose most in 4 bits."""
    size = getattr(getattr(graph.model, "config", None), "vocab_size", None)
    layers: dict[fx.Node, Any] = {node: node_module(node) for node in nodes}
    rows = {n: layer.weight.shape[0] for n, layer in layers.items() if hasattr(layer, "weight")}
    return {n for n, count in rows.items() if size and count == size}


def _layers_that_lose_most(
    graph: MaseGraph,
    nodes: Sequence[fx.Node],
    batches: list[Any],
    configs: Mapping[str, Any],
    low: Mapping[fx.Node, str],
    high: Mapping[fx.Node, str],
) -> set[fx.Node]:
    """Return the layers that gain most from 8 bits, with at most `WIDE_SHARE` of the weights.

    `low`, `high`: format of each layer in few and in 8 bits.
    """
    used = {*low.values(), *high.values()}
    measured = [n for n in nodes if is_measured(n, graph)]
    if not measured:
        return set()
    args = {"data": batches, "formats": {name: configs[name] for name in used}}
    _, info = sensitivity_analysis_pass(graph, args)
    loss = {(row["node"], row["format"]): row["loss"] for row in info["table"]}
    sizes = {n: weight_count(node_module(n)) for n in nodes}
    gains = {n: (loss[n.name, low[n]] - loss[n.name, high[n]]) / sizes[n] for n in measured}
    room, chosen = WIDE_SHARE * sum(sizes.values()), set()
    typical = sorted(gains.values())[len(gains) // 2] if gains else 0.0
    for node in sorted(gains, key=gains.__getitem__, reverse=True):
        if gains[node] > OUTLIER * max(typical, 0.0) and sizes[node] <= room:
            chosen.add(node)
            room -= sizes[node]
    return chosen


def _allocate(
    config: QuantizeConfig, session: Session, graph: MaseGraph, batches: list[Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return rules whose weights are within --bits or --budget, and the record of the choice."""
    form: Any = weight_formats(config.format or BUDGET_FORMATS[0], config.widths or SHIPPED_WIDTHS)
    limit = parsed_budget(config.budget, WeightBudget.of(graph, form).total, config.bandwidth)
    bits = config.bits if limit is None else limit.bits
    if config.for_ is not None:
        target = check_target(config.for_, config.format)
        has_kernels = any(is_convolution(layer) for layer in layers_with_weights(graph).values())
        form = target.configs_for_average(bits, has_kernels=has_kernels)
    if bits is not None:
        WeightBudget.of(graph, form).check(bits)
    session.start_work()
    joined = config.joined_for
    if bits is not None:
        rules, chosen = rules_for_bits(graph, batches, bits, form, fusable=joined)
    else:
        assert limit is not None and limit.loss is not None, "a budget is bits or a loss"
        rules, chosen = rules_for_loss(graph, batches, limit.loss, form, fusable=joined)
    show_allocation(chosen, session)
    return rules, chosen


def show_allocation(chosen: dict[str, Any], session: Session) -> None:
    """Print a choice of widths, and move its table of losses into a file."""
    sensitivity = json.dumps(chosen.pop("sensitivity"), indent=1)
    write_whole(session.folder / SENSITIVITY, f"{sensitivity}\n")
    floats = f", {chosen['floats']:,} of them floats" if chosen["floats"] else ""
    session.console.say(
        f"{chosen['bits']:.3g} bits per weight on average over all {chosen['weights']:,} weights"
        f"{floats}; predicted loss {chosen['loss']:.3g} nats, {percent(chosen['loss'])} of the "
        "perplexity:"
    )
    session.console.table(
        [{"layer": node, "format": label} for node, label in chosen["assignment"].items()]
    )


def pass_arguments(config: QuantizeConfig, graph: MaseGraph, data: Data | None) -> dict[str, Any]:
    """Return the arguments of quantize_transform_pass."""
    if config.rules:
        return config.rules
    if config.fit:
        form = find_format(config.format or WIDTH_ALONE, "quantize.format")
        if form.wire != "fixed":
            raise ConfigError(f"quantize.fit: fits format integer, not '{config.format}'.")
        assert data is not None and config.width is not None, "checked before loading"
        batches = data.batches(graph.model, config.rows_measured_at_once, OBSERVED_BATCHES)
        return fitted_fixed_point(observe_ranges(graph, batches), config.width)
    layer = {"config": layer_config(config)}
    return {"by": "type", **dict.fromkeys(config.type or weighted_ops(graph), layer)}


def _is_default(config: QuantizeConfig) -> bool:
    return config.format is None and config.width is None and config.frac_width is None


def layer_config(config: QuantizeConfig) -> dict[str, Any]:
    """Return the config of a layer whose operands all have the format of the flags."""
    default = DEFAULT_FORMAT if _is_default(config) else WIDTH_ALONE
    form, spelled = spelled_settings(config.format or default, "quantize.format")
    flags = {"width": config.width, "frac_width": config.frac_width}
    settings = dict(spelled)
    for name, value in flags.items():
        if value is None:
            continue
        if spelled.get(name, value) != value:
            raise ConfigError(
                f"quantize.{name}: {value}, and format '{config.format}' has {spelled[name]}. "
                "Give one of them."
            )
        settings[name] = value
    return {"name": form.name, **{f"{o}_{k}": v for o in OPERANDS for k, v in settings.items()}}
