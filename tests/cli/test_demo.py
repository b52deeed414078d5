"""The tour, with little of everything."""

import pytest

from chop.cli import tour as demo

SMALL = "--epochs 2 --tune-epochs 0.2 --trials 3 --test-rows 24 --tolerance 0.1 --out demo"


@pytest.fixture
def small(monkeypatch):
    """Fewer points in each sweep."""
    monkeypatch.setattr(demo, "SWEPT_WIDTHS", (4,))
    monkeypatch.setattr(demo, "SWEPT_SPARSITIES", (0.5,))


def check(ran, tmp_path):
    assert ran.code == 0, ran.err
    told = ran.document
    assert set(demo.headline(told["stages"])) <= set(told)
    page = (tmp_path / "demo" / "report" / "report.html").read_text()
    assert "from a trained network to checked hardware" in page
    return told


@pytest.mark.sim
def test_the_demo_ends_bit_exact_and_a_second_run_skips_what_is_done(mase, small, tmp_path):
    told = check(mase(f"demo {SMALL} --json"), tmp_path)
    assert told["bit-exact"].startswith("yes: 240 of 240 output values bit-exact")
    assert told["stages"]["hardware"]["accuracy"] == told["compressed accuracy"]
    again = mase(f"demo {SMALL}")
    assert again.code == 0
    assert again.out.count("done before") == 8
    assert "float accuracy" in again.out and "report: demo/report/report.html" in again.out


@pytest.mark.slow
def test_without_a_simulator_the_demo_says_what_is_missing(mase, small, tmp_path, monkeypatch):
    why = "'verilator' is not installed. Install it: `apt-get install verilator`."
    monkeypatch.setattr(demo, "missing_tools", lambda: why)
    told = check(mase(f"demo {SMALL} --json"), tmp_path)
    assert told["bit-exact"] == f"not simulated: {why}"
    assert told["cycles"] > 0
    assert (tmp_path / "demo" / "hardware" / "hardware" / "rtl" / "top.sv").is_file()
