"""`mase quantize --max-memory`: a folder of safetensors, one decoder layer at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chop.actions.decoder_stream import DecoderStream
from chop.actions.peak_memory import reset_peak, resident_bytes
from chop.actions.records import write_csv
from chop.actions.stream_memory import check_memory, predict
from chop.actions.streamed_quantization import (
    StreamPlan,
    StreamRequest,
    check_methods,
    plan_stream,
    quantize_stream,
)
from chop.actions.targets import DEFAULT_TARGET, check_target
from chop.cli.data import require_data
from chop.cli.failures import UsageError
from chop.cli.memory_limit import limit_bytes
from chop.cli.model_free_run import record_of, run_nearest, show_choices
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
    form = _format(config)
    if all(name == NEAREST for name in config.method):
        return run_nearest(config, form, session)
    plan = _plan(config, form)
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
    write_csv(session.folder / "layers.csv", report.records)
    record = record_of(report.folder, predicted.peak, session)
    more = {
        "layers": report.records,
        "layers_resumed": report.layers_resumed,
        "layer_seconds": report.layer_seconds,
    }
    return {**record, "method": list(config.method), **more}


def _format(config: Any) -> str:
    """Return the spelling of the one format of all weights."""
    if config.format is not None and config.bits is None and config.for_ is None:
        return str(config.format)
    target = check_target(config.for_ or DEFAULT_TARGET, config.format)
    width = target.width_of(config.format) if config.bits is None else int(config.bits)
    if target.rounds_inputs:
        raise ConfigError(
            f"quantize.for: target {config.for_} rounds activations, and max_memory rounds weights "
            "alone. Give another target, or leave --max-memory out."
        )
    return target.formats[width]


def _plan(config: Any, form: str) -> StreamPlan:
    source = Path(config.model)
    request = StreamRequest(
        source, form, config.method, config.options, config.ignore, config.include, config.spill
    )
    stream = DecoderStream(source)
    data = require_data(config, str(source), "quantize")
    check_tokens(stream.model, data)
    rows = min(config.rows_measured_at_once, config.calibration_rows)
    most = -(-config.calibration_rows // config.rows_measured_at_once)
    return plan_stream(request, data.batches(stream.model, rows, most), stream)
