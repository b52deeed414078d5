"""Files that do harm: forged and mutated checkpoints, adapters, studies, settings and reports.

python bench/safe.py --count 12000

Each is read while Python's audit events are listened to. Counted are files that made something run,
files that ended in an error that is not one of this package, and files that were read as something
else than was written or than they say. The results go under "files" in bench/results/safe.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import record

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import forgeries  # noqa: E402
import mutations  # noqa: E402

from chop import MaseGraph  # noqa: E402
from chop.errors import CheckpointError  # noqa: E402

SECTION = "files"
WRONG = {"executed": "executed", "raw error": mutations.RAW, "something else": mutations.OTHER}


def forged() -> tuple[dict[str, int], list[str]]:
    """Every forgery of the table: each must be refused with the words beside it."""
    counts = {"files": 0, "refused": 0, **dict.fromkeys(WRONG, 0)}
    wrong = []
    mutations.warm_up()
    for name, edit, _ in forgeries.forgeries():
        told = forgeries.description()
        edit(told)
        with tempfile.TemporaryDirectory() as folder:
            path = forgeries.write_forged(Path(folder), told)
            with forgeries.listening() as heard:
                word = _read(path)
        word = "executed" if heard else word
        counts["files"] += 1
        counts[word] += 1
        if word != "refused":
            wrong.append(f"{name}: {word} {heard}")
    return counts, wrong


def _read(path: Path) -> str:
    try:
        MaseGraph.from_checkpoint(path)
    except CheckpointError:
        return "refused"
    except Exception:  # the very thing that is looked for
        return "raw error"
    return "something else"


def mutated(count: int) -> tuple[dict[str, Any], list[str]]:
    """Random damage and random structure, by kind of file."""
    found, wrong = mutations.run(count)
    rows = {
        kind: {
            "files": sum(words.values()),
            "refused": words[mutations.REFUSED],
            "equal to the original": words[mutations.EQUAL],
            "read as it says": words[mutations.FAITHFUL],
            **{name: words[word] for name, word in WRONG.items()},
        }
        for kind, words in found.items()
    }
    return rows, wrong


def main() -> int:
    """Write the section; 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=12_000, help="mutated files")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    start = time.process_time()
    forgery, wrong = forged()
    rows, more = mutated(options.count)
    wrong += more
    names = ("files", *WRONG)
    totals = {n: forgery[n] + sum(row[n] for row in rows.values()) for n in names}
    results = {"totals": totals, "forged by hand": forgery, "mutated": rows}
    seconds = round(time.process_time() - start, 1)
    save_section({**record.provenance(), "cpu_seconds": seconds, "results": results})
    print(json.dumps(results, indent=1))
    for line in wrong:
        print(line[:300])
    return int(bool(wrong))


def save_section(told: dict[str, Any]) -> None:
    """Replace this section of the results, and leave the others."""
    file = record.RESULTS / "safe.json"
    before = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**before, SECTION: told}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
