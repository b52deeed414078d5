"""The wheel and the source distribution: they build, hold all files, and work by themselves."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
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
from chop.hw.design.component import rtl_sources
import chop.passes as passes

assert "{venv}" in chop.__file__ and "{venv}" in graph.__file__, chop.__file__
assert rtl_sources()["fixed_linear"].is_file()
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
    return next((copy / "dist").glob("masegraph-*.whl"))


SHIPPED = ("src", "tests", "docs", "bench", "examples", ".ci")
"""Folders whose tracked files are all in the source distribution."""
BESIDE = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "Makefile")


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """The files of the repository, by git; without it there is nothing to compare with."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git repository: a source distribution has no list of its files")
    told = run("git", "ls-files", "-z", *SHIPPED, *BESIDE, cwd=ROOT)
    return [name for name in told.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def sdist(tracked, tmp_path_factory) -> Path:
    """The source distribution, built from a copy of the tracked files."""
    copy = tmp_path_factory.mktemp("source")
    for name in tracked:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    build = "from setuptools import build_meta; build_meta.build_sdist('dist')"
    run(sys.executable, "-c", build, cwd=copy)
    return next((copy / "dist").glob("masegraph-*.tar.gz"))


@pytest.mark.slow
def test_the_source_distribution_holds_tests_and_docs(sdist, tracked):
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert not set(tracked) - held
    assert not [name for name in held if "__pycache__" in name or name.endswith(".pyc")]


@pytest.mark.slow
def test_the_wheel_says_who_made_it_and_what_it_is_for(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        told = email.message_from_bytes(archive.read(name))
    assert told["Author"] == "The MASE authors"
    assert told["License-Expression"] == "Apache-2.0" and told["License-File"] == "LICENSE"
    assert {"quantization", "PyTorch", "FPGA"} <= set(told["Keywords"].split(","))
    classifiers = told.get_all("Classifier")
    assert "Programming Language :: Python :: 3.11" in classifiers
    assert not [line for line in classifiers if line.startswith("License ::")]  # PEP 639
    assert "docs/" in told.get_payload()  # where the documentation is: no address is invented


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
