"""The two commands: every check is run and told, and the demonstration installs what it needs."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PASSES = (sys.executable, "-c", "print('fine')")
FAILS = (sys.executable, "-c", "print('wrong here'); raise SystemExit(3)")


@pytest.fixture(scope="module")
def checks():
    spec = importlib.util.spec_from_file_location("checks", ROOT / ".ci" / "checks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["checks"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["checks"]


def test_a_failed_check_hides_no_other(checks, capfd):
    quiet = {"one": FAILS, "two": PASSES, "three": ("no-such-program",)}
    code = checks.tell(checks.run_all(quiet, {"tests": FAILS, "more": PASSES}))
    printed = capfd.readouterr().out
    assert code == 1
    assert printed.splitlines()[-1] == "FAILED: one, three, tests"
    verdicts = [line.split(" s  ")[1] for line in printed.splitlines() if " s  " in line]
    failed, missing = "FAILED (exit code 3)", "FAILED (exit code 127)"
    assert verdicts == [failed, "passed", missing, failed, "passed"]
    assert printed.count("wrong here") == 2 and printed.count("fine") == 2


def test_linters_leave_the_processor_to_the_tests(checks):
    priority = (sys.executable, "-c", "import os; print(os.nice(0))")
    beside, _ = checks.run_all({"lint": priority}, {"tests": PASSES})
    (alone,) = checks.run_all({"lint": priority}, {})
    assert (int(beside.output), int(alone.output)) == (19, os.nice(0))


def test_checks_that_all_pass_say_so(checks, capfd):
    assert checks.tell(checks.run_all({"one": PASSES}, {})) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "all 1 checks passed"


def test_an_unknown_group_of_checks_is_refused(checks, capsys):
    assert checks.main(["lnit"]) == 2
    assert "Known: lint, tests, nightly." in capsys.readouterr().err


def make(*arguments):
    """What make would run, without running it."""
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", *arguments]
    alone = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(command, cwd=ROOT, env=alone, check=True, capture_output=True, text=True)
    return done.stdout


def recipe_environment(**variables):
    """What a recipe of the Makefile sees of the variables on bytecode."""
    show = "show:; @env"
    command = ["make", "--no-print-directory", f"--eval={show}", "show"]
    printed = subprocess.run(
        command,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **variables},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    seen = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    return {k: v for k, v in seen.items() if k.startswith("PYTHON")}


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({}, {}),
        ({"PYTHONDONTWRITEBYTECODE": ""}, {"PYTHONDONTWRITEBYTECODE": ""}),
        (
            {"PYTHONDONTWRITEBYTECODE": "1"},
            {"PYTHONPYCACHEPREFIX": str(ROOT / ".venv" / "__pycache__")},
        ),
        (
            {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/mine"},
            {"PYTHONPYCACHEPREFIX": "/mine"},
        ),
    ],
    ids=["nothing said", "empty", "none wanted", "a place of one's own"],
)
def test_bytecode_is_kept_in_the_environment_where_none_is_wanted_in_the_tree(given, seen):
    assert recipe_environment(**given) == seen


def test_the_demonstration_installs_what_it_needs_and_no_more():
    printed = make("demo")
    (line,) = [line for line in printed.splitlines() if "pip install" in line]
    assert line.endswith('-c .venv/constraints.txt -e ".[demo]"')
    assert not any(word in printed for word in ("chromium", "initdb", "iverilog", "[cluster"))
    assert "mase demo" in printed.splitlines()[-1]


def test_the_tests_install_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (line,) = [line for line in make("test").splitlines() if "pip install" in line]
    wanted = line.split(".[")[1].split("]")[0]
    assert wanted.split(",") == sorted(extras["optional-dependencies"])


def test_the_installation_compiles_what_the_tests_import():
    lines = make("install").splitlines()
    (collect,) = [k for k, line in enumerate(lines) if "pytest -q --collect-only" in line]
    (install,) = [k for k, line in enumerate(lines) if "pip install" in line]
    assert install < collect


def test_the_pip_line_of_the_readme_names_extras_that_are_there():
    (line,) = re.findall(r'pip install "\.\[(.*?)\]"', (ROOT / "README.md").read_text())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(line.split(",")) <= set(extras["optional-dependencies"])


def test_another_torch_takes_the_place_of_the_pinned_one():
    assert 'echo "torch==2.11.0"' in make("test", "TORCH=2.11.0")


def test_the_workflow_runs_the_tests_on_every_machine_python_and_torch_supported():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    job = workflow["jobs"]["test"]
    matrix = job["strategy"]["matrix"]
    assert matrix["machine"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]
    assert matrix["python"] == ["3.11", "3.12", "3.13"]
    assert matrix["torch"] == ["2.11.0", "2.12.1", "2.13.0"]
    assert job["runs-on"] == "${{ matrix.machine }}"
    assert job["strategy"]["fail-fast"] is False, "one failure must not hide the others"
    assert job["steps"][-1]["run"] == "make test TORCH=${{ matrix.torch }}"
