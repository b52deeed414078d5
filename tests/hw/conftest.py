"""Simulator tests skip, with the remedy, where a tool is missing."""

import pytest

from chop.hw import toolchain

TOOLS = ("verilator", "g++")


def pytest_runtest_setup(item):
    needed = [tool for marker in item.iter_markers("sim") for tool in (marker.args or TOOLS)]
    reason = toolchain.missing(*needed)
    if reason:
        pytest.skip(reason)
