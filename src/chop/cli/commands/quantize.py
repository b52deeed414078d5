"""`mase quantize`: layers in number formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chop.actions.fixed_point import OPERANDS, fitted_fixed_point, observe_ranges
from chop.actions.post_training import (
    BUDGET_FORMATS,
    check_options,
    methods_named,
    quantize_with_data,
    rules_for_bits,
    weight_formats,
)
from chop.actions.records import write_csv
from chop.actions.weight_budget import WeightBudget
from chop.actions.weighted_layers import left_in_float, weighted_ops
from chop.cli.compression import Compression, compress
from chop.cli.configs import QuantizeConfig
from chop.cli.data import Data
from chop.cli.failures import UsageError
from chop.cli.session import Session
from chop.cli.training import CHECKPOINTS, forget_checkpoints
from chop.errors import ConfigError
from chop.files import remove_whole, write_whole
from chop.ir.graph import MaseGraph
from chop.ir.ops import OPS
from chop.nn.quantizers.formats import find_format, spelled_settings
from chop.passes import learn_scales_transform_pass, summarize_quantization_analysis_pass
from chop.passes.graph.transforms.quantize import check_quantization
from chop.passes.rewrite.lift_layers import lift_products

OBSERVED_BATCHES = 4
DEFAULT_FORMAT = "mxint8"
"""Format of weights and inputs if no option names one: within a hair of floats."""
WIDTH_ALONE = "integer"
"""Format if --width is given alone."""
SENSITIVITY = "sensitivity.json"
"""What was chosen from, for the report."""
DEFAULT = BUDGET_FORMATS[0]


def run(config: QuantizeConfig, session: Session) -> dict[str, Any]:
    """Quantise, train on where asked, compare with before, save."""

    def change(graph: MaseGraph, data: Data | None) -> dict[str, Any]:
        return _quantize(config, session, graph, data)

    plan = Compression("quantize", change, config.qat_epochs, "QAT", config.evaluate)
    graph, result = compress(config, session, plan)
    _, told = summarize_quantization_analysis_pass(graph)
    write_csv(session.folder / "layers.csv", told["table"])
    session.console.say("\nnodes by op:")
    session.console.table(told["ops"])
    left = left_in_float(graph)
    _say_left(left, config, session)
    return {**result, "ops": told["ops"], "left_in_float": left}


def _say_left(left: list[dict[str, Any]], config: QuantizeConfig, session: Session) -> None:
    """What has parameters and no format: that is seldom meant, and shows in the bytes."""
    if not left:
        return
    rows = [
        f"{row['op']} ({row['layers']} of them, {row['parameters']:,} numbers, {row['share']:.1%})"
        for row in left
    ]
    ops = [row["op"] for row in left if row["op"] in OPS]
    how = f" --type {','.join(ops)} names them." if ops and not config.rules else ""
    session.console.say(f"\nleft as floats: {'; '.join(rows)}.{how}")


def _quantize(
    config: QuantizeConfig, session: Session, graph: MaseGraph, data: Data | None
) -> dict[str, Any]:
    """Choose formats where bits are asked for, quantise, and round weights by the method."""
    batches = calibration(config, graph, data)
    check_options(config.options)
    lift_products(graph)
    told: dict[str, Any] = {}
    if config.bits is None:
        rules = pass_arguments(config, graph, data)
        check_quantization(graph, rules)
        if not config.rules and _is_default(config):
            ops = ", ".join(key for key in rules if key != "by")
            chosen = f"{DEFAULT_FORMAT} for {ops}"
            session.console.note(f"nothing was said about formats: {chosen}")
        session.start_work()
    else:
        form = config.format or DEFAULT
        WeightBudget.of(graph, weight_formats(form)).check(config.bits)
        session.start_work()
        rules, allocation = rules_for_bits(graph, batches, config.bits, form)
        record = json.dumps(allocation.pop("sensitivity"), indent=1)
        write_whole(session.folder / SENSITIVITY, f"{record}\n")
        told["allocation"] = allocation
        _say_allocation(allocation, session)
    found = quantize_with_data(
        graph,
        rules,
        batches,
        config.method,
        config.options,
        observer=config.observer,
        keep=_kept_layers(config, session),
    )
    if "calibration" in found:
        write_csv(session.folder / "calibration.csv", found["calibration"])
    if config.learn_scales:
        told["learned"] = learn_scales_transform_pass(graph)[1]["parameters"]
    return {**told, **found}


def _kept_layers(config: QuantizeConfig, session: Session) -> Path:
    """Where rounded layers are kept until the results are in their place."""
    folder = session.out / CHECKPOINTS / "layers"
    if not config.resume:
        remove_whole(folder)
    forget_checkpoints(session)
    return folder


def _say_allocation(told: dict[str, Any], session: Session) -> None:
    floats = f", {told['floats']:,} of them floats" if told["floats"] else ""
    session.console.say(
        f"{told['bits']:.3g} bits per weight on average over all {told['weights']:,} weights"
        f"{floats}; predicted loss {told['loss']:.3g} nats:"
    )
    session.console.table(
        [{"layer": node, "format": label} for node, label in told["assignment"].items()]
    )


def calibration(config: QuantizeConfig, graph: MaseGraph, data: Data | None) -> list[Any]:
    """Training rows to calibrate on; none where nothing asks for them."""
    asks = ["--bits"] * (config.bits is not None) + ["--observer"] * (config.observer is not None)
    asks += [f"--method {name}" for name in methods_named(config.method) if name != "nearest"]
    if not asks:
        return []
    if data is None:
        told = f"{' and '.join(asks)} look{'s' * (len(asks) == 1)} at values of the dataset"
        raise UsageError(f"{told}: give --dataset.")
    most = -(-config.calibration_rows // config.rows_measured_at_once)
    rows = min(config.rows_measured_at_once, config.calibration_rows)
    return data.batches(graph.model, rows, most)


def pass_arguments(config: QuantizeConfig, graph: MaseGraph, data: Data | None) -> dict[str, Any]:
    """The arguments of quantize_transform_pass that a configuration asks for."""
    if config.rules:
        return config.rules
    if config.fit:
        if data is None:
            raise UsageError("--fit looks at values of the dataset: give --dataset.")
        form = find_format(config.format or WIDTH_ALONE, "quantize.format")
        if form.wire != "fixed":
            raise ConfigError(f"quantize.fit: fits format integer, not '{config.format}'.")
        batches = data.batches(graph.model, config.rows_measured_at_once, OBSERVED_BATCHES)
        assert config.width is not None, "checked by the configuration"
        return fitted_fixed_point(observe_ranges(graph, batches), config.width)
    layer = {"config": layer_config(config)}
    return {"by": "type", **dict.fromkeys(config.type or weighted_ops(graph), layer)}


def _is_default(config: QuantizeConfig) -> bool:
    """Whether nothing is said about formats."""
    return config.format is None and config.width is None and config.frac_width is None


def layer_config(config: QuantizeConfig) -> dict[str, Any]:
    """Return the config of a layer whose every operand has the format that the flags give."""
    default = DEFAULT_FORMAT if _is_default(config) else WIDTH_ALONE
    form, spelled = spelled_settings(config.format or default, "quantize.format")
    flags = {"width": config.width, "frac_width": config.frac_width}
    given = {name: value for name, value in flags.items() if value is not None}
    for name, value in given.items():
        if spelled.get(name, value) != value:
            raise ConfigError(
                f"quantize.{name}: {value}, and format '{config.format}' has {spelled[name]}. "
                "Give one of them."
            )
    settings = {**spelled, **given}
    return {"name": form.name, **{f"{o}_{k}": v for o in OPERANDS for k, v in settings.items()}}
