import copy

import pytest

from chop.errors import ConfigError
from chop.nn.quantizers import (
    FORMATS,
    FP8,
    MXFP,
    Binary,
    BlockFP,
    Bypass,
    Integer,
    MXInt,
    Ternary,
)
from chop.nn.quantizers.operands import operand_quantizers, plain_names

ROLES = ("data_in", "weight", "bias")
FULL = {
    "name": "integer",
    "data_in_width": 8,
    "data_in_frac_width": 4,
    "weight_width": 6,
    "weight_frac_width": 3,
    "bias_width": 5,
    "bias_frac_width": 2,
}


def test_each_operand_gets_its_own_settings():
    made = operand_quantizers(FULL, ROLES, "linear")
    assert made == {"data_in": Integer(8, 4), "weight": Integer(6, 3), "bias": Integer(5, 2)}


def test_the_callers_config_is_not_changed():
    before = copy.deepcopy(FULL)
    operand_quantizers(FULL, ROLES, "linear")
    assert before == FULL


def test_a_bias_without_settings_takes_the_weights():
    config = {"name": "fixed", "data_in_width": 8, "weight_width": 6}
    assert operand_quantizers(config, ROLES, "linear")["bias"] == Integer(6)


def test_numbered_inputs_take_the_unnumbered_settings():
    config = {"name": "integer", "data_in_width": 8, "data_in_1_width": 4}
    made = operand_quantizers(config, ("data_in_0", "data_in_1"), "add")
    assert made == {"data_in_0": Integer(8), "data_in_1": Integer(4)}


def test_an_output_without_settings_passes_unchanged():
    made = operand_quantizers(FULL, (*ROLES, "data_out"), "linear")
    assert made["data_out"] == Bypass()


def test_settings_of_absent_operands_are_allowed():
    assert operand_quantizers(FULL, ("data_in",), "relu") == {"data_in": Integer(8, 4)}


@pytest.mark.parametrize("config", [None, {"name": None}, {"name": "NA"}, {**FULL, "bypass": True}])
def test_no_format_or_bypass_leaves_every_operand_alone(config):
    assert operand_quantizers(config, ROLES, "linear") == dict.fromkeys(ROLES, Bypass())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_widht": 8}, r"linear: unknown key 'weight_widht'. Did you mean 'weight_width'\?"),
        ({"weight_width": 99}, r"linear: weight_width must be from 1 to 32, got 99\."),
        ({"weight_width": "wide"}, r"linear\.weight_width: expected int, got 'wide' \(str\)\."),
        ({"name": "intger"}, r"linear\.name: Unknown format 'intger'. Did you mean 'integer'\?"),
        ({"bypass": "yes"}, r"linear\.bypass: expected bool"),
    ],
)
def test_a_mistake_is_named_in_the_users_terms(change, message):
    with pytest.raises(ConfigError, match=message):
        operand_quantizers({**FULL, **change}, ROLES, "linear")


def test_a_missing_key_is_named_with_its_operand():
    with pytest.raises(ConfigError, match=r"linear: key 'data_in_width' is missing\."):
        operand_quantizers({"name": "integer", "weight_width": 8}, ROLES, "linear")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"name": "block_fp", "weight_width": 8, "weight_block_size": [16]}, 16),
        ({"name": "block_fp", "weight_width": 8, "weight_block_size": 16}, 16),
        ({"name": "block_fp", "weight_width": 8, "weight_block_size": [1, 16]}, 16),
    ],
)
def test_block_sizes_may_be_numbers_or_lists(config, expected):
    made = operand_quantizers(config, ("weight",), "linear")["weight"]
    assert made.tile == (1, expected)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"name": "binary", "weight_width": 1, "weight_bipolar": False}, Binary(bipolar=False)),
        ({"name": "binary", "weight_stochastic": True}, Binary(stochastic=True)),
        ({"name": "ternary", "weight_width": 2, "weight_max": 3.0, "weight_median": "NA"}, None),
        ({"name": "mxfp", "weight_exponent_width": 2, "weight_frac_width": 1}, MXFP("e2m1")),
        ({"name": "fp8", "weight_exponent_width": 5, "weight_frac_width": 2}, FP8("e5m2")),
        (
            {"name": "block_fp", "weight_width": 8, "weight_exponent_bias": None,
             "weight_skip_first_dim": True},
            BlockFP(8),
        ),
    ],
)  # fmt: skip
def test_settings_of_older_configs_are_understood(config, expected):
    made = operand_quantizers(config, ("weight",), "linear")["weight"]
    assert made == (expected or Ternary(maximum=3.0))


def test_formats_without_required_settings_take_their_defaults():
    made = operand_quantizers({"name": "mxfp"}, ROLES, "linear")
    assert made == dict.fromkeys(ROLES, MXFP())


@pytest.mark.parametrize("name", list(FORMATS))
def test_no_legacy_setting_is_also_a_field(name):
    chosen = FORMATS[name]
    assert not set(chosen.legacy) & set(chosen.__dataclass_fields__)


def test_floor_rounds_every_operand_down_unless_it_has_a_rounding_of_its_own():
    config = {**FULL, "floor": True, "weight_rounding": "nearest_away", "data_out_width": 8}
    made = operand_quantizers(config, (*ROLES, "data_out"), "linear")
    roundings = {role: quantizer.rounding for role, quantizer in made.items()}
    down = dict.fromkeys(("data_in", "bias", "data_out"), "floor")
    assert roundings == {**down, "weight": "nearest_away"}
    assert operand_quantizers({**FULL, "floor": False}, ROLES, "linear")["bias"] == Integer(5, 2)


