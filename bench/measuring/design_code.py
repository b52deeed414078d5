"""Code that a design depends on: provenance of records about single designs.

A change of a component that a design does not use, of an area model or of a proof cannot change its
values, cycles or cells, so it does not make the record of the design old.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from chop.hw.design.design import Design
from chop.hw.design.folders import rtl_sources
from chop.hw.sim.emit import top_text, used_components
from measuring.code import NATIVE, SOURCE

EVERY_DESIGN = (
    "chop/actions/hardware.py",
    "chop/hw/arith",
    "chop/hw/design",
    *(
        f"chop/hw/library/{file}"
        for file in (
            "averages.py", "constant_product.py", "packed.py", "slice_lowerings.py", "wiring.py",
        )
    ),
    "chop/hw/lower",
    "chop/hw/streams/builder.py",
    "chop/hw/timing",
    *(
        f"chop/hw/sim/{file}"
        for file in ("driver.cpp", "driver.h", "emit.py", "sim_top.py", "simulate.py", "verdict.py")
    ),
    *(
        f"chop/nn/quantizers/{file}"
        for file in ("blocks.py", "integer.py", "mxint.py", "quantizer.py", "rounding.py")
    ),
)  # fmt: skip
"""Numbers, lowering, emission, simulation and cycles of any design."""
ROUTING = ("chop/hw/flow/route",)
BUS = ("chop/hw/interfaces",)
BOARD = ("chop/actions/board_project.py", "chop/hw/boards", *BUS)
"""Whole board: its AXI wrapper, top module, host program and simulation."""
_NO_PART = ("area.py", "laws.svh", "proof.toml")
"""Files of a component folder that do not change a design."""


def design_code(design: Design, more: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the folders and modules of src that the results of `design` depend on.

    `more`: `ROUTING`, `BUS` or `BOARD`, as far as they are measured.
    """
    folders = {rtl_sources()[name].parent for name in used_components(top_text(design))}
    files = {file for folder in folders for file in folder.iterdir() if _is_part(file)}
    files |= {_module_file(type(stage.component).__module__) for stage in design.stages}
    own = {str(file.relative_to(SOURCE)) for file in files}
    return tuple(sorted({*EVERY_DESIGN, *own, *more}))


def _is_part(file: Path) -> bool:
    return file.suffix in (".py", *NATIVE) and file.name not in _NO_PART


def _module_file(module: str) -> Path:
    return Path(str(sys.modules[module].__file__)).resolve()
