"""`mase journey`: every step is a cell, refusals do not end it, and it resumes."""

import json
import shlex

import pytest
import torch

import mase
from chop.actions import METRICS
from chop.actions.output_comparison import compare_outputs
from chop.cli import journey_run
from chop.cli.commands import COMMANDS
from chop.cli.commands.journey import JourneyConfig
from chop.cli.functions import config_of, line_of
from chop.cli.journey_steps import steps_of
from chop.cli.journey_table import shown, table_of
from chop.cli.main import read_request
from chop.errors import ConfigError, DataError

ROWS = {"dataset": "digits", "test_rows": 16, "train_rows": 64, "calibration_rows": 16}
KEPT = {"formats": ["mxint4"], "methods": ["gptq"], "exports": ["hf"]}
"""One compressed model: every kind of step once with it and once with the float model."""
SMALL = {**ROWS, **KEPT, "out": "out/journey"}


@pytest.fixture(scope="module")
def place(tmp_path_factory, trained):
    """Return a folder with one finished journey of a trained perceptron."""
    folder = tmp_path_factory.mktemp("journey")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        mase.journey(str(trained), **SMALL)
    return folder


@pytest.fixture
def records(place):
    """Return the records of that journey."""
    return json.loads((place / "out/journey/journey.json").read_text())["steps"]


@pytest.fixture
def performed(monkeypatch):
    """Return a list that receives the key of every step that runs a command."""
    keys = []
    run = journey_run._run

    def counted(step):
        keys.append(step.key)
        return run(step)

    monkeypatch.setattr(journey_run, "_run", counted)
    return keys


STEPS = ["model", "evaluate", "compare with float", "save again", "save and load", "pack"]
STEPS += ["compare packed", "latency", "latency packed", "export hf", "read hf", "compare hf"]


def test_the_table_has_every_step_and_no_empty_cell(records):
    table = table_of(records)
    assert [row["step"] for row in table] == STEPS
    assert all(cell for row in table for cell in row.values())
    assert list(table[0]) == ["step", "float", "mxint4 gptq"]


