"""What the latency action measures and says."""

from __future__ import annotations

import json
import time

import pytest
import torch
from torch import nn

from chop.actions.latency import latency_figure, latency_table, measure_latency
from chop.errors import ConfigError


def records(counts=(1, 3)):
    models = {"baseline": nn.Linear(4, 4), "optimised": nn.Linear(4, 4)}
    inputs = {"input": torch.randn(2, 4)}
    return measure_latency(models, inputs, devices=["cpu"], iterations=counts)


def test_there_is_a_record_for_each_program_device_and_count():
    found = [(r.device, r.iterations, r.program) for r in records()]
    assert found == [("cpu", n, p) for n in (1, 3) for p in ("baseline", "optimised")]


def test_speed_ups_are_relative_to_the_first_program():
    baseline, optimised = records(counts=(3,))
    assert baseline.speedup == 1.0
    assert optimised.speedup == pytest.approx(baseline.median / optimised.median)
    assert optimised.low <= optimised.median <= optimised.high


def test_the_first_call_is_kept_apart_and_its_share_falls_with_the_count(monkeypatch):
    calls = []

    class Slow(nn.Module):
        def forward(self, input):
            calls.append(1.0 if not calls else 0.01)
            return input

    monkeypatch.setattr(time, "perf_counter", lambda: sum(calls))

    (r,) = measure_latency(
        {"slow": Slow()}, {"input": torch.ones(1)}, devices=["cpu"], iterations=(9,)
    )
    assert (r.first_call, r.median) == (1.0, pytest.approx(0.01))
    assert r.median < r.with_first < r.first_call
    assert len(calls) == 10


def test_prepare_is_what_is_measured_and_the_model_itself_is_not_touched():
    model, seen = nn.Linear(4, 4), []
    prepare = {"model": lambda m: seen.append(m) or m}
    measure_latency(
        {"model": model}, {"input": torch.ones(1, 4)}, devices=["cpu"], iterations=(1,),
        prepare=prepare,
    )  # fmt: skip
    assert len(seen) == 1 and seen[0] is not model and model.training


def test_the_table_has_a_line_for_each_record():
    assert len(latency_table(records()).splitlines()) == 2 + len(records())


@pytest.mark.slow
def test_the_figure_is_saved_with_its_data(tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")
    found = records()
    file = latency_figure(found, tmp_path / "latency.svg")
    assert "median time of a call (ms)" in file.read_text()
    assert len(json.loads(file.with_suffix(".json").read_text())) == len(found)


def test_no_models_is_an_error():
    with pytest.raises(ConfigError, match="measure_latency: no models given"):
        measure_latency({}, {})
