"""Result files of benchmarks that several processes write."""

import json
import multiprocessing
import time
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def write_sections(folder: Path, name: str) -> None:
    """Write five sections, with a pause between reading and writing."""
    from measuring import record

    record.RESULTS, record.provenance = folder, lambda *names: {}
    write = record._write
    record._write = lambda *given: (time.sleep(0.05), write(*given))[1]
    (folder / name).touch()
    while len(list(folder.glob("?"))) < 2:  # all of them start at once
        time.sleep(0.01)
    for number in range(5):
        record.save_section("shared", f"{name}{number}", number)


def test_processes_that_write_one_file_lose_no_section(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    fork = multiprocessing.get_context("fork")
    started = [fork.Process(target=write_sections, args=(tmp_path, name)) for name in "ab"]
    for process in started:
        process.start()
    for process in started:
        process.join(timeout=120)
    assert [process.exitcode for process in started] == [0, 0]
    sections = json.loads((tmp_path / "shared.json").read_text())
    assert sorted(sections) == [f"{name}{number}" for name in "ab" for number in range(5)]
