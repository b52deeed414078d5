"""A component from outside the package, one file and its RTL, goes all the way to a verdict."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from chop.actions import build_hardware, simulate
from chop.errors import HardwareError, RegistryError
from chop.hw.check import check_components
from chop.hw.component import COMPONENTS, register
from chop.hw.emit import used_components
from chop.hw.lower import Parallelism, lower
from chop.hw.lower import registry as lowerings
from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.ir.ops import OPS
from chop.passes import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)

sys.path.insert(0, str(Path(__file__).parent / "outside" / "fixed_abs"))
import fixed_abs

BYTE = {
    f"{role}_{key}": value
    for role in ("data_in", "weight", "bias", "data_out")
    for key, value in (("width", 8), ("frac_width", 4))
}


def graph_of(custom_ops):
    model = nn.Sequential(nn.Linear(4, 6), fixed_abs.Absolute(), nn.Linear(6, 2)).eval()
    graph = MaseGraph(model, dummy_in=torch.zeros(2, 4), custom_ops=custom_ops)
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    quantize_transform_pass(
        graph, {"by": "type", "linear": {"config": {"name": "integer", **BYTE}}}
    )
    return graph


def test_importing_its_file_is_all_that_it_needs():
    assert COMPONENTS["fixed_abs"] is fixed_abs.Abs
    assert used_components("fixed_abs #(") == ["fixed_abs", "fixed_cast", "skid_buffer"]


@pytest.mark.sim
def test_it_passes_the_test_of_every_component(tmp_path):
    assert all(v.is_exact for v in check_components(fixed_abs.Abs.cases(), tmp_path))


@pytest.mark.sim
def test_an_op_of_ones_own_is_built_and_simulated_bit_for_bit(tmp_path):
    x = 3 * torch.randn(20, 4)
    graph = graph_of(fixed_abs.OPS)
    built = build_hardware(graph, tmp_path, inputs=x, family=None)
    assert built.verdict.is_exact
    with torch.no_grad():
        assert torch.equal(built.lowered.decode(built.verdict.outputs)[0], graph.model(x).double())
    assert simulate(tmp_path).is_exact  # from its files alone, which are ours
    absolute = next(n for n in graph.fx_graph.nodes if mase_meta(n).common.mase_op == "absolute")
    assert mase_meta(absolute).hardware.module == "fixed_abs"


def test_an_op_whose_component_there_is_not_is_refused_by_its_node():
    row = fixed_abs.OPS["modules"][fixed_abs.Absolute]
    graph = graph_of({"modules": {fixed_abs.Absolute: replace(row, rtl="fixed_abss")}})
    told = r"node '\w+' \(absolute\): no hardware component realises it"
    with pytest.raises(HardwareError, match=told):
        lower(graph, Parallelism(1))


def test_a_row_of_the_op_table_that_names_no_component_is_an_error(monkeypatch):
    wrong = {**OPS, "relu": replace(OPS["relu"], rtl="fixed_rely")}
    monkeypatch.setattr(lowerings, "OPS", wrong)
    with pytest.raises(
        RegistryError, match=r"op 'relu': .* 'fixed_rely'. Did you mean 'fixed_relu'"
    ):
        lowerings.check_op_table()


def test_a_module_of_the_library_is_not_replaced(monkeypatch, tmp_path):
    (tmp_path / "fifo.sv").write_text("module fifo (); endmodule\n")
    kind = type("Fifo", (fixed_abs.Abs,), {"module": "fifo", "__module__": "own_fifo"})
    monkeypatch.setitem(sys.modules, "own_fifo", type(sys)("own_fifo"))
    sys.modules["own_fifo"].__file__ = str(tmp_path / "own_fifo.py")
    with pytest.raises(RegistryError, match=r"'fifo' is a module of the library"):
        register(kind)
