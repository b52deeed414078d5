"""`mase emit`: the SystemVerilog of a quantised model."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from chop.cli.emitted_design import (
    HARDWARE,
    DesignInput,
    DesignOptions,
    emit_project,
    is_project,
    load_design_input,
    start_hardware,
)
from chop.cli.session import Session
from chop.errors import ConfigError
from chop.hw.flow.predict import predict
from chop.hw.interfaces.axi_wrapper import CLOCKS
from chop.hw.interfaces.new_weights import emit_new_weights, require_same_design
from chop.hw.lower.design_cache import attached_design, verified_design
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass

EXAMPLES = (
    "mase emit out/quantize --dataset digits --max-parallelism 8",
    "mase emit out/quantize --target-interval 64",
    "mase emit out/quantize --fit ecp5-25k --goal fps",
    "mase emit out/search --trial 7",
    "mase emit out/quantize --axi",
    "mase emit out/quantize --axi --clocks 2",
    "mase emit out/quantize --axi --weights reload",
    "mase emit out/retrained --weights reload --weights-for out/emit --out out/reloaded",
)


@dataclass(frozen=True, kw_only=True)
class EmitConfig(DesignOptions):
    """Emission."""

    axi: Annotated[
        bool,
        "Also write a wrapper with AXI4-Stream data and AXI4-Lite control, and its test bench.",
    ] = False
    clocks: Annotated[
        int, "Clocks of the wrapper: 2 gives the AXI4-Stream ports a clock of their own."
    ] = 1
    weights_for: Annotated[
        Path | None,
        "Write no design, only new weights for the one in this folder, which was emitted with "
        "--weights reload. --out gets a copy of the folder with the weights in hardware/reload.",
    ] = None
    out: Path = Path("out/emit")


def run(config: EmitConfig, session: Session) -> dict[str, Any]:
    """Choose the parallelism, write RTL, memories and test bench."""
    if config.clocks not in CLOCKS or (config.clocks > 1 and not config.axi):
        raise ConfigError(
            f"clocks: {config.clocks}. Allowed: 1, or 2 with --axi, whose streams get a clock."
        )
    if config.weights_for is not None and not is_project(str(config.weights_for)):
        raise ConfigError(
            f"weights_for: '{config.weights_for}' is no folder that `mase emit` wrote."
        )
    inputs = load_design_input(config, session)
    if config.weights_for is not None:
        return _emit_weights(config.weights_for, inputs, session)
    start_hardware(inputs, session)
    record = emit_project(inputs, session.folder, has_axi=config.axi, clocks=config.clocks)
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


def _emit_weights(project: Path, inputs: DesignInput, session: Session) -> dict[str, Any]:
    """Copy the hardware of `project` and add the weights of another model for it."""
    add_hardware_metadata_analysis_pass(inputs.graph, inputs.args)
    require_same_design(project / HARDWARE, attached_design(inputs.graph).design)
    session.start_work()
    design = verified_design(inputs.graph, inputs.test_inputs).design
    hardware = session.folder / HARDWARE
    shutil.copytree(project / HARDWARE, hardware, ignore=shutil.ignore_patterns("sim"))
    files = [f"{HARDWARE}/{name}" for name in emit_new_weights(hardware, design)]
    port = design.reload_port
    assert port is not None, "checked by emit_new_weights"
    session.console.say(f"{port.pieces} words of weights for {project}, CRC {port.crc:08x}")
    return {**inputs.facts, "files": files, "weights_for": str(project), "crc": f"{port.crc:08x}"}
