"""`mase journey`: the same steps for any model, and one table."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from chop.cli.failures import FAILED, OK, UsageError
from chop.cli.names import SPELLING, names
from chop.cli.session import Session
from chop.cli.shared_options import DataOptions, ModelOptions, OutputOptions

EXAMPLES = (
    "mase journey mlp --dataset digits --epochs 10",
    "mase journey ./llama --dataset ./text --test-rows 32 --calibration-rows 16",
    "mase journey out/train --dataset digits --prune 0.5 --rtl",
    "mase journey model.onnx --dataset digits --bits 8,4 --for onnx",
)
DEFAULT_FORMATS = ("mxint8", "mxint4")
Target = Literal["onnx", "gguf", "compressed-tensors", "qonnx", "hf"]


@dataclass(frozen=True, kw_only=True)
class JourneyConfig(ModelOptions, DataOptions, OutputOptions):
    """Steps."""

    formats: Annotated[
        tuple[str, ...] | None,
        "Number formats of weights and inputs, spelled as for `mase quantize --format`. Default: "
        "mxint8 and mxint4, or none with --bits.",
    ] = field(default=None, metadata=names("formats", check=SPELLING))
    bits: Annotated[
        tuple[float, ...],
        "Bits per weight, as for `mase quantize --bits`; inputs stay floats. The method nearest "
        "sees no data.",
    ] = ()
    for_: Annotated[
        Literal["cpu", "gpu", "gguf", "vllm", "onnx", "rtl"] | None,
        "Target whose formats --bits uses, as for `mase quantize --for`.",
    ] = None
    explain: Annotated[
        bool, "Also name the layer that loses most, for each model with --bits or --formats."
    ] = False
    methods: Annotated[
        tuple[str, ...], "Methods to try with each format (`mase list methods`)."
    ] = field(default=("nearest", "gptq"), metadata=names("methods", closed=True))
    exports: Annotated[tuple[Target, ...], "File formats to export each model to."] = (
        "onnx",
        "gguf",
        "compressed-tensors",
        "hf",
    )
    calibration_rows: Annotated[int, "Number of training rows for methods that need data."] = 128
    epochs: Annotated[float, "Epochs of training before the other steps; 0: none."] = 0.0
    learning_rate: Annotated[float | None, "Learning rate of all training."] = None
    prune: Annotated[float | None, "Also prune this share of the weights, and train again."] = None
    finetune_epochs: Annotated[float, "Epochs of training after pruning."] = 1.0
    rtl: Annotated[
        bool, "Also quantise to 8-bit fixed point, and simulate every model as hardware."
    ] = False
    resume: Annotated[bool, "Skip the steps that an earlier run has finished."] = True
    out: Path = Path("out/journey")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.calibration_rows < 1:
            raise UsageError(
                f"journey.calibration_rows: must be at least 1, got {self.calibration_rows}."
            )
        for name in ("epochs", "prune", "rtl", "explain"):
            if getattr(self, name) and self.dataset is None:
                raise UsageError(f"--{name} looks at values of the dataset: give --dataset.")
        if self.for_ is not None and not self.bits:
            raise UsageError("--for chooses the formats of --bits: give --bits.")
        if self.formats is None:
            object.__setattr__(self, "formats", () if self.bits else DEFAULT_FORMATS)


def run(config: JourneyConfig, session: Session) -> dict[str, Any]:
    """Run the steps that are not done, write the table, print it."""
    from chop.cli.data import load_data
    from chop.cli.journey_run import run_steps
    from chop.cli.journey_steps import steps_of
    from chop.cli.journey_table import table_of, write_journey
    from chop.cli.source import find_source

    source = find_source(config)  # the tokenizer of a GGUF file is in a folder of the source
    load_data(config, source.place)
    del source  # a step loads it again
    steps = steps_of(config, session.out)
    session.start_work()
    records = run_steps(config, steps, session)
    write_journey(session.folder, str(config.model), config.dataset, records)
    session.console.say()
    session.console.table(table_of(records), disable_numparse=True)
    counts = {kind: sum(r["outcome"] == kind for r in records) for kind in ("refused", "failed")}
    session.console.say(f"\nreasons and commands: {session.out}/journey.md")
    return {
        "model": str(config.model),
        "steps": records,
        **counts,
        "exit_code": FAILED if counts["failed"] else OK,
    }
