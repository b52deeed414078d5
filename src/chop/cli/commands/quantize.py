"""`mase quantize`: layers in number formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from chop.cli.failures import UsageError
from chop.cli.names import SPELLING, names
from chop.cli.session import Session
from chop.cli.shared_options import DataOptions, ModelOptions, OutputOptions, TrainingOptions
from chop.errors import ConfigError

EXAMPLES = (
    "mase quantize ./llama --bits 4 --for gguf",
    "mase quantize ./llama --budget 1% --for vllm --dataset text.txt",
    "mase quantize out/train --format integer --width 8 --frac-width 4",
    "mase quantize out/train --dataset digits --fit --width 6 --qat-epochs 1 --evaluate",
    "mase quantize bert-tiny --set rules.linear.config.name=mxint",
    "mase quantize ./llama-8b --bits 4 --method gptq --dataset text.txt --max-memory 16GB",
    "mase quantize ./llama-70b --model-free --format nvfp4 --out ./llama-70b-nvfp4",
    "mase quantize --config run.toml",
)
NEAREST = "nearest"


@dataclass(frozen=True, kw_only=True)
class QuantizeConfig(ModelOptions, DataOptions, TrainingOptions, OutputOptions):
    """Number formats."""

    keeps_cache: ClassVar[bool] = True

    format: Annotated[
        str | None,
        "Number format of every operand, spelled NAME[/GROUP][:SETTING=VALUE]…: mxint4, mxint8/16, "
        "mxfp4, fixed8.4, int8/channel, fp8_e4m3 … (see docs/formats.md), or a name of `mase list "
        "formats` with --width. Default: mxint8, or integer if only --width is given.",
    ] = field(default=None, metadata=names("formats", check=SPELLING))
    width: Annotated[int | None, "Bits of every operand."] = None
    frac_width: Annotated[int | None, "Fractional bits of every operand."] = None
    type: Annotated[
        tuple[str, ...] | None,
        "Ops to quantise. Default: those with weights, as linear, conv1d, embedding …",
    ] = field(default=None, metadata=names("ops"))
    fit: Annotated[
        bool,
        "Choose the fractional bits of each operand of linear layers and convolutions from the "
        "dataset.",
    ] = False
    bits: Annotated[
        float | None,
        "Bits per weight. A whole number, 4 or 8: one format that kernels and exports take; with 4 "
        "the layers that need it have 8 bits, with 8 and a dataset 16 bits. Another number, or "
        "--widths: the average over the whole model, embeddings included, with the width of each "
        "layer chosen for it. Above 8, --for onnx chooses 8 or 16 bits for each layer.",
    ] = None
    budget: Annotated[
        str | None,
        "In place of --bits: the size of all weights, as 120MB; the predicted decode time of a "
        "token, as 20ms with --bandwidth; or the predicted increase of the perplexity, as 1%, for "
        "which the fewest bits are chosen.",
    ] = None
    bandwidth: Annotated[
        str | None,
        "Bandwidth of the memory, as 50GB/s, for a --budget in ms: all weights are read once per "
        "token.",
    ] = None
    fusable: Annotated[
        Literal["vllm"] | None,
        "Server that joins layers: q, k and v, gate and up, and all experts of a layer then share "
        "a format. Default: vllm with --for vllm.",
    ] = None
    for_: Annotated[
        Literal["cpu", "gpu", "gguf", "vllm", "onnx", "rtl"] | None,
        "Target: restrict the formats to those that it runs. Default: those of cpu, gpu and gguf.",
    ] = None
    widths: Annotated[
        tuple[int, ...] | None,
        "Widths to choose from for --bits, with the format mxint or block_fp; few kernels and "
        "exports take other widths than 4 and 8.",
    ] = None
    method: Annotated[
        tuple[str, ...] | str,
        "Methods that keep the accuracy (`mase list methods`).",
    ] = field(default=(NEAREST,), metadata=names("methods", closed=True))
    observer: Annotated[
        str | None,
        "Choose the scales, or the fractional bits of fixed point, from values of the dataset "
        "(`mase list observers`). Default: scales are measured at each call.",
    ] = field(default=None, metadata=names("observers", closed=True))
    calibration_rows: Annotated[
        int, "Number of training rows for --bits, --method and --observer."
    ] = 128
    keep_floats: Annotated[
        bool,
        "Save the float weights behind the rounded ones, to train further. Default: only after "
        "--qat-epochs.",
    ] = False
    evaluate: Annotated[bool, "Evaluate the model before and after."] = False
    qat_epochs: Annotated[float, "Epochs of training after quantisation."] = 0.0
    learn_scales: Annotated[bool, "Train the scales of the observer, too."] = False
    model_free: Annotated[
        bool,
        "Quantise the safetensors of a Hugging Face folder without its model, one tensor at a "
        "time, and write a folder of compressed-tensors to --out. Needs --format alone.",
    ] = False
    ignore: Annotated[
        tuple[str, ...],
        "Modules that --model-free and --max-memory leave as floats, as regular expressions, in "
        "addition to embeddings, norms, heads and routers.",
    ] = ()
    include: Annotated[
        tuple[str, ...],
        "Modules that --model-free and --max-memory quantise although they are left by default.",
    ] = ()
    max_memory: Annotated[
        str | float | None,
        "Memory that the job may use, as 8GB, 500MB or a number of GiB. The job reads and writes a "
        "Hugging Face folder one decoder layer at a time, or with --model-free one tensor at a "
        "time. It predicts its peak, and refuses to start if it needs more.",
    ] = None
    spill: Annotated[
        Path | None,
        "Folder for the activations of --max-memory. Default: in memory.",
    ] = None
    rules: Annotated[
        dict[str, Any], "Arguments of quantize_transform_pass, in place of the flags."
    ] = field(default_factory=dict)
    options: Annotated[
        dict[str, dict[str, Any]],
        'Further arguments of each method\'s pass, by method; "calibrate" for the observer.',
    ] = field(default_factory=dict)
    out: Path = Path("out/quantize")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.method, str):  # a file may spell several as the command line does
            object.__setattr__(self, "method", tuple(n.strip() for n in self.method.split(",")))
        short = self.format is not None or self.width is not None or self.frac_width is not None
        for is_wrong, message in (
            (
                short and self.rules,
                "format, width and frac_width exclude 'rules'; give one or the other.",
            ),
            (
                self.fit and (self.width is None or self.rules),
                "fit chooses fixed point of a given width: give --width alone.",
            ),
            (
                self.fit and self.observer is not None,
                "fit is observer min_max for fixed point: give one or the other.",
            ),
            (
                self.bits is not None and (self.width is not None or self.rules or self.fit),
                "bits chooses the widths: it excludes width, fit and rules.",
            ),
            *self._budget_conflicts,
            (
                self.bits is not None and self.type is not None,
                "bits is the average over all weights: it excludes type.",
            ),
            (
                self.widths is not None
                and ((self.bits is None and self.budget is None) or self.for_ is not None),
                "widths are those to choose from for --bits, and --for has its own: give --bits "
                "alone.",
            ),
            (
                self.for_ is not None and (self.width is not None or self.rules or self.fit),
                "for chooses the formats of a target: it excludes width, fit and rules.",
            ),
            (
                self.learn_scales and (self.observer is None or not self.qat_epochs),
                "learn_scales trains what an observer chose: give --observer and --qat-epochs too.",
            ),
            *self._folder_conflicts,
            (
                self.calibration_rows < 1,
                f"calibration_rows must be at least 1, got {self.calibration_rows}.",
            ),
        ):
            if is_wrong:
                raise ConfigError(message)

    @property
    def _budget_conflicts(self) -> list[tuple[bool, str]]:
        """Conflicts of the options that choose widths, each with its message."""
        return [
            (
                self.budget is not None
                and (self.bits is not None or self.width is not None or bool(self.rules)),
                "budget chooses the widths: it excludes bits, width and rules.",
            ),
            (
                self.budget is not None and (self.fit or self.type is not None),
                "budget chooses the widths of all weights: it excludes fit and type.",
            ),
            (
                self.bandwidth is not None and self.budget is None,
                "bandwidth belongs to a decode time: give --budget, as 20ms.",
            ),
            (
                self.fusable is not None and self.bits is None and self.budget is None,
                "fusable joins layers whose widths are chosen: give --bits or --budget.",
            ),
        ]

    @property
    def _folder_conflicts(self) -> list[tuple[bool, str]]:
        """Conflicts among the options for folders that are not loaded, each with its message."""
        return [
            (
                not self.model_free and not self.is_streamed and bool(self.ignore or self.include),
                "ignore and include are options of --model-free and --max-memory: give one of "
                "them too.",
            ),
            (
                self.spill is not None and not self.is_streamed,
                "spill is an option of --max-memory without --model-free: give --max-memory.",
            ),
            (
                self.is_streamed
                and (bool(self._whole_model) or not (self._has_one_format or self.is_average)),
                "max_memory takes one format for all weights, or chooses widths: give --format, "
                "--bits or --budget"
                + (f", without {', '.join(self._whole_model)}." if self._whole_model else "."),
            ),
            (
                self.model_free and (self.format is None or bool(self._needs_model)),
                "model_free rounds weights to the nearest value of a format: give --format alone"
                + (f", without {', '.join(self._needs_model)}." if self._needs_model else "."),
            ),
        ]

    @property
    def _needs_model(self) -> list[str]:
        """Options in use that need a model or data."""
        with_data = self._changed("bits", "for_", "method", "dataset")
        choices = self._changed("widths", "budget", "bandwidth", "fusable")
        return [*with_data, *choices, *self._whole_model]

    @property
    def _whole_model(self) -> list[str]:
        """Options in use that need the whole model in memory."""
        formats = self._changed("width", "frac_width", "type", "fit", "observer")
        training = self._changed("evaluate", "qat_epochs", "learn_scales", "keep_floats")
        return [*formats, *training, *["rules"] * bool(self.rules)]

    def _changed(self, *names: str) -> list[str]:
        """Return those of the options that have another value than their default."""
        defaults = {f.name: f.default for f in fields(self)}
        return [n.rstrip("_") for n in names if getattr(self, n) != defaults[n]]

    @property
    def _has_one_format(self) -> bool:
        if self.budget is not None or self.widths is not None:
            return False
        return self.format is not None if self.bits is None else self.bits in (4, 8)

    @property
    def is_streamed(self) -> bool:
        """True if the decoder layers are quantised one at a time, from and to a folder."""
        return self.max_memory is not None and not self.model_free

    @property
    def chooses_streamed(self) -> bool:
        """True if the widths are chosen one decoder layer at a time."""
        return self.is_streamed and self.is_average and not self._has_one_format

    @property
    def is_average(self) -> bool:
        """True if --bits is an average, for which widths are chosen by data."""
        is_width = self.bits in (4, 8) and self.widths is None
        is_chosen = self.bits is not None and not (is_width and self.format is None)
        return is_chosen or self.budget is not None

    @property
    def joined_for(self) -> str | None:
        """Server for which layers that it joins share a format."""
        return self.fusable or ("vllm" if self.for_ == "vllm" else None)

    @property
    def can_name_ops(self) -> bool:
        """True if --type may be added to the other options."""
        return not self.rules and self.bits is None and self.budget is None

    @property
    def calibrated_flags(self) -> Sequence[str]:
        """Flags that need calibration data."""
        chooses = "--bits" if self.budget is None else "--budget"
        flags = [chooses] * self.is_average + ["--observer"] * (self.observer is not None)
        return [*flags, *(f"--method {name}" for name in self.method if name != NEAREST)]


def run(config: QuantizeConfig, session: Session) -> dict[str, Any]:
    """Quantise a model, train it if asked, compare with before, save."""
    if config.model_free:
        from chop.cli.model_free_run import run_model_free

        return run_model_free(config, session)
    _check_dataset(config)
    if config.is_streamed:
        from chop.cli.streamed_run import run_streamed

        return run_streamed(config, session)
    from chop.actions.records import write_csv
    from chop.actions.weighted_layers import left_in_float
    from chop.cli.before_and_after import Compression, compress
    from chop.cli.quantization_plan import quantize_graph
    from chop.passes import summarize_quantization_analysis_pass

    plan = Compression(
        "quantize",
        lambda graph, data: quantize_graph(config, session, graph, data),
        config.qat_epochs,
        "QAT",
        config.evaluate,
        "graph" if config.keep_floats or config.qat_epochs else "packed",
    )
    graph, result = compress(config, session, plan)
    _, summary = summarize_quantization_analysis_pass(graph)
    write_csv(session.folder / "layers.csv", summary["table"])
    session.console.say("\nnodes by op:")
    session.console.table(summary["ops"])
    floats = left_in_float(graph, config.for_)
    _report_floats(floats, config, session)
    return {**result, "ops": summary["ops"], "left_in_float": floats}


def _report_floats(rows: list[dict[str, Any]], config: QuantizeConfig, session: Session) -> None:
    """Print the layers that stayed floats: rarely intended, and visible in the bytes."""
    from chop.ir.ops import OPS

    texts = [
        f"{row['op']} ({row['layers']} of them, {row['parameters']:,} numbers, "
        f"{row['share']:.1%}: {row['reason']})"
        for row in rows
    ]
    ops = [row["op"] for row in rows if row["op"] in OPS]
    advice = f" --type {','.join(ops)} names them." if ops and config.can_name_ops else ""
    if rows:
        session.console.say(f"\nleft as floats: {'; '.join(texts)}.{advice}")


def _check_dataset(config: QuantizeConfig) -> None:
    """Raise if an option needs a dataset and there is none, before the model is loaded."""
    if config.dataset is not None:
        return
    flags = config.calibrated_flags
    if flags:
        verb = f"look{'s' * (len(flags) == 1)}"
        raise UsageError(f"{' and '.join(flags)} {verb} at values of the dataset: give --dataset.")
    if config.fit:
        raise UsageError("--fit looks at values of the dataset: give --dataset.")
    if config.qat_epochs or config.evaluate:
        raise UsageError("quantize: to measure or train give --dataset.")
