"""`mase hw`: a quantised model down to a part: RTL, simulation, routed clock, bitstream."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chop.actions.hardware import HardwareBuild, build_hardware
from chop.cli.commands.emit import (
    HARDWARE,
    EmitConfig,
    load_emitted,
    start_hardware,
    test_inputs,
)
from chop.cli.names import names
from chop.cli.session import Session
from chop.errors import HardwareError
from chop.hw.design.design import Design
from chop.hw.flow.hardware_report import tensors_per_second
from chop.hw.flow.predict import predict
from chop.hw.flow.route.flow import RouteOptions, records, require_tools
from chop.hw.flow.route.parts import get_part

DEVICE = "ecp5-85k"
"""Where neither the user nor a trial names one."""


@dataclass(frozen=True, kw_only=True)
class HwConfig(EmitConfig):
    """Hardware on a part.

    `device`: the part, such as ecp5-85k; `mase list parts` has all. By default that of the trial's
    study, else ecp5-85k.
    """

    device: str | None = field(default=None, metadata=names("parts", closed=True))
    routing: RouteOptions = field(default_factory=RouteOptions, metadata={"prefix": ""})
    out: Path = Path("out/hw")


def run(config: HwConfig, session: Session) -> dict[str, Any]:
    """Emit, simulate, synthesise, place and route; raises unless every bit is right."""
    given = load_emitted(config, session)
    device = config.device or given.part or DEVICE
    require_tools(get_part(device))
    start_hardware(given, session)
    with session.console.progress("build and simulate") as progress:
        steps = iter(range(1, 1 << 30))
        built = build_hardware(
            given.graph,
            session.folder,
            inputs=test_inputs(given.graph, given.data),
            parallelism=given.args,
            family=None,
            device=device,
            routing=config.routing,
            progress=lambda text: progress.to(next(steps), text),
        )
    told = describe_routed(built)
    session.console.say(f"{built.verdict}")
    session.console.say(told["predicted"])
    session.console.say(f"routed: {built.routed}")
    session.console.say(f"{told['tensors_per_second']:,.0f} tensors per second")
    session.console.say(f"slowest path: {' -> '.join(told['path_stages'])}")
    session.console.say(f"bitstream: {config.out / told['bitstream']}")
    report = f"{HARDWARE}/{built.report.name}"
    return {**given.facts, "verdict": str(built.verdict), **told, "report": report}


def describe_routed(built: HardwareBuild) -> dict[str, Any]:
    """What was reached on the part, in plain data."""
    routed = built.routed
    assert routed is not None, "a device was given"
    design = built.lowered.design
    pace = design.cycles()
    return {
        **records(routed),
        "predicted": _predicted(design, routed.part),
        "interval": pace,
        "tensors_per_second": tensors_per_second(routed.mhz, pace),
        "path_stages": list(dict.fromkeys(step.stage for step in routed.path)),
        "bitstream": f"{HARDWARE}/route/{routed.part}/{routed.bitstream.name}",
    }


def _predicted(design: Design, part: str) -> str:
    """What was predicted; of some parts and components there is no model."""
    try:
        return str(predict(design, part))
    except HardwareError as error:
        return f"not predicted: {error}"
