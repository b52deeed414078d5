"""A component from outside the package, as CONTRIBUTING.md writes it, goes all the way to RTL."""

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from chop.actions import build_hardware, simulate
from chop.errors import HardwareError, RegistryError
from chop.hw.design.component import COMPONENTS, register
from chop.hw.lower import Parallelism, lower
from chop.hw.lower import registry as lowerings
from chop.hw.sim.component_check import check_components
from chop.hw.sim.emit import used_components
from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.ir.ops import OPS
from chop.passes import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The recipe's two files, written to a folder and imported, once for the process. Other tests
    see the library alone."""
    if "fixed_neg" not in sys.modules:
        folder = tmp_path_factory.mktemp("own")
        recipe = PAGE.read_text().partition("## Add an RTL component")[2].partition("\n## ")[0]
        for language, suffix in (("python", "py"), ("systemverilog", "sv")):
            (text,) = re.findall(rf"```{language}\n(.*?)```", recipe, flags=re.DOTALL)
            (folder / f"fixed_neg.{suffix}").write_text(text)
        spec = importlib.util.spec_from_file_location("fixed_neg", folder / "fixed_neg.py")
        sys.modules["fixed_neg"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["fixed_neg"])
    if "fixed_neg" not in COMPONENTS:
        register(sys.modules["fixed_neg"].Neg)
    yield sys.modules["fixed_neg"]
    COMPONENTS.forget("fixed_neg")


BYTE = {
    f"{role}_{key}": value
    for role in ("data_in", "weight", "bias", "data_out")
    for key, value in (("width", 8), ("frac_width", 4))
}


def graph_of(own, custom_ops):
    model = nn.Sequential(nn.Linear(4, 6), own.Negate(), nn.Linear(6, 2)).eval()
    graph = MaseGraph(model, dummy_in=torch.zeros(2, 4), custom_ops=custom_ops)
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    quantize_transform_pass(
        graph, {"by": "type", "linear": {"config": {"name": "integer", **BYTE}}}
    )
    return graph


def test_importing_its_file_is_all_that_it_needs(own):
    assert COMPONENTS["fixed_neg"] is own.Neg
    assert used_components("fixed_neg #(") == ["fixed_cast", "fixed_neg", "skid_buffer"]


@pytest.mark.sim
def test_it_passes_the_test_of_every_component(own, tmp_path):
    assert all(v.is_exact for v in check_components(own.Neg.cases(), tmp_path))


@pytest.mark.sim
def test_an_op_of_ones_own_is_built_and_simulated_bit_for_bit(own, tmp_path):
    x = 3 * torch.randn(20, 4)
    graph = graph_of(own, own.OWN_OPS)
    built = build_hardware(graph, tmp_path, inputs=x, family=None)
    assert built.verdict.is_exact
    with torch.no_grad():
        assert torch.equal(built.lowered.decode(built.verdict.outputs)[0], graph.model(x).double())
    assert simulate(tmp_path).is_exact  # from its files alone, which are ours
    negate = next(n for n in graph.fx_graph.nodes if mase_meta(n).common.mase_op == "negate")
    assert mase_meta(negate).hardware.module == "fixed_neg"


def test_an_op_whose_component_there_is_not_is_refused_by_its_node(own):
    row = own.OWN_OPS["modules"][own.Negate]
    graph = graph_of(own, {"modules": {own.Negate: replace(row, rtl="fixed_negg")}})
    told = r"node '\w+' \(negate\): no hardware component realises it"
    with pytest.raises(HardwareError, match=told):
        lower(graph, Parallelism(1))


def test_a_row_of_the_op_table_that_names_no_component_is_an_error(monkeypatch):
    wrong = {**OPS, "relu": replace(OPS["relu"], rtl="fixed_rely")}
    monkeypatch.setattr(lowerings, "OPS", wrong)
    told = r"op 'relu': unknown hardware realisation 'fixed_rely'. Did you mean 'fixed_relu'"
    with pytest.raises(HardwareError, match=told):
        lowerings.check_op_table()


def test_a_module_of_the_library_is_not_replaced(own, monkeypatch, tmp_path):
    (tmp_path / "fifo.sv").write_text("module fifo (); endmodule\n")
    kind = type("Fifo", (own.Neg,), {"module": "fifo", "__module__": "own_fifo"})
    monkeypatch.setitem(sys.modules, "own_fifo", type(sys)("own_fifo"))
    sys.modules["own_fifo"].__file__ = str(tmp_path / "own_fifo.py")
    with pytest.raises(RegistryError, match=r"'fifo' is a module of the library"):
        register(kind)
