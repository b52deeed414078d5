"""Trainings on several processes of which one is killed at a random moment.

python bench/rank_kills.py --kills 50 --seed 0 [--workers N] [--state FOLDER]

`mase train --mesh …` runs on real processes of this machine. A SIGKILL hits a random one, in four
runs of five at a random time of the training itself, otherwise at any time. The others must stop,
the message must name the process, and no process may be left. Then the same command runs again,
until it is done: its losses and weights are compared with those of a training that nobody
disturbed, bit by bit. One run in four continues on another number of processes; then sums have
another order, and the weights may differ by `ROUNDING`. A training that is killed after its results
were written is repeated like any other: the command has failed, so its user runs it again.
Finished runs are kept in FOLDER, so that an interrupted benchmark resumes; those of other code are
not used. With --workers, several runs go side by side.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# This folder last, in every process: its graph.py is not the package.
sys.path.sort(key=lambda folder: folder == str(Path(__file__).resolve().parent))

import torch
from measuring import record
from measuring.code import code_hash, measured
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from distributed.forked_ranks import ForkedRun  # noqa: E402

import chop.cli.split_run  # noqa: E402, F401 - once: what is forked has imported it
from chop.actions.records import read_records  # noqa: E402
from chop.dataset import get_dataset  # noqa: E402

SECTION = "rank kills"
WORDS = (
    *("train", "mlp", "--dataset", "digits", "--train-rows", "384", "--test-rows", "32"),
    *("--batch-size", "16", "--epochs", "1", "--save-steps", "2"),
)
PLACES: dict[str, tuple[int, tuple[str, ...]]] = {
    "FSDP on 2": (2, ("--mesh", "2", "--plan", "fsdp")),
    "2 stages": (2, ("--stages", "2")),
}
"""Name of a run -> its processes and its options."""
OTHER = (1, ("--mesh", "1"))
ROUNDING = 1e-5
"""Largest difference of a weight between trainings whose sums have different orders."""
STOPPED_S = 30.0
"""Seconds after a kill within which all processes must have ended; the machine may be loaded."""
MOST_KILLS = 3
WRONG = ("hang", "unnamed", "left", "lost", "different")


@dataclass(frozen=True)
class Whole:
    """A training that nobody disturbed."""

    losses: list[str]
    weights: dict[str, torch.Tensor]
    seconds: float
    training_seconds: float


@dataclass(frozen=True)
class Moment:
    """Seconds after the start of the processes, or after the start of the training, of a kill."""

    after: float
    in_training: bool


def main() -> int:
    """Write the section; 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="runs side by side")
    parser.add_argument("--state", type=Path, default=Path(tempfile.gettempdir(), "rank_kills"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    get_dataset("digits")  # imports what the processes need
    rows = campaign(options.kills, options.seed, options.state, options.workers)
    results = counted(rows)
    record.save_section("safe", SECTION, results)
    print(json.dumps(results, indent=1))
    return int(any(results[name] for name in WRONG))


def campaign(kills: int, seed: int, place: Path, workers: int) -> list[dict[str, Any]]:
    """Return one record per run, until there were enough kills."""
    place.mkdir(parents=True, exist_ok=True)
    log = place / f"runs_{seed}_{code_hash(measured('safe', SECTION))}.jsonl"
    rows = [dict(row) for row in read_records(log)]
    if enough(rows, kills):
        return rows
    wholes = {name: undisturbed(name, place) for name in PLACES}
    missing = (n for n in itertools.count() if n not in {row["number"] for row in rows})
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), prepare) as pool:
        running: set[Future[dict[str, Any]]] = set()
        while running or not enough(rows, kills):
            while len(running) < workers and not enough(rows, kills):
                running.add(pool.submit(kill_and_resume, next(missing), seed, wholes, place))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for row in (future.result() for future in done):
                with log.open("a") as opened:
                    opened.write(json.dumps(row) + "\n")
                rows.append(row)
                print(len(rows), row, flush=True)
    return sorted(rows, key=lambda row: row["number"])


def enough(rows: Sequence[Mapping[str, Any]], kills: int) -> bool:
    """Return True if there were as many kills during training as asked for."""
    return sum(row["during training"] for row in rows) >= kills


def prepare() -> None:
    """Import what processes that are forked from this one need."""
    torch.set_num_threads(1)
    get_dataset("digits")


def run(
    place: tuple[int, tuple[str, ...]], out: Path, moment: Moment | None = None, victim: int = 0
) -> dict[str, Any]:
    """Run the command once; kill process `victim` at a moment, if it still runs."""
    count, options = place
    shown = out.with_suffix(".log")
    shown.unlink(missing_ok=True)
    job = ForkedRun([*WORDS, *options, "--out", str(out)], shown)
    killed: list[float] = []
    begun: list[float] = []
    is_over = threading.Event()
    watches = [threading.Thread(target=_watch_training, args=(out, begun, is_over), daemon=True)]
    if moment is not None:
        watches.append(
            threading.Thread(
                target=_kill, args=(job, moment, victim, begun, killed, is_over), daemon=True
            )
        )
    start = time.monotonic()
    for watch in watches:
        watch.start()
    code, message = job.launch(count)
    ended = time.monotonic()
    is_over.set()
    for watch in watches:
        watch.join()
    return {
        "training_seconds": ended - begun[0] if begun else 0.0,
        "code": code,
        "message": message,
        "seconds": ended - start,
        "killed": bool(killed) and code != 0,
        "stopped_s": ended - killed[0] if killed else 0.0,
        "left": [p.pid for p in job.ranks if p.poll() is None],
        "shown": shown.read_text() if shown.is_file() else "",
    }


