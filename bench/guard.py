"""Compare the speed and memory of today's code with a baseline commit, side by side.

    python bench/guard.py [--only WORDS] [--device cpu|cuda] [--seconds S] [--list]

`make guard` calls it. The first line of bench/guard_baseline.txt is the commit; move it forward on
purpose, with the reason in the commit message. Each further line, "ROW: REASON", names a row whose
results have changed on purpose since that commit; it is timed all the same. The code of the commit
lies in a worktree of git for the time of the run. Each row of guard_rows.py runs in one worker
process per side, and the two take turns. A row fails if its results differ, or if new / old is
above 1.10 by more than the noise, in two measurements.
The table goes to bench/results/guard_<machine>.json, after each row, unless --only is given.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.append(sys.path.pop(0))  # this folder last: its graph.py is not the package

import torch
from guard_rows import ROWS
from measuring.progress import Stopwatch
from measuring.record import ROOT, save
from tabulate import tabulate

BASELINE = ROOT / "bench" / "guard_baseline.txt"
MOST = 1.10
"""Largest ratio new / old."""
SECONDS = 5.0
"""Measuring time of a row on both sides: about 10 minutes in all on two idle cores."""
FEWEST, LARGEST = 5, 60
"""Rounds of a row."""
NORMAL = 1.4826
"""Standard deviation over median absolute deviation, of a normal distribution."""


class GuardError(RuntimeError):
    """A worker that cannot be compared: it failed, or it runs code of another folder."""


@dataclass(frozen=True)
class Result:
    """A row of the table: medians of both sides, their ratio, and the noise of the ratio."""

    row: str
    device: str
    verdict: str
    unit: str = ""
    old: float | None = None
    new: float | None = None
    ratio: float | None = None
    noise: float | None = None
    rounds: int = 0

    @property
    def is_failure(self) -> bool:
        """True if the row must stop a change."""
        return self.verdict not in ("equal", "faster") and not self.verdict.startswith("skipped")


# -- workers ---------------------------------------------------------------------------------


class Worker:
    """A process that prepares one row on one side's code and measures it when asked."""

    def __init__(self, side: Path, row: str, device: str) -> None:
        paths = [str(side / "src"), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
        self.side, self.log = side, tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with it
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "guard_rows.py"), row, device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env=environment, cwd=side,
        )  # fmt: skip
        self.value: str | None = None

    def start(self) -> None:
        """Wait until the row is prepared."""
        answer = self._answer()
        if not Path(answer["source"]).is_relative_to(self.side / "src"):
            raise GuardError(f"{answer['source']} is not under {self.side}")
        self.value = answer["value"]

    def measure(self) -> float:
        """Return one measurement."""
        assert self.process.stdin is not None, "opened as a pipe"
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> Any:
        assert self.process.stdout is not None, "opened as a pipe"
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.log.seek(0)
            last = self.log.read().strip().splitlines()[-1:]
            raise GuardError("".join(last) or f"exit code {self.process.returncode}")
        return json.loads(line)

    def stop(self) -> None:
        """End the process."""
        assert self.process.stdin is not None, "opened as a pipe"
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


@contextlib.contextmanager
def workers(sides: Mapping[str, Path], row: str, device: str) -> Iterator[dict[str, Worker]]:
    """Start a worker of each side; end both in any case."""
    running = {name: Worker(side, row, device) for name, side in sides.items()}
    try:
        for name, worker in running.items():
            try:
                worker.start()
            except GuardError as error:
                raise GuardError(f"{name} code: {error}") from error
        yield running
    finally:
        for worker in running.values():
            worker.stop()


# -- the comparison --------------------------------------------------------------------------


def compare_row(name: str, device: str, sides: Mapping[str, Path], seconds: float) -> Result:
    """Compare both sides; a row that looks slower is measured a second time."""
    if missing := [tool for tool in ROWS[name].needs if shutil.which(tool) is None]:
        return Result(name, device, f"skipped: no {', '.join(missing)}")
    try:
        result = _measured(name, device, sides, seconds)
        return _measured(name, device, sides, 2 * seconds) if result.is_failure else result
    except GuardError as error:
        return Result(name, device, f"FAILED: {error}")


def _measured(name: str, device: str, sides: Mapping[str, Path], seconds: float) -> Result:
    with workers(sides, name, device) as running:
        old, new = running["old"], running["new"]
        if old.value != new.value and name not in baseline()[1]:
            return Result(name, device, "RESULTS DIFFER")
        first = old.measure() + new.measure()  # a warm-up
        is_time = ROWS[name].unit == "s"
        most = int(seconds / first) if is_time else FEWEST
        rounds = min(max(most, FEWEST), LARGEST)
        pairs = []
        for number in range(rounds):
            order = (old, new) if number % 2 == 0 else (new, old)
            taken = {id(worker): worker.measure() for worker in order}
            pairs.append((taken[id(old)], taken[id(new)]))
    return judged(name, device, pairs)


