"""Component folders: one folder holds everything about a component.

A folder of `streams/` or `library/` that has SystemVerilog is a component: there is no list. Files:

    <module>.sv    RTL
    __init__.py    class and cycle model; in `library/` also the lowering and the exact op
    area.py        area model (`chop.hw.area.area_model`)
    laws.svh       laws that are proved, in SystemVerilog
    proof.toml     sizes of the proofs, and a fault that they refute (`chop.hw.design.claims`)
    mutants.toml   faults that the tests must notice (`chop.hw.design.mutants`); also
                   `<variant>_mutants.toml`

All but the first are optional. A folder outside the package is known as soon as it is imported:
`chop.hw.design.component.register` adds it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

HARDWARE = Path(__file__).resolve().parents[1]
ROOMS = (HARDWARE / "streams", HARDWARE / "library")
"""Rooms of the package that have a folder for each component."""
INTERFACES = HARDWARE / "interfaces"
"""Modules around a design, which are no components: its AXI ports."""
BOARDS = HARDWARE / "boards"
"""Board projects: modules around an AXI wrapper in `rtl`, and the host program."""
OWN_FOLDERS: dict[str, Path] = {}
"""Component folders outside the package, by the name of their Python package."""


@cache
def _library_folders() -> Mapping[str, Path]:
    return {
        f"chop.hw.{room.name}.{folder.name}": folder
        for room in ROOMS
        for folder in sorted(room.iterdir())
        if any(folder.glob("*.sv"))
    }


def component_folders() -> Mapping[str, Path]:
    """Return every component folder by the name of its Python package."""
    return {**_library_folders(), **OWN_FOLDERS}


@cache
def rtl_sources() -> Mapping[str, Path]:
    """Return the SystemVerilog file of every module of the library, by the module's name."""
    files = (path for folder in _library_folders().values() for path in sorted(folder.glob("*.sv")))
    return {path.stem: path for path in files}


def load_components() -> None:
    """Import the classes of all components of the library."""
    for package, folder in _library_folders().items():
        if (folder / "__init__.py").is_file():
            importlib.import_module(package)


def facet_folders(file: str) -> list[Path]:
    """Return the component folders that have `file`."""
    return [folder for folder in component_folders().values() if (folder / file).is_file()]


def load_facet(facet: str) -> list[ModuleType]:
    """Import and return `<folder>/<facet>.py` of every component folder that has one."""
    modules = (_facet(name, folder, facet) for name, folder in component_folders().items())
    return [module for module in modules if module is not None]


@cache
def _facet(package: str, folder: Path, facet: str) -> ModuleType | None:
    if not (folder / f"{facet}.py").is_file():
        return None
    return importlib.import_module(f"{package}.{facet}")
