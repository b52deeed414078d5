"""The page about hardware runs as it is written."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "hardware.md"


@pytest.mark.slow
@pytest.mark.sim("verilator", "g++", "pyosys")
def test_the_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL))
    exec(compile(code, str(PAGE), "exec"), {})
    assert "80 of 80 output values bit-exact in 28 cycles" in capsys.readouterr().out


def test_the_page_shows_the_module_as_it_is():
    shown = re.findall(r"```systemverilog\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[0]
    module = Path(
        PAGE.parents[1], "src/chop/hw/library/fixed_leaky_relu/fixed_leaky_relu.sv"
    ).read_text()
    for line in shown.splitlines():
        assert line.strip() in module
