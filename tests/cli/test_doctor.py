"""The doctor tells what is there, and what to do about the rest."""

from importlib import metadata

import pytest

from chop.cli.commands import doctor
from chop.cli.commands.doctor import CORE, MACHINE, MACHINE_CHECKS, OPTIONAL


@pytest.fixture(scope="module")
def declared():
    return metadata.requires("masegraph") or []


def test_a_machine_that_runs_the_tests_has_a_working_core(mase):
    ran = mase("doctor --json")
    found = ran.document
    assert ran.code == 0 and found["core_works"]
    names = {check["name"] for check in found["checks"]}
    assert {"python", "torch", "trace and quantise"} <= names
    assert {name for name, _, _ in MACHINE_CHECKS} <= names


def test_people_get_a_line_each(mase):
    out = mase("doctor").out
    assert "The core works." in out
    assert all(group in out for group in (CORE, MACHINE))


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
