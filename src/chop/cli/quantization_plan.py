"""The formats that the options of `mase quantize` choose, and their application to a graph."""

from __future__ import annotations

import json
from typing import Any

from chop.actions.fixed_point import OPERANDS, fitted_fixed_point, observe_ranges
from chop.actions.post_training import (
    BUDGET_FORMATS,
    check_options,
    quantize_with_data,
    rules_for_bits,
    weight_formats,
)
from chop.actions.records import write_csv
from chop.actions.weight_budget import WeightBudget
from chop.actions.weighted_layers import weighted_ops
from chop.cli.commands.quantize import QuantizeConfig
from chop.cli.data import Data
from chop.cli.run_results import SENSITIVITY
from chop.cli.session import Session
from chop.cli.train_and_measure import CHECKPOINTS, forget_checkpoints
from chop.errors import ConfigError
from chop.files import remove_whole, write_whole
from chop.ir.graph import MaseGraph
from chop.nn.quantizers.formats import find_format, spelled_settings
from chop.passes import learn_scales_transform_pass
from chop.passes.graph.transforms.quantize import check_quantization
from chop.passes.rewrite.lift_layers import lift_products

OBSERVED_BATCHES = 4
"""Batches from which `--fit` chooses fractional bits."""
DEFAULT_FORMAT = "mxint8"
"""Format of weights and inputs if no option names one: nearly as accurate as floats."""
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
    record: dict[str, Any] = {}
    if config.bits is None:
        rules = pass_arguments(config, graph, data)
        check_quantization(graph, rules)
        if not config.rules and _is_default(config):
            ops = ", ".join(key for key in rules if key != "by")
            session.console.note(f"no format given: {DEFAULT_FORMAT} for {ops}")
        session.start_work()
    else:
        rules, record["allocation"] = _allocate(config, config.bits, session, graph, batches)
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
    )
    if "calibration" in info:
        write_csv(session.folder / "calibration.csv", info["calibration"])
    if config.learn_scales:
        record["learned"] = learn_scales_transform_pass(graph)[1]["parameters"]
    return {**record, **info}


def _allocate(
    config: QuantizeConfig, bits: float, session: Session, graph: MaseGraph, batches: list[Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return rules whose weights have `bits` on average, and the record of the choice."""
    form = config.format or BUDGET_FORMATS[0]
    WeightBudget.of(graph, weight_formats(form)).check(bits)
    session.start_work()
    rules, chosen = rules_for_bits(graph, batches, bits, form)
    sensitivity = json.dumps(chosen.pop("sensitivity"), indent=1)
    write_whole(session.folder / SENSITIVITY, f"{sensitivity}\n")
    floats = f", {chosen['floats']:,} of them floats" if chosen["floats"] else ""
    session.console.say(
        f"{chosen['bits']:.3g} bits per weight on average over all {chosen['weights']:,} weights"
        f"{floats}; predicted loss {chosen['loss']:.3g} nats:"
    )
    session.console.table(
        [{"layer": node, "format": label} for node, label in chosen["assignment"].items()]
    )
    return rules, chosen


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
