"""Text of an answer, token by token, up to a stop word."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chop.serve.request_errors import RequestError
from chop.serve.sampling import Token

CONTEXT = 6
"""Tokens of the prompt that are decoded with the answer: a space may depend on its neighbour."""
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""Last character of a text whose last token ends inside a character."""


class TextTokenizer:
    """Tokenizer that several threads use in turns."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self._lock = tokenizer, threading.Lock()

    @property
    def has_template(self) -> bool:
        """True if the tokenizer has a chat template."""
        return bool(getattr(self._tokenizer, "chat_template", None))

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text."""
        with self._lock:
            return tuple(self._tokenizer(text)["input_ids"])

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """Return the tokens of a chat by its template, up to where the answer begins."""
        import jinja2

        if not self.has_template:
            raise RequestError("the tokenizer has no chat template: use /v1/completions instead.")
        try:
            with self._lock:
                encoded = self._tokenizer.apply_chat_template(
                    list(messages), add_generation_prompt=True, return_dict=True
                )
        except jinja2.TemplateError as error:
            raise RequestError(
                f"messages: the chat template rejects them ({error}).", "messages"
            ) from error
        return tuple(encoded["input_ids"])

    def decode(self, tokens: Sequence[int], *, is_plain: bool = True) -> str:
        """Return the text of tokens; if `is_plain`, without special tokens."""
        with self._lock:
            return str(self._tokenizer.decode(list(tokens), skip_special_tokens=is_plain))


class TextStream:
    """Text that grows with each token and ends before a stop word, the first that is complete.

    Text that may be the start of a stop word is held back until the next token decides.
    """

    def __init__(
        self, tokenizer: TextTokenizer, prompt: Sequence[int], stop: Sequence[str] = ()
    ) -> None:
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._tokens = list(prompt[-CONTEXT:])
        self._first, self._end = 0, len(self._tokens)
        self._held = ""
        self.is_stopped = False

    def add(self, token: int) -> str:
        """Add a token; return the text that is certain by now."""
        self._tokens.append(token)
        text = self._undelivered()
        if text.endswith(INCOMPLETE):
            return ""
        self._first, self._end = self._end, len(self._tokens)
        return self._certain(text)

    def finish(self) -> str:
        """Return the text that is left at the end."""
        text = self._certain(self._undelivered())
        rest, self._held = self._held, ""
        return text if self.is_stopped else text + rest

    def _undelivered(self) -> str:
        before = self._tokenizer.decode(self._tokens[self._first : self._end])
        return self._tokenizer.decode(self._tokens[self._first :])[len(before) :]

    def _certain(self, text: str) -> str:
        if self.is_stopped:
            return ""
        text = self._held + text
        starts = {word: text.find(word) for word in self._stop}
        spans = [(start + len(word), start) for word, start in starts.items() if start >= 0]
        if spans:
            self.is_stopped, self._held = True, ""
            return text[: min(spans)[1]]
        end = len(text) - max((_overlap(text, word) for word in self._stop), default=0)
        self._held = text[end:]
        return text[:end]


def _overlap(text: str, word: str) -> int:
    """Return the length of the longest end of `text` with which `word` begins.

    >>> _overlap("say st", "stop"), _overlap("say", "stop")
    (2, 0)
    """
    lengths = range(min(len(text), len(word) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(word[:n])), 0)


@dataclass(frozen=True)
class Piece:
    """Part of the answer number `index`: its text, and the tokens since the last piece."""

    index: int
    text: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class AnswerEnd:
    """End of the answer number `index`; `tokens`: number of generated tokens."""

    index: int
    reason: str
    tokens: int
    error: RequestError | None = None


class TextListener:
    """Listener that passes an answer on as text, through the function `put`."""

    def __init__(
        self, text: TextStream, put: Callable[[Piece | AnswerEnd], object], index: int = 0
    ) -> None:
        self._text, self._put, self._index = text, put, index
        self._tokens: list[Token] = []
        self._count = 0

    def on_token(self, token: Token) -> bool:
        """Pass the text of a token on; return True at a stop word."""
        self._count += 1
        if not token.is_end:
            self._tokens.append(token)
            self._pass(self._text.add(token.id))
        return self._text.is_stopped

    def on_end(self, reason: str, error: RequestError | None = None) -> None:
        """Pass the remaining text and the end on."""
        self._pass(self._text.finish(), is_last=True)
        self._put(AnswerEnd(self._index, reason, self._count, error))

    def _pass(self, text: str, *, is_last: bool = False) -> None:
        if text or (is_last and self._tokens):
            self._put(Piece(self._index, text, tuple(self._tokens)))
            self._tokens = []
