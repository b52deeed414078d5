"""`mase chat` and `mase serve`, as a user runs them."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from served_models import language_model, offline_text, tokenizer

from chop.cli.chat_loop import ChatLoop
from chop.cli.console import Console
from chop.cli.main import main
from chop.export import to_gguf
from chop.serve.answer_text import TextTokenizer
from chop.serve.batch_engine import BatchEngine
from chop.serve.sampling import Sampling

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The small model of the server's tests, as a checkpoint with its tokenizer."""
    place = tmp_path_factory.mktemp("model")
    language_model().export(place / "graph")
    tokenizer().save_pretrained(place / "tokenizer")
    return place


@pytest.fixture
def chat(mase, monkeypatch):
    """`chat("model", "hello")` with lines on stdin."""

    def run(line, *said):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{text}\n" for text in said)))
        return mase(f"chat {line} --max-new-tokens 8")

    return run


def answer(*messages, system=None):
    """Return the offline answer to a chat, whose messages alternate."""
    roles = ["user", "assistant"] * len(messages)
    first = [{"role": "system", "content": system}] if system else []
    said = [{"role": r, "content": m} for r, m in zip(roles, messages, strict=False)]
    engine, words = BatchEngine(language_model()), TextTokenizer(tokenizer())
    (tokens,) = engine.generate([words.encode_chat([*first, *said])], Sampling(max_tokens=8))
    return words.decode([token for token in tokens if token])


def test_a_piped_chat_remembers_what_was_said(chat, folder):
    first = answer("hello")
    expected = [first, answer("hello", first, "why"), answer("hello"), answer("x", system="be")]
    said = ("hello", "why", "/reset", "", "hello", "/reset", "/system be", "x", "/quit", "never")
    ran = chat(f"{folder} --json", *said)
    assert ran.code == 0, ran.err
    messages = ran.document["messages"]
    assert [m["content"] for m in messages] == ["x", expected[3]]
    assert "the chat is empty" in ran.err and "the system message is set" in ran.err
    ran = chat(str(folder), "hello", "why", "/reset", "hello")
    assert ran.out == "".join(f"{text}\n" for text in expected[:3])


def test_an_unknown_command_of_a_chat_names_the_nearest(chat, folder):
    ran = chat(str(folder), "/rest", "/help")
    assert ran.code == 0 and "no command '/rest'. Did you mean '/reset'?" in ran.err
    assert "/system TEXT" in ran.err


def test_a_chat_that_is_too_long_says_so_and_goes_on(chat, folder):
    ran = chat(f"{folder} --json", "x" * 400, "hello")
    assert "the prompt has" in ran.err and "/reset starts a new chat" in ran.err
    assert [m["content"] for m in ran.document["messages"]] == ["hello", answer("hello")]


class Typed(io.StringIO):
    """A terminal on which lines are typed; "^C" is Ctrl-C at the prompt."""

    def isatty(self):
        return True

    def readline(self):
        line = super().readline()
        if line == "^C\n":
            signal.raise_signal(signal.SIGINT)
        return line


def test_ctrl_c_stops_the_answer_and_not_the_chat(monkeypatch):
    engine, err, out = BatchEngine(language_model()), io.StringIO(), io.StringIO()
    steps, step = [], engine.step

    def interrupted():
        steps.append(1)
        if len(steps) == 4:
            signal.raise_signal(signal.SIGINT)
        return step()

    monkeypatch.setattr(engine, "step", interrupted)
    console, words = Console(out=out, err=err), TextTokenizer(tokenizer())
    loop = ChatLoop(engine, words, Sampling(max_tokens=8), console)
    before = signal.getsignal(signal.SIGINT)
    loop.run(Typed("hello\n^C\n/reset\nhello\n"))
    assert signal.getsignal(signal.SIGINT) is before
    whole = answer("hello")
    cut, end, rest = out.getvalue().partition(" …\n")
    assert end and cut and whole.startswith(cut) and cut != whole
    assert rest == f"{whole}\n"
    assert "/quit ends the chat" in err.getvalue() and "> " in err.getvalue()


WRONG = {
    "chat {0} --temperature 0.5": "give --sample too",
    "chat {0} --cache mxnt8": "chat.cache: Unknown format 'mxnt8'",
    "chat plain": "the tokenizer has no chat template. `mase generate",
    "serve {0} --max-batch 0": "serve.max_batch: must be at least 1, got 0",
    "serve {0} --port 70000": "serve.port: must be from 0 to 65535",
    "serve {0} --max-length 500": "max_length: 500. Allowed for this model: at most 400",
    "serve tiny_bert": "is no language model",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_lines_say_what_is_wrong_with_them(mase, folder, tmp_path, line):
    if line.startswith("serve"):
        pytest.importorskip("starlette", reason="needs the extra 'serve'")
    if "plain" in line:
        language_model().export(tmp_path / "plain" / "graph")
        tokenizer().save_pretrained(tmp_path / "plain" / "tokenizer")
        (tmp_path / "plain" / "tokenizer" / "chat_template.jinja").unlink()
    ran = mase(line.format(folder))
    assert ran.code != 0 and WRONG[line] in ran.err, ran.err


def test_a_missing_server_names_its_extra(mase, folder, monkeypatch):
    for name in ("starlette", "uvicorn", "chop.serve.http_server"):
        monkeypatch.setitem(sys.modules, name, None)
    ran = mase(f"serve {folder}")
    assert ran.code != 0 and "pip install 'masegraph[serve]'" in ran.err


def ask(port, text, new=8):
    messages = [{"role": "user", "content": text}]
    body = {"messages": messages, "max_tokens": new, "temperature": 0, "model": "served"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("kind", ["checkpoint", "GGUF"])
def test_a_model_is_served_until_a_signal(folder, tmp_path, monkeypatch, kind):
    pytest.importorskip("starlette", reason="needs the extra 'serve'")
    monkeypatch.chdir(tmp_path)
    model = folder
    if kind == "GGUF":
        to_gguf(
            language_model(),
            model := tmp_path / "model.gguf",
            "F32",
            tokenizer=folder / "tokenizer",
        )
    answers, out = [], io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)

    def use():
        while not (address := re.search(r"API at http://127.0.0.1:(\d+)/v1", out.getvalue())):
            threading.Event().wait(0.02)
        try:
            answers.append(ask(int(address[1]), "hello"))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    user = threading.Thread(target=use)
    user.start()
    assert main(["serve", str(model), "--port", "0", "--name", "served"]) == 0
    user.join()
    assert answers == [offline_text("hello", 8, is_chat=True)]


@pytest.mark.slow
def test_a_killed_server_starts_again_at_its_port(folder):
    pytest.importorskip("starlette", reason="needs the extra 'serve'")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path])}
    port = "0"
    for end in (signal.SIGKILL, signal.SIGTERM):
        line = ["serve", str(folder), "--name", "served", "--port", port]
        program = subprocess.Popen(
            [sys.executable, "-m", "mase", *line],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        port = re.search(r":(\d+)/v1", program.stdout.readline())[1]
        assert ask(int(port), "hello") == offline_text("hello", 8, is_chat=True)
        program.send_signal(end)
        assert program.wait(60) == (-9 if end == signal.SIGKILL else 0)
