"""RTL is a program: a folder that someone sent is not run because it is there."""

import hashlib
import json

import numpy as np
import pytest
from designs import mlp, residual

from chop.actions.simulation import simulate, synthesize
from chop.errors import HardwareError
from chop.hw.sim import manifest
from chop.hw.sim.cocotb_run import BENCH
from chop.hw.sim.emit import (
    emit,
    read_interface,
    read_vectors,
    require_ours,
    vector_files,
    write_files,
)
from chop.hw.sim.simulate import random_inputs
from chop.hw.timing.cycles import balanced


@pytest.fixture
def project(tmp_path):
    design = mlp((4, 8), (4, 4))
    hardware = emit(design, tmp_path / "hardware")
    bench = {"test/test_top.py": BENCH.read_text()}
    write_files(hardware, {**vector_files(design, random_inputs(design, 2)), **bench})
    return tmp_path


def reseal(hardware):
    """What a forger would do: a manifest that fits."""
    found = [p for f in ("rtl", "mem", "test") for p in (hardware / f).iterdir()]
    found.append(hardware / "design.json")
    listed = {
        str(p.relative_to(hardware)): hashlib.sha256(p.read_bytes()).hexdigest() for p in found
    }
    (hardware / "manifest.json").write_text(json.dumps({"sha256": listed}))


@pytest.mark.parametrize("design", [mlp((4, 8, 4), (4, 4, 2)), balanced(residual())])
def test_what_was_emitted_is_ours(tmp_path, design):
    require_ours(emit(design, tmp_path), "top")
    emit(mlp((4, 4), (2, 2)), tmp_path)  # another design over it
    require_ours(tmp_path, "top")


SYSTEM = '  initial $system("touch /tmp/executed");\nendmodule'
TOPS = {
    "a system task": ("endmodule", SYSTEM),
    "a function of the system": ("endmodule", '  int x = $fopen("f", "w");\nendmodule'),
    "C++ inside": ("endmodule", "`systemc_header\n#include <x>\n`verilog\nendmodule"),
    "an include": ("endmodule", '`include "/etc/passwd"\nendmodule'),
    "a macro": ("endmodule", "`define X\nendmodule"),
    "a foreign function": ("endmodule", 'import "DPI-C" function int system(string s);\nendmodule'),
    "an order to the tool": ("endmodule", "// verilator lint_off ALL\nendmodule"),
    "an order in a block comment": ("endmodule", "/*verilator public_module*/\nendmodule"),
    "an initial block": ("endmodule", "initial begin end\nendmodule"),
    "a memory elsewhere": ('"mem/', '"../../mem/'),
    "an absolute path": ('"mem/', '"/etc/'),
    "another module": ("fixed_linear #", "evil #"),
    "a bind": ("endmodule", "endmodule\nbind top evil u_evil();"),
    "an escaped name": ("endmodule", "wire \\$system ;\nendmodule"),
}


@pytest.mark.parametrize("name", TOPS)
def test_a_top_that_does_more_than_connect_is_refused_even_with_a_fitting_manifest(project, name):
    top = project / "hardware" / "rtl" / "top.sv"
    top.write_text(top.read_text().replace(*TOPS[name]))
    with pytest.raises(HardwareError, match=r"top.sv: changed since it was emitted.*--trust"):
        simulate(project)
    reseal(project / "hardware")
    with pytest.raises(HardwareError, match=r"nothing that an emitted top|no component of the lib"):
        simulate(project)


def _append(name, text="\n"):
    return lambda hardware: (hardware / name).write_text((hardware / name).read_text() + text)


FILES = {
    "a changed component": (_append("rtl/fixed_linear.sv", "// x\n"), "not the library's"),
    "another component": (
        lambda h: (h / "rtl/evil.sv").write_text("module evil; endmodule"),
        "'evil' is no component of the library",
    ),
    "a header": (lambda h: (h / "rtl/x.svh").write_text("x"), "not a source this package emits"),
    "another bench": (
        _append("test/test_top.py", "import os\n"),
        "not the program this release",
    ),
    "a second module of Python": (
        lambda h: (h / "test/cocotb.py").write_text("import os"),
        "not the program this release",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_foreign_file_is_refused_even_with_a_fitting_manifest(project, name):
    change, words = FILES[name]
    change(project / "hardware")
    with pytest.raises(HardwareError, match=r"changed since|not among the files that were emitted"):
        simulate(project)
    reseal(project / "hardware")
    for run in (simulate, synthesize):
        with pytest.raises(HardwareError, match=words):
            run(project)


def test_a_manifest_that_is_missing_or_no_manifest_is_refused(project):
    manifest = project / "hardware" / "manifest.json"
    for text in ("{", "[]", '{"sha256": {"rtl/top.sv": 1}}'):
        manifest.write_text(text)
        with pytest.raises(HardwareError, match=r"not a manifest|not a readable JSON"):
            simulate(project)
    manifest.unlink()
    with pytest.raises(HardwareError, match=r"manifest.json: no such file"):
        simulate(project)


def test_a_link_out_of_the_folder_is_refused(project, tmp_path):
    memory = next((project / "hardware" / "mem").iterdir())
    (tmp_path / "elsewhere").write_text(memory.read_text())
    memory.unlink()
    memory.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HardwareError, match="not a plain file"):
        simulate(project)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda d: d.update(name="top; system"), "is not the name of a module, port or stage"),
        (lambda d: d.update(name="--exe"), "is not the name of a module, port or stage"),
        (lambda d: d["inputs"].update({"x);system(": d["inputs"]["data_in_0"]}), "is not the name"),
        (lambda d: d.update(inputs=[]), "expected name, cycles, inputs and outputs"),
        (lambda d: d.update(cycles="1"), "cycles is '1'"),
        (lambda d: d.update(cycles=2**60), "cycles is"),
        (lambda d: d["inputs"]["data_in_0"].pop("shape"), "not the streams of a design"),
        (lambda d: d["inputs"]["data_in_0"].update(precision=3), "not the streams of a design"),
        (lambda d: d["inputs"].update(data_in_0=[]), "not the streams of a design"),
    ],
)
def test_a_forged_description_is_refused(project, edit, words):
    file = project / "hardware" / "design.json"
    told = json.loads(file.read_text())
    edit(told)
    file.write_text(json.dumps(told))
    with pytest.raises(HardwareError, match=words):
        simulate(project, trust=True)


def test_vectors_that_are_no_words_are_refused(project):
    interface = read_interface(project / "hardware")
    (project / "hardware" / "test" / "data_in_0.mem").write_text("zz\n")
    with pytest.raises(HardwareError, match=r"data_in_0.mem: not the words of 'data_in_0'"):
        read_vectors(project / "hardware", interface.inputs)


def test_a_program_that_came_with_the_folder_is_not_ours(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = tmp_path / "simulator"
    program.write_bytes(np.arange(9).tobytes())
    assert not manifest.is_built_here(program)
    manifest.note_built(program)
    assert manifest.is_built_here(program)
    program.write_bytes(b"#!/bin/sh")
    assert not manifest.is_built_here(program)


@pytest.mark.sim
def test_trust_runs_a_folder_that_was_changed(project):
    _append("rtl/top.sv", "// a note\n")(project / "hardware")
    with pytest.raises(HardwareError, match="changed since it was emitted"):
        simulate(project)
    assert simulate(project, trust=True).is_exact
