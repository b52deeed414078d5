"""The layer of the tutorial: every code of a format, against torch's own LeakyReLU."""

import numpy as np
import pytest
import torch

from chop.hw.arith.golden import Fixed
from chop.hw.design.stream import Stream
from chop.hw.library.components import LeakyRelu
from chop.hw.sim.component_check import bench_design, check_components
from chop.hw.sim.emit import emit
from chop.hw.sim.simulate import Simulator

BYTE = Fixed(8, 4)


def test_golden_integers_are_the_layer_of_torch_rounded():
    codes = np.arange(-128, 128)
    layer = LeakyRelu(Stream((256,), 1, BYTE), BYTE, slope=26, slope_frac=8)
    wanted = torch.nn.functional.leaky_relu(torch.from_numpy(BYTE.decode(codes)), 26 / 256)
    assert np.array_equal(layer.golden(codes[None])[0], BYTE.encode(wanted.numpy()))


@pytest.mark.sim
def test_every_code_goes_through_the_rtl(tmp_path):
    layer = LeakyRelu(Stream((256,), 4, BYTE), BYTE, slope=26, slope_frac=8)
    check_components([layer], tmp_path)
    design = bench_design([layer])
    simulator = Simulator(design, emit(design, tmp_path))
    codes = np.arange(-128, 128).reshape(1, 256)
    simulator.run({"case0_data_in_0": codes}).require_exact()
