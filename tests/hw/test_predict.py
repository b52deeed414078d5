"""Predicted cells and clock against what was measured and is kept in bench/results."""

import json
import statistics
import sys
from pathlib import Path

import pytest

from chop.errors import HardwareError
from chop.hw.area.area_model import inventory_of, unmodelled
from chop.hw.area.casts import MappedCast as Cast
from chop.hw.area.inventory import FABRICS
from chop.hw.arith.golden import Fixed
from chop.hw.design.component import COMPONENTS
from chop.hw.design.stream import Stream
from chop.hw.flow.predict import predict
from chop.hw.flow.predict.bands import bands, design_kind
from chop.hw.flow.predict.model import coefficients, predict_stage
from chop.hw.flow.route.parts import get_part
from chop.hw.library.components import Fifo, LayerNorm, Linear, Relu
from chop.hw.library.fixed_linear import sample_weights
from chop.hw.sim.component_check import bench_design
from chop.hw.streams.builder import Builder

BENCH = Path(__file__).parents[2] / "bench"
BYTE = Fixed(8, 4)


@pytest.fixture(scope="module")
def models():
    sys.path.insert(0, str(BENCH))
    try:
        import area_models
    finally:
        sys.path.remove(str(BENCH))
    return area_models


@pytest.fixture(scope="module")
def measured():
    return json.loads((BENCH / "results" / "area_grid.json").read_text())["results"]


def held_out(models, rows, family):
    return [row for row in rows if row["on"] == family and models.is_held_out(row)]


def relative_errors(models, rows, family, what):
    stages = [predict_stage("", models.make(r["kind"], r["number"]), family) for r in rows]
    pairs = zip(stages, rows, strict=True)
    return [abs(getattr(s, what) - r[what]) / max(r[what], 1) for s, r in pairs]


def test_luts_of_components_that_were_held_out_are_near(models, measured):
    rows = held_out(models, measured["area"], "ecp5")
    errors = relative_errors(models, rows, "ecp5", "lut")
    assert len(rows) >= 60
    assert statistics.median(errors) <= 0.05
    assert max(errors) <= 0.15


@pytest.mark.parametrize(("what", "share"), [("dsp", 0.9), ("bram", 0.95)])
def test_what_is_counted_is_exact_but_for_few(models, measured, what, share):
    rows = held_out(models, measured["area"], "ecp5")
    errors = relative_errors(models, rows, "ecp5", what)
    assert sum(error == 0 for error in errors) >= share * len(errors)


def test_flip_flops_and_clock_are_near(models, measured):
    rows = held_out(models, measured["area"], "ecp5")
    assert statistics.median(relative_errors(models, rows, "ecp5", "ff")) <= 0.05
    routed = [row for row in measured["clock"] if models.is_held_out(row)]
    assert statistics.median(relative_errors(models, routed, "ecp5", "mhz")) <= 0.10


def test_every_component_of_the_library_is_in_the_grid(models):
    assert models.GRID.keys() <= {*COMPONENTS}
    assert not sys.modules["area_instances"].unlisted()


@pytest.mark.parametrize("cls", unmodelled())
def test_what_was_never_measured_is_refused_by_name(cls):
    component = cls.cases()[0]
    with pytest.raises(HardwareError, match=f"no model of '{component.kind}'"):
        predict(bench_design([component]), "ecp5")


def test_cost_counts_multipliers_and_area_the_dsp_blocks_of_a_family():
    def extra_blocks(component, family):
        blocks = inventory_of(component, family).amounts.get("dsp", 0)
        return blocks - component.cost().multipliers

    cases = [*Linear.cases(), *LayerNorm.cases()]
    pairs = [(extra_blocks(case, "ecp5"), extra_blocks(case, "xc7")) for case in cases]
    assert any(ecp5 != xc7 for ecp5, xc7 in pairs)
    assert min(min(pairs)) < 0 < max(max(pairs))
    clocked = [case for case in (cls.cases()[0] for cls in unmodelled()) if case.twins()]
    assert clocked and all(case.cost().register_bits > 0 for case in clocked)


