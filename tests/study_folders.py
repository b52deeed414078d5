"""Folders of searches with damaged studies, as `mase studies` lists and shows them."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
from pathlib import Path
from typing import Any

from file_kinds import FAITHFUL, OTHER, RAW, REFUSED, Forged, Kind
from mutations import STUDY, damaged, forged

from chop.cli.failures import UsageError
from chop.cli.main import main
from chop.printable import CONTROLS

UNFORESEEN = "not an error MASE foresaw"
CONFIGS = (
    "",
    "search = 3",
    "[search]\nstorage = 5",
    "[search]\nstorage = 'NA'",
    "x = ",
    "[search]",
)
NUMBERS = (10**400, -(10**400), "1", None, True, [1], float("nan"), float("inf"))


def said(*words: str) -> tuple[int, str]:
    """Return the exit code of a command, and all it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(list(words))
    return code, out.getvalue()


def study(rng: random.Random) -> Any:
    """Return a study with changes."""
    content = json.loads(json.dumps(STUDY))
    if rng.random() < 0.8:
        content = forged(content, rng)
    trials = content.get("trials") if isinstance(content, dict) else None
    if rng.random() < 0.3 and isinstance(trials, list) and trials and isinstance(trials[-1], dict):
        trials[-1]["values"] = {"accuracy": rng.choice(NUMBERS), "bits": rng.choice(NUMBERS)}
    if rng.random() < 0.2 and isinstance(content, dict):
        content[rng.choice(("name", "sampler", "applied"))] = "\x1b]0;title\x07\x1b[2J\u202e"
    return content


def judged(folder: Path, rng: random.Random) -> str:
    """Write the folder of a search, list it and show it; nothing that was printed is a control."""
    home = folder / rng.choice(("a", "name \x1b[31m"))
    home.mkdir()
    data = json.dumps(study(rng)).encode()
    (home / "study.json").write_bytes(damaged(data, rng) if rng.random() < 0.3 else data)
    (home / "config.toml").write_text(rng.choice(CONFIGS))
    lines = (
        ["--root", str(folder)],
        [str(home)],
        [str(home), "--json"],
        ["search", "--root", str(folder)],
    )
    code, text = said("studies", *rng.choice(lines))
    if UNFORESEEN in text:
        return RAW
    if CONTROLS.search(text):
        return OTHER
    return FAITHFUL if code == 0 else REFUSED


def forged_files() -> list[Forged]:
    """Return studies that are wrong in one place, shown by name."""

    def write(change: dict[str, Any], folder: Path) -> None:
        (folder / "study.json").write_text(json.dumps({**STUDY, **change}))

    changes: dict[str, tuple[dict[str, Any], str]] = {
        "trials that are no mappings": ({"trials": [1, "a"]}, r"trials\[0\]: expected dict"),
        "objectives without a direction": ({"objectives": {"a": "up"}}, "Allowed: maximize"),
        "a name that is a list": ({"name": ["x"]}, "name: expected str"),
        "a number of 400 digits": (
            {"trials": [{**STUDY["trials"][1], "values": {"accuracy": 10**400, "bits": 1}}]},  # type: ignore[index]
            "expected int or float",
        ),
    }
    return [
        Forged(f"study: {name}", functools.partial(write, change), _show, words)
        for name, (change, words) in changes.items()
    ]


def _show(folder: Path) -> None:
    """Show a study; raise the error that the command prints."""
    code, text = said("studies", str(folder))
    if UNFORESEEN in text or CONTROLS.search(text):
        raise AssertionError(text)
    if code:
        raise UsageError(text.strip().splitlines()[-1])


def warm_up() -> None:
    """List studies once."""
    said("studies", "--root", "/nowhere")


KINDS = {"folder of a study": Kind(judged, 0.05)}
