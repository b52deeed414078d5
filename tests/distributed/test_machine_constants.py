"""Constants of a machine: measured, saved, loaded and used by a plan."""

import json

import pytest

from chop.distributed.cost import collective_seconds
from chop.distributed.machine_constants import (
    LINK_BYTES,
    MachineConstants,
    fitted_link,
    load_machine,
    measure_machine,
)
from chop.distributed.mesh import Axis
from chop.errors import ConfigError

CONSTANTS = MachineConstants((2, 4), 1e11, 2e10, (1e9, 2e9), (1e-5, 2e-5))


@pytest.mark.parametrize("devices", [2, 3, 8])
@pytest.mark.parametrize(("bandwidth", "latency"), [(1e9, 1e-5), (4e11, 5e-6), (1e8, 0.0)])
def test_a_link_that_follows_the_model_is_found_again(devices, bandwidth, latency):
    link = Axis(devices, bandwidth, latency)
    times = {size: collective_seconds("all_gather", size, link) for size in LINK_BYTES}
    found = fitted_link(devices, times)
    assert found.bandwidth == pytest.approx(bandwidth, rel=1e-3)
    assert found.latency == pytest.approx(latency, rel=1e-2, abs=1e-9)


def test_this_machine_is_measured_with_real_processes():
    found = measure_machine((2,))
    assert found.flops > 1e8 and found.memory_bandwidth > 1e7
    assert len(found.bandwidth) == len(found.latency) == 1 and found.processes == (2,)
    assert 1e5 < found.bandwidth[0] < 1e12 and 0 <= found.latency[0] < 1


def test_constants_come_back_as_they_were_saved(tmp_path):
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(CONSTANTS.record()))
    assert load_machine(file) == CONSTANTS
    assert load_machine(file).settings(2)["bandwidth"] == (1e9, 2e9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 7}, r"machine: version 7 of .* is unknown. Known: 1"),
        ({"colour": 1}, r"machine: .* has unknown keys \['colour'\] and lacks \[\]. Known: shape"),
        ({"flops": 0}, "mesh flops must be above 0"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path, change, words):
    file = tmp_path / "machine.json"
    file.write_text(json.dumps({**CONSTANTS.record(), **change}))
    with pytest.raises(ConfigError, match=words):
        load_machine(file)


def test_a_file_that_is_not_there_and_other_axes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"machine: .*nothing\.json cannot be read"):
        load_machine(tmp_path / "nothing.json")
    with pytest.raises(ConfigError, match=r"has 2 links \(mesh \[2, 4\]\), and the mesh has 3"):
        CONSTANTS.settings(3)
    with pytest.raises(ConfigError, match=r"machine: device 'tpu' is unknown\. Known: cpu, cuda"):
        measure_machine((2,), device="tpu")
