import pytest

from chop import toolchain
from chop.errors import MissingDependencyError
from chop.hw.sim.emit import write_files
from chop.hw.sim.simulate import lint


def test_a_missing_program_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        MissingDependencyError, match=r"'iverilog' is not installed. Install it: `apt"
    ):
        toolchain.program("iverilog")
    assert "apt-get install iverilog" in toolchain.missing("iverilog")


def test_a_missing_package_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        MissingDependencyError, match=r"'pyosys' is not installed. Install it: `pip"
    ):
        toolchain.require_package("pyosys")


def test_waves_without_their_header_are_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setattr(toolchain, "HEADERS", ())
    with pytest.raises(MissingDependencyError, match=r"'lz4.h' is not installed. .* liblz4-dev"):
        toolchain.require_waves()


def test_nothing_is_missing_of_nothing():
    assert toolchain.missing() == ""


REPORT = """\
- V e r i l a t i o n   R e p o r t:  rev vUNKNOWN-built20260516-4e853d8
- Verilator: Built from 0.031 MB sources in 2 modules, into 0.017 MB in 3 C++ files
- Verilator: Walltime 1.781 s (elab=0.167, cvt=0.877, bld=0.000); cpu 0.904 s on 1 threads
"""
WARNING = "%Warning-WIDTH: rtl/top.sv:7:3: Operator ASSIGN expects 8 bits\n"


@pytest.fixture
def fake_verilator(tmp_path, monkeypatch):
    """Puts a program in Verilator's place that prints a text and ends with a status."""

    def install(text, status=0, header='"5.49"'):
        (tmp_path / "said").write_text(text)
        program = tmp_path / "bin" / "verilator_bin"
        for folder in ("bin", "include", "rtl"):
            (tmp_path / folder).mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\ncat "{tmp_path}/said"\nexit {status}\n')
        program.chmod(0o755)
        config = tmp_path / "include" / "verilated_config.h"
        config.write_text(f"#define VERILATOR_VERSION {header}\n")
        tool = toolchain.Verilator(program, tmp_path)
        monkeypatch.setattr(toolchain, "verilator", lambda: tool)
        return tool

    return install


def test_a_report_of_the_run_is_no_warning(fake_verilator, tmp_path):
    fake_verilator(REPORT)
    assert lint(tmp_path) == ""


def test_a_warning_in_a_report_is_told_without_the_report(fake_verilator, tmp_path):
    fake_verilator(REPORT + WARNING)
    assert lint(tmp_path) == WARNING.strip()


@pytest.mark.parametrize("text", [REPORT, "", "%Error: Cannot find file\n"])
def test_a_lint_that_failed_is_never_silent(text, fake_verilator, tmp_path):
    fake_verilator(text, status=1)
    assert lint(tmp_path)


@pytest.mark.parametrize(
    ("told", "header", "version", "number"),
    [
        ("Verilator 5.006 2023-01-22 rev (Debian 5.006-3)\n", '"5.006"', "5.006", (5, 6)),
        (" rev vUNKNOWN-built20260516-4e853d8\n", '"5.49"', "5.49", (5, 49)),
        ("Verilator 5.048 2026-04-26\n", "", "5.048", (5, 48)),
        (" rev vUNKNOWN\n", "", "rev vUNKNOWN", (0, 0)),
    ],
)
def test_the_version_is_a_number_also_where_the_program_does_not_know_it(
    told, header, version, number, fake_verilator
):
    tool = fake_verilator(told, header=header)
    assert (tool.version(), tool.number()) == (version, number)


def test_a_wheel_gets_the_environment_that_its_programs_look_for(fake_verilator, tmp_path):
    told = fake_verilator("").environment()
    assert told["VERILATOR_ROOT"] == str(tmp_path)
    assert told["PATH"].startswith(str(tmp_path / "bin"))
    assert "CFG_CXXFLAGS_PCH_I=-include" in told["MAKEFLAGS"]
    assert toolchain.Verilator(tmp_path / "verilator", tmp_path).environment() == {}


@pytest.mark.sim("verilator")
def test_a_real_warning_is_refused(tmp_path):
    write_files(
        tmp_path,
        {"rtl/top.sv": "module top (output logic [1:0] y);\n  assign y = 3'd1;\nendmodule\n"},
    )
    assert "%Warning-WIDTH" in lint(tmp_path)
