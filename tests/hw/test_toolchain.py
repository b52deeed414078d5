import pytest

from chop.errors import MissingDependencyError
from chop.hw import toolchain


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


def test_nothing_is_missing_of_nothing():
    assert toolchain.missing() == ""
