"""Commands killed at random moments, and deaths at every file operation of a checkpoint.

python bench/kills.py --kills 240 --seed 0 [--state FOLDER]

Real commands run in processes of their own, which end by SIGKILL: half of them after a random time,
half at a random file operation. After each kill the folder is read, the command is started again,
and in the end the results are compared with those of a command that nobody disturbed. Runs that are
done are kept in FOLDER, so that an interrupted benchmark goes on. The results go under "kills" and
"crash points" in bench/results/safe.json.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import record

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import dying  # noqa: E402

from chop import MaseGraph  # noqa: E402
from chop.actions.records import read_records  # noqa: E402
from chop.cli.commands import COMMANDS  # noqa: E402
from chop.cli.main import main as mase  # noqa: E402
from chop.cli.output import settle  # noqa: E402
from chop.ir.store.tensors import checksum  # noqa: E402
from chop.search.study import load_study  # noqa: E402

ROWS = "--dataset digits --train-rows 128 --test-rows 64"
TRAIN = f"train mlp {ROWS} --set model_options.hidden=[8]"
WRONG = ("lost", "mixed", "doubled", "litter")
TURNS = (
    "train",
    "trace",
    "quantize",
    "emit",
    "search",
    "train",
    "trace",
    "quantize",
    "emit",
    "sweep",
)
"""The jobs in the order of their runs: those that take longest half as often."""
MOST_KILLS = 4
"""Kills of one run before it is left to end."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")
MOMENTS = {"after": "after a random time", "at_event": "at a random file operation"}
TIMES = ("seconds", "date")
"""Fields that differ between two equal runs."""

Told = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """Two lines that write to one folder in turn; `finished` is the work that must survive."""

    name: str
    lines: tuple[str, str]
    finished: Callable[[Path], dict[str, Any]]
    reused: str
    """Matches the number of finished pieces that a restarted command says it goes on from."""
    is_shared: bool = False
    """Whether the second line goes on from the pieces of the first."""


def main() -> int:
    """Write both sections; 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, default=Path(tempfile.gettempdir(), "mase_kills"))
    options = parser.parse_args()
    for command in COMMANDS.values():  # once: what is forked has imported it
        command.module  # noqa: B018
    points = crash_points()
    record.save_section("safe", "crash points", points)
    kills = random_kills(options.kills, options.seed, options.state)
    record.save_section("safe", "kills", kills)
    print(json.dumps({"crash points": points, "kills": kills}, indent=1))
    return int(points["lost or mixed"] or any(kills["totals"][name] for name in WRONG))


# -- death at every file operation ----------------------------------------------------------------


def crash_points() -> Told:
    """Every point at which writing a checkpoint can die, alone or with a command's other files."""
    rows = {}
    for write in (dying.export, dying.command):
        for before in (None, 1.0):
            with tempfile.TemporaryDirectory() as folder:
                found = dying.die_everywhere(Path(folder) / "out", write, before)
            bad = sum(death.held not in (before, 2.0) or bool(death.left) for death in found)
            name = f"{write.__name__}, {'nothing' if before is None else 'another'} there before"
            rows[name] = {"points": len(found), "lost or mixed": bad}
    totals = {key: sum(row[key] for row in rows.values()) for key in ("points", "lost or mixed")}
    return {**totals, "by case": rows}


# -- commands in processes that are killed --------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a process ended: `code` is None where it was killed."""

    code: int | None
    said: str
    seconds: float
    events: int


def run(line: str, out: Path, *, after: float | None = None, at_event: int | None = None) -> Ended:
    """`mase line --out out` in a process that is killed after so long, or at a file operation."""
    log, counted = out.with_suffix(".log"), out.with_suffix(".events")
    counted.unlink(missing_ok=True)
    start = time.monotonic()
    process = os.fork()
    if process == 0:
        _be_command(line, out, log, counted, at_event)
    if after is not None:
        _kill_after(process, after)
    _, status = os.waitpid(process, 0)
    is_killed = os.WIFSIGNALED(status)
    events = int(counted.read_text()) if counted.is_file() else 0
    code = None if is_killed else os.waitstatus_to_exitcode(status)
    return Ended(code, log.read_text(), time.monotonic() - start, events)


def _kill_after(process: int, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.002)
    os.kill(process, signal.SIGKILL)


def _is_write(event: str, args: tuple[Any, ...], out: Path) -> bool:
    """Whether an audit event is a change to the folder `out`."""
    if event != "open" and event not in EVENTS:
        return False
    place = args[0] if not isinstance(args[0], bytes) else args[0].decode()
    is_inside = isinstance(place, str | Path) and str(place).startswith(str(out))
    if event == "open":
        return is_inside and bool((args[2] or 0) & WRITES)
    return is_inside or args[-1] not in (-1, None)  # relative to an open folder: removing a tree


