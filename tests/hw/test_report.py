import json
from dataclasses import replace

import pytest
from designs import mlp, residual

from chop.hw.flow.hardware_report import (
    bottleneck,
    diagram,
    pipeline_records,
    report_text,
    stage_rows,
    summary,
    write_report,
)
from chop.hw.flow.roofline import roofline
from chop.hw.flow.route.parts import get_part
from chop.hw.sim.emit import emit, top_text, used_components
from chop.hw.sim.simulate import Simulator, random_inputs
from chop.hw.timing.cycles import balanced, interval, simulate_control


def test_rows_name_every_stage_and_the_slowest_is_fully_used():
    design = balanced(residual())
    rows = stage_rows(design)
    assert [r.stage for r in rows] == [s.name for s in design.stages]
    slowest = next(r for r in rows if r.stage == bottleneck(design))
    assert slowest.utilisation == 1.0


def test_diagram_shows_widths_cycles_and_the_bottleneck():
    text = diagram(balanced(residual()))
    for shown in ("2 x 8 bit", "8 cycles", "bottleneck", "beats deep", "fixed_linear"):
        assert shown in text


def test_records_of_a_design_are_plain_and_tell_streams_depths_and_the_bottleneck():
    design = balanced(residual())
    told = json.loads(json.dumps(pipeline_records(design)))
    assert told["bottleneck"] == bottleneck(design)
    fifos = [s for s in told["stages"] if s["module"] == "fifo"]
    assert fifos and all(s["depth"] > 0 for s in fifos)
    named = {*told["inputs"], *told["outputs"], *(s["stage"] for s in told["stages"])}
    assert {end for s in told["streams"] for end in (s["source"], s["target"])} == named
    assert told["verdict"] is None and told["summary"] is None


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    design = balanced(residual())
    simulator = Simulator(design, emit(design, tmp_path_factory.mktemp("report")))
    return design, simulator.run(random_inputs(design, 12)), simulator.directory


@pytest.mark.sim
def test_summary_compares_predicted_and_simulated_cycles(run):
    design, verdict, _ = run
    told = summary(design, verdict)
    assert told.is_predicted
    assert told.simulated_interval == told.predicted_interval == told.bound == design.cycles()
    assert told.simulated_latency == told.predicted_latency


@pytest.mark.sim
def test_a_beat_out_of_its_cycle_is_not_predicted(run):
    design, verdict, _ = run
    late = {name: [int(t) + 1 for t in times] for name, times in verdict.timing.outputs.items()}
    moved = replace(verdict, timing=replace(verdict.timing, outputs=late))
    assert not summary(design, moved).is_predicted


@pytest.mark.sim
def test_report_and_its_data_are_written(run):
    design, verdict, directory = run
    path = write_report(design, directory, verdict)
    assert "No stall above the folding bound" in path.read_text()
    told = json.loads((directory / "report.json").read_text())
    assert told["summary"]["beats_compared"] == 48
    assert told["verdict"]["is_exact"] and told["verdict"]["cycles"] == verdict.cycles
    assert (directory / "dataflow.svg").read_text().startswith("<svg")


@pytest.mark.sim
def test_a_stall_above_the_bound_is_explained_with_its_remedy(tmp_path):
    design = mlp((16, 64, 32, 8), (4, 8, 4, 2))
    assert interval(design) > design.cycles()
    verdict = Simulator(design, emit(design, tmp_path)).run(random_inputs(design, 8))
    predicted = simulate_control(design, 8).outputs["data_out_0"]
    assert list(verdict.timing.outputs["data_out_0"]) == list(predicted)
    assert "cycles above the folding bound" in (text := report_text(design, verdict))
    assert "FIFOs of" in text


def test_the_diagram_leads_to_the_rtl_and_tells_clock_and_load():
    design = balanced(residual())
    text = diagram(design, 123.4, is_linked=True)
    assert "at 123.4 MHz" in text and "100% busy" in text
    files = {row["file"] for row in pipeline_records(design)["stages"]}
    assert files <= {f"rtl/{name}.sv" for name in used_components(top_text(design))}
    assert all(f'<a href="{file}">' in text for file in files)
    assert "<a " not in diagram(design)


def test_the_roofline_counts_products_bytes_and_multipliers():
    design, part = mlp((16, 8, 4), (2, 2, 2)), get_part("ecp5-25k")
    found = roofline(design, part, 100.0)
    assert found.products == sum(s.component.products() for s in design.stages)
    assert found.reached == found.products / interval(design) * 1e8
    assert found.reached <= found.design_roof <= design.cost().multipliers * 1e8
    assert found.reached <= found.bandwidth * found.intensity * 1.0001
    assert found.part_roof == 28 * 1e8
    assert "of the 28 of ecp5-25k" in str(found)
    assert roofline(design, get_part("ice40-hx8k"), 50.0) is None  # it has no multipliers
