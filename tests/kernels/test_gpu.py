"""The Triton kernels equal the reference: interpreted, and on a GPU where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).with_name("check_gpu.py")


def run_checks(device: str) -> str:
    # A process of its own: Triton decides at import whether to interpret.
    environment = {**os.environ, "PYTHONPATH": ":".join(p for p in sys.path if p)}
    command = [sys.executable, str(PROGRAM), device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_interpreted_kernels_equal_the_reference() -> None:
    pytest.importorskip("triton", reason="needs Triton: pip install triton")
    assert "all equal" in run_checks("cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_kernels_on_a_gpu_equal_the_reference() -> None:
    assert "all equal" in run_checks("cuda")
