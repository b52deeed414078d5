"""Loop of `mase chat`: read a line, stream the answer."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from chop.cli.console import Console, write_line
from chop.registry import suggest
from chop.serve.answer_text import AnswerEnd, Piece, TextListener, TextStream, TextTokenizer
from chop.serve.batch_engine import BatchEngine
from chop.serve.jobs import CANCELLED, Job
from chop.serve.request_errors import RequestError
from chop.serve.sampling import Sampling

HELP = (
    "/reset forgets the chat, /system TEXT sets the system message, /quit ends; Ctrl-C stops an "
    "answer."
)
PROMPT = "> "


class _InterruptError(Exception):
    """Ctrl-C at the prompt."""


class ChatLoop:
    """A chat: its messages so far, and the engine that answers."""

    def __init__(
        self,
        engine: BatchEngine,
        tokenizer: TextTokenizer,
        sampling: Sampling,
        console: Console,
        system: str | None = None,
    ) -> None:
        self.engine, self.tokenizer, self.sampling = engine, tokenizer, sampling
        self.console, self.system = console, system
        self.messages: list[dict[str, str]] = []

    def run(self, lines: TextIO) -> None:
        """Answer each line until the last one or /quit."""
        is_terminal = lines.isatty()
        if is_terminal:
            self.console.note(HELP)
        while True:
            try:
                with _on_interrupt(_raise_interrupt):
                    line = _read(lines, self.console, is_terminal=is_terminal)
            except _InterruptError:
                self.console.note("/quit ends the chat")
                continue
            if line is None or line.split()[:1] == ["/quit"]:
                return
            self._take(line.strip())

    def _take(self, line: str) -> None:
        """Run a command, or answer a message."""
        word, _, rest = line.partition(" ")
        if word == "/reset":
            self.messages = []
            self.console.note("the chat is empty")
        elif word == "/system":
            self.system = rest.strip() or None
            self.console.note("the system message is set" if self.system else "no system message")
        elif word == "/help":
            self.console.note(HELP)
        elif word.startswith("/"):
            names = ("/reset", "/system", "/quit", "/help")
            self.console.note(f"no command '{word}'. {suggest(word, names)}")
        elif line:
            self._answer(line)

    def _answer(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        try:
            answer = self._stream()
        except RequestError as error:
            self.messages.pop()
            self.console.note(f"{error} /reset starts a new chat.")
            return
        self.messages.append({"role": "assistant", "content": answer})

    def _stream(self) -> str:
        """Print the answer to the messages piece by piece; return it."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        prompt = self.tokenizer.encode_chat([*first, *self.messages])
        room = self.engine.max_length - len(prompt)
        most = max(1, min(self.sampling.max_tokens, room))
        sampling = dataclasses.replace(self.sampling, max_tokens=most)
        pieces: list[str] = []

        def put(event: Piece | AnswerEnd) -> None:
            if isinstance(event, Piece):
                pieces.append(event.text)
                self._print(event.text)
            elif event.reason == CANCELLED:
                self._print(" …")

        job = Job(prompt, sampling, TextListener(TextStream(self.tokenizer, prompt), put))
        self.engine.submit([job])
        with _on_interrupt(lambda: self.engine.cancel([job])):
            while self.engine.step():
                pass
        self._print("\n")
        return "".join(pieces)

    def _print(self, text: str) -> None:
        if not self.console.is_json:
            write_line(self.console.out, text, end="")


def _read(lines: TextIO, console: Console, *, is_terminal: bool) -> str | None:
    """Return the next line, None at the end."""
    if is_terminal:
        write_line(console.err, PROMPT, end="")
    return lines.readline() or None


def _raise_interrupt() -> None:
    raise _InterruptError


@contextlib.contextmanager
def _on_interrupt(act: Callable[[], Any]) -> Iterator[None]:
    """Call `act` at Ctrl-C inside the context."""
    try:
        before = signal.signal(signal.SIGINT, lambda *_: act())
    except ValueError:  # not in the main thread, which alone receives signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
