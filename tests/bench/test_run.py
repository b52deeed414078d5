"""The table of benchmarks, and the hash of the code behind results."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
WHOLE = {"right", "safe"}
"""Result files that measure all of src."""


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    names = ("measuring.code", "run")
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


def test_measured_folders_exist_and_each_result_file_has_a_row(modules):
    code, _ = modules
    assert all((code.SOURCE / f).exists() for row in code.MEASURED.values() for f in row)
    files = {f.stem for f in (BENCH / "results").glob("*.json") if "guard_" not in f.stem}
    assert files - set(code.MEASURED) == WHOLE


def test_the_hash_follows_the_code_and_not_its_docstrings(modules, tmp_path, monkeypatch):
    code, _ = modules
    monkeypatch.setattr(code, "SOURCE", tmp_path)
    module = tmp_path / "part" / "module.py"
    module.parent.mkdir()

    def hash_of(text):
        module.write_text(text)
        return code.code_hash(["part"])

    plain = hash_of("def f(x):\n    return x\n")
    assert hash_of('"""Module."""\ndef f(x):  # why\n    """Return x."""\n    return x\n') == plain
    assert hash_of("def f(x):\n    return x + 1\n") != plain
    assert hash_of("def g(x):\n    return x\n") != plain
    assert hash_of("def f(x, y):\n    return x\n") != plain


def test_the_hash_does_not_depend_on_the_release_of_python(modules, tmp_path, monkeypatch):
    """Newer releases add empty fields to the syntax tree: `type_params` in 3.12."""
    code, _ = modules
    monkeypatch.setattr(code, "SOURCE", tmp_path)
    (tmp_path / "module.py").write_text("def f(x):\n    return x\n")
    plain = code.code_hash(["module.py"])
    fields = code.ast.FunctionDef._fields
    monkeypatch.setattr(code.ast.FunctionDef, "_fields", (*fields, "added"))
    monkeypatch.setattr(code.ast.FunctionDef, "added", [], raising=False)
    assert code.code_hash(["module.py"]) == plain


def test_the_empty_texts_of_newer_f_strings_do_not_count(modules):
    code, _ = modules
    tree = code.ast.parse("f'{x}'").body[0].value
    plain, more = [], []
    code._collect(tree, plain)
    tree.values.append(code.ast.Constant(""))
    code._collect(tree, more)
    assert plain == more and "Constant" not in more


def test_a_record_says_which_code_it_measured(modules):
    code, _ = modules
    commit = "0123456789" * 4
    now = code.code_hash(["chop/search"])
    told = {
        "today's": {"code": {"folders": ["chop/search"], "hash": now}},
        "older: 01234567": {"code": {"folders": ["chop/search"], "hash": "x", "commit": commit}},
        "older: commit not recorded": {"date": "2026"},
    }
    assert {words: code.age("shard", record) for words, record in told.items()} == {
        words: words for words in told
    }
    assert code.age("ptq_rivals", {}) == "today's"  # other tools alone


def test_results_of_todays_code_are_not_measured_again(modules, tmp_path, monkeypatch):
    code, run = modules
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    row = run.Benchmark("shard", "shard.py", "shard")
    assert not row.is_current()
    now = code.code_hash(code.MEASURED["shard"])
    for known, is_current in ((now, True), ("old", False)):
        (tmp_path / "shard.json").write_text(json.dumps({"results": {}, "code": {"hash": known}}))
        assert row.is_current() == is_current


def test_an_unknown_name_is_refused_with_the_known_ones():
    command = [sys.executable, str(BENCH / "run.py"), "--only", "nope"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "unknown: nope. Known: trace, graph" in done.stderr
