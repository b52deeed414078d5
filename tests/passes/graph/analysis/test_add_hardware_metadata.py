import copy
import sys
from pathlib import Path

import pytest
import torch

from chop.errors import ConfigError, HardwareError, PassError
from chop.hw.lower.design_cache import attached_design
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    add_hardware_metadata_analysis_pass,
    init_metadata_analysis_pass,
)

sys.path.insert(0, str(Path(__file__).parents[3] / "hw"))
from hardware_models import DigitsCnn, SmallMlp, fixed_graph


@pytest.fixture
def graph():
    return fixed_graph(SmallMlp(), torch.randn(2, 4), precision=(8, 3))


def hardware(graph, name):
    return next(n for n in graph.fx_graph.nodes if n.name == name).meta["mase"]["hardware"]


def test_every_node_says_how_it_is_realised(graph):
    graph, info = add_hardware_metadata_analysis_pass(graph, {"max_parallelism": [4] * 4})
    fc1 = hardware(graph, "fc1")
    assert fc1["module"] == "fixed_linear"
    assert fc1["toolchain"] == "INTERNAL"
    assert fc1["parallelism"] == [4, 4]
    assert fc1["verilog_param"]["DATA_IN_0_PRECISION_1"] == 3
    assert fc1["interface"]["weight"]["storage"] == "BRAM"
    assert "fixed_linear/fixed_linear.sv" in fc1["dependence_files"]
    assert "fixed_cast/fixed_cast.sv" in fc1["dependence_files"]
    assert not fc1["is_implicit"]
    assert hardware(graph, "output")["is_implicit"]
    assert info == {"cycles": 2, "multipliers": 16}


def test_parallelism_by_hand_wins_over_the_largest_allowed(graph):
    graph, info = add_hardware_metadata_analysis_pass(
        graph, {"max_parallelism": 8, "parallelism": {"fc1": [2, 1]}}
    )
    assert hardware(graph, "fc1")["parallelism"] == [2, 1]
    assert info["cycles"] == 16


def test_parallelism_follows_a_target_or_a_budget(graph):
    _, info = add_hardware_metadata_analysis_pass(graph, {"target_interval": 8})
    assert info == {"cycles": 8, "multipliers": 4}
    _, info = add_hardware_metadata_analysis_pass(graph, {"max_multipliers": 8})
    assert info == {"cycles": 4, "multipliers": 8}


def test_depths_of_fifos_are_kept_with_the_design():
    graph = fixed_graph(DigitsCnn(2), torch.randn(1, 1, 8, 8))
    graph, _ = add_hardware_metadata_analysis_pass(graph, {"max_parallelism": 2})
    assert any("fork" in wire.stage for wire in attached_design(graph).depths)


def test_arguments_are_left_alone(graph):
    given = {"max_parallelism": [4, 4], "parallelism": {"fc1": [2, 2]}}
    kept = copy.deepcopy(given)
    add_hardware_metadata_analysis_pass(graph, given)
    assert given == kept


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"target_interval": 4, "max_multipliers": 4}, "exclude each other; set one"),
        ({"max_parallelism": 0}, "max_parallelism must be 1 or more, got 0"),
        ({"max_paralelism": 2}, "unknown key 'max_paralelism'. Did you mean 'max_parallelism'"),
    ],
)
def test_arguments_that_cannot_be_are_refused(graph, given, told):
    with pytest.raises(ConfigError, match=told):
        add_hardware_metadata_analysis_pass(graph, given)


def test_a_graph_without_formats_is_refused():
    graph = MaseGraph(SmallMlp(), dummy_in=torch.randn(2, 4))
    with pytest.raises(PassError, match="Run add_common_metadata_analysis_pass first"):
        add_hardware_metadata_analysis_pass(graph)
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    with pytest.raises(HardwareError, match="nothing that reads this input brings it to a"):
        add_hardware_metadata_analysis_pass(graph)
