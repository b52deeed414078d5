"""Number formats on a GPU; what can be said of them without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from format_cases import BLOCK_CASES, DETERMINISTIC, ELEMENT_CASES, label, with_rounding
from torch._subclasses.fake_tensor import FakeTensorMode

from chop.nn.quantizers import gpu_formats, kernels
from chop.nn.quantizers.gpu_formats import KernelSettings, LaunchSettings

PROGRAM = Path(__file__).with_name("check_gpu_formats.py")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_formats_on_a_gpu_equal_their_definitions():
    environment = {**os.environ, "PYTHONPATH": ":".join(p for p in sys.path if p)}
    command = [sys.executable, str(PROGRAM)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_each_kernel_has_its_format():
    assert len(gpu_formats.FORMATS) == len(kernels.NAMES)
    for format, name in zip(gpu_formats.FORMATS, kernels.NAMES, strict=True):
        assert format.lower() == name.replace("_", "")
        assert f"struct {format} " in gpu_formats.source()


@pytest.mark.share(3)
@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("quantizer", ELEMENT_CASES + BLOCK_CASES, ids=label)
def test_float32_holds_the_parameters_of_every_kernel(quantizer, rounding):
    kernel = with_rounding(quantizer, rounding).kernel()
    if kernel is not None:
        given = torch.tensor(kernel.parameters, dtype=torch.float64)
        assert len(given) <= 8
        assert torch.allclose(given.float().double(), given, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "shape, block, vector, expected",
    [
        ((4, 64), 32, 4, LaunchSettings(4, 8, True, 64, (4, 64, 32, 2))),
        ((4, 64), 32, 8, LaunchSettings(8, 4, True, 32, (4, 64, 32, 2))),
        ((4, 64), 32, 1, LaunchSettings(1, 32, True, 256, (4, 64, 32, 2))),
        ((4, 40), 32, 4, LaunchSettings(4, 8, False, 64, (4, 40, 32, 2))),  # a tail
        ((4, 37), 32, 4, LaunchSettings(1, 32, False, 256, (4, 37, 32, 2))),  # not aligned
        ((2, 3, 60), 20, 4, LaunchSettings(4, 8, False, 144, (6, 60, 20, 3))),
        ((2, 4096), -1, 4, LaunchSettings(4, 32, False, 64, (2, 4096, 4096, 1))),  # whole rows
        ((), 32, 4, LaunchSettings(1, 1, True, 1, (1, 1, 1, 1))),
    ],
)
def test_a_launch_has_threads_for_every_block(shape, block, vector, expected):
    assert gpu_formats._for_blocks(torch.Size(shape), vector, block) == expected


def test_elements_need_no_more_threads_than_vectors():
    assert gpu_formats._for_elements(torch.Size((3, 7)), 4) == LaunchSettings(
        4, 0, False, 6, (1, 21, 0, 0)
    )


FIXED, BLOCKS = KernelSettings(0, 0, 0, (1.0,), (-8.0, 7.0)), KernelSettings(4, 0, 32, (1.0,))


@pytest.mark.parametrize(
    "shapes, settings, expected",
    [
        (((5, 64), (64,)), (FIXED, FIXED), [(4, 0), (4, 0)]),
        (((5, 64), (64,)), (FIXED, FIXED._replace(bounds=None)), None),  # flags for one of them
        (((5, 64), (64,)), (FIXED, FIXED._replace(rounding=1)), None),
        (((5, 64), (64,)), (FIXED, BLOCKS), None),
        (((5, 64), (64,)), (BLOCKS, BLOCKS), [(4, 8), (4, 8)]),
        (((5, 64), (37,)), (BLOCKS, BLOCKS), [(1, 32), (1, 32)]),  # one of them without vectors
        (((5, 64), (64,)), (BLOCKS, BLOCKS._replace(block=64)), [(1, 32), (1, 32)]),
        (((5, 64), (2,)), (BLOCKS, BLOCKS), None),  # shorter than a block
    ],
)
def test_operands_of_a_layer_share_a_launch_if_one_kernel_fits_all(shapes, settings, expected):
    sizes = tuple(map(torch.Size, shapes))
    launches = gpu_formats.common_launches(sizes, 4, settings)
    assert (launches and [launch[:2] for launch in launches]) == expected
    joint = gpu_formats.joint_launch(torch.device("cuda", 0), torch.float32, sizes, settings)
    assert (joint is None) is (expected is None)


def test_flags_of_tensors_lie_side_by_side_at_aligned_places():
    shapes = (torch.Size((3, 7)), torch.Size((5,)), torch.Size((16,)))
    launch = gpu_formats.JointLaunch(torch.device("cuda", 0), torch.float32, shapes, (FIXED,) * 3)
    assert launch.flag_starts == (0, 32, 48, 64)
    parts = launch.split_flags(torch.arange(64))
    assert [part.shape for part in parts] == list(shapes)
    assert [part.flatten()[0].item() for part in parts] == [0, 32, 48]


@pytest.mark.skipif(torch.cuda.is_available(), reason="only where torch has no CUDA device")
def test_a_fake_tensor_of_a_gpu_that_is_not_there_keeps_the_definition():
    with FakeTensorMode():
        assert not kernels.can_run(torch.empty(4, 64, device="cuda"))
