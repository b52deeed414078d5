"""Result files of benchmarks that several processes write."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
PROGRAM = """
import sys, time
from pathlib import Path
from measuring import record
record.RESULTS, record.provenance = Path(sys.argv[1]), lambda *names: {}
write = record._write
record._write = lambda *given: (time.sleep(0.05), write(*given))[1]  # between reading and writing
(record.RESULTS / sys.argv[2]).touch()
while len(list(record.RESULTS.glob("?"))) < 2:  # all of them start at once
    time.sleep(0.01)
for number in range(5):
    record.save_section("shared", f"{sys.argv[2]}{number}", number)
"""


def test_processes_that_write_one_file_lose_no_section(tmp_path):
    lines = [[sys.executable, "-c", PROGRAM, str(tmp_path), name] for name in "ab"]
    started = [subprocess.Popen(line, cwd=BENCH) for line in lines]
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    sections = json.loads((tmp_path / "shared.json").read_text())
    assert sorted(sections) == [f"{name}{number}" for name in "ab" for number in range(5)]
