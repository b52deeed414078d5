"""The Triton kernels equal the reference: interpreted, and on a GPU where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAMS = ("check_gpu.py", "check_gpu_attention.py")


def run_checks(program: str, device: str) -> str:
    # A process of its own: Triton decides at import whether to interpret.
    environment = {**os.environ, "PYTHONPATH": ":".join(p for p in sys.path if p)}
    command = [sys.executable, str(Path(__file__).with_name(program)), device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if "InterpreterError" in done.stderr and "0-dimensional arrays" in done.stderr:
        pytest.skip("this version of Triton cannot interpret with this version of NumPy")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_interpreted_kernels_equal_the_reference(program: str) -> None:
    pytest.importorskip("triton", reason="needs Triton: pip install triton")
    assert "all equal" in run_checks(program, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_kernels_on_a_gpu_equal_the_reference(program: str) -> None:
    assert "all equal" in run_checks(program, "cuda")
