"""What every registered pass must do, whatever else it does."""

import logging

import pytest
import torch
from passes.cases import CASES
from passes.graphs import annotate, annotated
from zoo import case

import chop.passes as passes
from chop.errors import ConfigError, PassError
from chop.log import get_report_logger
from chop.passes import PASSES

RUNS = [(name, model) for name, each in CASES.items() for model in each.models]


@pytest.fixture(autouse=True)
def quiet_reports():
    """Tables are tested by their records; here they would only fill the log."""
    logger = get_report_logger()
    before = logger.level
    logger.setLevel(logging.WARNING)
    yield
    logger.setLevel(before)


def snapshot(graph):
    """What a pass may not change unless it says so: nodes, edges and modules."""
    nodes = [(n.op, n.name, str(n.target), str(n.args), str(n.kwargs)) for n in graph.nodes]
    return nodes, {name: id(module) for name, module in graph.modules.items()}


def test_the_case_table_covers_the_registry():
    assert sorted(CASES) == sorted(PASSES)


@pytest.mark.share(5)
@pytest.mark.parametrize(("name", "model"), RUNS)
def test_pass_keeps_its_promises(name, model):
    graph, run = annotated(model), PASSES[name]
    arguments = CASES[name].arguments(graph)
    given, before = dict(arguments), snapshot(graph)

    result, info = run(graph, arguments)

    assert result is graph
    assert isinstance(info, dict)
    assert arguments == given
    result.fx_graph.lint()
    if not run.spec.rewrites:
        assert snapshot(result) == before
    if run.spec.preserves:
        if name == "init_metadata_analysis_pass":  # its purpose is to start anew
            annotate(graph)
        facts = passes.verify(graph, case(model).model, case(model).inputs)
        assert facts["max_abs_difference"] <= 1e-5
    if CASES[name].is_idempotent:
        once = snapshot(graph)
        run(graph, arguments)
        assert snapshot(graph) == once, "the pass, run twice, does more than once"


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_unknown_argument_is_an_error_that_names_the_pass(name):
    with pytest.raises(ConfigError, match="unknown key 'no_such_key'") as caught:
        PASSES[name](annotated("MLP"), {"no_such_key": 1})
    assert any(name in note for note in caught.value.__notes__)


@pytest.mark.parametrize("name", sorted(n for n, p in PASSES.items() if p.spec.needs))
def test_missing_metadata_is_an_error_that_names_the_remedy(name):
    graph = annotated("MLP")
    for node in graph.nodes:
        node.meta.pop("mase")
    with pytest.raises(PassError, match=r"Run \w+_metadata_analysis_pass first"):
        PASSES[name](graph, CASES[name].arguments(graph))


def test_a_plain_module_is_refused_with_the_remedy():
    with pytest.raises(PassError, match=r"expected a MaseGraph, got Linear. Wrap it: MaseGraph"):
        passes.init_metadata_analysis_pass(torch.nn.Linear(1, 1))


def test_kinds_of_passes_are_listed():
    listed = (*passes.ANALYSIS_PASSES, *passes.TRANSFORM_PASSES, *passes.INTERFACE_PASSES)
    assert sorted(listed) == sorted(PASSES)