def _be_command(line: str, out: Path, log: Path, counted: Path, at_event: int | None) -> None:
    words = [*line.split(), "--out", str(out)]
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    events = 0

    def hear(event: str, args: tuple[Any, ...]) -> None:
        nonlocal events
        if _is_write(event, args, out):
            events += 1
            if events == at_event:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)
    code = mase(words)
    counted.write_text(str(events))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# -- what is in a folder --------------------------------------------------------------------------


def contents(folder: Path) -> Told:
    """What a reader finds: the checkpoint's tensors, the records, the other files by their hash."""
    settle(folder)
    found: Told = {}
    if (folder / "graph.json").is_file():
        state = MaseGraph.from_checkpoint(folder / "graph").model.state_dict()
        found["graph"] = {name: checksum(value.contiguous()) for name, value in state.items()}
    if (folder / "result.json").is_file():
        found["result"] = _timeless(json.loads((folder / "result.json").read_text()))
    for file in sorted((folder / "hardware").rglob("*")):
        if file.is_file():
            name = str(file.relative_to(folder))
            found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in TIMES}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


def leftovers(folder: Path) -> list[str]:
    """Names that a finished command leaves to nobody."""
    names = [str(p.relative_to(folder)) for p in folder.rglob("*") if p.name.startswith(".")]
    return [*names, *(["checkpoints"] if (folder / "checkpoints").exists() else [])]


def training_steps(folder: Path) -> dict[str, Any]:
    """The last complete checkpoint of a training."""
    notes = (folder / "checkpoints").rglob("complete.json")
    done = [int(note.parent.name.rpartition("-")[2]) for note in notes]
    return {"step": max(done)} if done else {}


def swept_points(folder: Path) -> dict[str, Any]:
    """The points of a sweep that have a record."""
    rows = [row for file in folder.rglob("*.jsonl") for row in read_records(file)]
    keys = Counter(_key(row, ("width", "split", "seed", "sparsity")) for row in rows)
    doubled = {f"twice {key}": n for key, n in keys.items() if n > 1}
    return {_key(row, ("width", "split", "seed", "sparsity")): row for row in rows} | doubled


def finished_trials(folder: Path) -> dict[str, Any]:
    """The trials of a search that have a result."""
    found = {}
    for file in folder.rglob("study.db"):
        with contextlib.suppress(Exception):  # killed before the study had a name
            trials = load_study("search", file).trials
            done = [trial for trial in trials if trial["state"] == "complete"]
            found |= {f"{file.parent.name} {t['number']}": t["values"] for t in done}
    return found


def _key(row: Told, names: tuple[str, ...]) -> str:
    return json.dumps({name: row[name] for name in names if name in row})


def nothing(folder: Path) -> dict[str, Any]:
    """Commands that are short have no work to go on from."""
    return {}


def jobs(place: Path) -> tuple[Job, ...]:
    """The commands, on models that were trained and quantised in `place`."""
    trained, quantized = place / "trained", place / "quantized"
    train = f"{TRAIN} --epochs 5 --save-steps 3"
    sweep = f"sweep fixed_point_width {trained} {ROWS} --epochs 1 --values"
    search = f"search {trained} {ROWS} --formats integer,mxint --costs model_bytes --apply best"
    emit = f"emit {quantized} --max-parallelism"
    qat = f"quantize {trained} --width 6 --frac-width 4 {ROWS} --qat-epochs 3 --save-steps 2"
    trace = "trace mlp --no-draw --set model_options.hidden=[8] --seed"
    steps, none = r"goes on after step (\d+)", "(?!)"
    return (
        Job("train", (train, f"{train} --seed 7"), training_steps, steps),
        Job("search", (f"{search} --trials 4", f"{search} --trials 4 --seed 7"), finished_trials,
            r"(\d+) trials were evaluated before"),
        Job("sweep", (f"{sweep} 4,8", f"{sweep} 4,6,8"), swept_points,
            r"(\d+) of \d+ points were measured before", is_shared=True),
        Job("emit", (f"{emit} 1", f"{emit} 4"), nothing, none),
        Job("quantize", (qat, f"{qat} --seed 7"), training_steps, steps),
        Job("trace", (f"{trace} 0", f"{trace} 7"), nothing, none),
    )  # fmt: skip


# -- the benchmark --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Whole:
    """A line that nobody disturbed: what it gave, how long it took, how many file operations."""

    contents: Told
    seconds: float
    events: int


