"""Child processes for the tools of synthesis, placement and packing.

They end when the caller is interrupted. An error of Yosys ends its process, which must not be ours.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from chop.errors import HardwareError

_YOSYS = """
import json, sys
from pyosys import libyosys as ys
design = ys.Design()
for command in json.loads(sys.argv[1]):
    ys.run_pass("tee -q " + command, design)
"""
_YOWASP = """
import importlib, sys
package, program, *arguments = sys.argv[1:]
run = getattr(importlib.import_module(package), "run_" + program.replace("-", "_"))
sys.exit(run(arguments))
"""
Listener = Callable[[str], None]
"""Called with each line of output of a tool."""


def run_yosys(commands: Sequence[str], work: Path) -> None:
    """Run Yosys' `commands` one after the other, in the folder `work`."""
    done = _run([sys.executable, "-c", _YOSYS, json.dumps(list(commands))], work, None)
    if done.returncode:
        raise HardwareError(f"yosys failed ({done.returncode}): {done.stdout[-2000:]}")


def run_yowasp(
    package: str,
    program: str,
    arguments: Sequence[str],
    work: Path,
    listen: Listener | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program of a YoWASP package in the folder `work`; it sees only files below it."""
    return _run([sys.executable, "-c", _YOWASP, package, program, *arguments], work, listen)


def _run(
    command: Sequence[str], work: Path, listen: Listener | None
) -> subprocess.CompletedProcess[str]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    child = subprocess.Popen(command, cwd=work, text=True, **streams)  # type: ignore[call-overload]
    lines = []
    try:
        for line in child.stdout:
            lines.append(line)
            if listen is not None:
                listen(line.rstrip())
        child.wait()
    finally:
        if child.poll() is None:
            child.kill()
        child.stdout.close()
        child.wait()
    return subprocess.CompletedProcess(command, child.returncode, "".join(lines))
