"""Components are folders: each has its own, and no two share text that is logic."""

import re
import sys
from collections import defaultdict
from pathlib import Path

import chop.hw.library.components  # noqa: F401  registers all of them
from chop.hw.design.component import COMPONENTS
from chop.hw.design.folders import HARDWARE, component_folders, rtl_sources

NOT_COMPONENTS = {"sim", "proofs", "flow", "interfaces", "decode", "boards"}
"""Rooms with other SystemVerilog: test benches, laws, models of cells, an engine, a UART bridge."""
OTHER_MODULE = {"stream_replay": "tile_buffer", "fixed_linear_packed": "fixed_linear"}
"""Components in a folder or file of their own that use the module of another component."""
SHARED_LINES = 8
"""Lines of logic from which two modules with the same ones have one idea twice."""
INTERFACE = re.compile(r"\.|input|output|parameter|\)|`|\w+#\(|end|\$error|module|begin")
"""Starts of lines that declare or connect ports and parameters, or only close a block."""


def test_every_component_has_its_folder():
    elsewhere = {
        name: cls.module
        for name, cls in COMPONENTS.items()
        if cls.__module__.startswith("chop.")
        and Path(sys.modules[cls.__module__].__file__).parent != rtl_sources()[cls.module].parent
    }
    assert elsewhere == OTHER_MODULE


def test_a_folder_has_one_module_of_its_name():
    names = {folder.name: [f.stem for f in folder.glob("*.sv")] for folder in folders()}
    assert {name: files for name, files in names.items() if files != [name]} == {}


def test_systemverilog_of_designs_is_in_component_folders_alone():
    files = [f for f in HARDWARE.rglob("*.sv") if f.parent not in folders()]
    assert {f.relative_to(HARDWARE).parts[0] for f in files} <= NOT_COMPONENTS


def folders():
    return list(component_folders().values())


def logic(text: str) -> list[str]:
    """Return the lines of a module that are neither comments nor interface, without blanks."""
    lines = (re.sub(r"\s+", "", line) for line in re.sub(r"//.*", "", text).splitlines())
    return [line for line in lines if line and not INTERFACE.match(line)]


def test_no_two_modules_share_a_block_of_logic():
    places = defaultdict(set)
    for name, file in rtl_sources().items():
        lines = logic(file.read_text())
        for start in range(len(lines) - SHARED_LINES + 1):
            places[tuple(lines[start : start + SHARED_LINES])].add(name)
    assert [names for names in places.values() if len(names) > 1] == []
