"""CONTRIBUTING's recipe "Add a pass": one file from outside, used end to end."""

import importlib
import json
import re
from pathlib import Path

import pytest
import torch
from outside.conftest import code_of, section
from torch import nn

import chop.passes
from chop import MaseGraph
from chop.cli.commands import COMMANDS
from chop.cli.main import main
from chop.cli.named_objects import load_plugins
from chop.cli.option import options_of
from chop.pipelines import AutoPipeline

TITLE, NAME = "Add a pass", "count_ops_analysis_pass"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def plugin(outside):
    """The file of the recipe, not imported yet."""
    return outside("count_ops.py", code_of(TITLE))


def test_the_package_and_pipelines_have_it(plugin):
    load_plugins([plugin])
    assert NAME in chop.passes.ANALYSIS_PASSES
    assert getattr(chop.passes, NAME) is chop.passes.PASSES[NAME]
    graph = MaseGraph(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), dummy_in=torch.ones(2, 4))
    graph, _ = chop.passes.init_metadata_analysis_pass(graph)
    graph, _ = chop.passes.add_common_metadata_analysis_pass(graph)
    _, info = AutoPipeline([NAME])(graph, {NAME: {"op": "relu"}})
    assert info == {NAME: {"count": 1}}


def test_the_page_of_passes_has_its_section(plugin, monkeypatch):
    load_plugins([plugin])
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    page = importlib.import_module("make_passes").page()
    assert f"### `{NAME}`\n\nHow many nodes have the op `args.op`." in page
    assert "| `op` | `str` | `'dropout'` |" in page


def test_the_command_line_of_the_recipe_runs_it(plugin, capsys):
    (line,) = re.findall(r"`mase (pass [^`]+)`", section(TITLE).replace("\n", " "))
    assert main([*line.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["info"] == {"count": 2}
    option = options_of(COMMANDS["pass"].config)[0]
    assert option.is_positional and NAME in option.values


def test_the_files_that_the_recipe_names_exist():
    names = re.findall(r"`((?:src|tests|docs)/[\w/.]+)`", section(TITLE))
    assert len(names) >= 2 and all((ROOT / name).exists() for name in names)
