"""The C++ of packed products on the other kind of processor, compiled across and emulated."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

import chop.kernels

CHECK = Path(__file__).with_name("rows_alone_check.cpp")
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
ARM = ["armv8-a", "armv8.2-a+dotprod", "armv8.2-a+dotprod+i8mm"]


def products(compiler, flags, run, folder):
    """Compile and run the check; return the numbers of products, different and wrong ones."""
    program = folder / "check"
    headers = Path(chop.kernels.__file__).parent
    command = [compiler, "-std=c++17", "-O3", *flags, f"-I{headers}", str(CHECK), "-o", program]
    subprocess.run(command, check=True, capture_output=True, text=True)
    done = subprocess.run([*run, program], check=True, capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]


@pytest.mark.slow
@pytest.mark.sim("g++")
def test_rows_together_have_the_bits_of_each_alone_here(tmp_path):
    count, *failures = products("g++", ["-march=native"], [], tmp_path)
    assert count > 100_000 and failures == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARM)
def test_rows_together_have_the_bits_of_each_alone_on_arm(architecture, tmp_path):
    if platform.machine() == "aarch64":
        pytest.skip("this machine is one: the other tests run on it")
    if not (shutil.which(COMPILER) and shutil.which(EMULATOR)):
        pytest.skip("needs apt-get install g++-aarch64-linux-gnu qemu-user")
    flags = [f"-march={architecture}", "-static"]
    count, *failures = products(COMPILER, flags, [EMULATOR, "-cpu", "max"], tmp_path)
    assert count > 100_000 and failures == [0, 0]
