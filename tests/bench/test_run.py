"""The table of benchmarks, and the hash of the code behind results."""

import importlib
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
WHOLE = {"journeys", "right", "safe"}
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


def test_every_program_has_a_row_or_a_reason(modules):
    _, run = modules
    texts = {str(f.relative_to(BENCH)): f.read_text() for f in BENCH.rglob("*.py")}
    programs = {name for name, text in texts.items() if "__main__" in text}
    named = {row.command.split()[0] for row in run.BENCHMARKS}
    assert programs - named == set(run.BY_HAND) and not named & set(run.BY_HAND)


def test_what_takes_hours_runs_only_if_it_is_named(modules):
    _, run = modules
    row = run.Benchmark("slow", "slow.py", "slow", ("hours",))
    assert row.missing() == "takes hours: name it with --only"
    assert row.missing(is_named=True) == ""


@pytest.fixture
def three(modules, tmp_path, monkeypatch):
    """Three benchmarks: one lacks a device, one fails, one writes its results."""
    code, run = modules
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "bad.py").write_text("raise SystemExit(3)")
    now = code.code_hash(["chop/search"])
    record = {"results": {}, "code": {"hash": now, "folders": ["chop/search"]}}
    good = f"open('good.json', 'w').write({json.dumps(record)!r}); open('runs', 'a').write('x')"
    (tmp_path / "bench" / "good.py").write_text(good)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    monkeypatch.setitem(run.NEEDS, "device", (lambda: False, "no device"))
    rows = [run.Benchmark("far", "far.py", "far", ("device",))]
    rows += [run.Benchmark(name, f"{name}.py", name) for name in ("bad", "good")]
    monkeypatch.setattr(run, "BENCHMARKS", rows)
    monkeypatch.setattr(sys, "argv", ["run.py"])
    return run, tmp_path


def test_a_failure_does_not_stop_the_others_and_a_second_run_resumes(three, capsys):
    run, folder = three
    assert run.main() == 1
    told = capsys.readouterr().out
    assert "skipped: no device" in told and "FAILED with exit code 3" in told and "done in" in told
    assert run.main() == 1
    assert "skipped: results belong to today's code" in capsys.readouterr().out
    assert (folder / "runs").read_text() == "x"


def test_sections_of_a_result_file_are_kept_and_read_back(modules, tmp_path, monkeypatch):
    record = importlib.import_module("measuring.record")
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    assert record.read_section("shard", "a") == {}
    record.save_section("shard", "a", {"x": 1})
    record.save_section("shard", "b", {"x": 2})
    assert record.read_section("shard", "a") == {"x": 1}
    saved = json.loads((tmp_path / "shard.json").read_text())["b"]
    assert {"command", "date", "machine", "versions", "code", "results"} == set(saved)
    assert {"commit", "folders", "hash", "has_changes"} == set(saved["code"])


def test_measured_folders_exist_and_each_result_file_has_a_row(modules):
    code, _ = modules
    assert all((code.SOURCE / f).exists() for row in code.MEASURED.values() for f in row)
    files = {f.stem for f in (BENCH / "results").glob("*.json") if "guard_" not in f.stem}
    assert files - set(code.MEASURED) == WHOLE


def test_a_section_may_measure_less_than_its_file(modules):
    code, _ = modules
    assert code.measured("right", "transformers") == code.CAPTURE
    assert code.measured("right", "hardware") == code.HARDWARE
    assert code.measured("kernels_cuda", "attention") == code.measured("kernels_cuda")


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
    code._code.cache_clear()
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


def test_an_unknown_name_is_refused_with_the_known_ones(modules, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "nope"])
    with pytest.raises(SystemExit, match="2"):
        modules[1].main()
    assert "unknown: nope. Known: trace, graph" in capsys.readouterr().err
