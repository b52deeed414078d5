"""The list of models of bench/journeys.py: places, and what is printed for absent models."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from chop import MaseGraph
from chop.export import to_onnx
from chop.passes import add_common_metadata_analysis_pass, init_metadata_analysis_pass

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def journeys(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module("journeys")
    for name in [
        n for n in sys.modules if n.startswith("journey") or n.split(".")[0] == "measuring"
    ]:
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
    assert journeys._plain(line, (tmp_path, None, None)) == "mase trace MODELS/bert-tiny"
    line = f"mase eval {tmp_path}/mlp/float"
    assert journeys._plain(line, (None, None, tmp_path)) == "mase eval out/journeys/mlp/float"


def test_a_model_of_a_package_is_a_file_below_its_folder(journeys, tmp_path):
    subject = journeys.Subject("rec", "get", package="ocr", path="models/rec.onnx")
    assert subject.place(tmp_path) is None
    (tmp_path / "ocr").mkdir()
    assert subject.place(tmp_path) == str(tmp_path / "ocr/models/rec.onnx")
    built = journeys.Subject("rec", "get", package="ocr", path="words.py:build")
    assert built.place(tmp_path) == "bench/journey_subjects/words.py:build"


def test_every_module_of_the_subjects_exists(journeys):
    for subject in journeys.MODELS:
        modules = {subject.plugin, subject.path.split(":")[0] if ".py:" in subject.path else None}
        assert all((BENCH / "journey_subjects" / name).is_file() for name in modules if name)


@pytest.fixture
def exported(tmp_path):
    """Return a folder with the model and the ONNX file of one variant."""
    model = torch.nn.Linear(4, 3)
    graph = MaseGraph(model, dummy_in={"input": torch.randn(2, 4)})
    graph, _ = add_common_metadata_analysis_pass(init_metadata_analysis_pass(graph)[0])
    graph.export(tmp_path / "4-bits-gptq/model/graph")
    (tmp_path / "4-bits-gptq/export-onnx").mkdir()
    to_onnx(graph, tmp_path / "4-bits-gptq/export-onnx/model.onnx")
    return tmp_path


RECORDS = [
    {"variant": "4 bits gptq", "step": "export onnx", "outcome": "done"},
    {"variant": "pruned", "step": "export onnx", "outcome": "refused"},
]


@pytest.mark.slow
def test_an_exported_file_is_compared_with_the_other_program(journeys, exported):
    pytest.importorskip("onnxruntime")
    peers = sys.modules["journey_peers"]
    rows = {"input": torch.randn(4, 4)}
    first, second = peers.compare_exports(exported, RECORDS, lambda model: rows, sys.executable)
    figures = first["figures"]
    assert figures.get("outputs") == "equal" or figures["of the largest value"] < 1e-5
    assert second["reason"] == "needs 'export onnx', which was refused."


def test_an_absent_program_is_a_reason(journeys, exported, tmp_path):
    peers = sys.modules["journey_peers"]
    (first, _) = peers.compare_exports(exported, RECORDS, lambda model: {}, None)
    assert first["reason"] == "no --peers PYTHON was given."
    bare = tmp_path / "bare"
    bare.write_text("#!/bin/sh\necho no module\nexit 3\n")
    bare.chmod(0o755)
    rows = {"input": torch.randn(4, 4)}
    (first, _) = peers.compare_exports(exported, RECORDS, lambda model: rows, str(bare))
    assert first["reason"] == "onnxruntime is absent: no module"


def test_outputs_of_other_shapes_are_a_reason(journeys):
    peers = sys.modules["journey_peers"]
    reason = peers._difference([torch.zeros(2, 3)], [np.zeros((2, 4))])
    assert reason.startswith("outputs differ in shape or number")


def test_an_interrupted_journey_is_stored_with_the_steps_that_are_done(journeys, tmp_path):
    step = {"variant": "float", "step": "model", "outcome": "done", "cell": "outputs equal"}
    (tmp_path / "journey.json").write_text(json.dumps({"steps": [step]}))
    settings = {"dataset": "digits", "bits": (4.0,), "exports": (), "out": tmp_path}
    first, *others = journeys._stored("mlp", settings)["steps"]
    assert first == step
    assert {each["reason"] for each in others} == {journeys.INTERRUPTED}
    assert {each["variant"] for each in others} == {"float", "4 bits nearest", "4 bits gptq"}