def _watch_training(out: Path, begun: list[float], is_over: threading.Event) -> None:
    """Note when the training of this run begins: its file of losses is written then."""
    start = time.time()
    while not is_over.wait(0.01) and not begun:
        files = (out / "checkpoints").rglob("losses.jsonl")
        with contextlib.suppress(OSError):  # a folder that is just removed
            if any(file.stat().st_mtime >= start - 0.1 for file in files):
                begun.append(time.monotonic())


def _kill(
    job: ForkedRun,
    moment: Moment,
    victim: int,
    begun: list[float],
    killed: list[float],
    is_over: threading.Event,
) -> None:
    while moment.in_training and not begun:
        if is_over.wait(0.005):
            return
    if is_over.wait(moment.after) or len(job.ranks) <= victim:
        return
    with contextlib.suppress(ProcessLookupError):
        if job.ranks[victim].returncode is None:
            os.kill(job.ranks[victim].pid, signal.SIGKILL)
            killed.append(time.monotonic())


def undisturbed(name: str, place: Path) -> Whole:
    """Run a command to its end."""
    out = place / f"whole_{name.replace(' ', '_')}"
    shutil.rmtree(out, ignore_errors=True)
    ended = run(PLACES[name], out)
    assert ended["code"] == 0, ended["shown"][-500:]
    return Whole(losses_of(out), weights_of(out), ended["seconds"], ended["training_seconds"])


def losses_of(out: Path) -> list[str]:
    """Return the losses as text, one per step."""
    return (out / "losses.csv").read_text().splitlines()[1:]


def weights_of(out: Path) -> dict[str, torch.Tensor]:
    """Return the saved weights."""
    weights: dict[str, torch.Tensor] = load_file(out / "graph.safetensors")
    return weights


def kill_and_resume(
    number: int, seed: int, wholes: Mapping[str, Whole], place: Path
) -> dict[str, Any]:
    """Run a command with kills, then to its end; return the record of run `number`."""
    draw = random.Random(f"{seed} {number}")
    name = list(PLACES)[number % len(PLACES)]
    whole, out = wholes[name], place / f"killed_{number}"
    shutil.rmtree(out, ignore_errors=True)
    wrong: list[str] = []
    stopped: list[float] = []
    steps: list[int] = []
    trained = repeated = 0
    most = draw.randint(1, MOST_KILLS)
    while len(stopped) < most:
        victim = draw.randrange(PLACES[name][0])
        in_training = draw.random() < 0.8
        longest = whole.training_seconds if in_training else whole.seconds
        before = result_time(out)
        ended = run(PLACES[name], out, Moment(draw.uniform(0, longest), in_training), victim)
        if not ended["killed"]:
            wrong += ["lost"] if ended["code"] else []
            break
        stopped.append(ended["stopped_s"])
        steps.append(last_step(out))
        trained += ended["training_seconds"] > 0
        repeated += result_time(out) != before
        wrong += ["hang"] if ended["stopped_s"] > STOPPED_S else []
        wrong += [] if f"rank {victim} (process" in ended["message"] else ["unnamed"]
        wrong += ["left"] if ended["left"] else []
    elsewhere = ended["killed"] and draw.random() < 0.25
    if ended["killed"]:
        before_step = last_step(out)
        ended = run(OTHER if elsewhere else PLACES[name], out)
        wrong += [] if ended["code"] == 0 and resumed_step(out) == before_step else ["lost"]
    wrong += comparison(out, whole, exact=not elsewhere)
    if not wrong:
        shutil.rmtree(out)
    return {
        "number": number,
        "run": name,
        "kills": len(stopped),
        "during training": trained,
        "after the results": repeated,
        "steps": steps,
        "elsewhere": elsewhere,
        "longest_stop_s": round(max(stopped, default=0.0), 2),
        "wrong": wrong,
    }


def result_time(out: Path) -> float:
    """Return when the results of a command were written; 0 without results."""
    file = out / "result.json"
    return file.stat().st_mtime if file.is_file() else 0.0


def last_step(out: Path) -> int:
    """Return the step of the last complete checkpoint."""
    notes = (out / "checkpoints").rglob("complete.json")
    named = [note.parent.name.removeprefix("checkpoint-") for note in notes]
    return max((int(step) for step in named if step.isdigit()), default=0)


def resumed_step(out: Path) -> int:
    """Return the step from which the last run of a command resumed."""
    result = json.loads((out / "result.json").read_text())
    return int(result["train"]["resumed_from_step"])


def comparison(out: Path, whole: Whole, *, exact: bool) -> list[str]:
    """Return what differs from the undisturbed training."""
    if not (out / "graph.safetensors").is_file():
        return ["different"]
    weights = weights_of(out)
    differences = [float((weights[n] - w).abs().max()) for n, w in whole.weights.items()]
    is_same = max(differences) <= (0.0 if exact else ROUNDING)
    is_same = is_same and len(losses_of(out)) == len(whole.losses)
    is_same = is_same and (not exact or losses_of(out) == whole.losses)
    is_clean = not (out / "checkpoints").exists()
    return [] if is_same and is_clean else ["different"]


def counted(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums over all runs."""
    return {
        "runs": len(rows),
        "kills": sum(row["kills"] for row in rows),
        "kills during training": sum(row["during training"] for row in rows),
        "kills after the results were written": sum(row["after the results"] for row in rows),
        "continued on another number of processes": sum(row["elsewhere"] for row in rows),
        "kills behind the first checkpoint": sum(s > 0 for row in rows for s in row["steps"]),
        "longest stop of all processes (s)": max(row["longest_stop_s"] for row in rows),
        **{name: sum(row["wrong"].count(name) for row in rows) for name in WRONG},
    }


if __name__ == "__main__":
    sys.exit(main())
