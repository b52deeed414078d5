"""The door: help, version, exit codes, messages, JSON."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import chop
from chop.cli.commands import COMMANDS
from chop.cli.main import main

SOURCE = str(Path(chop.__file__).parents[1])


def start(line, **options):
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "chop.cli", *line.split()]
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_help_needs_no_torch():
    code = "import sys; from chop.cli.main import main; main([]); assert 'torch' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


FIRST_WORDS = """
import sys
from chop.cli.commands import COMMANDS
from chop.cli.main import main

class Reached(BaseException):
    "Torch is about to be loaded."

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise Reached

sys.meta_path.insert(0, Watch())  # `main` puts its own before it
more = {"sweep": ["sparsity"], "quantize": ["--width", "8"], "search": ["--formats", "integer"],
        "completion": ["bash"], "generate": ["mlp", "--prompt", "a"]}
for name in COMMANDS:
    words = [name, *more.get(name, ["mlp"]), *sys.argv[1:]]
    try:
        main(words)
    except Reached:
        print("TORCH", name, file=sys.stderr)
"""


def first_words(tmp_path, *more):
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    command = [sys.executable, "-c", FIRST_WORDS, *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "loading" not in done.stdout
    return done.stderr.splitlines()


def test_every_command_says_what_it_does_before_torch_is_loaded(tmp_path):
    lines = first_words(tmp_path)
    loaded = [line.split()[1] for line in lines if line.startswith("TORCH")]
    assert set(loaded) >= set(COMMANDS) - {"demo", "doctor", "list", "clean", "studies"}
    for name in loaded:
        said = lines[lines.index(f"TORCH {name}") - 1]
        assert said.startswith(f"mase {name}") and said.endswith(": loading torch …")


@pytest.mark.slow
def test_a_quiet_command_says_nothing_first(tmp_path):
    lines = first_words(tmp_path, "--quiet")
    assert not any("loading" in line for line in lines)
    assert "TORCH train" in lines


def test_mase_alone_describes_every_command_in_a_line(mase):
    ran = mase("")
    lines = ran.out.splitlines()
    for name, command in COMMANDS.items():
        assert any(name in line and command.summary in line for line in lines)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_shows_examples(mase, name):
    ran = mase(name, "--help")
    assert ran.code == 0
    assert all(example in ran.out for example in COMMANDS[name].examples)


def test_version_is_told(mase):
    assert mase("--version").out.startswith("mase ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tarce mlp", "no command 'tarce'. Did you mean 'trace'?"),
        ("trace mlp --nope", "unrecognized arguments: --nope. See `mase trace --help`."),
        ("quantize mlp --fromat mxint4", "`mase quantize --help`. Did you mean --format?"),
        ("trace mlp --seed x", "argument --seed: expected INT, got 'x'"),
        ("trace mlp --set seed", "--set seed: expected KEY.PATH=VALUE."),
        ("trace mlp --config nowhere.toml", "nowhere.toml: no such file."),
        ("trace", "no model given. A model is a reference model, a MaseGraph checkpoint,"),
        ("quantize mlp --width 8 --set rules.linear.config.name=fp8", "exclude 'rules'"),
        ("quantize mlp --fit --format integer", "fit chooses fixed point of a given width"),
        ("quantize mlp --fit --width 8", "--fit looks at values of the dataset: give --dataset."),
        (
            "quantize mlp --fit --width 8 --format fp8 --dataset digits",
            "quantize.fit: fits format integer, not 'fp8'.",
        ),
        ("quantize mlp --width 8 --evaluate", "to measure or train give --dataset."),
        ("quantize mlp --format intger", "Unknown format 'intger'. Did you mean 'integer'?"),
        ("prune mlp", "nothing to prune: give --sparsity or --granularity N:M"),
        ("prune mlp --sparsity 1.2", "sparsity must be at least 0 and below 1, got 1.2."),
        ("prune mlp --sparsity 0.5 --method taylor", "needs gradients: give --dataset."),
        ("search mlp", "search needs --dataset: digits, markov, sequences, a hub name, a file"),
        (
            "train mlp",
            "train needs --dataset: digits, markov, sequences, a hub name, a file or a folder.",
        ),
        ("lora mlp --rank 0", "rank must be at least 1, got 0."),
        ("sweep", "no sweep given. Known: fixed_point_width"),
        ("sweep widths mlp --dataset digits", "Unknown sweep 'widths'."),
        ("completion tcsh", "completion.shell: 'tcsh' (str) is not allowed. Allowed: 'bash'"),
    ],
)
def test_a_mistake_ends_with_code_2_and_one_message(mase, line, message):
    ran = mase(line)
    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""


def test_work_that_fails_ends_with_code_1(mase):
    ran = mase("emit mlp")  # not quantised
    assert ran.code == 1
    assert "Traceback" not in ran.err


def test_debug_shows_the_traceback(mase):
    assert "Traceback" in mase("trace --debug").err


def test_an_unforeseen_error_says_so(mase, tmp_path):
    (tmp_path / "own.py").write_text("def build():\n    raise ZeroDivisionError('by zero')\n")
    ran = mase("trace own.py:build")
    assert ran.code == 1
    assert "ZeroDivisionError: by zero. This is not an error MASE foresaw" in ran.err


def test_an_error_is_one_document_with_json(mase):
    ran = mase("trace --json")
    assert ran.document["exit_code"] == 2
    assert ran.document["error"]["kind"] == "SourceError"
    assert "no model given" in ran.document["error"]["message"]


def test_a_dry_run_does_nothing_and_prints_what_config_reads(mase, tmp_path):
    ran = mase("quantize mlp --width 8 --dry-run")
    assert ran.code == 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run.toml").write_text(ran.out)
    assert mase("quantize --config run.toml --dry-run").out == ran.out


def test_a_dry_run_with_json_is_a_document(mase):
    ran = mase("trace mlp --seed 3 --dry-run --json")
    assert ran.document["config"]["seed"] == 3


def test_a_reader_that_leaves_early_causes_no_message():
    process = start("--help")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() in (0, 1)


@pytest.mark.slow
def test_an_interruption_ends_with_code_130_and_leaves_nothing_half_written(tmp_path):
    line = "train mlp --dataset digits --epochs 5000 --save-steps 20 --out run"
    process = start(line, cwd=tmp_path)
    while not list(tmp_path.glob("run/checkpoints/train/*/checkpoint-*/complete.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    assert "interrupted. Run the same command again" in err
    assert out == ""
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"checkpoints", "logs"}


def test_json_is_the_only_thing_on_stdout(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "mlp", "--dataset", "digits", "--json"]) == 0
    said = capfd.readouterr()
    assert set(json.loads(said.out)["eval"]) == {"accuracy", "loss"}
    assert "evaluate on 360 rows" in said.err
