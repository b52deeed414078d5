import pickle

import optuna
import pytest
import torch
from compression_models import bert_graph, mlp, mlp_graph
from covering import first_and_slow

from chop.errors import ConfigError
from chop.nn.quantizers import FORMATS
from chop.passes import quantize_transform_pass
from chop.search import Space
from chop.search.precision import DEFAULT_SETTINGS, FLOAT, PrecisionSpace

INTEGER = {"integer": {"width": [8, 16], "frac_width": [2, 4, 8]}}


def ask(space, seed=0):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return space.suggest(study.ask())


def test_every_layer_has_a_format_and_settings_of_its_own():
    space = PrecisionSpace(mlp_graph(), INTEGER)
    point = {"fc1": "integer", "fc1.integer.width": 8, "fc1.integer.frac_width": 4}
    point |= {"fc2": "integer", "fc2.integer.width": 16, "fc2.integer.frac_width": 8}
    config = space.quantize_config({**point, "head": FLOAT})
    assert config["fc1"]["config"]["weight_width"] == config["fc1"]["config"]["data_in_width"] == 8
    assert config["fc2"]["config"]["bias_frac_width"] == 8
    assert "head" not in config


def test_settings_are_asked_for_only_where_their_format_is_chosen():
    space = PrecisionSpace(mlp_graph(), {**INTEGER, "mxfp": {"element": ["e2m1", "e4m3"]}})
    for seed in range(8):
        point = ask(space, seed)
        for layer in ("fc1", "fc2", "head"):
            settings = {k.split(".")[1] for k in point if k.startswith(f"{layer}.")}
            assert settings == ({point[layer]} - {FLOAT})


def test_the_default_settings_cover_the_registry():
    assert DEFAULT_SETTINGS.keys() == set(FORMATS)


EITHER = [(name, bool(k % 2)) for k, name in enumerate(DEFAULT_SETTINGS)]
"""Every format, in a joint space or in one of apart settings; `make slow` tries both."""
OTHER = [(name, not joint) for name, joint in EITHER]


@pytest.mark.share(2)
@pytest.mark.parametrize(("name", "joint"), first_and_slow([*EITHER, *OTHER], len(EITHER)))
def test_every_format_of_the_registry_gives_a_model_that_runs(name, joint):
    graph = mlp_graph()
    space = PrecisionSpace(graph, [name], joint=joint, keep_float=False)
    _, info = quantize_transform_pass(graph, space.quantize_config(ask(space)))
    assert len(info["quantized"]) == 3
    assert graph.model(x=torch.randn(2, 8)).isfinite().all()


def test_a_joint_space_has_one_dimension_for_each_layer():
    space = PrecisionSpace(mlp_graph(), INTEGER, joint=True)
    assert list(space.dimensions) == ["fc1", "fc2", "head"]
    assert space.size == 7**3
    point = space.uniform("integer(width=8, frac_width=4)")
    apart = PrecisionSpace(mlp_graph(), INTEGER)
    same = apart.uniform("integer", width=8, frac_width=4)
    assert space.quantize_config(point) == apart.quantize_config(same)
    assert apart.size == space.size


def test_a_setting_may_be_of_one_operand_alone():
    formats = {"mxint": {"width": 8, "weight_width": [3, 4]}}
    space = PrecisionSpace(mlp_graph(), formats, keep_float=False)
    config = space.layer_configs(ask(space))["fc1"]
    assert config["data_in_width"] == config["bias_width"] == 8
    assert config["weight_width"] in (3, 4)


def test_a_format_may_have_alternatives():
    formats = {"mxint": [{"width": 4, "block_size": [16, 32]}, {"width": 8}]}
    space = PrecisionSpace(mlp_graph(), formats, keep_float=False)
    assert space.dimensions["fc1"].values == ("mxint", "mxint#1")
    assert space.layer_configs(space.uniform("mxint#1"))["fc1"]["weight_width"] == 8


def test_layers_may_share_a_choice_by_type_or_by_pattern():
    graph = bert_graph()
    by_type = PrecisionSpace(graph, INTEGER, by="type", ops=("linear", "embedding"))
    assert list(by_type.groups) == ["embedding", "linear"]
    patterns = [r"bert\.encoder\.layer\.0\..*", r"bert\.encoder\.layer\.1\..*", "classifier"]
    by_pattern = PrecisionSpace(graph, INTEGER, by="pattern", targets=patterns)
    assert [len(paths) for paths in by_pattern.groups.values()] == [6, 6, 1]


def test_graph_and_module_have_the_same_layers():
    model = mlp()
    assert PrecisionSpace(model, INTEGER).groups == PrecisionSpace(mlp_graph(), INTEGER).groups


