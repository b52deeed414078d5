"""The pages about hardware run as they are written."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    DOCS / f"hardware{name}.md" for name in ("", "_numbers", "_design", "_parts", "_components")
]


def blocks(language):
    texts = (page.read_text() for page in PAGES)
    return [b for text in texts for b in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)]


@pytest.mark.slow
@pytest.mark.sim("verilator", "g++", "pyosys")
def test_the_code_of_the_pages_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks("python")), "docs/hardware*.md", "exec"), {})
    assert "80 of 80 output values bit-exact in 28 cycles" in capsys.readouterr().out


def test_the_page_shows_the_module_as_it_is():
    module = DOCS.parent / "src/chop/hw/library/fixed_leaky_relu/fixed_leaky_relu.sv"
    for line in blocks("systemverilog")[0].splitlines():
        assert line.strip() in module.read_text()
