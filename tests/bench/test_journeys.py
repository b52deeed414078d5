"""The list of models of bench/journeys.py: places, and what is printed for absent models."""

import importlib
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def journeys(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module("journeys")
    for name in [n for n in sys.modules if n == "journeys" or n.split(".")[0] == "measuring"]:
        del sys.modules[name]


def test_an_absent_model_is_listed_with_the_command_that_gets_it(journeys, tmp_path):
    subject = journeys.Subject("silero-vad", "pip download --no-deps silero-vad")
    outcome = journeys.travel(subject, tmp_path, tmp_path, tmp_path)
    assert outcome == {"outcome": "not here: pip download --no-deps silero-vad"}


def test_a_model_is_found_by_its_variable_then_in_the_folder(journeys, tmp_path, monkeypatch):
    subject = journeys.Subject("bert-tiny", "get")
    (tmp_path / "bert-tiny").mkdir()
    assert subject.place(tmp_path) == str(tmp_path / "bert-tiny")
    monkeypatch.setenv("MASE_MODEL_BERT_TINY", str(tmp_path))
    assert subject.place(None) == str(tmp_path)


def test_names_are_unique_and_absent_data_is_none(journeys, tmp_path):
    names = [subject.name for subject in journeys.MODELS]
    assert len({*names}) == len(names)
    subject = journeys.Subject("a", "get", "imdb")
    assert subject.data(tmp_path) is None and subject.data(None) is None


def test_stored_commands_have_no_folder_of_this_machine(journeys, tmp_path):
    line = f"mase trace {tmp_path}/bert-tiny"
    assert journeys._plain(line, (tmp_path, None)) == "mase trace MODELS/bert-tiny"
