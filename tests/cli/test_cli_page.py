"""docs/cli.md tells the truth: its table, its configuration, its exit codes."""

import re
from pathlib import Path

import pytest

from chop.cli import failures
from chop.cli.commands import COMMANDS
from chop.cli.main import read_request

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def test_the_table_has_every_command():
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert set(COMMANDS) <= named


@pytest.mark.parametrize("command", ["quantize", "search"])
def test_the_configuration_file_is_one(command, tmp_path):
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "run.toml"
    file.write_text(text)
    config = read_request(COMMANDS[command], ["--config", str(file)]).config
    assert (config.model, config.dataset) == ("out/train", "digits")


def test_every_command_line_of_the_page_is_understood(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "run.toml").write_text(text)
    lines = re.findall(r"^mase (\w+)(.*?)(?:[>#].*)?$", PAGE, re.MULTILINE)
    assert len(lines) >= 6
    for name, rest in lines:
        read_request(COMMANDS[name], rest.split())


def test_exit_codes_are_as_told():
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert codes == {failures.OK, failures.FAILED, failures.USAGE, failures.INTERRUPTED}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_every_command_are_understood(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in ("run", "search"):
        text = "".join(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
        (tmp_path / f"{file}.toml").write_text(text)
    for example in COMMANDS[name].examples:
        line = example.partition(">" if name == "completion" else "\0")[0].replace("\\\n", " ")
        words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", line)]
        assert words[:2] == ["mase", name]
        read_request(COMMANDS[name], words[2:])
