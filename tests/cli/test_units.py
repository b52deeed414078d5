"""Every number that a table prints has its unit beside it."""

from chop.actions.metrics import METRICS
from chop.actions.sweeps import SWEEPS
from chop.cli.units import UNITS, titled, with_units
from chop.search.costs import COSTS

SWEPT = [SWEEPS[name].axis for name in SWEEPS if name != "lora_rank"]


def test_every_metric_cost_and_swept_value_has_a_unit():
    assert {*METRICS, *COSTS, *SWEPT} <= set(UNITS)


def test_titles_say_units_and_counts_speak_for_themselves():
    found = titled({"width": 8, "before": 0.9, "seed": 0, "macs": 3}, {"before": "accuracy, share"})
    assert list(found) == ["width (bits)", "before (accuracy, share)", "seed", "macs"]


def test_rows_get_the_unit_of_what_they_name():
    rows = with_units([{"": "weight bits", "after": "8"}, {"": "bytes", "after": "10"}])
    assert [row["unit"] for row in rows] == ["bits", "bytes"]


def test_no_table_of_a_command_lacks_units(mase, trained):
    rows = "--dataset digits --train-rows 64 --test-rows 32"
    expected = {
        "trace mlp --no-draw --out t": {"bytes_moved": "bytes", "macs": "count"},
        f"prune {trained} --sparsity 0.5 {rows} --evaluate --out p": {
            "bytes": "bytes",
            "weight bits": "bits",
            "model sparsity": "share",
            "accuracy": "share",
        },
    }
    for line, units in expected.items():
        lines = mase(line).out.splitlines()
        for name, unit in units.items():
            assert any(each.startswith(name) and each.endswith(unit) for each in lines), name
    assert any(each.endswith("sparsity (share)") for each in lines)
    swept = mase(f"sweep sparsity {trained} {rows} --values 0.5 --epochs 0.1 --out s").out
    assert "before (accuracy, share)" in swept and "seconds (s)" in swept
