"""The doctor tells what is there, and what to do about the rest."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import chop
from chop.cli.commands import doctor
from chop.cli.commands.doctor import CORE, MACHINE, MACHINE_CHECKS, OPTIONAL


@pytest.fixture(scope="module")
def declared():
    return metadata.requires("masegraph") or []


def test_a_machine_that_runs_the_tests_has_a_working_core(mase):
    ran = mase("doctor --run --json")
    found = ran.document
    assert ran.code == 0 and found["core_works"]
    names = {check["name"] for check in found["checks"]}
    assert {"python", "torch", "trace and quantise", "CPU kernels"} <= names
    assert {name for name, _, _ in MACHINE_CHECKS} <= names


def test_people_get_a_line_each(mase):
    out = mase("doctor").out
    assert "The core is installed. `mase doctor --run` also loads torch" in out
    assert all(group in out for group in (CORE, MACHINE))


LOADED = """
import sys
from chop.cli.main import main
assert main(["doctor", "--quiet"]) == 0
heavy = [name for name in ("torch", "transformers", "numpy", "chop.hw") if name in sys.modules]
print(heavy)
"""


def test_the_doctor_loads_nothing_heavy():
    environment = {**os.environ, "PYTHONPATH": str(Path(chop.__file__).parents[1])}
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "loading torch" not in done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_package_is_no_optional_package_of_its_own(monkeypatch):
    wanted = [
        "tqdm>=4",
        'tqdm>=4; extra == "search"',
        'optuna>=5; extra == "search"',
        'masegraph[search]; extra == "demo"',
    ]
    monkeypatch.setattr(doctor, "_declared", lambda: wanted)
    found = doctor.requirements()
    assert list(found) == ["tqdm", "optuna"]
    assert not found["tqdm"].is_optional  # the core needs it, whoever else does
    assert found["optuna"].is_optional and found["optuna"].extras == ("search", "demo")


def test_what_is_missing_comes_with_its_remedy(monkeypatch):
    wanted = ['no-such-package>=1; extra == "train"', "numpy<1"]
    monkeypatch.setattr(doctor, "_declared", lambda: wanted)
    checks = {check.name: check for check in doctor._packages()}
    missing = checks["no-such-package"]
    assert (missing.ok, missing.group) == (False, OPTIONAL)
    assert missing.remedy == "pip install 'masegraph[train]', needs >=1"
    assert not checks["numpy"].ok and checks["numpy"].group == CORE


def test_a_core_that_does_not_work_ends_with_code_1(mase, monkeypatch):
    monkeypatch.setattr(doctor, "_declared", lambda: ["no-such-package>=1"])
    ran = mase("doctor")
    assert ran.code == 1
    assert "DOES NOT WORK" in ran.out and "MISSING no-such-package" in ran.out


def test_packages_for_developers_alone_are_left_out(declared):
    assert any("pytest" in each for each in declared)
    assert "pytest" not in doctor.requirements()


def test_a_check_that_fails_says_why():
    check = doctor._attempt(MACHINE, "x", lambda: (_ for _ in ()).throw(OSError("why")), "do it")
    assert (check.ok, check.found, check.remedy) == (False, "why", "do it")
