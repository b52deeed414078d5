"""Completion scripts are made from the parsers and know every command."""

import shutil
import subprocess

import pytest

from chop.cli.commands import COMMANDS
from chop.cli.commands.completion import WRITERS, command_options, flags_of


@pytest.fixture(scope="module")
def known():
    return command_options()


def complete(script, *words):
    """What bash offers for the last of `words`."""
    line = " ".join(f"'{word}'" for word in words)
    asked = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _mase"
    program = f'{script}\n{asked}; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("shell", WRITERS)
def test_every_shell_knows_every_command_and_flag(known, shell):
    script = WRITERS[shell](known)
    for name, options in known.items():
        assert name in script
        for flag in flags_of(options):
            assert flag.removeprefix("--") in script, f"{name} {flag}"


def test_bash_completes_commands_flags_and_values(known):
    script = WRITERS["bash"](known)
    assert set(complete(script, "mase", "")) == {*COMMANDS, "--help", "--version"}
    assert complete(script, "mase", "prune", "--spars") == ["--sparsity"]
    assert complete(script, "mase", "train", "--metric", "f") == ["f1"]
    assert complete(script, "mase", "sweep", "lora") == ["lora_rank"]
    assert complete(script, "mase", "bench", "mlp", "tiny_l") == ["tiny_llama"]
    assert complete(script, "mase", "quantize", "m", "--type", "embedding_") == ["embedding_bag"]


def test_studies_and_folders_of_the_user_are_completed(known, tmp_path, monkeypatch):
    (tmp_path / "mase").write_text("#!/bin/sh\n[ \"$*\" = 'studies --names' ] && echo out/mine\n")
    (tmp_path / "mase").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    script = WRITERS["bash"](known)
    assert complete(script, "mase", "studies", "out/m") == ["out/mine"]
    assert complete(script, "mase", "report", "mlp", "--studies", "") == ["out/mine"]
    (tmp_path / "shelf" / "my-llama").mkdir(parents=True)
    monkeypatch.setenv("MASE_MODELS", str(tmp_path / "shelf"))
    assert complete(WRITERS["bash"](command_options()), "mase", "eval", "my-l") == ["my-llama"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_their_script(known, shell):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")
    text = WRITERS[shell](known)
    done = subprocess.run([program, "-n", "/dev/stdin"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_command_prints_the_script(mase, known):
    assert mase("completion fish").out.rstrip() == WRITERS["fish"](known).rstrip()
    assert mase("completion fish --json").document["script"] == WRITERS["fish"](known)
