"""The newcomer's path, timed: clone, demonstration, a model of one's own in 4 bits, its report.

    python docs/make_newcomer.py

Runs every step of docs/newcomer.md in an empty folder with this interpreter and writes the seconds
into the page. What pip downloads depends on the network and is not timed.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from chop.report.provenance import gather_provenance

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "newcomer.md"
START, END = "<!-- timed: begin -->", "<!-- timed: end -->"
STEPS = {
    "clone": "git clone --quiet --depth 1 URL mase",
    "the demonstration, to its report": "mase demo",
    "train a model of your own": "mase train net.py:build --dataset digits --epochs 8"
    " --learning-rate 3e-3 --out out/mine",
    "quantise it to 4 bits": "mase quantize out/mine --dataset digits --bits 4 --evaluate",
    "the report": "mase report out/quantize --before out/mine",
}
"""What a newcomer does, in order."""


def own_model() -> str:
    """The file that the page tells the newcomer to write."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert found is not None, f"{PAGE} has no model in it"
    return found[1]


def words(command: str) -> list[str]:
    """A command as it is run here: this interpreter's `mase`, this checkout as the origin."""
    here = [ROOT.as_uri() if word == "URL" else word for word in shlex.split(command)]
    return [sys.executable, "-m", "chop.cli", *here[1:]] if here[0] == "mase" else here


def timed(folder: Path) -> dict[str, tuple[float, float]]:
    """Seconds of each step in an empty folder, by the clock and of the processor."""
    (folder / "net.py").write_text(own_model(), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    seconds = {}
    for step, command in STEPS.items():
        start, before = time.monotonic(), _processor_seconds()
        subprocess.run(
            words(command), cwd=folder, check=True, env=environment, stdout=subprocess.DEVNULL
        )
        seconds[step] = time.monotonic() - start, _processor_seconds() - before
    return seconds


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(seconds: dict[str, tuple[float, float]]) -> str:
    """The steps with their commands and seconds."""
    rows = [
        f"| {s} | `{STEPS[s]}` | {wall:.0f} | {cpu:.0f} |" for s, (wall, cpu) in seconds.items()
    ]
    machine = gather_provenance()["machine"]
    wall, cpu = (sum(column) for column in zip(*seconds.values(), strict=True))
    note = (
        f"{machine['architecture']}, {machine['cores']} cores that had other work too, no GPU; "
        "packages were installed."
    )
    head = ["| step | command | seconds | of the processor |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, f"| together | | {wall:.0f} | {cpu:.0f} |", "", note])


def main() -> None:
    """Time the path and write the page."""
    with tempfile.TemporaryDirectory() as folder:
        told = table(timed(Path(folder)))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n{told}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
