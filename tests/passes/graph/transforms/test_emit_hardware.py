import sys
from pathlib import Path

import pytest
import torch

from chop import passes
from chop.actions import build_hardware, simulate, synthesize
from chop.errors import ConfigError, HardwareError, PassError
from chop.hw.sim.simulate import lint
from chop.hw.timing.cycles import Stalls
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from chop.passes.graph.transforms import (
    emit_bram_transform_pass,
    emit_cocotb_transform_pass,
    emit_internal_rtl_transform_pass,
    emit_verilog_top_transform_pass,
)

sys.path.insert(0, str(Path(__file__).parents[3] / "hw"))
from hardware_models import SmallMlp, fixed_graph, run_reference

PASSES = (
    emit_verilog_top_transform_pass,
    emit_internal_rtl_transform_pass,
    emit_bram_transform_pass,
    emit_cocotb_transform_pass,
)


@pytest.fixture
def graph():
    found = fixed_graph(SmallMlp(), torch.randn(2, 4), precision=(8, 3))
    return add_hardware_metadata_analysis_pass(found, {"max_parallelism": [4] * 4})[0]


def emit_all(graph, directory, **more):
    for each in PASSES:
        args = {"project_dir": directory, **(more if each is emit_cocotb_transform_pass else {})}
        graph, _ = each(graph, args)


def test_the_hardware_passes_are_in_the_package():
    for each in (add_hardware_metadata_analysis_pass, *PASSES):
        name = each.spec.name
        assert passes.PASSES[name] is each and getattr(passes, name) is each


def test_each_pass_writes_its_files(graph, tmp_path):
    told = [each(graph, {"project_dir": tmp_path})[1]["files"] for each in PASSES]
    assert told[0] == ["design.json", "rtl/top.sv"]
    assert "rtl/fixed_linear.sv" in told[1]
    assert told[2] == ["mem/fc1_bias.mem", "mem/fc1_weight.mem"]
    bench = ["test/data_in_0.mem", "test/data_out_0.mem", "test/test_top.py"]
    assert [name for name in told[3] if "/ends_" not in name] == bench
    assert {"test/ends_fc1_in_0.mem", "test/ends_fc1_out_0.mem"} <= set(told[3])
    for name in (name for files in told for name in files):
        assert (tmp_path / "hardware" / name).exists()


def test_hardware_metadata_is_needed_first(tmp_path):
    graph = fixed_graph(SmallMlp(), torch.randn(2, 4))
    for each in PASSES:
        with pytest.raises(PassError, match=r"Run add_hardware_metadata_analysis_pass first"):
            each(graph, {"project_dir": tmp_path})
    assert not list(tmp_path.iterdir())


def test_a_bench_without_vectors_is_refused(graph, tmp_path):
    with pytest.raises(ConfigError, match=r"num_batches must be 1 or more, got 0"):
        emit_cocotb_transform_pass(graph, {"project_dir": tmp_path, "num_batches": 0})


@pytest.mark.sim
def test_simulate_runs_the_emitted_vectors(graph, tmp_path):
    x = 3 * torch.randn(20, 4)
    emit_all(graph, tmp_path, inputs=x)
    verdict = simulate(tmp_path, stalls=Stalls(0.7, 0.7, 3))
    assert (verdict.tensors, verdict.compared, verdict.is_exact) == (20, 160, True)
    assert simulate(tmp_path, skip_build=True).is_exact
    assert simulate(tmp_path, skip_test=True) is None


@pytest.mark.sim
def test_a_relative_project_directory_will_do(graph, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    emit_all(graph, "here")
    assert simulate("here").is_exact
    assert lint(Path("here/hardware")) == ""


@pytest.mark.sim
def test_simulate_raises_on_a_wrong_output(graph, tmp_path):
    emit_all(graph, tmp_path)
    path = tmp_path / "hardware" / "mem" / "fc1_bias.mem"
    path.write_text(
        path.read_text().translate(str.maketrans("0123456789abcdef", "123456789abcdef0"))
    )
    with pytest.raises(HardwareError, match=r"first mismatch: fc1_"):
        simulate(tmp_path, trust=True)


@pytest.mark.sim("cocotb", "iverilog")
def test_simulate_runs_the_cocotb_bench(graph, tmp_path):
    emit_all(graph, tmp_path)
    assert simulate(tmp_path, simulator="cocotb").tests == 2


def test_simulate_says_what_is_missing(graph, tmp_path):
    with pytest.raises(HardwareError, match=r"Run emit_verilog_top_transform_pass first"):
        simulate(tmp_path)
    emit_all(graph, tmp_path)
    with pytest.raises(HardwareError, match=r"no simulator was built"):
        simulate(tmp_path, skip_build=True)
    with pytest.raises(
        HardwareError, match=r"unknown simulator 'verilog'. Did you mean 'verilator'"
    ):
        simulate(tmp_path, simulator="verilog")


@pytest.mark.sim("verilator", "g++", "pyosys")
@pytest.mark.slow
def test_one_call_builds_checks_and_reports(tmp_path):
    x = 3 * torch.randn(30, 4)
    graph = fixed_graph(SmallMlp(), x, precision=(8, 3))
    built = build_hardware(graph, tmp_path, inputs=x, parallelism={"max_parallelism": 2})
    assert built.verdict.is_exact
    assert torch.equal(built.lowered.decode(built.verdict.outputs)[0], run_reference(graph, x))
    assert built.area.dsp == 4
    for name in ("report.md", "report.json", "dataflow.svg", "lint.txt", "rtl/top.sv"):
        assert (built.directory / name).exists()
    assert (built.directory / "lint.txt").read_text() == ""
    assert synthesize(tmp_path) == built.area
