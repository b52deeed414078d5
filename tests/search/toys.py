"""Objectives for the tests of the search, where a worker process can import them."""

import json
import os
import signal
import time
from pathlib import Path

from chop.search import Choice, Integer, Real, Space

SPACE = Space({"x": Integer(0, 9), "y": Integer(0, 9), "kind": Choice(("a", "b", "c"))})
NUMBERS = Space({"x": Real(-2.0, 2.0), "width": Integer(1, 8), "kind": Choice(("a", "b"))})


def loss(point, trial):
    return {"loss": (point["x"] - 3) ** 2 + point.get("y", 0) + len(point["kind"])}


def journaled(point, trial):
    """As `loss`; every evaluation that ends leaves a line in a file beside the trials."""
    time.sleep(0.01)
    line = json.dumps({"number": trial.number, "point": point, "process": os.getpid()}) + "\n"
    with (trial.directory.parent / "evaluated.txt").open("ab", buffering=0) as opened:
        opened.write(line.encode())
    return loss(point, trial)


def spin(point, trial):
    """A quarter of a second of one core."""
    end = time.process_time() + 0.25
    while time.process_time() < end:
        pass
    return journaled(point, trial)


def dies_once(point, trial):
    """The first worker to come is killed in its first trial."""
    mark = trial.directory.parent / "killed"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return journaled(point, trial)
    mark.write_text(str(trial.number))
    return os.kill(os.getpid(), signal.SIGKILL)


def dies_always(point, trial):
    os.kill(os.getpid(), signal.SIGKILL)


def sleeps(point, trial):
    (trial.directory.parent / f"asleep-{trial.number}").touch()
    time.sleep(60)


def evaluated(directory):
    """The lines that `journaled` left."""
    file = Path(directory) / "evaluated.txt"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
