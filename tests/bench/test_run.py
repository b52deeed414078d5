"""The table of benchmarks, and the provenance of results."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    names = ("record", "run")
    yield [importlib.import_module(name) for name in names]
    for name in names:
        sys.modules.pop(name)


def test_every_row_names_a_program_and_a_result_file(modules):
    _, run = modules
    for row in run.BENCHMARKS:
        assert (BENCH / row.command.split()[0]).is_file(), row.name
        assert set(row.needs) <= set(run.NEEDS)
        assert (BENCH / "results" / f"{row.result}.json").is_file(), row.name
    assert len({row.name for row in run.BENCHMARKS}) == len(run.BENCHMARKS)


def test_measured_folders_exist(modules):
    record, _ = modules
    assert all(
        (record.SOURCE / f).is_dir() for folders in record.MEASURED.values() for f in folders
    )


def test_the_hash_follows_the_code_and_not_its_docstrings(modules, tmp_path, monkeypatch):
    record, _ = modules
    monkeypatch.setattr(record, "SOURCE", tmp_path)
    module = tmp_path / "part" / "module.py"
    module.parent.mkdir()

    def hash_of(text):
        module.write_text(text)
        return record.code_hash(["part"])

    plain = hash_of("def f(x):\n    return x\n")
    assert hash_of('"""Module."""\ndef f(x):  # why\n    """Return x."""\n    return x\n') == plain
    assert hash_of("def f(x):\n    return x + 1\n") != plain


def test_results_of_todays_code_are_not_measured_again(modules, tmp_path, monkeypatch):
    record, run = modules
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    row = run.Benchmark("shard", "shard.py", "shard")
    assert not row.is_current()
    now = record.code_hash(record.MEASURED["shard"])
    for code, is_current in ((now, True), ("old", False)):
        (tmp_path / "shard.json").write_text(json.dumps({"results": {}, "code": {"hash": code}}))
        assert row.is_current() == is_current


def test_an_unknown_name_is_refused_with_the_known_ones():
    command = [sys.executable, str(BENCH / "run.py"), "--only", "nope"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "unknown: nope. Known: trace, graph" in done.stderr
