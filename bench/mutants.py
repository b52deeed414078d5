"""Turn on faults in the RTL of every component, one by one, and count those that a test notices.

`python bench/mutants.py` tries all groups of `tests/hw/mutation_run.py`; names choose some of them.
The counts go into the section `mutants` of `bench/results/right.json`; groups that were not chosen
keep the counts of an earlier run.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.append(sys.path.pop(0))  # bench/graph.py must not stand for the package `graph`
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "hw"))

from measuring.progress import Stopwatch  # noqa: E402
from measuring.record import RESULTS, save_section  # noqa: E402
from mutation_run import GROUPS, Result, campaign  # noqa: E402

COUNTED = ("tried", "noticed", "without_effect")


def counts(result: Result) -> dict[str, Any]:
    """Return the outcome of a group as it is recorded."""
    tried = [*result.noticed, *result.equivalent]
    return {
        "tried": len(tried) + len(result.unnoticed),
        "noticed": len(result.noticed),
        "without_effect": len(result.equivalent),
        "unnoticed": result.unnoticed,
        "by_kind": dict(sorted(Counter(fault.kind for fault in tried).items())),
        "by_module": dict(sorted(Counter(fault.module for fault in tried).items())),
    }


def main(names: list[str]) -> None:
    """Run the groups `names`, or all, and record the counts of each when it ends."""
    for name in names or GROUPS:
        watch = Stopwatch()
        with tempfile.TemporaryDirectory() as folder:
            found = counts(campaign(GROUPS[name], Path(folder)))
        found["seconds"] = round(watch.seconds)
        print(name, found, flush=True)
        record(name, found)


def record(name: str, found: dict[str, Any]) -> None:
    """Add the counts of a group to those of the groups that are recorded, and sum them up."""
    file = RESULTS / "right.json"
    known = json.loads(file.read_text()).get("mutants", {}) if file.exists() else {}
    groups = {**known.get("results", {}).get("groups", {}), name: found}
    total = {key: sum(each[key] for each in groups.values()) for key in COUNTED}
    total["unnoticed"] = sum(len(each["unnoticed"]) for each in groups.values())
    save_section("right", "mutants", {**total, "groups": groups})


if __name__ == "__main__":
    main(sys.argv[1:])
