"""`mase quantize --model-free`: a folder of safetensors, one tensor at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chop.actions.peak_memory import peak_bytes, reset_peak, resident_bytes
from chop.cli.failures import UsageError
from chop.cli.memory_limit import limit_bytes
from chop.cli.session import Session
from chop.errors import ConfigError
from chop.export.model_free import (
    GIB,
    ModelFreePlan,
    ModelFreeReport,
    plan_folder,
    quantize_folder,
)
from chop.nn.quantizers import parse_format

MOST_LISTED = 12


def run_model_free(config: Any, session: Session) -> dict[str, Any]:
    """Quantise the folder `config.model` into `session.out`; return the record of the run."""
    if config.model is None:
        raise UsageError("--model-free: give the folder of the model.")
    return run_nearest(config, config.format, session)


def run_nearest(config: Any, form: str, session: Session) -> dict[str, Any]:
    """Round the matrices of the folder to the nearest values of a format."""
    plan = plan_folder(
        Path(config.model),
        parse_format(form, "format"),
        ignore=config.ignore,
        include=config.include,
    )
    resident = resident_bytes()
    _check_memory(plan, resident, limit_bytes(config.max_memory))
    show_choices(plan, session)
    predicted = plan.predicted_peak(resident)
    session.console.say(f"predicted peak memory: {predicted / GIB:.2f} GiB.")
    session.start_work()
    reset_peak()

    def progress(name: str, number: int, count: int) -> None:
        session.console.say(f"shard {number} of {count}: {name}")

    report = quantize_folder(plan, session.out, resident=resident, progress=progress)
    return record_of(report, report.predicted_peak, session)


def record_of(report: ModelFreeReport, predicted: int, session: Session) -> dict[str, Any]:
    """Print the memory and the sizes of a run; return its record."""
    peak = peak_bytes()
    if report.resumed:
        session.console.say(f"{len(report.resumed)} shards were finished already.")
    session.console.say(
        f"peak memory {peak / GIB:.2f} GiB, predicted {predicted / GIB:.2f} GiB; "
        f"weights {report.bytes_before / GIB:.2f} GiB before, {report.bytes_after / GIB:.2f} after."
    )
    return {
        "format": report.format,
        "quantised": len(report.quantised),
        "copied": report.copied,
        "shards_written": report.written,
        "shards_resumed": report.resumed,
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "predicted_peak_bytes": predicted,
        "peak_bytes": peak,
    }


def _check_memory(plan: ModelFreePlan, resident: int, limit: float | None) -> None:
    predicted = plan.predicted_peak(resident)
    if limit is not None and predicted > limit:
        largest = max(plan.choices, key=lambda choice: choice.tensor.nbytes).tensor
        raise ConfigError(
            f"max_memory: {limit / GIB:.3g} GiB, and the run needs {predicted / GIB:.2f} GiB: the "
            f"process has {resident / GIB:.2f}, and the largest tensor is '{largest.name}' with "
            f"{largest.nbytes / GIB:.2f}."
        )


def show_choices(plan: ModelFreePlan, session: Session) -> None:
    """Print the matrices that stay floats."""
    matrices = [choice for choice in plan.choices if len(choice.tensor.shape) > 1]
    floats = [choice for choice in matrices if choice.reason]
    session.console.say(f"{len(matrices) - len(floats)} matrices become {plan.form}.")
    if floats:
        session.console.say(f"{len(floats)} stay as they are:")
        rows = [{"module": c.module, "reason": c.reason} for c in floats[:MOST_LISTED]]
        session.console.table(rows)
    if len(floats) > MOST_LISTED:
        session.console.say(f"and {len(floats) - MOST_LISTED} more (result.json lists all).")
