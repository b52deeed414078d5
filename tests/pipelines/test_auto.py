import copy

import pytest
from compression_models import annotated, mlp, mlp_graph

from chop.errors import ConfigError, PassError, RegistryError
from chop.passes import add_common_metadata_analysis_pass, quantize_transform_pass
from chop.pipelines import AutoPipeline, CompressionPipeline, Step


def count_nodes(graph, pass_args=None):
    return graph, {"count": len(graph.nodes), "given": pass_args}


def test_steps_run_in_order_and_their_results_go_by_name():
    seen = []

    def first(graph, pass_args=None):
        seen.append("first")
        return graph, {}

    def second(graph, pass_args=None):
        seen.append("second")
        return graph, {"found": 1}

    _, info = AutoPipeline([Step(second, "always"), Step(first, "always")])(mlp_graph())
    assert seen == ["second", "first"]
    assert info == {"second": {"found": 1}, "first": {}}


def test_a_pass_without_arguments_is_skipped_unless_its_row_says_always():
    _, info = AutoPipeline([count_nodes])(mlp_graph())
    assert info == {}
    _, info = AutoPipeline([Step(count_nodes, "always")])(mlp_graph())
    assert info["count_nodes"]["given"] is None


def test_a_pass_gets_its_own_arguments():
    _, info = AutoPipeline([count_nodes])(mlp_graph(), {"count_nodes": {"a": 1}})
    assert info["count_nodes"]["given"] == {"a": 1}


def test_metadata_is_added_where_it_is_missing_only():
    _, info = CompressionPipeline()(mlp_graph())
    assert list(info) == ["init_metadata_analysis_pass", "add_common_metadata_analysis_pass"]
    _, info = CompressionPipeline()(annotated(mlp_graph()))
    assert info == {}


def test_a_pipeline_can_be_extended():
    pipeline = CompressionPipeline()
    pipeline.steps.append(Step(count_nodes, "always"))
    _, info = pipeline(mlp_graph())
    assert info["count_nodes"]["count"] > 0
    assert "count_nodes" not in repr(CompressionPipeline())


def test_steps_may_be_names_of_passes():
    assert repr(AutoPipeline(["prune_transform_pass"])) == "AutoPipeline(prune_transform_pass)"
    with pytest.raises(RegistryError, match="Did you mean 'prune_transform_pass'"):
        AutoPipeline(["prune_transfrm_pass"])


def test_arguments_of_a_pass_it_does_not_have_are_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"no pass of this pipeline. Did you mean 'quantize_tran"):
        CompressionPipeline()(mlp_graph(), {"quantise_transform_pass": {}})


def test_a_pass_listed_twice_is_refused():
    with pytest.raises(ConfigError, match="'count_nodes' is listed twice"):
        AutoPipeline([count_nodes, count_nodes])(mlp_graph())


def test_a_step_must_name_the_metadata_it_gives():
    with pytest.raises(ConfigError, match=r"gives 'comon'. Did you mean 'common'"):
        Step(add_common_metadata_analysis_pass, "missing", "comon")


def test_a_plain_module_is_refused():
    with pytest.raises(PassError, match=r"expected a MaseGraph, got MLP. Wrap it"):
        CompressionPipeline()(mlp())


def test_the_arguments_of_the_caller_stay_as_they_were():
    args = {"quantize_transform_pass": {"by": "type", "linear": {"config": {"name": "ternary"}}}}
    before = copy.deepcopy(args)
    CompressionPipeline()(mlp_graph(), args)
    assert args == before
    assert CompressionPipeline().steps[2].run is quantize_transform_pass
