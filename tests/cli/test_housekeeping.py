"""Models side by side, the studies there are, and what is cleared away."""

import io
import json
import os
import sys

import pytest
from mutations import STUDY

from chop.cli.commands import studies

ROWS = "--dataset digits --test-rows 64"


@pytest.mark.slow
def test_bench_puts_worth_and_cost_of_models_side_by_side(mase, trained, tmp_path):
    assert mase(f"quantize {trained} --out q").code == 0
    ran = mase(f"bench {trained} --iterations 3 q {ROWS} --batch 4 --out b --json")
    assert ran.code == 0, ran.err
    first, second = ran.document["models"]
    assert [first["model"], second["model"]] == [str(trained), "q"]
    assert first["weight_bits"] == 32 and second["weight_bits"] < 9
    assert second["bytes"] < first["bytes"] / 3
    assert abs(first["accuracy"] - second["accuracy"]) < 0.05
    assert first["latency"] > 0 and first["speed-up"] == 1.0
    table = mase(f"bench {trained} q --iterations 3 --out b").out
    assert "bytes (bytes)" in table and "latency (s)" in table, "and needs no data"


def test_studies_are_listed_shown_and_named(mase, searched, tmp_path):
    os.symlink(searched.parent, tmp_path / "out")
    ran = mase(f"studies --root {searched}")
    assert str(searched) in ran.out and "3 of 3" in ran.out and "model_bytes" in ran.out
    assert mase(f"studies --names --root {searched}").out.split() == [str(searched)]
    shown = mase(f"studies {searched} --json").document
    assert shown["front"] and shown["study"] == str(searched)
    assert mase("studies --root nowhere").out.startswith("no study below nowhere/")


def test_an_unknown_study_names_the_nearest(mase, searched):
    ran = mase(f"studies serch --root {searched}")
    assert ran.code == 2 and "no study 'serch'. Did you mean 'search'?" in ran.err


def test_a_damaged_study_is_listed_as_damaged_and_hides_no_other(mase, tmp_path):
    for name, text in {"s": '{"trials": 3}', "t": "{", "u": json.dumps(STUDY)}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.json").write_text(text)
    ran = mase("studies --root . --json")
    assert [row["trials"] for row in ran.document["studies"]] == ["damaged", "damaged", "3 of 4"]
    assert "s/study.json: key 'objectives' is missing" in ran.err
    shown = mase("studies s")
    assert shown.code == 2 and "s/study.json: key 'objectives' is missing" in shown.err


def test_the_name_of_a_study_moves_no_cursor(mase, tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "study.json").write_text(json.dumps({**STUDY, "name": "\x1b[2Jmine"}))
    for line in ("studies --root s", "studies s"):
        ran = mase(line)
        assert ran.code == 0 and "\\x1b[2Jmine" in ran.out and "\x1b" not in ran.out


def test_the_dashboard_serves_the_storage_of_the_search(mase, searched, monkeypatch):
    pytest.importorskip("optuna_dashboard")
    served = []
    monkeypatch.setattr(
        "optuna_dashboard.run_server", lambda storage, **where: served.append((storage, where))
    )
    ran = mase(f"studies {searched} --dashboard --no-browser --port 8123")
    assert ran.code == 0, ran.err
    assert "http://127.0.0.1:8123/" in ran.out
    ((storage, where),) = served
    assert [s.study_name for s in storage.get_all_studies()] == ["search"]
    assert where == {"host": "127.0.0.1", "port": 8123}


def test_a_study_needs_neither_torch_nor_optuna_to_be_listed():
    names = vars(studies)
    assert "torch" not in names and "optuna" not in names


@pytest.fixture
def outputs(mase, tmp_path):
    """An output folder with a file of the user's in it, and what is not an output folder."""
    assert mase("trace mlp --no-draw --out out/t").code == 0
    (tmp_path / "out" / "t" / "notes.txt").write_text("mine")
    (tmp_path / "out" / "photos").mkdir()
    (tmp_path / "out" / "photos" / "result.json").write_text('{"files": "all"}')
    return tmp_path / "out"


def test_clean_deletes_what_a_run_wrote_and_nothing_else(mase, outputs):
    ran = mase("clean --yes")
    assert ran.code == 0, ran.err
    assert "out/t/" in ran.out and "notes.txt" in ran.out
    assert [p.name for p in (outputs / "t").iterdir()] == ["notes.txt"]
    assert (outputs / "photos" / "result.json").is_file()
    assert "nothing to delete in out" in mase("clean --yes").out


def test_clean_removes_a_folder_that_is_empty_then(mase, tmp_path):
    mase("trace mlp --no-draw --out out/t")
    assert mase("clean out/t --yes --json").document["bytes"] > 0
    assert not (tmp_path / "out" / "t").exists()


def test_clean_asks_first(mase, outputs, monkeypatch):
    before = sorted(p.name for p in (outputs / "t").iterdir())
    assert "nobody can be asked. Give --yes." in mase("clean").err
    for answer, code in (("n\n", 2), ("y\n", 0)):
        assert sorted(p.name for p in (outputs / "t").iterdir()) == before
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        assert mase("clean").code == code
    assert [p.name for p in (outputs / "t").iterdir()] == ["notes.txt"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_clean_never_leaves_its_folders(mase, outputs, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data").write_text("mine")
    record = outputs / "t" / "result.json"
    forged = ["../photos", "/etc/passwd", "..", "", ".", 3, "link", "result.json"]
    record.write_text(json.dumps({"files": forged}))
    (outputs / "t" / "link").symlink_to(tmp_path / "precious")
    (outputs / "elsewhere").symlink_to(tmp_path / "precious")
    (tmp_path / "precious" / "result.json").write_text('{"files": ["data"]}')
    assert mase("clean --yes").code == 0
    assert (tmp_path / "precious" / "data").read_text() == "mine"
    assert not (outputs / "t" / "link").is_symlink(), "the link itself was listed"
    assert "'nowhere' is no folder" in mase("clean nowhere --yes").err


def test_clean_unfinished_leaves_results(mase, outputs, tmp_path):
    kept = outputs / "t" / "checkpoints" / "train" / "abc"
    kept.mkdir(parents=True)
    (kept / "run.json").write_text("{}")
    assert mase("clean --unfinished --yes").code == 0
    assert not kept.exists() and (outputs / "t" / "graph.json").is_file()


def test_clean_lets_a_running_command_be(mase, outputs):
    from chop.cli.output import alone_in

    with alone_in(outputs / "t"):
        ran = mase("clean --yes")
    assert "another mase is writing its results there" in ran.err
    assert (outputs / "t" / "graph.json").is_file()
