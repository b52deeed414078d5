"""Quantise configs in the layouts and with the keys of DeepWok/mase: every format in every one."""

import pytest
import torch
from torch import nn

from chop.compat.old_configs import modern_quantize_args
from chop.config import load_toml, parse_toml
from chop.errors import ConfigError
from chop.nn.quantizers import BlockFP, Bypass, Integer
from chop.passes import quantize_module_transform_pass

FORMATS = {
    "integer": {"width": 8, "frac_width": 3},
    "fixed": {"width": 8, "frac_width": 4},
    "logicnets": {"width": 2, "frac_width": 1},
    "binary": {"width": 1, "frac_width": 0, "stochastic": 0, "bipolar": 1},
    "binary_residual": {
        "width": 32,
        "frac_width": 16,
        "stochastic": 0,
        "bipolar": 1,
        "levels": 2,
        "residual_sign": True,
    },
    "ternary": {
        "width": 2,
        "frac_width": 0,
        "scaling_factor": True,
        "mean": "NA",
        "median": "NA",
        "max": 6.5,
    },
    "log": {"width": 8, "exponent_bias": 128},
    "minifloat_simple": {"width": 8, "exponent_width": 4, "exponent_bias": 7},
    "minifloat_denorm": {"width": 8, "exponent_width": 4, "exponent_bias": 7},
    "minifloat_ieee": {"width": 8, "exponent_width": 4, "exponent_bias": 7},
    "block_fp": {"width": 7, "exponent_width": 8, "exponent_bias": 127, "block_size": [1, 4]},
    "block_minifloat": {
        "width": 5,
        "exponent_width": 2,
        "exponent_bias_width": 8,
        "block_size": [4],
    },
    "block_log": {"width": 8, "exponent_bias_width": 4, "block_size": [4]},
}
"""The settings of one operand, with every key the old configs have for the format."""

WITHOUT_OPERAND = {
    "integer": {"floor": True, "additional_layers_inputs": ["seq_blocks_0"]},
    "fixed": {"floor": True, "cache_quantized_weight": True},
    "binary": {"binary_training": 1},
    "binary_residual": {"binary_training": True},
}


def config_of(name):
    settings = {
        f"{o}_{k}": v for o in ("data_in", "weight", "bias") for k, v in FORMATS[name].items()
    }
    return {"name": name, **settings, **WITHOUT_OPERAND.get(name, {})}


LAYOUTS = {
    "file": lambda config: {
        "model": "toy",
        "dataset": "toy-tiny",
        "transform": {"style": "graph"},
        "passes": {"quantize": {"by": "type", "report": True, "default": {"config": config}}},
    },
    "type": lambda config: {
        "by": "type",
        "report": True,
        "baseline_weight_path": "base.mz",
        "load_type": "mz",
        "default": {"config": {"name": "NA"}},
        "linear": {"config": config},
    },
    "name": lambda config: {"by": "name", "layers.0.mlp.up": {"config": config}},
    "loose": lambda config: {"layers.0.mlp.up": config},
    "loose default": lambda config: {"by": "name", "default": {**config, "bypass": False}},
    "block": lambda config: {"by": "name", "model_layer_0": {"mlp": {"up": config}}},
    "blocks": lambda config: {
        "by": "type",
        "default": {"bypass": True, **config},
        "model_layer": {"mlp": {"up": config, "matmul_0": config}},
    },
    "classes": lambda config: {
        "default": {**config, "default": config},
        "module_classes_to_modify": {
            "linear": {"name": "default"},
            "opt::attention": {"name": "integer", "default": config},
        },
        "method_classes_to_modify": {"add": {"name": "default"}},
    },
}
"""How the old configs may say that a layer has a config."""


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.ModuleDict({"up": nn.Linear(8, 8), "down": nn.Linear(8, 8)})

    def forward(self, x):
        return self.mlp["down"](self.mlp["up"](x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Block())

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_loads_in_every_layout(name, layout):
    model, info = quantize_module_transform_pass(Net(), LAYOUTS[layout](config_of(name)))
    assert "layers.0.mlp.up" in info["quantized"]
    assert not model.layers[0].mlp["up"].is_bypassed
    assert model(torch.randn(2, 8)).isfinite().all()


def test_a_layer_gets_what_its_old_rule_says():
    rules = LAYOUTS["blocks"](config_of("block_fp"))
    model, info = quantize_module_transform_pass(Net(), rules)
    up, down = model.layers[0].mlp["up"], model.layers[0].mlp["down"]
    assert up.quantizers["weight"] == BlockFP(7, 8, 127, block_size=(1, 4))
    assert down.is_bypassed
    assert list(info["quantized"]) == ["layers.0.mlp.up", "layers.0.mlp.down"]


def test_floor_of_an_old_file_rounds_down(tmp_path):
    (tmp_path / "fixed.toml").write_text(
        "[passes.quantize.default.config]\nname = 'fixed'\ndata_in_width = 8\n"
        "data_in_frac_width = 3\nweight_width = 'NA'\nfloor = true\n"
    )
    model, _ = quantize_module_transform_pass(nn.Linear(2, 2), load_toml(tmp_path / "fixed.toml"))
    assert model.quantizers["data_in"] == Integer(8, 3, rounding="floor")
    assert model.quantizers["weight"] == Bypass()


def test_what_old_configs_have_and_we_do_not_is_said_once(notices):
    for _ in range(2):
        quantize_module_transform_pass(Net(), LAYOUTS["classes"](config_of("logicnets")))
        quantize_module_transform_pass(Net(), LAYOUTS["type"](config_of("fixed")))
    logicnets = "logicnets is integer here: inputs and outputs are quantised, and no lookup"
    assert sorted(set(notices)) == [
        "quantize.add: " + logicnets + " tables are made.",
        "quantize.add: the model has no add to quantise.",
        "quantize.baseline_weight_path: has no effect.",
        "quantize.linear.config.cache_quantized_weight: has no effect.",
        "quantize.linear: " + logicnets + " tables are made.",
        "quantize.load_type: has no effect.",
        "quantize.module_classes_to_modify.opt::attention: is not quantised here; left alone.",
        "quantize.report: has no effect.",
    ]
    assert len(notices) == 9  # a model that lacks an op is not an old key: it is said each time


def test_a_name_among_rules_by_type_is_said_and_a_typo_is_an_error(notices):
    rules = {"by": "type", "linear": {"config": {"name": "mxint"}}}
    named = {**rules, "layers.0": {"config": {"name": "mxint"}}}
    quantize_module_transform_pass(Net(), named)
    assert notices == ["quantize.layers.0: is a name, and rules are by type: no effect."]
    with pytest.raises(
        ConfigError, match=r"quantize.lineer: matches nothing by type. Did you mean"
    ):
        quantize_module_transform_pass(Net(), {**rules, "lineer": {"config": {"name": "mxint"}}})
    with pytest.raises(ConfigError, match=r"quantize.linear: unknown key 'confg'. Did you mean"):
        quantize_module_transform_pass(Net(), {"linear": {"confg": {"name": "mxint"}}})


def test_the_callers_old_config_is_left_as_it_was():
    given = parse_toml("[linear]\nname = 'logicnets'\ndata_in_width = 2\n", "here")
    modern_quantize_args(given)
    assert given == {"linear": {"name": "logicnets", "data_in_width": 2}}
