"""A graph is lowered and compared with its model once; again only where it has changed."""

import copy
import json
import pickle

import pytest
import torch
from hardware_models import SmallMlp, fixed_graph

from chop.actions.hardware import emit_hardware
from chop.errors import CheckpointError, HardwareError
from chop.hw.lower import DesignSpec, Lowerer, design_cache
from chop.hw.lower.design_cache import attached_design, design_spec, verified_design
from chop.hw.sim.emit import design_fingerprint
from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.ir.store.checkpoint import digest
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
    compared, verify = [], design_cache.verify
    monkeypatch.setattr(
        design_cache, "verify", lambda *a, **k: compared.append(a) or verify(*a, **k)
    )
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
        lambda graph: add_hardware_metadata_analysis_pass(graph, {"parallelism": {"fc1": [2, 2]}}),
    ],
    ids=["weights", "formats", "settings"],
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


def test_lanes_written_into_the_metadata_are_refused_with_the_remedy(graph):
    mase_meta(_node(graph, "fc1")).hardware["parallelism"] = [2, 2]
    with pytest.raises(
        HardwareError,
        match=r"node 'fc1': hardware.parallelism is \[2, 2\], and its design has \[4, 4\]. "
        r"Run add_hardware_metadata_analysis_pass again; its argument 'parallelism'",
    ):
        attached_design(graph)


def test_a_graph_without_settings_is_refused_with_the_remedy(graph):
    mase_meta(_node(graph, "output")).hardware.design = None
    with pytest.raises(HardwareError, match=r"no settings of a design. Run add_hardware_metadata_"):
        attached_design(graph)


SPECS = [
    {"max_parallelism": [4, 1]},
    {"max_parallelism": 1, "parallelism": {"fc1": [2, 8]}, "weights": "external"},
    {"multiplier": {"fc1": "shift_add"}, "adders_per_stage": 3, "clock_mhz": 50.0},
    {"multiplier": {"*": "packed"}, "node_weights": {"fc1": "memory"}},
    {"target_interval": 8},
    {"max_multipliers": 8},
    {"fit": "ecp5-25k"},
]


@pytest.mark.parametrize("settings", SPECS, ids=str)
def test_copies_pickles_and_checkpoints_have_the_same_spec_and_design(settings, tmp_path):
    graph = fixed_graph(SmallMlp(), torch.randn(2, 4), precision=(8, 3))
    add_hardware_metadata_analysis_pass(graph, settings)
    spec, design = design_spec(graph), attached_design(graph).design
    graph.export(tmp_path / "saved")
    for again in (
        copy.deepcopy(graph),
        pickle.loads(pickle.dumps(graph)),
        MaseGraph.from_checkpoint(tmp_path / "saved"),
    ):
        assert design_spec(again) == spec and type(design_spec(again)) is DesignSpec
        assert design_fingerprint(attached_design(again).design) == design_fingerprint(design)


def test_the_pass_stores_the_spec_that_it_is_given(graph):
    spec = DesignSpec(2, {"fc1": (1, 4)}, clock_mhz=50.0)
    add_hardware_metadata_analysis_pass(graph, spec)
    assert design_spec(graph) == spec


def test_a_checkpoint_with_a_wrong_spec_is_refused_by_key(graph, tmp_path):
    graph.export(tmp_path / "saved")
    file = tmp_path / "saved.json"
    record = json.loads(file.read_text().replace('"clock_mhz": 100.0', '"clock_mhz": -1.0'))
    file.write_text(json.dumps({**record, "sha256": digest(record)}))
    with pytest.raises(CheckpointError, match=r"\$design: clock_mhz must be above 0 MHz, got -1"):
        MaseGraph.from_checkpoint(tmp_path / "saved")


def test_a_copy_gets_the_same_design_from_its_metadata(graph):
    again = attached_design(copy.deepcopy(graph))
    assert again.design.interface() == attached_design(graph).design.interface()
    assert again.depths == attached_design(graph).depths