def test_rows_of_other_rtl_are_measured_anew(models, tmp_path, monkeypatch):
    rows = sys.modules["area_rows"]
    same = {"kind": "fixed_relu", "number": 0, "on": "ecp5", "lut": 1}
    same["rtl"] = rows.fingerprint("fixed_relu", 0)
    kept = [same, {**same, "number": 1, "lut": 2}]  # the second has the RTL of the first
    monkeypatch.setattr(rows, "kept_rows", lambda what: kept)
    assert rows.read_rows(tmp_path, "grid") == [same]
    anew = {**same, "lut": 3}
    lines = [anew, {**anew, "number": 2, "error": "yosys failed"}]
    (tmp_path / "grid.1.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert rows.read_rows(tmp_path, "grid") == [anew]


@pytest.mark.parametrize(
    ("width", "dropped", "luts"),
    [(8, 0, 0), (11, 0, 8), (12, 4, 8), (14, 4, 9)],  # exact, clipped, rounded, both
)
def test_luts_of_a_cast_are_those_that_were_measured(width, dropped, luts):
    cast = Cast(width, dropped, Fixed(8, 4))
    assert cast.luts(0, into_skid=False) == pytest.approx(luts, abs=0.1)
    assert Cast(width, dropped, Fixed(8, 4, overflow="wrap")).luts(0, into_skid=False) <= 1


def linear_design():
    builder = Builder("top")
    x = builder.input("data_in_0", Stream((16,), 4, BYTE))
    layer = Linear(builder.stream(x), sample_weights(16, 16), BYTE, 4)
    y = builder.add("fc", layer, x)
    z = builder.add("relu", Relu(builder.stream(y), BYTE), y)
    builder.output("data_out_0", builder.add("queue", Fifo(builder.stream(z), 16), z))
    return builder.build()


def test_a_design_is_the_sum_of_its_stages():
    design = linear_design()
    told = predict(design, "ecp5-25k")
    assert told == predict(design)
    assert [row.name for row in told.stages] == ["fc", "relu", "queue"]
    assert told.dsp == sum(row.dsp for row in told.stages) == 16
    factor = coefficients()["ecp5"]["whole"].get("lut", 1.0)
    assert told.lut == round(factor * sum(row.lut for row in told.stages))
    assert str(told).startswith("predicted: ")
    assert told.fits(get_part("ecp5-25k").has())
    assert not told.fits({"dsp": 15})


def test_flip_flops_inside_multipliers_are_not_placed():
    told = predict(linear_design())
    assert told.ff_packed == 416  # of a linear layer of 16 multipliers: bench/results/physical.json
    assert told.takes()["ff"] == told.ff_placed == told.ff - 416


@pytest.mark.parametrize(
    ("components", "kind"),
    [
        (["fixed_conv2d", "fixed_softmax"], "transformer"),
        (["sliding_window", "fixed_linear"], "convolutional"),
        (["fixed_linear", "fixed_relu"], "products"),
        (["fixed_relu"], "other"),
    ],
)
def test_a_design_is_of_the_first_kind_that_fits(components, kind):
    assert design_kind(components) == kind


def test_predictions_say_how_far_such_designs_were_off():
    told = predict(linear_design())
    low, high = bands()["ecp5"]["products"]["errors"]["mhz"]
    assert f"MHz [{low:+.0f} … {high:+.0f} %]" in str(told)
    assert "routed against predicted, 2 designs, products" in str(told)
    assert told.errors.startswith("LUT [")
    assert "FF [" in told.errors


def test_a_kind_of_design_that_was_never_routed_says_so():
    builder = Builder("top")
    x = builder.input("data_in_0", Stream((4,), 2, BYTE))
    builder.output("data_out_0", builder.add("relu", Relu(builder.stream(x), BYTE), x))
    told = predict(builder.build())
    assert told.errors == "errors of such designs are not measured"
    assert "[" not in str(told)


def test_families_without_a_model_are_refused():
    with pytest.raises(HardwareError, match=r"no models of 'ice40-hx8k'"):
        predict(linear_design(), "ice40-hx8k")
    with pytest.raises(HardwareError, match=r"no models of 'ecp4'. Did you mean 'ecp5'"):
        predict(linear_design(), "ecp4")


def test_the_file_of_coefficients_has_all_that_is_predicted():
    assert coefficients().keys() <= FABRICS.keys()
    for family in coefficients().values():
        assert family.keys() == {"lut", "ff", "ns", "whole"}
        assert all(c >= 0 for kind in family["lut"].values() for c in kind.values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fixed_linear", "fixed_add", "sliding_window", "fixed_matmul"])
def test_what_is_measured_anew_is_what_is_kept(models, measured, kind):
    pytest.importorskip("pyosys")
    row = next(r for r in held_out(models, measured["area"], "ecp5") if r["kind"] == kind)
    anew = models.measure_area((kind, row["number"], "ecp5"))
    assert {k: anew[k] for k in ("dsp", "bram", "ff")} == {k: row[k] for k in ("dsp", "bram", "ff")}
    assert anew["lut"] == pytest.approx(row["lut"], rel=0.02)
