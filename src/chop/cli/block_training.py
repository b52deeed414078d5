"""`mase train --teacher --max-memory`: a folder of safetensors, one decoder layer at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chop.actions.decoder_stream import DecoderStream
from chop.actions.peak_memory import peak_bytes, reset_peak, resident_bytes
from chop.actions.records import write_csv
from chop.actions.streamed_distillation import (
    BlockPlan,
    BlockRequest,
    check_block_memory,
    distill_blocks,
    plan_blocks,
)
from chop.cli.data import require_data
from chop.cli.failures import UsageError
from chop.cli.memory_limit import limit_bytes
from chop.cli.session import Session
from chop.cli.shared_options import TeacherOptions
from chop.cli.source import check_tokens
from chop.export.model_free import GIB

LEARNING_RATE = 1e-4
ROWS = 8
"""Default rows per batch."""


def run_blocks(config: Any, session: Session) -> dict[str, Any]:
    """Train the folder `config.model` into `session.out`; return the record of the run."""
    plan = _plan(config)
    limit = limit_bytes(config.max_memory)
    assert limit is not None, "the option chose this path"
    predicted = check_block_memory(plan, resident_bytes(), limit)
    session.console.say(f"predicted peak memory: {predicted / GIB:.2f} GiB.")
    session.start_work()
    reset_peak()

    def progress(step: str, number: int, count: int) -> None:
        session.console.say(f"{step} {number} of {count}")

    report = distill_blocks(plan, session.out, progress=progress)
    if report.layers_resumed:
        session.console.say(f"{report.layers_resumed} layers were finished already.")
    write_csv(session.folder / "layers.csv", report.records)
    peak = peak_bytes()
    session.console.say(
        f"peak memory {peak / GIB:.2f} GiB, predicted {predicted / GIB:.2f} GiB; outputs of the "
        f"last layer: {report.records[-1]['before']:.1f} dB before, "
        f"{report.records[-1]['after']:.1f} dB after."
    )
    return {
        "layers": report.records,
        "layers_resumed": report.layers_resumed,
        "layer_seconds": report.layer_seconds,
        "predicted_peak_bytes": predicted,
        "peak_bytes": peak,
    }


def _plan(config: Any) -> BlockPlan:
    for name, place in (("model", config.model), ("teacher", config.teacher)):
        if place is None or not Path(place).is_dir():
            raise UsageError(
                f"--max-memory trains a Hugging Face folder by a teacher in another one, and the "
                f"{name} '{place}' is no folder. Give both folders, or leave --max-memory out."
            )
    for name in ("temperature", "follow", "follow_weight", "label_weight"):
        if getattr(config, name) != getattr(TeacherOptions, name):
            raise UsageError(
                f"{name}: with --max-memory each layer follows the layer of the teacher, and no "
                "scores are computed. Leave it out."
            )
    rate = LEARNING_RATE if config.learning_rate is None else config.learning_rate
    request = BlockRequest(
        Path(config.model), Path(config.teacher), config.steps, rate, config.format, config.seed
    )
    stream = DecoderStream(request.source)
    data = require_data(config, str(request.source), "train")
    check_tokens(stream.model, data)
    rows = config.batch_size or ROWS
    return plan_blocks(request, data.batches(stream.model, rows, len(data.splits["train"])))
