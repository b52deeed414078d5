import inspect

import pytest
import torch
import torch.nn.functional as F
from quantized_cases import config_of, random

from chop.errors import ConfigError
from chop.ir.ops import OPS, op_of_function
from chop.nn.quantized import functional, quantized_func_map
from chop.nn.quantizers import Integer

INTEGER = config_of("integer")
COARSE = INTEGER | {"weight_width": 3, "weight_frac_width": 1}
x, y = random(4, 4, trains=False), random(2, 4, 4, trains=False)
eight = Integer(8, 4)


def test_a_number_is_left_alone():
    assert torch.equal(functional.add_integer(x, 0.3, config=INTEGER), eight(x) + 0.3)
    assert functional.mul_integer(2, 3, config=INTEGER) == 6


def test_an_integer_tensor_is_left_alone():
    ids = torch.arange(4)
    assert torch.equal(functional.add_integer(ids, 1, config=INTEGER), ids + 1)


def test_options_reach_torchs_function():
    result = functional.add_integer(x, y, alpha=2, config=INTEGER)
    assert torch.equal(result, torch.add(eight(x), eight(y), alpha=2))


def test_operands_may_be_given_by_name():
    result = functional.matmul_integer(input=x, other=y, config=INTEGER)
    assert torch.equal(result, eight(x) @ eight(y))


@pytest.mark.parametrize("name", ["matmul", "bmm"])
def test_the_second_factor_takes_weight_settings_where_there_are_some(name):
    result = quantized_func_map[f"{name}_integer"](y, y, config=COARSE)
    assert torch.equal(result, eight(y) @ Integer(3, 1)(y))


def test_the_second_factor_takes_data_in_settings_otherwise():
    config = {"data_in_width": 8, "data_in_frac_width": 4}
    assert torch.equal(functional.matmul_integer(x, x, config=config), eight(x) @ eight(x))


def test_numbered_operands_may_differ():
    config = INTEGER | {"data_in_1_width": 4, "data_in_1_frac_width": 0}
    result = functional.sub_integer(x, x, config=config)
    assert torch.equal(result, eight(x) - Integer(4, 0)(x))


def test_a_result_with_a_format_is_quantised():
    config = INTEGER | {"data_out_width": 4, "data_out_frac_width": 1}
    result = functional.add_integer(x, x, config=config)
    assert torch.equal(result, Integer(4, 1)(2 * eight(x)))


@pytest.mark.parametrize(
    "args, kwargs",
    [
        ((-1,), {}),
        ((), {"dim": -1}),
        ((-1, torch.float64), {}),
        ((-1, 3, torch.float64), {}),
        ((), {"dim": -1, "_stacklevel": 3, "dtype": None}),
    ],
)
def test_softmax_takes_the_calls_of_both_of_torchs(args, kwargs):
    result = functional.softmax_integer(x, *args, config=INTEGER, **kwargs)
    wanted = torch.float64 if torch.float64 in args else torch.float32
    assert torch.equal(result, F.softmax(eight(x), -1, dtype=wanted))


def test_functions_say_their_op_signature_and_place():
    assert op_of_function(functional.add_integer) is OPS["add"]
    names = list(inspect.signature(functional.linear_integer).parameters)
    assert names == ["input", "weight", "bias", "config", "options"]
    assert functional.add_integer.__doc__.startswith("`add` in the format `integer`")


def test_a_wrong_config_is_refused_by_name():
    with pytest.raises(ConfigError, match="add_integer: unknown key 'data_in_widht'"):
        functional.add_integer(x, x, config={"data_in_widht": 8})
    with pytest.raises(ConfigError, match=r"add_integer.name: expected 'integer', got 'log'"):
        functional.add_integer(x, x, config={"name": "log"})


def test_a_new_config_elsewhere_does_not_recompile_a_function():
    torch.compiler.reset()
    compiled = torch.compile(
        lambda a: functional.relu_integer(a, config=INTEGER), backend="eager", fullgraph=True
    )
    compiled(x)
    functional.relu_integer(x, config=INTEGER | {"data_in_width": 5})
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(x), eight(x).relu())