def undisturbed(job: Job, place: Path) -> tuple[Whole, ...]:
    """Both lines of a job, each in a folder of its own."""
    found = []
    for number, line in enumerate(job.lines):
        out = place / f"whole_{job.name}_{number}"
        shutil.rmtree(out, ignore_errors=True)
        ended = run(line, out)
        assert ended.code == 0, f"{line}: {ended.said[-500:]}"
        found.append(Whole(contents(out), ended.seconds, ended.events))
    return tuple(found)


def random_kills(wanted: int, seed: int, place: Path) -> Told:
    """Runs of the jobs in turn until there were `wanted` kills; what they came to."""
    place.mkdir(parents=True, exist_ok=True)
    for line, name in (
        (f"{TRAIN} --epochs 4", "trained"),
        (f"quantize {place / 'trained'} --width 6 --frac-width 4 --type linear,relu", "quantized"),
    ):
        assert (place / name).is_dir() or run(line, place / name).code == 0, line
    log = place / f"runs_{seed}.jsonl"
    rows = read_records(log)
    wholes: dict[str, tuple[Whole, ...]] = {}
    while sum(row["kills"] for row in rows) < wanted:
        known = {job.name: job for job in jobs(place)}
        job = known[TURNS[len(rows) % len(TURNS)]]
        if job.name not in wholes:
            wholes[job.name] = undisturbed(job, place)
        row = kill_and_resume(job, wholes[job.name], place, random.Random(f"{seed} {len(rows)}"))
        with log.open("a") as opened:
            opened.write(json.dumps(row) + "\n")
        rows.append(row)
        print(len(rows), row, flush=True)
    return _counted(rows)


def _counted(rows: list[Told]) -> Told:
    by_command: dict[str, Counter[str]] = {}
    for row in rows:
        of = by_command.setdefault(row["command"], Counter())
        of.update({"runs": 1, **{n: row[n] for n in ("kills", *MOMENTS.values())}})
        of.update({name: row["wrong"].count(name) for name in WRONG})
    names = ("runs", "kills", *MOMENTS.values(), *WRONG)
    table = {name: {key: of[key] for key in names} for name, of in by_command.items()}
    return {"totals": {k: sum(r[k] for r in table.values()) for k in names}, "by command": table}


def kill_and_resume(job: Job, wholes: tuple[Whole, ...], place: Path, draw: random.Random) -> Told:
    """One run: the first line to its end or not at all, then the second with kills."""
    out = place / "killed"
    shutil.rmtree(out, ignore_errors=True)
    has_old = draw.random() < 0.5
    if has_old:
        shutil.copytree(place / f"whole_{job.name}_0", out)
    allowed = [wholes[0].contents if has_old else {}, wholes[1].contents]
    foreign = set() if job.is_shared else set(job.finished(out))
    moments: list[str] = []
    wrong, told = [], ""
    most = draw.randint(1, MOST_KILLS)
    while True:
        before = job.finished(out)
        moment = _moment(wholes[1], draw) if len(moments) < most else {}
        ended = run(job.lines[1], out, **moment)
        own = {name: value for name, value in before.items() if name not in foreign}
        wrong += _reuse_problems(job, own, ended)
        wrong += _reading_problems(out, allowed, job.finished, before, ended)
        if ended.code is not None:
            break
        moments += moment
    if ended.code != 0 or contents(out) != wholes[1].contents:
        wrong.append("lost")
        told = ended.said[-300:]
    if leftovers(out):
        wrong.append("litter")
        told = f"{told} {leftovers(out)}"
    counts = {MOMENTS[name]: moments.count(name) for name in MOMENTS}
    return {"command": job.name, "kills": len(moments), **counts, "wrong": wrong, "told": told}


def _moment(whole: Whole, draw: random.Random) -> Told:
    if draw.random() < 0.5:
        return {"after": draw.uniform(0, whole.seconds)}
    return {"at_event": draw.randint(1, whole.events)}


def _reuse_problems(job: Job, before: Told, ended: Ended) -> list[str]:
    """Whether a restarted command went on from less than there was."""
    said = re.search(job.reused, ended.said)
    if said is None:
        return ["lost"] if before and ended.code == 0 else []
    known = before["step"] if "step" in before else len(before)
    return [] if int(said[1]) == known else ["lost"]


def _reading_problems(
    out: Path, allowed: list[Told], finished: Callable[[Path], Told], before: Told, ended: Ended
) -> list[str]:
    """Whether a reader finds parts of two runs, or finished work changed, gone or doubled."""
    there, after = contents(out), finished(out)
    wrong = [] if there in allowed else ["mixed"]
    if any(name.startswith("twice") for name in after):
        wrong.append("doubled")
    is_done = there == allowed[-1]  # then what was needed to get there may go
    if (
        ended.code is None
        and not is_done
        and any(
            after.get(name) != value and not (name == "step" and after.get(name, 0) > value)
            for name, value in before.items()
        )
    ):
        wrong.append("lost")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
