"""The wheel: it builds, holds every file of the packages, and works where only it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILT_FROM = ("src", "pyproject.toml", "README.md", "LICENSE")
NOT_SHIPPED = ("__pycache__", "*.pyc", "*.egg-info")

PROGRAM = """
import torch, chop, graph, mase.passes
from chop import MaseGraph
from chop.hw.emit import RTL
import chop.passes as passes

assert "{venv}" in chop.__file__ and "{venv}" in graph.__file__, chop.__file__
assert next(RTL.rglob("fixed_linear.sv")).is_file()
mg = MaseGraph(torch.nn.Sequential(torch.nn.Linear(4, 2)), dummy_in={{"input": torch.zeros(1, 4)}})
mg, info = passes.quantize_transform_pass(mg, {{"linear": {{"config": {{"name": "mxint"}}}}}})
print(info["quantized"])
"""
"""Traces and quantises with what is installed, and finds the files that are no Python."""


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that must succeed; the checkout is not on its path."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "COV_CORE_SOURCE")}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy of the checkout, so that no build folder is left in it."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in BUILT_FROM:
        place = ROOT / name
        if place.is_dir():
            shutil.copytree(place, copy / name, ignore=shutil.ignore_patterns(*NOT_SHIPPED))
        else:
            shutil.copy(place, copy / name)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", copy / "dist", copy, cwd=copy)
    return next((copy / "dist").glob("mase-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A new virtual environment with the wheel in it; other packages come from this one."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True)
    # a path listed here is searched, but its own .pth files (an editable install) are not read
    shared = sysconfig.get_path("purelib")
    site = next((home / "lib").glob("python*/site-packages"))
    (site / "shared.pth").write_text(shared + "\n")
    pip = (sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "--quiet")
    run(*pip, "--no-deps", "--no-index", "--disable-pip-version-check", wheel, cwd=home)
    return home


def test_the_wheel_holds_every_file_of_the_packages(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    packages = ("chop", "graph", "mase")
    ours = [p for package in packages for p in (source / package).rglob("*")]
    wanted = {str(p.relative_to(source)) for p in ours if p.is_file() and p.suffix != ".pyc"}
    assert held == wanted
    assert {Path(name).suffix for name in held} >= {".py", ".sv", ".cpp", ".typed"}


@pytest.mark.slow
def test_the_installed_package_traces_and_quantises(installed):
    program = PROGRAM.format(venv=installed)
    printed = run(installed / "bin" / "python", "-c", program, cwd=installed)
    assert "LinearMXInt" in printed


@pytest.mark.slow
def test_the_doctor_runs_where_only_the_wheel_is(installed):
    assert "torch" in run(installed / "bin" / "mase", "doctor", cwd=installed)
