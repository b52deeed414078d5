"""Wrong command lines: each ends with one message that MASE foresaw."""

import os

import pytest
from covering import slow_unless
from huggingface_hub import constants
from wrong_lines import is_clear, prepare, words_of, wrong_lines

from chop.cli.commands import COMMANDS
from chop.cli.limits import LIMITS, MAY_BE_EMPTY, NOT_EMPTY
from chop.cli.main import main
from chop.cli.option import options_of

LINES = wrong_lines()
WORK = ("compile mlp --backend", "--trials 1 ")
"""Parts of lines that take seconds."""
ENDS_IN_WORK = ("search mlp --dataset digits --formats integer --trials 1 --apply 99",)
"""Lines that only the run can refuse: which trials there are is known when they were run."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with files that are not what they should be, and a checkpoint that is."""
    folder = tmp_path_factory.mktemp("wrong")
    prepare(folder, main)
    return folder


def paths_in(folder):
    """Return all paths below `folder`; `Path.rglob` takes ten times as long."""
    return sorted((where, *below, *files) for where, below, files in os.walk(folder))


def is_work(line):
    return any(part in line for part in WORK)


@pytest.mark.share(8)
@pytest.mark.parametrize("line", slow_unless(LINES, lambda line: not is_work(line)))
def test_a_wrong_line_ends_with_a_message_of_ours(line, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    code = main(words_of(line, place))
    told = capsys.readouterr().err
    assert is_clear(code, told), told


DRY = [line for line in LINES if line not in ENDS_IN_WORK and "--" not in line.split()]
FIRST = {line.split()[0]: line for line in reversed(DRY) if line.split() and not is_work(line)}
SAMPLE = {*FIRST.values(), *(line for line in DRY[::10] if not is_work(line))}
"""A line of every command, and every tenth line: the dry runs of `make test`."""


@pytest.mark.share(6)
@pytest.mark.parametrize("line", slow_unless(DRY, SAMPLE.__contains__))
def test_a_dry_run_refuses_what_the_run_refuses_and_writes_nothing(
    line, place, monkeypatch, capsys
):
    monkeypatch.chdir(place)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    words = words_of(line, place)
    code = main(words)
    told = capsys.readouterr().err
    before = paths_in(place)
    assert main([*words, "--dry-run"]) == code, "a dry run accepts what the run refuses"
    assert message(capsys.readouterr().err) == message(told)
    assert paths_in(place) == before, "a dry run writes something"


def message(told):
    return [line for line in told.splitlines() if line.startswith("mase: ")]


def test_there_are_many_wrong_lines():
    assert len(LINES) >= 300


MODEL = "--set model_options.hidden=[8]"
RIGHT = {
    "trace": f"trace mlp {MODEL}",
    "report": "report {trained}",
    "compare": "compare {report} {trained}",
    "quantize": "quantize {trained} --dataset digits --bits 4 --method gptq --qat-epochs 1",
    "prune": "prune {trained} --sparsity 0.5 --dataset digits --finetune-epochs 1",
    "lora": "lora {trained} --dataset digits --rank 2",
    "train": f"train mlp --dataset digits --epochs 500 {MODEL}",
    "eval": "eval {trained} --dataset digits",
    "explain": "explain {trained} --dataset digits",
    "sweep": "sweep sparsity {trained} --dataset digits",
    "search": "search {trained} --dataset digits --trials 500",
    "pass": "pass summarize_graph_analysis_pass {trained}",
    "compile": "compile {trained}",
    "bench": "bench {trained} mlp --dataset digits",
    "export": "export {trained} --to onnx",
    "shard": "shard {trained} --mesh-shape 1,2 --verify",
    "prove": "prove fifo",
    "journey": "journey {trained} --dataset digits --prune 0.5 --rtl",
    "demo": "demo",
    "list": "list formats",
    "studies": "studies",
    "clean": "clean {trained} --yes",
    "doctor": "doctor --run",
    "completion": "completion bash",
}
"""A right line of every command that needs no more than a trained model."""


@pytest.mark.share(4)
@pytest.mark.parametrize("name", [name for name in RIGHT if name != "compare"])
def test_a_dry_run_of_a_right_line_prints_its_configuration_and_writes_nothing(
    name, place, monkeypatch, capsys
):
    monkeypatch.chdir(place)
    before = paths_in(place)
    assert main([*words_of(RIGHT[name], place), "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith(f"[{name}]")
    assert paths_in(place) == before


def test_every_command_has_a_dry_run_that_is_tried():
    # they need other models
    others = {"generate", "chat", "serve", "import", "emit", "simulate", "synth", "hw"}
    assert set(RIGHT) | others == set(COMMANDS)


def test_every_limit_is_of_an_option_that_is_there():
    there = {o.path[-1] for c in COMMANDS.values() for o in options_of(c.config)}
    assert set(LIMITS) | set(NOT_EMPTY) | set(MAY_BE_EMPTY) <= there


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train mlp --dataset digits --epochs -1", "train.epochs: must be at least 0, got -1.0."),
        ("train mlp --dataset digits --epochs nan", "train.epochs: nan is not allowed. Allowed: a"),
        ("train mlp --dataset digits --seed -1", "train.seed: must be from 0 to 2**32 - 1, got -1"),
        ("bench mlp --iterations 5,0", "bench.iterations: must be at least 1, got 0."),
        ("bench mlp --iterations ,", "argument --iterations: empty. Give at least one value"),
        ("bench --set model=mlp --set iterations=[]", "bench.iterations: empty. Give at least one"),
        ('quantize ""', "quantize.model: an empty text. Leave the option out, or give a value."),
        ("quantize /", "quantize.model: '/' is the root of the file system. Name a folder in it."),
        ("quantize .", "no model '.'. Tried:"),
        ('quantize mlp --out ""', "quantize.out: expected a path, got '' (str)."),
        ("quantize mlp --out text.txt", "text.txt is a file, and a folder is due there."),
        ("trace mlp --out /proc/nowhere", "--out /proc/nowhere: /proc cannot be written to ("),
        ("quantize mlp --set model.x=3", "model: given as 'mlp' and as a table with x."),
        ("quantize mlp --set training.learning_rate=abc", "learning_rate is a number, got 'abc'."),
        ('quantize mlp --method ""', "argument --method: empty. Give at least one value"),
        ("quantize mlp --set method=[]", "quantize.method: empty. Give at least one value"),
        ("compare {report} {report}", "is given twice. Give reports of different runs."),
        ("quantize mlp --format mxnit", "Unknown format 'mxnit'. Did you mean 'mxint'?"),
        ("search mlp --dataset digits --apply worst", "'worst' names no trial of 'search'."),
        ("bench mlp --devices tpu", "bench.devices: no device 'tpu' here. Here: cpu"),
        ("bench mlp --against tiny_bert", "'tiny_bert' has no input 'x'; models are timed on the"),
        ("eval mlp --dataset digits --metric mse", "the model gives 10 for each row."),
        ("trace tiny_bert --task base", "task: 'tiny_bert' is for sequence-classification, got 'b"),
        (
            "trace tiny_bert --set model_options.hiden_size=16",
            "tiny_bert: unknown option 'hiden_size'. Did you mean 'hidden_size'?",
        ),
        (
            "trace own.py:model --task base",
            "task: 'own.py:model' is module:function or file.py:function, which takes none; got "
            "'base'. It takes: model_options, inputs, input_shape.",
        ),
        ("sweep lora_rank mlp --dataset digits --values 1.5", "takes whole numbers, got 1.5."),
        ("report mlp --studies text.txt", "text.txt: not a readable JSON file"),
    ],
)
def test_the_message_says_what_is_allowed(line, message, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert main(words_of(line, place)) in (1, 2)
    assert message in capsys.readouterr().err
