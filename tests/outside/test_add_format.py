"""CONTRIBUTING's recipe "Add a number format": one file from outside, used end to end."""

import importlib
import json
import pickle
import re
import sys
from pathlib import Path

import pytest
import torch
from outside.conftest import code_of, section
from torch import nn

from chop import MaseGraph
from chop.cli.commands import COMMANDS
from chop.cli.main import main
from chop.cli.named_objects import load_plugins
from chop.cli.option import options_of
from chop.errors import RegistryError
from chop.nn.quantized import from_float, quantized_func_map, quantized_module_map
from chop.nn.quantizers import FORMATS, Integer, Quantizer
from chop.passes import quantize_transform_pass, summarize_quantization_analysis_pass
from chop.search import PrecisionSpace

TITLE = "Add a number format"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def coarse(outside):
    """The file of the recipe, imported."""
    load_plugins([outside("my_formats.py", code_of(TITLE))])
    return FORMATS["coarse"]


def test_its_numbers_are_as_the_recipe_says(coarse):
    x = torch.tensor([0.3, -0.1, 9.0])
    assert coarse(step=0.5).quantize(x).tolist() == [0.5, -0.0, 4.0]
    assert coarse(step=0.5).bits == 5.0  # 17 values


def test_layers_and_functions_exist_in_it(coarse):
    linear = importlib.import_module("chop.nn.quantized.modules.linear")
    layer = linear.LinearCoarse(4, 3, config={"weight_step": 0.25})
    assert layer.quantizers["weight"] == coarse(step=0.25)
    assert type(from_float(nn.ReLU(), {"name": "coarse"})).__name__ == "ReLUCoarse"
    assert quantized_module_map["linear_coarse"] is linear.LinearCoarse
    assert "LinearCoarse" in dir(linear)
    two = torch.full((2,), 2.0)
    assert quantized_func_map["add_coarse"](two, two * 3, config={}).tolist() == [6.0, 6.0]
    assert type(pickle.loads(pickle.dumps(layer))) is linear.LinearCoarse


def test_a_config_a_pass_and_a_checkpoint_take_it(coarse, tmp_path):
    graph = MaseGraph(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), dummy_in=torch.ones(2, 4))
    rules = {"by": "type", "linear": {"config": {"name": "coarse", "weight_step": 0.25}}}
    graph, _ = quantize_transform_pass(graph, rules)
    _, told = summarize_quantization_analysis_pass(graph)
    assert told["table"][0]["After"] == "LinearCoarse"
    graph.export(tmp_path / "saved")
    again, x = MaseGraph.from_checkpoint(tmp_path / "saved"), torch.rand(3, 4)
    assert torch.equal(again.model(x), graph.model(x))


def test_a_search_tries_its_settings(coarse):
    model = nn.Sequential(nn.Linear(4, 4))
    space = PrecisionSpace(model, ["coarse"], by="type")
    assert space.dimensions["linear.coarse.step"].points == (0.25, 0.5)
    assert "linear.coarse.step" in PrecisionSpace(model, "all", by="type").dimensions


def test_the_table_of_the_documentation_has_its_row(coarse, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    table = importlib.import_module("make_formats").table()
    (row,) = [line for line in table.splitlines() if "`coarse`" in line]
    assert "`LinearCoarse`" in row and "`step` = 0.5" in row


def test_the_command_line_takes_and_offers_it(outside, capsys):
    file = outside("my_formats.py", code_of(TITLE))
    words = ["quantize", "mlp", "--plugins", file, "--format", "coarse", "--json"]
    assert main([*words, "--out", "out/quantize"]) == 0
    assert json.loads(capsys.readouterr().out)["ops"][0]["Changed"] == 3
    (option,) = [
        option for option in options_of(COMMANDS["quantize"].config) if option.flag == "--format"
    ]
    assert "coarse" in option.values
    assert 'plugins = ["my_formats.py"]' in Path("out/quantize/config.toml").read_text()
    assert main(["list", "formats", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["names"]["formats"]
    assert "Multiples of `step`" in next(row["what"] for row in listed if row["name"] == "coarse")


def test_the_files_that_the_recipe_names_exist():
    names = re.findall(r"`((?:src|tests|docs)/[\w/.]+)`", section(TITLE))
    assert len(names) >= 4 and all((ROOT / name).exists() for name in names)


def test_every_format_of_the_package_has_its_import():
    home = ROOT / "src" / "chop" / "nn" / "quantizers"
    lines = (home / "__init__.py").read_text()
    for form in FORMATS.values():
        assert f"from {form.__module__} import {form.__name__} as {form.__name__}\n" in lines
    pattern = re.compile(r"^    name, class_suffix = \"", re.M)
    declared = [p for p in home.glob("*.py") if pattern.search(p.read_text())]
    assert len(declared) == len(FORMATS)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"name": "mine"}, "format 'mine': class_suffix is None. Give Mine one that ends"),
        ({"name": "mine", "class_suffix": "Integer"}, "'Integer' is that of format 'integer'"),
        ({"name": "integer", "class_suffix": "Mine"}, "format 'integer' is already registered"),
        (
            {"name": "mine", "class_suffix": "Mine", "aliases": ("fixed",)},
            "'fixed' is already",
        ),
    ],
)
def test_a_format_that_cannot_be_registered_is_an_error_where_it_is_defined(members, message):
    with FORMATS.restored(), pytest.raises(RegistryError, match=message):
        type("Mine", (Quantizer,), members)
    assert FORMATS["integer"] is Integer


def test_a_plugin_that_is_not_there_is_a_usage_error(outside, capsys):
    assert main(["trace", "mlp", "--plugins", "absent.py"]) == 2
    assert "plugins: cannot import 'absent.py' (no such file)" in capsys.readouterr().err
    assert "absent" not in sys.modules
