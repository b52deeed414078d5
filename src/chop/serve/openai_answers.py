"""Bodies of answers of `/v1/completions` and `/v1/chat/completions`, whole or in chunks."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from chop.serve.answer_text import AnswerEnd, Piece, TextTokenizer
from chop.serve.openai_requests import AnswerRequest
from chop.serve.sampling import Token

LEAST = -9999.0
"""Log-probability of a token that cannot occur: JSON has no infinity."""


@dataclass
class AnswerWriter:
    """Writer of the answers to one request, with its id and time."""

    request: AnswerRequest
    model: str
    tokenizer: TextTokenizer
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))
    completion_tokens: int = 0

    def head(self, kind: str) -> dict[str, Any]:
        """Return the fields that every body has; `kind` is "" or ".chunk"."""
        is_chat = self.request.is_chat
        name = f"chat.completion{kind}" if is_chat else "text_completion"
        prefix = "chatcmpl" if is_chat else "cmpl"
        fields = {"object": name, "created": self.created, "model": self.model}
        return {"id": f"{prefix}-{self.id}", **fields}

    def usage(self) -> dict[str, int]:
        """Return the number of tokens of prompts and answers."""
        prompt = sum(map(len, self.request.prompts))
        total = prompt + self.completion_tokens
        counts = {"prompt_tokens": prompt, "completion_tokens": self.completion_tokens}
        return {**counts, "total_tokens": total}

    def whole(self, events: Iterable[Piece | AnswerEnd]) -> dict[str, Any]:
        """Return the body with all answers."""
        events = list(events)
        ends = sorted((e for e in events if isinstance(e, AnswerEnd)), key=lambda end: end.index)
        self.completion_tokens = sum(end.tokens for end in ends)
        choices = []
        for end in ends:
            pieces = [e for e in events if isinstance(e, Piece) and e.index == end.index]
            text = "".join(piece.text for piece in pieces)
            tokens = [token for piece in pieces for token in piece.tokens]
            choices.append(self._choice(end.index, text, tokens, end.reason))
        return {**self.head(""), "choices": choices, "usage": self.usage()}

    def first_chunks(self) -> list[dict[str, Any]]:
        """Return the chunks before any text: a chat names the role of each answer."""
        if not self.request.is_chat:
            return []
        count = len(self.request.prompts) * self.request.count
        role = {"role": "assistant", "content": ""}
        return [self._chunk({"index": i, "delta": role}) for i in range(count)]

    def chunk(self, event: Piece | AnswerEnd) -> dict[str, Any]:
        """Return the chunk of a piece or of an end."""
        if isinstance(event, AnswerEnd):
            self.completion_tokens += event.tokens
            own: dict[str, Any] = {"delta": {}} if self.request.is_chat else {"text": ""}
            return self._chunk({"index": event.index, **own, "finish_reason": event.reason})
        logprobs = self._logprobs(event.tokens)
        own = {"delta": {"content": event.text}} if self.request.is_chat else {"text": event.text}
        return self._chunk({"index": event.index, **own, "logprobs": logprobs})

    def usage_chunk(self) -> dict[str, Any]:
        """Return the last chunk: no answer, the numbers of tokens."""
        return {**self.head(".chunk"), "choices": [], "usage": self.usage()}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        whole = {"logprobs": None, "finish_reason": None, **choice}
        return {**self.head(".chunk"), "choices": [whole]}

    def _choice(
        self, index: int, text: str, tokens: Sequence[Token], reason: str
    ) -> dict[str, Any]:
        own: dict[str, Any] = {"text": text}
        if self.request.is_chat:
            own = {"message": {"role": "assistant", "content": text, "refusal": None}}
        end = {"logprobs": self._logprobs(tokens), "finish_reason": reason}
        return {"index": index, **own, **end}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if self.request.samplings[0].logprobs is None:
            return None
        if self.request.is_chat:
            return {"content": [self._token_of_chat(token) for token in tokens], "refusal": None}
        texts = [self._text(token.id) for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [
                {self._text(i): _finite(value) for i, value in token.alternatives}
                for token in tokens
            ],
            "text_offset": [0, *itertools.accumulate(map(len, texts[:-1]))] if texts else [],
        }

    def _token_of_chat(self, token: Token) -> dict[str, Any]:
        top = [self._entry(i, value) for i, value in token.alternatives]
        return {**self._entry(token.id, token.logprob), "top_logprobs": top}

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        text = self._text(token)
        return {"token": text, "logprob": _finite(logprob), "bytes": list(text.encode())}

    def _text(self, token: int) -> str:
        return self.tokenizer.decode([token], is_plain=False)


def _finite(value: float | None) -> float:
    return LEAST if value is None else max(value, LEAST)