@pytest.mark.slow
def test_every_method_is_a_column_without_empty_cells(tmp_path, trained, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = mase.journey(str(trained), **{**SMALL, "methods": ["nearest", "gptq"]})
    table = table_of(result["steps"])
    assert list(table[0]) == ["step", "float", "mxint4 nearest", "mxint4 gptq"]
    assert all(cell for row in table for cell in row.values())


def test_captured_saved_and_packed_models_are_equal(records):
    exact = [r for r in records if r["step"] in ("save and load", "compare packed")]
    exact += [r for r in records if r["step"] == "model" and r["variant"] == "float"]
    rounds = ("float", "compare packed")  # packing a float model rounds its weights
    equal = [r for r in exact if (r["variant"], r["step"]) != rounds]
    assert equal and all(r["figures"]["outputs"] == "equal" for r in equal)


def test_a_refusal_is_a_cell_with_its_reason(records, place):
    (refused,) = [r for r in records if (r["variant"], r["step"]) == ("float", "export hf")]
    assert refused["outcome"] == "refused"
    assert refused["reason"].startswith("to_huggingface: MLP has no Hugging Face config")
    after = next(r for r in records if r["step"] == "read hf")
    assert after["reason"] == "needs 'export hf', which was refused."
    page = (place / "out/journey/journey.md").read_text()
    assert "refused [1]" in page and f"1. {refused['reason']}" in page


def test_every_step_has_its_command_time_and_memory(records):
    for record in records:
        words = shlex.split(record["command"])
        assert words[0] == "mase" and words[1] in COMMANDS
        assert record["seconds"] >= 0 and record["peak_bytes"] >= record["added_bytes"] >= 0


def test_a_finished_journey_repeats_nothing(place, trained, performed, monkeypatch):
    monkeypatch.chdir(place)
    again = mase.journey(str(trained), **SMALL)
    assert performed == [] and again["failed"] == 0


def test_a_new_export_runs_only_its_own_steps(place, trained, performed, monkeypatch):
    monkeypatch.chdir(place)
    mase.journey(str(trained), **{**SMALL, "exports": ["hf", "gguf"]})
    assert performed == [f"{v}: export gguf" for v in ("float", "mxint4 gptq")]


def test_an_interrupted_journey_resumes_after_the_last_step(
    tmp_path, trained, performed, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    few = {**SMALL, "formats": [], "exports": []}
    run = journey_run._run

    def interrupted(step):
        if step.title == "pack":
            raise KeyboardInterrupt
        return run(step)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(journey_run, "_run", interrupted)
        mase.journey(str(trained), **few)
    before = list(performed)
    performed.clear()
    mase.journey(str(trained), **few)
    assert performed[0] == "float: pack" and not {*before} & {*performed}
    assert not (tmp_path / "out/journey/float/save-again").exists(), "files of checks stay"


def test_an_unforeseen_error_is_a_cell_and_the_exit_code_and_is_repeated(
    tmp_path, trained, performed, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    few = {**SMALL, "formats": [], "exports": []}
    run = journey_run._run

    def broken(step):
        if step.title == "pack":
            raise RuntimeError("no such luck")
        return run(step)

    with monkeypatch.context() as patch:
        patch.setattr(journey_run, "_run", broken)
        result = mase.journey(str(trained), **few)
    (failed,) = [r for r in result["steps"] if r["outcome"] == "failed"]
    assert failed["reason"].startswith("RuntimeError: no such luck.") and result["exit_code"] == 1
    performed.clear()
    assert mase.journey(str(trained), **few)["exit_code"] == 0
    assert performed == ["float: pack", "float: compare packed", "float: latency packed"]


@pytest.mark.slow  # `make test` sees a new export run its own steps, and a finished journey none
def test_a_changed_model_starts_again(tmp_path, trained, performed, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = {"formats": [], "exports": [], "out": "out/journey"}
    mase.journey("mlp", **few)
    count = len(performed)
    mase.journey("mlp", **few, seed=3)
    assert len(performed) == 2 * count


@pytest.mark.slow
def test_a_journey_without_a_dataset_compares_outputs_and_refuses_calibration(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    few = {"formats": ["mxint8"], "methods": ["gptq"], "exports": [], "out": "out/own"}
    result = mase.journey(model, input_shape=[2, 8], **few)
    rows = {row["step"]: row for row in table_of(result["steps"])}
    assert "evaluate" not in rows and "refused" in rows["model"]["mxint8 gptq"]
    reasons = [r["reason"] for r in result["steps"] if "reason" in r]
    assert reasons[0].startswith("--method gptq looks at values of the dataset: give --dataset.")


def test_bits_are_rounded_without_data_or_chosen_by_it(tmp_path):
    """`nearest` sees no data; an average is chosen by data, so it has no `nearest`."""
    config = JourneyConfig(model="mlp", dataset="digits", bits=(8.0, 4.0, 6.0), for_="onnx")
    made = {s.variant: s.settings for s in steps_of(config, tmp_path) if s.title == "model"}
    names = ["8 bits nearest", "8 bits gptq", "4 bits nearest", "4 bits gptq", "6 bits gptq"]
    assert list(made) == ["float", *names]
    assert "dataset" not in made["4 bits nearest"] and made["4 bits gptq"]["dataset"] == "digits"
    assert all(made[name]["for_"] == "onnx" for name in names)


def test_float_models_are_written_to_gguf_unrounded_and_latencies_are_not_drawn(tmp_path):
    settings = {"model": "tiny_llama", "bits": (4.0,), "dataset": "digits", "prune": 0.3}
    steps = {step.key: step for step in steps_of(JourneyConfig(**settings), tmp_path)}
    formats = {key: step.settings.get("format") for key, step in steps.items()}
    assert formats["float: export gguf"] == formats["pruned: export gguf"] == "F32"
    assert formats["4 bits nearest: export gguf"] is None
    assert not any(s.settings["draw"] for s in steps.values() if s.command == "bench")


@pytest.mark.slow  # `explain` and the export of 4 bits for ONNX have tests of their own
def test_the_worst_layer_is_named_and_onnx_holds_the_bits(tmp_path, trained, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = {**ROWS, "bits": [4.0], "for_": "onnx", "methods": ["gptq"], "explain": True}
    result = mase.journey(str(trained), **few, exports=["onnx"], out="out/bits")
    rows = {row["step"]: row for row in table_of(result["steps"])}
    assert rows["explain"]["float"] == "not quantised"
    assert "worst layer layers" in rows["explain"]["4 bits gptq"]
    assert rows["export onnx"]["4 bits gptq"].startswith("bytes ")


METRIC = """
import torch

from chop.actions import METRICS

def build():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

@METRICS.entry("share_of_sevens")
def share_of_sevens(scores, labels):
    return float((scores.argmax(-1) == 7).mean())
"""


@pytest.fixture
def plugins_forgotten():
    """Forget the metrics that plugins register, so that other tests do not see them."""
    with METRICS.restored():
        yield


@pytest.mark.usefixtures("plugins_forgotten")
def test_a_metric_of_a_plugin_is_reported(tmp_path, trained, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sevens.py").write_text(METRIC)
    more = {"plugins": ["sevens.py"], "metric": "share_of_sevens", "test_rows": 16}
    result = mase.eval(str(trained), dataset="digits", **more, out="out/eval")
    assert next(iter(result["eval"])) == "share_of_sevens"


@pytest.mark.usefixtures("plugins_forgotten")
def test_one_file_registers_names_and_builds_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twice.py").write_text(METRIC.replace("share_of_sevens", "sevens_again"))
    more = {"plugins": ["twice.py"], "metric": "sevens_again", "test_rows": 16}
    result = mase.eval("twice.py:build", dataset="digits", **more, out="out/eval")
    assert next(iter(result["eval"])) == "sevens_again"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"for_": "onnx"}, "--for chooses the formats of --bits: give --bits."),
        ({"explain": True}, "--explain looks at values of the dataset: give --dataset."),
        ({"metric": "acuracy", "dataset": "digits"}, "unknown metric 'acuracy'"),
        ({"epochs": 1.0}, "--epochs looks at values of the dataset: give --dataset."),
        ({"prune": 0.5}, "--prune looks at values of the dataset: give --dataset."),
        ({"rtl": True}, "--rtl looks at values of the dataset: give --dataset."),
        ({"prune": 1.5, "dataset": "digits"}, "journey.prune: must be at least 0 and below 1"),
        ({"calibration_rows": 0}, "journey.calibration_rows: must be at least 1, got 0."),
        ({"formats": ["mxnt4"]}, "journey.formats"),
        ({"methods": ["gtpq"]}, "journey.methods: unknown method 'gtpq'"),
        ({"exports": ["oonx"]}, "journey.exports"),
        ({"model": "nowhere"}, "no model 'nowhere'. Tried:"),
    ],
)
def test_wrong_arguments_are_refused_before_the_first_step(more, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        mase.journey(**{"model": "mlp", **more})
    assert message in str(refused.value)


def test_every_printed_line_is_read_back_as_the_settings_of_its_step(tmp_path):
    config = JourneyConfig(
        model="mlp",
        dataset="digits",
        prune=0.5,
        rtl=True,
        epochs=2.0,
        learning_rate=0.01,
        input_shape=(2, 1, 8, 8),
        model_options={"hidden": [16], "deep": {"name": "a b", "on": True}},
    )
    for step in steps_of(config, tmp_path):
        command = COMMANDS[step.command]
        words = shlex.split(line_of(command, step.settings))
        assert words[:2] == ["mase", command.name]
        assert read_request(command, words[2:]).config == config_of(command, step.settings)


def test_outputs_are_compared_by_difference_noise_and_choice():
    one, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    same = compare_outputs(one, one, {"input": torch.randn(4, 3)})
    assert same.is_equal and same.largest_difference == 0 and same.sqnr_db is None
    torch.nn.init.constant_(one.weight, 0.0)
    torch.nn.init.constant_(other.weight, 0.0)
    one.bias.data, other.bias.data = torch.tensor([1.0, 0.0]), torch.tensor([10.0, 0.0])
    far = compare_outputs(one, other, {"input": torch.randn(4, 3)})
    assert far.largest_difference == 9 and far.agreement == 1
    assert far.sqnr_db == pytest.approx(10 * torch.tensor(100 / 81).log10().item())


def test_a_graph_with_labels_is_compared_with_a_model_without_them():
    class Labelled(torch.nn.Linear):
        def forward(self, input, labels):
            return super().forward(input) + 0 * labels.sum()

    one, other = Labelled(3, 2), torch.nn.Linear(3, 2)
    other.load_state_dict(one.state_dict())
    rows = {"input": torch.randn(4, 3), "labels": torch.zeros(4)}
    assert compare_outputs(one, other, rows).is_equal


def test_outputs_of_different_shapes_are_refused():
    with pytest.raises(DataError, match=r"have shapes \[4, 2\] and \[4, 3\]"):
        compare_outputs(torch.nn.Linear(3, 2), torch.nn.Linear(3, 3), {"input": torch.zeros(4, 3)})


def test_figures_carry_units_and_thousands():
    assert shown({"bytes": 4765, "SQNR (dB)": 16.651}) == "bytes 4,765, SQNR (dB) 16.65"
