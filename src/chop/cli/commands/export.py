"""`mase export`: a model as other programs load it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chop.actions.records import write_csv
from chop.cli.export_configs import ExportConfig
from chop.cli.session import Session
from chop.cli.source import describe, find_source, load_graph
from chop.export import (
    ExportReport,
    to_compressed_tensors,
    to_gguf,
    to_huggingface,
    to_onnx,
    to_qonnx,
)
from chop.ir.graph import MaseGraph

Writer = Callable[[MaseGraph, Path, ExportConfig], ExportReport]


def _gguf(graph: MaseGraph, folder: Path, config: ExportConfig) -> ExportReport:
    options: dict[str, Any] = {"fallback": config.fallback, "tokenizer": config.tokenizer}
    return to_gguf(graph, folder / "model.gguf", config.format, **options)


def _onnx(graph: MaseGraph, folder: Path, config: ExportConfig) -> ExportReport:
    return to_onnx(graph, folder / "model.onnx", fallback=config.fallback)


def _qonnx(graph: MaseGraph, folder: Path, config: ExportConfig) -> ExportReport:
    return to_qonnx(graph, folder / "model.onnx", fallback=config.fallback)


def _compressed_tensors(graph: MaseGraph, folder: Path, config: ExportConfig) -> ExportReport:
    options: dict[str, Any] = {"fallback": config.fallback}
    return to_compressed_tensors(graph, folder / "model", **options)


def _hf(graph: MaseGraph, folder: Path, config: ExportConfig) -> ExportReport:
    return to_huggingface(graph, folder / "model")


WRITERS: dict[str, Writer] = {
    "onnx": _onnx,
    "gguf": _gguf,
    "compressed-tensors": _compressed_tensors,
    "qonnx": _qonnx,
    "hf": _hf,
}


def run(config: ExportConfig, session: Session) -> dict[str, Any]:
    """Write the file or folder, and say what is in it."""
    source = find_source(config)
    graph = load_graph(config, source)
    with session.console.progress(f"export to {config.to}"):
        report = WRITERS[config.to](graph, session.folder, config)
    rows = [asdict(r) for r in report.records]
    write_csv(session.folder / "tensors.csv", rows)
    kinds: dict[str, list[int]] = {}
    for record in report.records:
        kinds.setdefault(record.written, []).append(record.nbytes)
    session.console.say(f"{report.path.name}: {report.nbytes / 2**20:.2f} MiB of tensors")
    session.console.table(
        [{"written as": k, "tensors": len(v), "bytes": sum(v)} for k, v in kinds.items()]
    )
    if report.changed:
        session.console.say(f"{len(report.changed)} tensors were rounded to the target's types")
    for line in report.dropped:
        session.console.say(line)
    facts = {"to": config.to, "file": report.path.name, "bytes": report.nbytes}
    changed = [r.name for r in report.changed]
    return {
        **describe(graph, source),
        **facts,
        "bits": report.bits,
        "rounded": changed,
        "dropped": report.dropped,
    }
