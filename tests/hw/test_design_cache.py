"""A graph is lowered and compared with its model once; again only where it has changed."""

import copy

import pytest
import torch
from hardware_models import SmallMlp, fixed_graph

from chop.actions.hardware import emit_hardware
from chop.hw.lower import Lowerer, design_cache
from chop.hw.lower.design_cache import attached_design, verified_design
from chop.ir.meta import mase_meta
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from chop.passes.graph.transforms import (
    emit_bram_transform_pass,
    emit_cocotb_transform_pass,
    emit_internal_rtl_transform_pass,
    emit_verilog_top_transform_pass,
)

EMITTERS = (
    emit_verilog_top_transform_pass,
    emit_internal_rtl_transform_pass,
    emit_bram_transform_pass,
    emit_cocotb_transform_pass,
)


@pytest.fixture
def lowerings(monkeypatch):
    """The graphs that were lowered, one entry each time."""
    found, run = [], Lowerer.run
    monkeypatch.setattr(
        Lowerer, "run", lambda self, **more: found.append(self.graph) or run(self, **more)
    )
    return found


@pytest.fixture
def graph():
    found = fixed_graph(SmallMlp(), torch.randn(2, 4), precision=(8, 3))
    return add_hardware_metadata_analysis_pass(found, {"max_parallelism": 4})[0]


def test_the_passes_lower_a_graph_once_and_compare_it_once(lowerings, graph, tmp_path, monkeypatch):
    compared, verify = [], attached.verify
    monkeypatch.setattr(attached, "verify", lambda *a, **k: compared.append(a) or verify(*a, **k))
    for emit in EMITTERS:
        emit(graph, {"project_dir": tmp_path})
    assert (len(lowerings), len(compared)) == (1, 1)


def test_building_hardware_lowers_the_graph_once(lowerings, graph, tmp_path):
    emit_hardware(graph, tmp_path, inputs=torch.randn(3, 4))
    assert lowerings == [graph]


@pytest.mark.parametrize(
    "change",
    [
        lambda graph: graph.model.get_submodule("fc1").weight.data.neg_(),
        lambda graph: mase_meta(_node(graph, "fc1")).common["args"]["weight"].update(
            {"precision": [6, 3]}
        ),
        lambda graph: setattr(mase_meta(_node(graph, "fc1")).hardware, "parallelism", [2, 2]),
    ],
    ids=["weights", "formats", "parallelism"],
)  # fmt: skip
def test_a_graph_that_changed_is_lowered_again(change, lowerings, graph):
    before = attached_design(graph)
    assert attached_design(graph) is before
    change(graph)
    after = verified_design(graph)
    assert after is not before and attached_design(graph) is after
    assert len(lowerings) == 2


def _node(graph, name):
    return next(node for node in graph.fx_graph.nodes if node.name == name)


def test_a_copy_gets_the_same_design_from_its_metadata(graph):
    again = attached_design(copy.deepcopy(graph))
    assert again.design.interface() == attached_design(graph).design.interface()
    assert again.depths == attached_design(graph).depths
