"""Wrong command lines: each ends with one message that MASE foresaw."""

import pytest
from huggingface_hub import constants
from wrong_lines import is_clear, prepare, wrong_lines

from chop.cli.limits import LIMITS, NOT_EMPTY
from chop.cli.main import main

LINES = wrong_lines()
WORK = ("compile mlp --backend", "--trials 1 ", "train mlp --dataset digits --metric mse")
"""Lines that are refused after work."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with files that are not what they should be, and a checkpoint that is."""
    folder = tmp_path_factory.mktemp("wrong")
    prepare(folder, main)
    return folder


def marked(line):
    is_slow = any(part in line for part in WORK)
    return pytest.param(line, marks=pytest.mark.slow) if is_slow else line


@pytest.mark.parametrize("line", [marked(line) for line in LINES])
def test_a_wrong_line_ends_with_a_message_of_ours(line, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    code = main(line.replace("{trained}", str(place / "trained")).split())
    told = capsys.readouterr().err
    assert is_clear(code, told), told


def test_there_are_many_wrong_lines():
    assert len(LINES) >= 300


def test_every_limit_is_of_an_option_that_is_there():
    from chop.cli.commands import COMMANDS
    from chop.cli.option import options_of

    there = {o.path[-1] for c in COMMANDS.values() for o in options_of(c.load_config())}
    assert set(LIMITS) | set(NOT_EMPTY) <= there


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train mlp --dataset digits --epochs -1", "train.epochs: must be at least 0, got -1.0."),
        ("train mlp --dataset digits --epochs nan", "train.epochs: nan is not allowed. Allowed: a"),
        ("train mlp --dataset digits --seed -1", "train.seed: must be from 0 to 2**32 - 1, got -1"),
        ("bench mlp --iterations 5,0", "bench.iterations: must be at least 1, got 0."),
        ("bench mlp --iterations ,", "bench.iterations: empty. Give at least one value"),
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
    assert main(line.split()) == 2
    assert message in capsys.readouterr().err