def test_a_space_can_be_sent_to_another_process():
    space = PrecisionSpace(mlp_graph(), "all", joint=True)
    assert pickle.loads(pickle.dumps(space)).dimensions == space.dimensions


def test_the_space_comes_from_a_table():
    table = {"precision": {"formats": INTEGER, "joint": True, "targets": ["fc1"]}}
    space = Space.from_config(table, "search.space", mlp_graph())
    assert list(space.dimensions) == ["fc1"]


@pytest.mark.parametrize(
    ("formats", "options", "message"),
    [
        ({"intger": {}}, {}, "unknown|Unknown format 'intger'. Did you mean 'integer'"),
        ({"integer": {"widht": [8]}}, {}, "unknown key 'data_in_widht'"),
        ({"mxint": {"width": [8, 1]}}, {}, r"formats.mxint.*\(with width=1\)"),
        (
            {"block_minifloat": {"width": [3, 8], "exponent_width": [2]}},
            {},
            r"at least exponent_width \+ 2.*\(with width=3, exponent_width=2\)",
        ),
        ({}, {}, "no format is given"),
        ("some", {}, "expected 'all', names or tables, got 'some'"),
        (INTEGER, {"targets": ["fc9"]}, "precision.targets: 'fc9' matches no module"),
        (INTEGER, {"ops": ["liner"]}, "unknown op 'liner'. Did you mean 'linear'"),
        (INTEGER, {"ops": ["conv2d"]}, "the model has no conv2d to quantise"),
        (INTEGER, {"by": "layer"}, "expected name, type or pattern, got 'layer'"),
        (INTEGER, {"by": "pattern"}, "'pattern' needs targets"),
        (
            {"ternary": {"threshold": {"low": 0.1, "high": 0.2}}},
            {"joint": True},
            "a continuous setting has no list of options",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_construction(formats, options, message):
    with pytest.raises(ConfigError, match=message):
        PrecisionSpace(mlp_graph(), formats, **options)


def test_a_space_without_a_model_says_what_it_needs():
    with pytest.raises(ConfigError, match=r"needs the model to be searched, got NoneType"):
        Space.from_config({"precision": {"formats": "all"}}, "space")


def test_a_point_that_lacks_a_layer_is_refused():
    with pytest.raises(ConfigError, match=r"the point has no 'fc1'"):
        PrecisionSpace(mlp_graph(), INTEGER).quantize_config({"fc2": FLOAT})


def test_a_point_with_an_option_that_is_none_is_refused():
    space = PrecisionSpace(mlp_graph(), INTEGER, joint=True)
    point = dict.fromkeys(("fc1", "fc2", "head"), "integer(width=8, frac_width=5)")
    with pytest.raises(ConfigError, match=r"'fc1' is 'integer\(width=8, frac_width=5\)'. Did you"):
        space.quantize_config(point)


def test_the_label_of_an_option_has_its_settings_in_the_order_given():
    formats = {"integer": {"width": [8], "frac_width": 4}}
    space = PrecisionSpace(mlp_graph(), formats, joint=True)
    assert list(space.options) == [FLOAT, "integer(width=8, frac_width=4)"]


def test_a_type_is_a_rule_that_holds_for_models_with_other_layers():
    space = PrecisionSpace(mlp_graph(), INTEGER, by="type", joint=True)
    config = space.quantize_config({"linear": "integer(width=8, frac_width=4)"})
    assert config["by"] == "type"
    assert config["linear"]["config"]["weight_width"] == 8


@pytest.mark.parametrize("joint", [False, True])
def test_spelled_formats_are_choices_of_their_own(joint):
    space = PrecisionSpace(mlp_graph(), ["mxint4", "fixed8.4"], joint=joint)
    assert space.dimensions["fc1"].points == (FLOAT, "mxint4", "fixed8.4")
    config = space.quantize_config({"fc1": "mxint4", "fc2": "fixed8.4", "head": FLOAT})
    assert config["fc1"]["config"]["name"] == "mxint" and config["fc1"]["config"]["bias_width"] == 4
    assert config["fc2"]["config"]["weight_frac_width"] == 4
    graph = mlp_graph()
    quantize_transform_pass(graph, config)
    assert str(graph.model.fc1.quantizers["weight"]) == "mxint4"


def test_settings_beside_a_spelling_are_searched():
    space = PrecisionSpace(mlp_graph(), {"mxint4": {"block_size": [16, 32]}})
    point = dict.fromkeys(space.groups, "mxint4") | {
        f"{g}.mxint4.block_size": 16 for g in space.groups
    }
    config = space.quantize_config(point)["fc1"]["config"]
    assert (config["weight_width"], config["weight_block_size"]) == (4, 16)