def judged(name: str, device: str, pairs: list[tuple[float, float]]) -> Result:
    """Return the medians, the ratio with its noise, and the verdict."""
    ratios = [new / old for old, new in pairs]
    ratio = statistics.median(ratios)
    noise = noise_of(ratios)
    verdict = "equal"
    if ratio > MOST and ratio - noise > 1.0:
        verdict = "SLOWER" if ROWS[name].unit == "s" else "LARGER"
    elif ratio + noise < 1 / MOST:
        verdict = "faster"
    old, new = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Result(name, device, verdict, ROWS[name].unit, old, new, ratio, noise, len(pairs))


def noise_of(ratios: list[float]) -> float:
    """Return two standard errors of the median, from the median absolute deviation."""
    middle = statistics.median(ratios)
    spread = NORMAL * statistics.median(abs(ratio - middle) for ratio in ratios)
    return 2 * 1.2533 * spread / len(ratios) ** 0.5  # 1.2533: of a median over that of a mean


# -- the two sides ---------------------------------------------------------------------------


@functools.cache
def baseline() -> tuple[str, dict[str, str]]:
    """Return the commit, and the rows whose results have changed on purpose with the reasons."""
    commit, *lines = BASELINE.read_text(encoding="utf-8").split("\n")
    changed = dict(line.split(": ", 1) for line in lines if line)
    if unknown := [row for row in changed if row not in ROWS]:
        raise GuardError(f"{BASELINE.name}: no row {', '.join(unknown)}. Rows: {', '.join(ROWS)}")
    return commit.strip(), changed


@contextlib.contextmanager
def baseline_code(commit: str) -> Iterator[Path]:
    """Check `commit` out into a worktree that is removed in any case."""
    folder = Path(tempfile.mkdtemp(prefix="mase_baseline_")).resolve()
    place = folder / "code"
    try:
        _git("worktree", "add", "--detach", str(place), commit)
        yield place
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _git("worktree", "prune")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise GuardError(f"git {words[0]} {words[1]}: {done.stderr.strip()}")
    return done.stdout.strip()


def _end(number: int, frame: Any) -> None:
    """End the program as an interruption does, so that the worktree is removed; once."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def options() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="rows whose name has one of these, by commas")
    parser.add_argument("--device", choices=_devices(), help="rows of one device only")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="measuring time of a row")
    parser.add_argument("--list", action="store_true", help="print the rows, run nothing")
    return parser.parse_args()


def _devices() -> list[str]:
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def chosen_rows(only: str, device: str | None) -> list[tuple[str, str]]:
    """Return the rows and devices to run here."""
    parts = [part for part in only.split(",") if part]
    return [
        (name, device)
        for device in ([device] if device else _devices())
        for name, row in ROWS.items()
        if device in row.devices and (not parts or any(part in name for part in parts))
    ]


def show(result: Result) -> None:
    """Print a row when it is measured."""
    figures = f" {result.ratio:.3f} ± {result.noise:.3f}" if result.ratio is not None else ""
    print(f"{result.row} ({result.device}):{figures} {result.verdict}", flush=True)


def _save(commit: str, changed: Mapping[str, str], results: list[Result]) -> None:
    """Write the rows measured so far: nothing is lost if the run is stopped."""
    machine = f"{platform.machine()}{'_cuda' if torch.cuda.is_available() else ''}"
    rows = [asdict(result) for result in results]
    record = {"baseline": commit, "changed": changed, "most": MOST, "rows": rows}
    save(f"guard_{machine}", record)


def main() -> int:
    """Compare all rows, print and save the table; return 1 if one is slower or wrong."""
    asked = options()
    chosen = chosen_rows(asked.only, asked.device)
    if asked.list or not chosen:
        print("\n".join(ROWS))
        return 0 if asked.list else 2
    signal.signal(signal.SIGTERM, _end)
    (commit, changed), watch, results = baseline(), Stopwatch(), []
    with baseline_code(commit) as old:
        for name, device in chosen:
            results.append(compare_row(name, device, {"old": old, "new": ROOT}, asked.seconds))
            show(results[-1])
            if not asked.only:
                _save(commit, changed, results)
    print(tabulate([asdict(result) for result in results], headers="keys", floatfmt=".3f"))
    failed = [result for result in results if result.is_failure]
    for result in failed:
        print(f"{result.row} ({result.device}): {result.verdict}")
    print(f"{len(results)} rows in {watch.seconds:.0f} s, {len(failed)} failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
