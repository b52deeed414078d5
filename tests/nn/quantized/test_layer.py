import copy
import doctest
import inspect
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from quantized_cases import config_of, random
from torch import nn

import chop.nn.quantized
import chop.nn.quantized.modules.linear as linear_file
from chop.errors import ConfigError, RegistryError
from chop.nn.quantized import from_float, functional, modules
from chop.nn.quantized.layer import quantized_layers
from chop.nn.quantized.modules.conv2d import Conv2dMinifloatIEEE
from chop.nn.quantized.modules.embedding import EmbeddingInteger
from chop.nn.quantized.modules.linear import LinearInteger, LinearLog
from chop.nn.quantizers import Bypass, Integer

INTEGER = config_of("integer")
DOCUMENTED = (
    "Integer MinifloatDenorm MinifloatIEEE Log BlockFP BlockMinifloat BlockLog Binary "
    "BinaryScaling BinaryResidualSign Ternary MXInt MXFP"
)


@pytest.mark.parametrize("suffix", DOCUMENTED.split())
def test_documented_names_import_from_the_documented_place(suffix):
    layer = getattr(linear_file, f"Linear{suffix}")
    assert layer.__module__ == "chop.nn.quantized.modules.linear"
    assert layer.__doc__.startswith("`nn.Linear` in the format")


def test_a_layer_is_constructed_as_users_do():
    by_position = LinearInteger(6, 5, False, config=INTEGER)
    by_name = LinearInteger(in_features=6, out_features=5, config=INTEGER)
    assert by_position.bias is None
    assert by_name.bias is not None
    assert isinstance(by_name, nn.Linear)


def test_a_weight_put_in_through_data_is_the_one_used():
    old, new = nn.Linear(6, 5), LinearInteger(in_features=6, out_features=5, config=INTEGER)
    new.weight.data = old.weight.data
    new.bias.data = old.bias.data
    x = random(3, 6)
    assert torch.equal(new(x), from_float(old, INTEGER)(x))


def test_conv_bias_and_options_are_constructor_arguments():
    layer = Conv2dMinifloatIEEE(
        3, 4, kernel_size=3, padding="same", config=config_of("minifloat_ieee")
    )
    assert layer(random(2, 3, 5, 5)).shape == (2, 4, 5, 5)
    assert layer.bias is not None


def test_the_signature_names_the_float_arguments_and_config():
    names = list(inspect.signature(LinearInteger).parameters)
    assert names == ["in_features", "out_features", "bias", "device", "dtype", "config"]
    assert list(inspect.signature(LinearInteger.forward).parameters) == ["self", "input"]


def test_the_config_given_is_copied_and_stays_plain():
    given = config_of("block_fp") | {"weight_block_size": 4}
    before = copy.deepcopy(given)
    layer = linear_file.LinearBlockFP(6, 5, config=given)
    layer.config["weight_width"] = 2
    assert given == before
    assert all(isinstance(v, int | str) for v in layer.config.values())


def test_an_operand_takes_the_format_of_its_own_keys():
    config = INTEGER | {"weight_width": 4, "data_out_width": 6, "data_out_frac_width": 2}
    layer = LinearInteger(6, 5, config=config)
    assert layer.quantizers["data_in"] == Integer(8, 4)
    assert layer.quantizers["weight"] == Integer(4, 4)
    assert layer.quantizers["data_out"] == Integer(6, 2)


def test_a_result_with_a_format_is_quantised():
    config = INTEGER | {"data_out_width": 4, "data_out_frac_width": 1}
    x = random(3, 6)
    layer = LinearInteger(6, 5, config=config)
    plain = LinearInteger(6, 5, config=INTEGER)
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), Integer(4, 1)(plain(x)))


def test_a_layer_shows_its_formats():
    text = repr(LinearInteger(6, 5, config=INTEGER))
    assert "in_features=6" in text
    assert "weight=fixed8.4" in text


@pytest.mark.parametrize(
    "config, message",
    [
        ({"weight_widht": 8} | INTEGER, "LinearInteger: unknown key 'weight_widht'. Did you mean"),
        ({"data_in_width": 8}, "key 'weight_width' is missing"),
        (INTEGER | {"weight_width": 0}, "weight_width must be from 1 to 32, got 0"),
        (INTEGER | {"name": "log"}, r"LinearInteger.name: expected 'integer', got 'log'"),
        (None, "key 'data_in_width' is missing"),
    ],
)
def test_a_wrong_config_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        LinearInteger(6, 5, config=config)


def test_an_alias_names_the_format():
    layer = LinearInteger(6, 5, config=INTEGER | {"name": "fixed"})
    assert layer.quantizers["weight"] == Integer(8, 4)


def test_a_bypassed_layer_says_so():
    layer = LinearInteger(6, 5, config={"bypass": True})
    assert layer.is_bypassed
    assert layer.quantizers["weight"] == Bypass()


def test_an_embedding_with_max_norm_leaves_its_stored_weight_alone():
    layer = EmbeddingInteger(4, 6, max_norm=0.5, config=INTEGER)
    before = layer.weight.detach().clone()
    with torch.no_grad():
        first, second = layer(torch.tensor([1])), layer(torch.tensor([1]))
    assert torch.equal(first, second)
    assert torch.equal(layer.weight, before)
    assert first.norm() <= 0.5 + 1e-6


def test_half_precision_layers_stay_in_half_precision():
    layer = LinearInteger(6, 5, dtype=torch.bfloat16, config=INTEGER)
    assert layer(random(3, 6).bfloat16()).dtype == torch.bfloat16


def test_quantisation_works_under_autocast():
    layer, x = LinearInteger(6, 5, config=INTEGER), random(3, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = layer(x)
    result.float().sum().backward()
    assert result.dtype == torch.bfloat16
    assert layer.weight.grad is not None


def test_an_optimiser_choice_by_class_survives_pickling():
    assert pickle.loads(pickle.dumps([nn.Linear, LinearInteger, LinearLog]))[1] is LinearInteger


def test_the_example_of_the_package_holds():
    result = doctest.testmod(chop.nn.quantized)
    assert (result.attempted, result.failed) == (4, 0)


def test_every_op_with_layers_has_its_module_and_no_other():
    folder = Path(modules.__file__).parent
    assert {p.stem for p in folder.glob("*.py")} == {*quantized_layers(), "__init__"}
    assert not list(folder.parent.rglob("*.pyi"))  # stubs go stale


def test_a_module_lists_its_layers_and_refuses_other_names():
    assert "LinearInteger" in dir(linear_file) and "LinearInteger" in dir(modules)
    for place, name in (
        (linear_file, "ReLUInteger"),
        (linear_file, "LinearIntger"),
        (modules, "Integer"),
    ):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(place, name)


def test_a_layer_or_function_that_is_not_there_is_named_with_the_nearest():
    with pytest.raises(RegistryError, match=r"quantised layer 'linear_intger'.*'linear_integer'"):
        modules.quantized_module_map["linear_intger"]
    with pytest.raises(RegistryError, match=r"quantised function 'ad_integer'.*'add_integer'"):
        functional.quantized_func_map["ad_integer"]


def test_two_compiled_calls_of_one_layer_share_a_graph():
    torch.compiler.reset()
    layer = LinearInteger(6, 5, config=INTEGER)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    compiled(random(3, 6))
    with warnings.catch_warnings(), torch.compiler.set_stance("fail_on_recompile"):
        x = random(3, 6) * 2
        assert torch.equal(compiled(x), layer(x))  # a second graph would raise
