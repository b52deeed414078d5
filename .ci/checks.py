"""Run the checks of `make test` and of `make lint`: all of them, even if one fails.

`python .ci/checks.py lint tests` runs the linters beside the tests, at the lowest priority, so that
they use only the processor time that the tests leave. It prints the output of each check and ends
with a line for each of them. The exit code is 1 if one of them failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent
LINT = {
    "ruff check": (BIN / "ruff", "check", "."),
    "ruff format": (BIN / "ruff", "format", "--check", "."),
    "mypy": (BIN / "mypy",),
    "import contract": (BIN / "lint-imports",),
    "plain English": (sys.executable, ".ci/words.py"),
    "sentences": (sys.executable, ".ci/words.py", "--lengths"),
}
"""Their output is kept and shown when the tests have ended."""
LAST = ("nice", "-n", "19")
"""Prefix of a command that runs at the lowest priority."""
PYTEST = (sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal")
TESTS = {"tests": (*PYTEST, "-m", "not slow and not gpu")}
"""Their output is shown as it comes."""
NIGHTLY = {
    "coverage": (*PYTEST, "-m", "not slow and not gpu", "--cov", "--cov-report=term"),
    "slow tests": (*PYTEST, "-m", "slow and not gpu"),
}
"""The nightly checks: the tests with their coverage and its floor, then the slow tests."""
GROUPS = {"lint": LINT, "tests": TESTS, "nightly": NIGHTLY}
Commands = Mapping[str, Sequence[str | Path]]


@dataclass(frozen=True)
class Outcome:
    """How a check ended."""

    name: str
    code: int
    seconds: float
    output: str = ""

    def __str__(self) -> str:
        verdict = "passed" if self.code == 0 else f"FAILED (exit code {self.code})"
        return f"{self.name:16} {self.seconds:6.0f} s  {verdict}"


def run_check(name: str, command: Sequence[str | Path], *, is_shown: bool) -> Outcome:
    """Run one command; a program that is not there is a failed check."""
    start = time.monotonic()
    pipe = None if is_shown else subprocess.PIPE
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}
    try:
        done = subprocess.run(
            command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment
        )
    except OSError as error:
        return Outcome(name, 127, time.monotonic() - start, str(error))
    return Outcome(name, done.returncode, time.monotonic() - start, done.stdout or "")


def run_all(quiet: Commands, shown: Commands) -> list[Outcome]:
    """Run the `quiet` commands one after the other, beside the `shown` ones and behind them."""
    before = LAST if shown else ()
    with ThreadPoolExecutor(1) as beside:
        waiting = [
            beside.submit(run_check, name, (*before, *command), is_shown=False)
            for name, command in quiet.items()
        ]
        outcomes = [run_check(name, command, is_shown=True) for name, command in shown.items()]
        return [one.result() for one in waiting] + outcomes


def tell(outcomes: Sequence[Outcome]) -> int:
    """Print what was kept, a line for each check and the verdict; the exit code."""
    for outcome in outcomes:
        if outcome.output:
            print(f"\n-- {outcome.name}\n{outcome.output.rstrip()}")
    print("\n-- checks")
    print(*outcomes, sep="\n")
    failed = [outcome.name for outcome in outcomes if outcome.code]
    print(f"FAILED: {', '.join(failed)}" if failed else f"all {len(outcomes)} checks passed")
    return 1 if failed else 0


def main(groups: Sequence[str]) -> int:
    """Run the groups of checks that are named."""
    unknown = [group for group in groups if group not in GROUPS]
    if unknown or not groups:
        print(f"no group of checks {unknown or ''}. Known: {', '.join(GROUPS)}.", file=sys.stderr)
        return 2
    quiet = LINT if "lint" in groups else {}
    shown = {
        name: command
        for group in groups
        if group != "lint"
        for name, command in GROUPS[group].items()
    }
    return tell(run_all(quiet, shown))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    raise SystemExit(main(sys.argv[1:]))
