"""Energy is counted where the machine tells, and nowhere guessed."""

import pytest

from chop.search import energy
from chop.search.energy import Counter, Energy, Gauge, energy_in_words, find_meters, measure_energy


def write_domain(folder, joules, most=262_143):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "energy_uj").write_text(f"{round(joules * 1e6)}\n")
    (folder / "max_energy_range_uj").write_text(f"{round(most * 1e6)}\n")


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(energy.shutil, "which", lambda name: None)


def test_processors_are_added_up_and_their_parts_are_not(tmp_path, no_gpu):
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        write_domain(tmp_path / name, 10)
    with measure_energy(tmp_path) as found:
        for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
            write_domain(tmp_path / name, 1810)
    told = found.record(carbon_intensity=500)
    assert told["joules"] == pytest.approx(3600)
    assert told["parts"] == {"processor 0": 1800, "processor 1": 1800}
    assert told["co2_grams"] == pytest.approx(0.5), "a thousandth of a kWh"
    assert "0.001 kWh of processor 0 and processor 1" in energy_in_words(told)
    assert "0.5 g of CO2 at 500 g/kWh" in energy_in_words(told)


def test_a_counter_that_wraps_around_goes_on(tmp_path):
    counter = Counter(tmp_path)
    for joules in (90, 99, 4, 10):
        write_domain(tmp_path, joules, most=100)
        counter.read(0.0)
    assert counter.joules == pytest.approx(20)


def test_power_is_summed_over_time():
    powers = iter((100.0, 300.0, 300.0))
    gauge = Gauge(lambda: next(powers))
    for now in (0.0, 2.0, 5.0):
        gauge.read(now)
    assert gauge.joules == 200 * 2 + 300 * 3


def test_gpus_are_asked_through_their_program(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '70.5\\n29.5\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert energy.gpu_watts() == 100.0
    assert list(find_meters(tmp_path).meters) == ["GPU"]
    program.write_text("#!/bin/sh\necho '[N/A]'\n")
    found = find_meters(tmp_path)
    found.read()
    assert not found.meters and "could not be read (ValueError)" in found.silent["GPU"]


def test_a_machine_that_does_not_tell_is_told_of(tmp_path, no_gpu):
    with measure_energy(tmp_path) as found:
        pass
    told = found.record(473)
    assert told["joules"] is None and told["co2_grams"] is None
    words = energy_in_words(told)
    assert words.startswith("energy: this machine does not tell (processor: no RAPL counters in")
    assert "GPU: no nvidia-smi" in words


def test_a_counter_that_may_not_be_read_says_so(tmp_path, no_gpu):
    write_domain(tmp_path / "intel-rapl:0", 1)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    found = find_meters(tmp_path)
    assert "energy_uj: FileNotFoundError" in found.silent["processor 0"]


def test_an_empty_measurement_has_no_sum():
    assert Energy().record(1.0)["joules"] is None
