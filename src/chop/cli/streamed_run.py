"""`mase quantize --max-memory`: a folder of safetensors, one decoder layer at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chop.actions.decoder_stream import DecoderStream
from chop.actions.peak_memory import reset_peak, resident_bytes
from chop.actions.post_training import BUDGET_FORMATS, weight_formats
from chop.actions.records import write_csv
from chop.actions.stream_memory import check_memory, predict
from chop.actions.streamed_allocation import StreamAllocation, weight_elements
from chop.actions.streamed_quantization import (
    StreamPlan,
    StreamRequest,
    check_methods,
    plan_stream,
    quantize_stream,
)
from chop.actions.targets import DEFAULT_TARGET, SHIPPED_WIDTHS, Target, check_target
from chop.cli.allocation_budget import parsed_budget
from chop.cli.data import require_data
from chop.cli.failures import UsageError
from chop.cli.memory_limit import limit_bytes
from chop.cli.model_free_run import record_of, run_nearest, show_choices
from chop.cli.quantization_plan import show_allocation
from chop.cli.session import Session
from chop.cli.source import check_tokens
from chop.errors import ConfigError

NEAREST = "nearest"


def run_streamed(config: Any, session: Session) -> dict[str, Any]:
    """Quantise the folder `config.model` into `session.out`; return the record of the run."""
    if config.model is None or not Path(config.model).is_dir():
        raise UsageError(
            f"--max-memory reads the safetensors of a Hugging Face folder, and '{config.model}' is "
            "no folder. Give the folder of the model, or leave --max-memory out."
        )
    check_methods(config.method, config.options)
    if not config.chooses_streamed and all(name == NEAREST for name in config.method):
        return run_nearest(config, _format(config), session)
    plan = _plan(config)
    limit = limit_bytes(config.max_memory)
    assert limit is not None, "the option chose this path"
    resident = resident_bytes()
    check_memory(plan, resident, limit, config.rows_measured_at_once)
    show_choices(plan.folder, session)
    predicted = predict(plan, resident)
    session.console.say(f"predicted peak memory: {predicted}.")
    session.start_work()
    reset_peak()

    def progress(step: str, number: int, count: int) -> None:
        session.console.say(f"{step} {number} of {count}")

    report = quantize_stream(plan, session.out, progress=progress)
    if report.layers_resumed:
        session.console.say(f"{report.layers_resumed} layers were finished already.")
    if report.allocation is not None:
        show_allocation(report.allocation, session)
    write_csv(session.folder / "layers.csv", report.records)
    record = record_of(report.folder, predicted.peak, session)
    more = {
        "layers": report.records,
        "layers_resumed": report.layers_resumed,
        "layer_seconds": report.layer_seconds,
    }
    if report.allocation is not None:
        more["allocation"] = report.allocation
    return {**record, "method": list(config.method), **more}


def _format(config: Any) -> str:
    """Return the spelling of the one format of all weights."""
    if config.format is not None and config.bits is None and config.for_ is None:
        return str(config.format)
    target = check_target(config.for_ or DEFAULT_TARGET, config.format)
    width = target.width_of(config.format) if config.bits is None else int(config.bits)
    _check_inputs(config.for_, target)
    return target.formats[width]


def _check_inputs(name: str | None, target: Target) -> None:
    """Raise for a target that rounds activations."""
    if target.rounds_inputs:
        raise ConfigError(
            f"quantize.for: target {name} rounds activations, and max_memory rounds weights "
            "alone. Give another target, or leave --max-memory out."
        )


def _allocation(config: Any, stream: DecoderStream) -> StreamAllocation:
    """Return the formats to choose from, and the budget."""
    if config.for_ is not None:
        target = check_target(config.for_, config.format)
        _check_inputs(config.for_, target)
        formats = tuple(target.formats[width] for width in SHIPPED_WIDTHS)
    else:
        widths = config.widths or SHIPPED_WIDTHS
        formats = tuple(weight_formats(config.format or BUDGET_FORMATS[0], widths))
    limit = parsed_budget(config.budget, weight_elements(stream), config.bandwidth)
    bits, loss = (config.bits, None) if limit is None else (limit.bits, limit.loss)
    return StreamAllocation(formats, bits, loss, config.joined_for)


def _plan(config: Any) -> StreamPlan:
    source = Path(config.model)
    stream = DecoderStream(source)
    allocation = _allocation(config, stream) if config.chooses_streamed else None
    request = StreamRequest(
        source,
        _format(config) if allocation is None else allocation.formats[0],
        config.method,
        config.options,
        config.ignore,
        config.include,
        config.spill,
        allocation,
    )
    data = require_data(config, str(source), "quantize")
    check_tokens(stream.model, data)
    rows = min(config.rows_measured_at_once, config.calibration_rows)
    most = -(-config.calibration_rows // config.rows_measured_at_once)
    return plan_stream(request, data.batches(stream.model, rows, most), stream)
