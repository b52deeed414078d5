"""`mase emit`: the SystemVerilog of a quantised model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from chop.cli.emitted_design import (
    DesignOptions,
    emit_project,
    load_design_input,
    start_hardware,
)
from chop.cli.session import Session
from chop.hw.flow.predict import predict
from chop.hw.lower.design_cache import attached_design

EXAMPLES = (
    "mase emit out/quantize --dataset digits --max-parallelism 8",
    "mase emit out/quantize --target-interval 64",
    "mase emit out/quantize --fit ecp5-25k --goal fps",
    "mase emit out/search --trial 7",
    "mase emit out/quantize --axi",
)


@dataclass(frozen=True, kw_only=True)
class EmitConfig(DesignOptions):
    """Emission."""

    axi: Annotated[
        bool,
        "Also write a wrapper with AXI4-Stream data and AXI4-Lite control, and its test bench.",
    ] = False
    out: Path = Path("out/emit")


def run(config: EmitConfig, session: Session) -> dict[str, Any]:
    """Choose the parallelism, write RTL, memories and test bench."""
    inputs = load_design_input(config, session)
    start_hardware(inputs, session)
    record = emit_project(inputs, session.folder, has_axi=config.axi)
    session.console.say(
        f"{len(record['files'])} files: a tensor every {record['cycles']} cycles, "
        f"{record['multipliers']} multipliers"
    )
    if config.design.fit is not None:
        record["predicted"] = str(predict(attached_design(inputs.graph).design, config.design.fit))
        session.console.say(record["predicted"])
    simulator = " --simulator axi" if config.axi else ""
    session.console.say(f"next: mase simulate {config.out}{simulator}")
    return {**inputs.facts, **record}
