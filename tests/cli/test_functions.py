"""Every command is a Python function with the same options, checks and results."""

import dataclasses
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import chop
import mase as package
from chop import MaseGraph
from chop.cli.commands import COMMANDS
from chop.cli.option import options_of, tables_of
from chop.errors import ConfigError
from chop.models import MODELS

SOURCE = str(Path(chop.__file__).parents[1])
OF_A_PASS = ("prune", "lora", "compile", "emit", "simulate", "synth", "hw", "shard")
"""Commands whose options are the arguments of a pass: reading them imports torch."""
TIMES = ("seconds", "latency")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def function_of(name):
    return getattr(package, COMMANDS[name].function_name)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_function_whose_parameters_are_its_options(name):
    config = COMMANDS[name].config
    parameters = inspect.signature(function_of(name)).parameters
    options = {option.parameter: option.default for option in options_of(config)}
    assert set(parameters) == {*options, *tables_of(config)}
    assert all(parameters[key].default == default for key, default in options.items())
    if not any(dataclasses.is_dataclass(f.default_factory) for f in dataclasses.fields(config)):
        fields = {field.name for field in dataclasses.fields(config)}
        assert set(parameters) == fields or name == "prune"


PACKAGES = ("export", "hw", "report", "search", "serve")
"""Commands that are packages, too."""


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - set(PACKAGES)))
def test_the_docstring_of_a_function_explains_every_option(name):
    text = inspect.getdoc(function_of(name))
    assert text.startswith(COMMANDS[name].summary)
    for option in options_of(COMMANDS[name].config):
        assert f"\n{option.parameter}: {option.help.removesuffix('.')}" in text


@pytest.mark.parametrize("name", ["export", "hw", "report", "search"])
def test_a_package_with_the_name_of_a_command_stays_the_package_of_chop(name):
    import importlib

    module = importlib.import_module(f"chop.{name}")
    assert function_of(name) is module and callable(module)
    assert importlib.import_module(f"mase.{name}") is module
    assert module.__spec__.name == module.__name__ == f"chop.{name}"


def without_times(record):
    return {key: value for key, value in record.items() if key not in (*TIMES, "out", "command")}


def plain(record):
    return json.loads(json.dumps(record, default=str))


SMALL = {"model": "mlp", "model_options": {"hidden": [8]}}
CASES = {
    "trace": {**SMALL},
    "eval": {**SMALL, "dataset": "digits", "test_rows": 64},
    "quantize": {**SMALL, "format": "fixed8.4", "type": ["linear", "relu"]},
    "prune": {**SMALL, "sparsity": 0.5},
    "export": {**SMALL, "to": "onnx"},
    "list": {"kind": "formats"},
    "studies": {},
    "completion": {"shell": "fish"},
}
"""Command -> options in Python; the same are spelled as flags."""


def flags(options):
    for name, value in options.items():
        if isinstance(value, dict):
            yield from ("--set", f"{name}.hidden={json.dumps(value['hidden'])}")
        elif name in ("model", "kind", "shell"):
            yield str(value)
        else:
            text = ",".join(value) if isinstance(value, list) else str(value)
            yield from (f"--{name.replace('_', '-')}", text)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", CASES)
def test_the_function_and_the_command_line_give_the_same_result(name, mase, capsys):
    ran = mase(name, *flags(CASES[name]), "--json")
    assert ran.code == 0, ran.err
    result = function_of(name)(**CASES[name])
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")
    assert without_times(plain(result)) == without_times(ran.document)
    config = Path(f"out/{name}/config.toml")
    assert result.out == (config.parent if config.is_file() else None)


def test_the_hardware_of_a_function_is_that_of_the_command_line(mase):
    quantised = package.quantize(**CASES["quantize"])
    ran = mase("emit out/quantize --out by_line --json")
    result = package.emit(quantised.graph, out="by_call")
    assert result["files"] == ran.document["files"]
    for file in result["files"]:
        if file.endswith(".sv"):
            assert Path("by_call", file).read_bytes() == Path("by_line", file).read_bytes()


def test_a_model_object_is_copied_and_its_result_is_a_graph():
    model = MODELS["mlp"](hidden=[8])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = package.quantize(model, format="fixed4.2", input_shape=[1, 1, 8, 8])
    assert isinstance(result.graph, MaseGraph) and result["model"] == "<MLP object>"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    again = package.eval(result.graph, dataset="digits", test_rows=32)
    saved = package.eval("out/quantize", dataset="digits", test_rows=32)
    assert again["eval"] == saved["eval"]


def test_a_dataset_may_be_its_splits():
    from chop.dataset import get_dataset

    splits = get_dataset("digits")
    options = {**CASES["eval"], "dataset": splits}
    assert package.eval(**options)["eval"] == package.eval(**CASES["eval"])["eval"]


@pytest.mark.parametrize(
    ("name", "arguments", "options", "message"),
    [
        ("quantize", ["mlp"], {"widht": 4}, "quantize: unknown key 'widht'. Did you mean 'width'?"),
        ("quantize", ["mlp"], {"width": "four"}, "quantize.width: expected int, got 'four'"),
        ("quantize", ["mlp"], {"width": 4, "rules": {"linear": {}}}, "exclude 'rules'"),
        ("quantize", ["mlp"], {"method": "gtpq"}, "unknown method 'gtpq'. Did you mean 'gptq'?"),
        ("quantize", ["mlp"], {"model": "mlp"}, "quantize.model: given twice."),
        ("quantize", ["mlp", 4], {}, "2 arguments without a name, and it takes 1: model."),
        ("train", [3], {"dataset": "digits"}, "model: got int; expected a name, a path, a torch"),
        ("train", ["mlp"], {"dataset": {"train": []}}, "dataset: got train; expected a name, a"),
        ("train", ["mlp"], {"dataset": "digits", "epochs": -1}, "must be at least 0, got -1"),
        ("prune", ["mlp"], {}, "nothing to prune: give --sparsity"),
        (
            "search",
            [MODELS["mlp"]()],
            {"dataset": "digits", "workers": 2},
            "search.workers: 2 processes, and model is an object of this one. Give workers=1",
        ),
    ],
)
def test_a_function_checks_its_options_as_the_command_does(name, arguments, options, message):
    with pytest.raises(ConfigError) as caught:
        function_of(name)(*arguments, **options)
    assert message in str(caught.value)
    assert not Path(f"out/{name}/result.json").exists()


@pytest.mark.parametrize("option", ["--bits 4.5", "--observer min_max", "--method gptq", "--fit"])
def test_quantize_refuses_a_missing_dataset_before_it_loads_the_model(mase, option, monkeypatch):
    def load(*_args, **_options):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("chop.cli.source.find_source", load)
    width = " --width 6" if option == "--fit" else ""
    ran = mase(f"quantize mlp {option}{width}")
    assert ran.code == 2
    flag = option if "--method" in option else option.split()[0]
    assert f"{flag} looks at values of the dataset: give --dataset." in ran.err


LIGHT = """
import sys
from chop.cli.commands import COMMANDS
from chop.cli.main import main
import mase
main(["--help"])
for name in COMMANDS:
    if name not in %r:
        main([name, "--help"])
heavy = {"torch", "transformers", "numpy", "optuna", "matplotlib"} & set(sys.modules)
print("HEAVY", sorted(heavy))
"""


def test_help_of_commands_and_the_package_import_nothing_heavy():
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(
        [sys.executable, "-c", LIGHT % (OF_A_PASS,)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "HEAVY []"
