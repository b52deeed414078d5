"""Objectives for the tests of the search, where a worker process can import them."""

import json
import os
import signal
import threading
import time
from pathlib import Path

from chop.search import Choice, Integer, Real, Space

SPACE = Space({"x": Integer(0, 9), "y": Integer(0, 9), "kind": Choice(("a", "b", "c"))})
NUMBERS = Space({"x": Real(-2.0, 2.0), "width": Integer(1, 8), "kind": Choice(("a", "b"))})


def loss(point, trial):
    return {"loss": (point["x"] - 3) ** 2 + point.get("y", 0) + len(point["kind"])}


def journaled(point, trial):
    """As `loss`; every evaluation that ends leaves a line in a file beside the trials.

    Where a file `most` stands beside it, no evaluation ends once it has that many lines.
    """
    most = trial.directory.parent / "most"
    while most.exists() and len(evaluated(trial.directory.parent)) >= int(most.read_text()):
        time.sleep(0.01)
    line = json.dumps({"number": trial.number, "point": point, "process": os.getpid()}) + "\n"
    with (trial.directory.parent / "evaluated.txt").open("ab", buffering=0) as opened:
        opened.write(line.encode())
    return loss(point, trial)


def together(point, trial):
    """As `journaled`; no evaluation ends before two processes have begun one."""
    begun = trial.directory.parent / "begun"
    begun.mkdir(exist_ok=True)
    (begun / str(os.getpid())).touch()
    while len(list(begun.iterdir())) < 2:
        time.sleep(0.01)
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
    threading.Event().wait()  # until it is killed or interrupted


def reserved(point, trial):
    """As `loss`; stores the bundles of the placement group in which the trial runs."""
    from ray.util.placement_group import get_current_placement_group

    group = get_current_placement_group()
    trial.attribute("bundles", group.bundle_specs)
    trial.attribute("devices", trial.devices)
    return loss(point, trial)


def evaluated(directory):
    """The lines that `journaled` left."""
    file = Path(directory) / "evaluated.txt"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
