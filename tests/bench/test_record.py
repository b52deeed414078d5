"""Result files of benchmarks that several processes write."""

import json
import multiprocessing
import shlex
import time
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("/srv/shared/models/llama-imdb", "MODELS/llama-imdb"),
        ("/srv/data/imdb/lm", "DATA/imdb/lm"),
        ("/home/someone/model.gguf", "model.gguf"),
        (str(BENCH / "results"), "bench/results"),
        ("out/area", "out/area"),
        ("--device", "--device"),
    ],
)
def test_a_command_is_told_without_places_of_one_machine(word, told, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    from measuring import record

    assert record.without_place(word) == told


def commands(content):
    """Yield the commands in a result file."""
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        if key == "command":
            yield value
        elif isinstance(value, dict | list):
            yield from commands(value)


@pytest.mark.parametrize("file", sorted((BENCH / "results").glob("*.json")), ids=lambda f: f.stem)
def test_no_stored_command_has_an_absolute_path(file):
    told = list(commands(json.loads(file.read_text())))
    assert [c for c in told if any(word.startswith("/") for word in shlex.split(c))] == []
