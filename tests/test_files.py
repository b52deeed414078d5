"""Files are read one way only."""

import os
from pathlib import Path

import pytest

from chop import files
from chop.config import load_toml, parse_toml
from chop.errors import ConfigError, DataError
from chop.files import (
    cache_dir,
    check_stored,
    drop_torn_line,
    parse_json,
    read_json,
    read_text,
    remove_whole,
    stored_bytes,
    whole_file,
    write_whole,
)
from chop.hw.sim import manifest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", r"f: not a readable JSON file"),
        ('{"a": 1, "a": 2}', r"the key 'a' is there twice"),
        ("[" * 101 + "]" * 101, r"f: nested deeper than 100 levels"),
        ("[" * 200_000, r"f: nested deeper than 100 levels|not a readable"),
        ("9" * 5000, r"f: not a readable JSON file"),
    ],
)
def test_json_that_reads_two_ways_or_has_no_bottom_is_refused(text, words):
    with pytest.raises(DataError, match=words):
        parse_json(text, "f", DataError)


def test_numbers_that_are_none_are_refused_where_asked():
    assert parse_json("Infinity", "f", DataError) == float("inf")
    with pytest.raises(DataError, match=r"f: not a readable JSON file \(NaN is not JSON\)"):
        parse_json("[NaN]", "f", DataError, finite=True)


def test_a_file_that_is_missing_large_or_no_text_is_named(tmp_path):
    file = tmp_path / "x.json"
    with pytest.raises(DataError, match=r"x.json: no such file"):
        read_json(file, DataError)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"x.json: not text in UTF-8 \(byte 0\)"):
        read_json(file, DataError)
    with pytest.raises(DataError, match=r"x.json: 2 bytes. Allowed: at most 1"):
        read_text(file, DataError, 1)


def test_toml_that_is_none_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"t: not valid TOML"):
        parse_toml(f"a = {'9' * 5000}", "t")
    with pytest.raises(ConfigError, match=r"t: nested too deep|t: not valid TOML"):
        parse_toml("a = " + "[" * 100_000, "t")
    file = tmp_path / "x.toml"
    file.write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigError, match=r"x.toml: not text in UTF-8"):
        load_toml(file)


def test_a_file_is_written_whole_and_drafts_of_the_dead_go(tmp_path):
    for name in (".a.txt.draft1", ".b.txt.draft1"):
        (tmp_path / name).write_text("half")
    write_whole(tmp_path / "a.txt", "é\r\n")
    assert (tmp_path / "a.txt").read_bytes() == "é\r\n".encode()
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", ".b.txt.draft1"}


def test_a_write_that_is_cut_short_leaves_the_old_text(tmp_path, monkeypatch):
    write_whole(tmp_path / "a.txt", "old")
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError()))
        write_whole(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "old"


def test_a_folder_is_removed_whole_or_not_at_all(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    (folder / "below").mkdir(parents=True)
    (tmp_path / ".run.gone").mkdir()
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError()))
        remove_whole(folder)
    assert (folder / "below").is_dir()
    remove_whole(folder)
    remove_whole(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = write_whole(tmp_path / "new" / "a.txt", "één")
    with pytest.raises(OSError, match="full"), whole_file(file) as draft:
        draft.write_text("half")
        raise OSError("the disk is full")
    assert file.read_text(encoding="utf-8") == "één"
    assert list(file.parent.iterdir()) == [file]
    (file.parent / ".a.txt.draft1").write_text("left by a process that was killed")
    write_whole(file, "new")
    assert list(file.parent.iterdir()) == [file]  # no draft is left


def test_a_line_without_its_end_is_cut_off(tmp_path):
    file = tmp_path / "a.jsonl"
    drop_torn_line(file)  # nothing there is nothing torn
    for content, left in ((b"1\n2\n3", b"1\n2\n"), (b"1\n", b"1\n"), (b"12", b""), (b"", b"")):
        file.write_bytes(content)
        drop_torn_line(file)
        assert file.read_bytes() == left


def test_one_folder_keeps_what_is_built(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("MASE_CACHE_DIR", raising=False)
    assert cache_dir() == tmp_path / "mase"
    monkeypatch.setenv("MASE_CACHE_DIR", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    program = tmp_path / "program"
    program.write_text("")
    manifest.note_built(program)
    assert len(list((tmp_path / "mine" / "built").iterdir())) == 1


def test_no_other_file_replaces_files_or_names_the_cache():
    source = Path(files.__file__).parent
    # pairs of files, and folders of files
    own = {"files.py", "tensors.py", "output.py", "shard_checkpoints.py"}
    users = {p.name for p in source.rglob("*.py") if "os.replace(" in p.read_text()}
    assert users == own
    naming = {p.name for p in source.rglob("*.py") if "XDG_CACHE_HOME" in p.read_text()}
    assert naming == {"files.py"}


def test_a_file_of_holes_is_refused(tmp_path):
    file = tmp_path / "f"
    file.write_bytes(b"x" * 10_000)
    check_stored(file, DataError)
    assert stored_bytes(file) >= 10_000
    os.truncate(file, 1 << 35)
    with pytest.raises(DataError, match=r"f: 34359738368 bytes, of which the disk holds \d+"):
        check_stored(file, DataError)
