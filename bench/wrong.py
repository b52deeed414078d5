"""Wrong command lines and wrong calls: how many end without saying what is wrong.

python bench/wrong.py

The lines are those of tests/cli/wrong_lines.py, the calls those of tests/wrong_calls.py. The
results go under "wrong lines and calls" in bench/results/safe.json.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from measuring import record

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "cli")]

import wrong_calls  # noqa: E402
import wrong_lines  # noqa: E402

from chop.cli.main import main as mase  # noqa: E402


def unclear_lines(folder: Path) -> tuple[int, list[str]]:
    """The number of lines, and those that end unclearly with what they said."""
    wrong_lines.prepare(folder, mase)
    found = []
    for line in wrong_lines.wrong_lines():
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = mase(wrong_lines.words_of(line, folder))
        if not wrong_lines.is_clear(code, said.getvalue()):
            found.append(f"{line}: {code} {said.getvalue()[-200:]}")
    return len(wrong_lines.wrong_lines()), found


def unclear_calls(folder: Path) -> tuple[int, list[str]]:
    """The number of calls, and those that end unclearly with what they said."""
    rows = list(wrong_calls.outcomes(folder))
    return len(rows), [f"{call}: {told}" for call, _, is_clear, told in rows if not is_clear]


def main() -> int:
    """Write the section; 1 where anything is unclear."""
    constants.HF_HUB_OFFLINE = True
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as lines, tempfile.TemporaryDirectory() as calls:
        os.chdir(lines)
        line_count, bad_lines = unclear_lines(Path(lines))
        os.chdir(calls)
        call_count, bad_calls = unclear_calls(Path(calls))
        os.chdir(ROOT)
    results: dict[str, Any] = {
        "totals": {
            "lines and calls": line_count + call_count,
            "unclear": len(bad_lines) + len(bad_calls),
        },
        "command lines": {"wrong": line_count, "unclear": len(bad_lines)},
        "Python calls": {"wrong": call_count, "unclear": len(bad_calls)},
    }
    record.save_section("safe", "wrong lines and calls", results)
    print(json.dumps(results, indent=1), *bad_lines, *bad_calls, sep="\n")
    return int(bool(bad_lines or bad_calls))


if __name__ == "__main__":
    sys.exit(main())
