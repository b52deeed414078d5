import numpy as np
import pytest
from designs import mlp, random_weights

from chop.errors import ConfigError, HardwareError
from chop.hw.arith.golden import Fixed
from chop.hw.design.stream import Stream
from chop.hw.flow.synth import elaborate, synthesize
from chop.hw.library.components import AvgPool, Fifo, Gearbox, HardSwish, Linear, Relu, Reorder
from chop.hw.sim.component_check import bench_design
from chop.hw.sim.emit import emit
from chop.hw.streams.builder import Builder
from chop.hw.timing.cycles import interval

BYTE = Fixed(8, 4)


def linear_relu(size=16, lanes=4):
    builder = Builder("top")
    x = builder.input("data_in_0", Stream((size,), lanes, BYTE))
    layer = Linear(builder.stream(x), random_weights(size, size, spread=3.0), BYTE, lanes)
    y = builder.add("fc1", layer, x)
    builder.output("data_out_0", builder.add("relu", Relu(builder.stream(y), BYTE), y))
    return builder.build()


def test_linear_16_with_four_lanes_takes_16_cycles_per_vector():
    assert interval(linear_relu()) == 16


@pytest.mark.slow
@pytest.mark.sim("pyosys")
def test_linear_16_with_four_lanes_fits_its_area(tmp_path):
    area = synthesize(emit(linear_relu(), tmp_path))
    assert (area.lut <= 373, area.ff <= 408, area.dsp) == (True, True, 16), str(area)
    assert area.bram == 0


def buffers():
    tokens = Stream((64, 128), 8, BYTE)
    index = np.arange(64 * 128)
    heads = index.reshape(64, 2, 64).transpose(1, 0, 2).ravel()
    turned = index.reshape(64, 128).T.ravel()
    return {
        "heads": Reorder(tokens, tuple(heads.tolist()), (2, 64, 64)),
        "turned": Reorder(tokens, tuple(turned.tolist()), (128, 64)),
        "queue": Fifo(tokens, 1024),
    }


@pytest.mark.slow
@pytest.mark.sim("pyosys")
@pytest.mark.parametrize("name", buffers())
def test_buffers_of_64_times_128_elements_are_block_ram(name, tmp_path):
    area = synthesize(emit(bench_design([buffers()[name]]), tmp_path))
    assert area.bram >= 2 and area.lutram == 0, str(area)
    assert area.ff < 300 and area.lut < 600, str(area)


@pytest.mark.sim("pyosys")
def test_rtl_that_does_not_elaborate_is_an_error(tmp_path):
    emit(mlp((4, 8), (4, 4)), tmp_path)
    (tmp_path / "rtl" / "fixed_cast.sv").unlink()
    with pytest.raises(HardwareError, match=r"yosys failed"):
        synthesize(tmp_path)


@pytest.mark.sim("pyslang")
def test_slang_tells_what_is_missing(tmp_path):
    emit(mlp((4, 8), (4, 4)), tmp_path)
    (tmp_path / "rtl" / "fixed_cast.sv").unlink()
    with pytest.raises(HardwareError, match=r"slang: .*fixed_cast"):
        elaborate(tmp_path)


def test_an_unknown_family_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(HardwareError, match=r"unknown family 'xc8'. Did you mean 'xc7'"):
        synthesize(tmp_path, family="xc8")


@pytest.mark.slow
@pytest.mark.sim("pyosys")
def test_logic_for_a_slower_clock_takes_fewer_luts(tmp_path):
    gearbox = Gearbox(Stream((24,), 3, BYTE), 4)
    hardware = emit(bench_design([gearbox]), tmp_path)
    fast, slow = (synthesize(hardware, family="ecp5", clock_mhz=mhz) for mhz in (500, 100))
    assert slow.lut < 0.75 * fast.lut and slow.ff == fast.ff
    with pytest.raises(ConfigError, match="clock_mhz must be above 0 MHz, got 0"):
        synthesize(hardware, family="ecp5", clock_mhz=0)


@pytest.mark.slow
@pytest.mark.sim("pyosys")
@pytest.mark.parametrize(
    "component",
    [
        HardSwish(Stream((64,), 2, BYTE), BYTE),
        AvgPool(Stream((6, 6, 2), 1, BYTE), (3, 3), (3, 3), format=BYTE),
        AvgPool(Stream((4, 4, 2), 1, BYTE), (2, 2), (2, 2), format=BYTE),
    ],
    ids=["hardswish", "a ninth", "a quarter"],
)
def test_divisions_cost_the_multipliers_that_are_synthesised(component, tmp_path):
    area = synthesize(emit(bench_design([component]), tmp_path), family="ecp5")
    assert component.cost().multipliers == area.dsp