def test_one_switch_may_serve_every_operand():
    config = {"name": "binary", "stochastic": True, "bipolar": False, "data_in_width": 1}
    made = operand_quantizers(config, ROLES, "linear")
    assert made == dict.fromkeys(ROLES, Binary(stochastic=True, bipolar=False))


def test_switches_may_be_written_as_zero_and_one():
    config = {"name": "binary", "weight_stochastic": 0, "weight_bipolar": 1, "weight_frac_width": 0}
    assert operand_quantizers(config, ("weight",), "linear") == {"weight": Binary()}
    with pytest.raises(ConfigError, match=r"linear.weight_bipolar: expected bool, got 2"):
        operand_quantizers({**config, "weight_bipolar": 2}, ("weight",), "linear")


def test_a_width_of_na_leaves_the_operand_alone():
    config = {
        "name": "integer",
        "data_in_width": 2,
        "weight_width": "NA",
        "weight_frac_width": "NA",
    }
    made = operand_quantizers(config, ROLES, "linear")
    assert made == {"data_in": Integer(2), "weight": Bypass(), "bias": Bypass()}


def test_an_element_of_na_leaves_the_operand_alone():
    config = {
        "name": "mxfp",
        "data_in_element": "NA",
        "weight_element": "e2m1",
        "bias_element": "NA",
    }
    made = operand_quantizers(config, ROLES, "linear")
    assert made == {"data_in": Bypass(), "weight": MXFP(element="e2m1"), "bias": Bypass()}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("binary_training", "linear.binary_training: has no effect."),
        ("cache_quantized_weight", "linear.cache_quantized_weight: has no effect."),
        ("floor", "linear.floor: this format has no rounding; it has no effect."),
    ],
)
def test_a_known_key_without_effect_is_said_once(key, message, notices):
    for _ in range(2):
        operand_quantizers({"name": "ternary", key: True}, ROLES, "linear")
    assert notices == [message]


EXAMPLES = {
    "integer": {"width": 8},
    "log": {"width": 8},
    "minifloat_ieee": {"width": 8, "exponent_width": 4},
    "minifloat_denorm": {"width": 8, "exponent_width": 4},
    "block_fp": {"width": 8, "block_size": 16},
    "block_minifloat": {"width": 8, "exponent_width": 4, "block_size": 16},
    "block_log": {"width": 8, "block_size": 16},
}


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "bypass"])
def test_a_name_of_na_leaves_an_operand_alone_in_every_format(name):
    settings = {f"weight_{k}": v for k, v in EXAMPLES.get(name, {}).items()}
    config = {"name": name, "data_in_name": "NA", "bias_name": "NA", **settings}
    made = operand_quantizers(config, ("data_in", "weight", "bias"), "here")
    assert isinstance(made["data_in"], Bypass) and isinstance(made["bias"], Bypass)
    assert isinstance(made["weight"], FORMATS[name])


def test_an_operand_has_no_other_format_of_its_own():
    config = {"name": "mxint", "data_in_name": "integer"}
    with pytest.raises(ConfigError, match=r"here.data_in_name: 'integer' is not allowed. Allowed"):
        operand_quantizers(config, ("data_in", "weight"), "here")


@pytest.mark.parametrize("key", ["name", "format"])
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, dict.fromkeys(ROLES, MXInt(4, block_size=16))),
        (
            {"weight_width": 8},
            {
                "data_in": MXInt(4, block_size=16),
                "weight": MXInt(8, block_size=16),
                "bias": MXInt(8, block_size=16),
            },
        ),
        (
            {"data_in_width": "NA", "bias_name": "NA"},
            {"data_in": Bypass(), "weight": MXInt(4, block_size=16), "bias": Bypass()},
        ),
    ],
)
def test_a_spelling_holds_for_every_operand_and_keys_stand_beside_it(key, config, expected):
    given = {key: "mxint4/16", **config}
    made = operand_quantizers(given, (*ROLES, "data_out"), "linear")
    assert made == {**expected, "data_out": Bypass()}
    assert plain_names(given, "linear")["name"] == "mxint"


def test_a_config_with_a_registered_name_stays_as_it_is():
    for config in (FULL, {"name": "fixed", "weight_width": 4}, {"name": None}, {"name": "NA"}):
        assert plain_names(config, "linear") == config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "mxnt4"}, r"linear\.name: Unknown format 'mxnt4'\. Did you mean 'mxint4'\?"),
        ({"format": "mxnt4"}, r"linear\.name: Unknown format 'mxnt4'"),
        ({"name": "mxint", "format": "mxint4"}, r"keys 'name' and 'format' both name the format"),
        ({"name": 4}, r"linear\.name: expected the spelling of a format, got 4\."),
        ({"name": ["mxint4"]}, r"linear\.name: expected the spelling of a format"),
    ],
)
def test_a_wrong_spelling_in_a_config_is_named(config, message):
    with pytest.raises(ConfigError, match=message):
        operand_quantizers(config, ROLES, "linear")


def test_layers_with_equal_settings_share_their_formats() -> None:
    """torch.compile checks every object that a layer holds: equal formats are one object."""
    first, second = (operand_quantizers(FULL, ROLES, where) for where in ("linear", "conv2d"))
    assert first is not second
    assert all(first[role] is second[role] for role in ROLES)
