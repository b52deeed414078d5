"""A component from outside the package, as CONTRIBUTING.md writes it, goes all the way to RTL."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from mutation_run import unnoticed_mutants
from torch import nn

from chop.actions import build_hardware, simulate
from chop.errors import HardwareError, RegistryError
from chop.hw.area.area_model import AREA_MODELS, inventory_of
from chop.hw.design.component import COMPONENTS, register
from chop.hw.design.folders import OWN_FOLDERS, component_folders, load_facet
from chop.hw.design.mutants import mutant_files, read_mutants
from chop.hw.flow.predict import predict
from chop.hw.lower import LOWERINGS, Parallelism, lower, lowerings
from chop.hw.proofs import prove
from chop.hw.proofs.catalogue import all_proofs, proof_faults
from chop.hw.sim.component_check import bench_design, check_components
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


FILES = {
    "python": ("__init__.py", "area.py"),
    "systemverilog": ("fixed_neg.sv",),
    "verilog": ("laws.svh",),
    "toml": ("proof.toml", "mutants.toml"),
}
"""Files of the recipe's folder, in the order of its code blocks."""


def write_recipe(folder, package="fixed_neg"):
    """Write the files of the recipe into a new folder, which is imported as `package`."""
    folder.mkdir()
    recipe = PAGE.read_text().partition("## Add an RTL component")[2].partition("\n## ")[0]
    for language, names in FILES.items():
        texts = re.findall(rf"```{language}\n(.*?)```", recipe, flags=re.DOTALL)
        for name, text in zip(names, texts, strict=True):
            (folder / name).write_text(
                text.replace("from fixed_neg import", f"from {package} import")
            )


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The recipe's folder, written and imported, once for the process. Other tests see the library
    alone."""
    if "fixed_neg" not in sys.modules:
        folder = tmp_path_factory.mktemp("own") / "fixed_neg"
        write_recipe(folder)
        sys.path.append(str(folder.parent))
        importlib.import_module("fixed_neg")
    if "fixed_neg" not in COMPONENTS:
        register(sys.modules["fixed_neg"].Neg)
    yield sys.modules["fixed_neg"]
    COMPONENTS.forget("fixed_neg")
    OWN_FOLDERS.pop("fixed_neg")


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
    assert "fixed_neg" in LOWERINGS
    assert Path(own.__file__).parent in component_folders().values()
    assert {proof.module for proof in all_proofs()} >= {"fixed_neg"}
    assert "fixed_neg" in proof_faults()
    assert "fixed_neg" in mutant_files()


KNOWN_TO = """
import chop.hw.library
from chop.hw.area.area_model import AREA_MODELS
from chop.hw.design.component import COMPONENTS
from chop.hw.design.folders import load_facet, rtl_sources
from chop.hw.design.mutants import mutant_files
from chop.hw.lower import LOWERINGS
from chop.hw.proofs.catalogue import all_proofs, proof_faults
from chop.hw.reference.exact_ops import EXACT_OPS
load_facet("area")
rooms = (COMPONENTS, rtl_sources(), LOWERINGS, mutant_files(), proof_faults())
print(*("fixed_neg" in room for room in rooms), "negate" in EXACT_OPS)
print(COMPONENTS["fixed_neg"] in AREA_MODELS, "fixed_neg" in {p.module for p in all_proofs()})
"""


def test_a_folder_put_into_the_library_is_known_everywhere(tmp_path):
    package = PAGE.parent / "src" / "chop"
    shutil.copytree(package, tmp_path / "chop", ignore=shutil.ignore_patterns("__pycache__"))
    library = tmp_path / "chop" / "hw" / "library"
    write_recipe(library / "fixed_neg", "chop.hw.library.fixed_neg")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", KNOWN_TO],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["True"] * 8, done.stderr


def test_its_area_is_counted_by_its_model(own):
    component = own.Neg.cases()[0]
    inventory = inventory_of(component, "ecp5")
    assert own.Neg in AREA_MODELS
    assert inventory.amounts["carry"] >= component.source.lanes * 10  # 9 bits, two LUTs a cell
    assert "unknown" not in inventory.amounts
    row = predict(bench_design([component])).stages[0]
    assert (row.kind, row.lut > 0, row.dsp) == ("fixed_neg", True, 0)


@pytest.mark.sim("pyosys")
def test_its_laws_are_proved_and_its_fault_is_refuted(own):
    proofs = [proof for proof in all_proofs() if proof.module == "fixed_neg"]
    assert len(proofs) == 2
    assert all(verdict.is_proved for proof in proofs for verdict in prove(proof))
    faulty = proofs[0].with_fault(proof_faults()["fixed_neg"])
    assert not all(verdict.is_proved for verdict in prove(faulty))


@pytest.mark.sim
def test_its_mutants_are_noticed(own, tmp_path):
    mutants = read_mutants(mutant_files()["fixed_neg"])
    assert len(mutants) == 2
    assert unnoticed_mutants(mutants, own.Neg.cases(), tmp_path) == []


@pytest.mark.parametrize(("facet", "least"), [("area", 25), ("proof", 3)])
def test_every_folder_of_the_library_that_has_a_facet_is_loaded(facet, least):
    files = [folder / f"{facet}.py" for folder in component_folders().values()]
    loaded = [Path(module.__file__) for module in load_facet(facet)]
    assert loaded == [file for file in files if file.is_file()]
    assert len(loaded) >= least


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
