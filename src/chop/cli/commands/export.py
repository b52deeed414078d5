"""`mase export`: write a model for other programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from chop.cli.session import Session
from chop.cli.shared_options import DataOptions, ModelOptions, OutputOptions
from chop.errors import ConfigError

EXAMPLES = (
    "mase export out/quantize --to onnx",
    "mase export ./llama --task causal-lm --to gguf --format Q4_0 --tokenizer ./llama",
    "mase export out/quantize --to compressed-tensors --fallback float",
    "mase export ./llama --to compressed-tensors --cache fp8_e4m3 --dataset text.txt",
)
DEFAULT_TYPE = "Q8_0"
"""GGUF type if none is given."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig(ModelOptions, DataOptions, OutputOptions):
    """Target."""

    keeps_packed: ClassVar[bool] = True

    to: Annotated[
        Literal["onnx", "gguf", "compressed-tensors", "qonnx", "hf"], "File format to write."
    ] = "onnx"
    format: Annotated[
        str,
        "GGUF type of weights without a number format: Q8_0, Q6_K, Q5_K, Q4_K, Q3_K, Q2_K, Q4_0, "
        "Q4_1, MXFP4, F16, BF16, F32, or a format with such a type, as mxfp4 or int8/32.",
    ] = field(default=DEFAULT_TYPE, metadata={"check": "chop.export.gguf_types:type_named"})
    tokenizer: Annotated[
        str | None,
        "Folder or hub name of the tokenizer to store with the model. Default: the model's own.",
    ] = None
    fallback: Annotated[
        Literal["float", "nearest"] | None,
        "Replacement for a format that the target lacks: its values as floats, or (GGUF) rounded "
        "again. Default: an error.",
    ] = None
    cache: Annotated[
        Literal["fp8_e4m3"] | None,
        "Format of the key-value cache on servers, for --to compressed-tensors. Its scales are "
        "chosen from --dataset.",
    ] = None
    calibration_rows: Annotated[int, "Number of training rows for --cache."] = 128
    out: Path = Path("out/export")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.cache is None) != (self.dataset is None):
            raise ConfigError("cache chooses scales from a dataset: give --cache and --dataset.")
        if self.cache is not None and self.to != "compressed-tensors":
            raise ConfigError(
                f"cache: '{self.to}' stores no format of a cache. Allowed: --to compressed-tensors."
            )
        if self.calibration_rows < 1:
            raise ConfigError(f"calibration_rows must be at least 1, got {self.calibration_rows}.")


def run(config: ExportConfig, session: Session) -> dict[str, Any]:
    """Write the file or folder, and print a summary of its tensors."""
    from chop import export
    from chop.actions.records import write_csv
    from chop.cli.checkpoints import TOKENIZER
    from chop.cli.companions import save_companions
    from chop.cli.source import describe, find_source, load_graph

    source = find_source(config)
    graph = load_graph(config, source)
    folder, place = session.folder, config.tokenizer or source.place
    tokenizer = None
    if config.to == "gguf":
        tokenizer = _gguf_tokenizer(config.tokenizer, source.place, graph, session)
    fallback: dict[str, Any] = {"fallback": config.fallback}
    writers = {
        "onnx": lambda: export.to_onnx(graph, folder / "model.onnx", **fallback),
        "qonnx": lambda: export.to_qonnx(graph, folder / "model.onnx", **fallback),
        "gguf": lambda: export.to_gguf(
            graph, folder / "model.gguf", config.format, tokenizer=tokenizer, **fallback
        ),
        "compressed-tensors": lambda: export.to_compressed_tensors(
            graph, folder / "model", **fallback, cache_data=_cache_data(config, source, graph)
        ),
        "hf": lambda: export.to_huggingface(graph, folder / "model"),
    }
    with session.console.progress(f"export to {config.to}"):
        report = writers[config.to]()
    if report.path.is_dir():
        saved = save_companions(place, report.path)
    else:  # a file holds no labels: they come in the config
        saved = save_companions(place, folder / TOKENIZER, getattr(graph.model, "config", None))
    if saved:
        session.console.say(f"with it: {', '.join(saved)}")
    write_csv(folder / "tensors.csv", [asdict(r) for r in report.records])
    sizes: dict[str, list[int]] = {}
    for record in report.records:
        sizes.setdefault(record.written, []).append(record.nbytes)
    session.console.say(f"{report.path.name}: {report.nbytes / 2**20:.2f} MiB of tensors")
    session.console.table(
        [{"written as": k, "tensors": len(v), "bytes": sum(v)} for k, v in sizes.items()]
    )
    _note_format(config, list(sizes), session)
    if report.changed:
        session.console.say(f"{len(report.changed)} tensors were rounded to the target's types")
    for line in report.dropped:
        session.console.say(line)
    return {
        **describe(graph, source),
        "to": config.to,
        "file": report.path.name,
        "bytes": report.nbytes,
        "bits": report.bits,
        "rounded": [record.name for record in report.changed],
        "dropped": report.dropped,
        "companions": saved,
    }


def _cache_data(config: ExportConfig, source: Any, graph: Any) -> list[Any] | None:
    """Return the calibration batches of --cache."""
    if config.cache is None:
        return None
    from chop.cli.data import require_data

    data = require_data(config, source.place, "export --cache")
    rows = min(config.rows_measured_at_once, config.calibration_rows)
    return data.batches(graph.model, rows, -(-config.calibration_rows // rows))


def _note_format(config: ExportConfig, written: list[str], session: Session) -> None:
    """Print a note if a GGUF type was asked for and no tensor was written in it."""
    from chop.export.gguf_types import type_named

    if config.to != "gguf" or config.format == DEFAULT_TYPE:
        return
    if type_named(config.format, "export") not in written:
        session.console.note(
            f"--format {config.format} had no effect: every matrix has a number format of its own, "
            "and keeps it. To round it again, read the model as floats first (mase import "
            "--no-pack)."
        )


def _gguf_tokenizer(chosen: str | None, own: str | None, graph: Any, session: Session) -> Any:
    """Return the tokenizer to store in a GGUF file; a model's own is left out if none can be."""
    from chop.dataset.tokenized import load_tokenizer
    from chop.errors import ChopError
    from chop.export.gguf_tokenizer import tokenizer_metadata

    if chosen is not None:
        return load_tokenizer(chosen)
    if own is None:
        return None
    try:
        tokenizer = load_tokenizer(own)
        tokenizer_metadata(tokenizer, graph.model.config.vocab_size)
    except ChopError as error:
        session.console.note(f"the file has no tokenizer: {error}")
        return None
    return tokenizer
