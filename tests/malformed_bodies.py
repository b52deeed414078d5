"""Bodies of requests that a server must reject with a 4xx: by hand, and mutated at random."""

from __future__ import annotations

import json
import random
from typing import Any

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
BASE: dict[str, dict[str, Any]] = {CHAT: {"messages": HELLO}, TEXT: {"prompt": "hello"}}
WRONG_FIELDS: list[tuple[str, str, Any, str]] = [
    (CHAT, "messages", [], "messages: got []. Allowed: a list of at least one message"),
    (CHAT, "messages", "hi", "messages: got"),
    (CHAT, "messages", [5], "messages[0]: got 5. Allowed: an object such as"),
    (CHAT, "messages", [{"role": "cook", "content": "x"}], 'messages[0].role: got "cook"'),
    (CHAT, "messages", [{"role": "user"}], "messages[0].content: got null. Allowed: a text"),
    (CHAT, "messages", [{"role": "user", "content": [{"type": "image_url"}]}], "content[0]: got"),
    (
        CHAT,
        "messages",
        [*HELLO, {"role": "system", "content": "x"}],
        "a system message comes first",
    ),
    (CHAT, "tools", [{"type": "function"}], "tools: not supported. Allowed: [], or no tools"),
    (CHAT, "top_logprobs", 3, "top_logprobs: it needs logprobs: true"),
    (CHAT, "logprobs", 3, "logprobs: got 3. Allowed: true or false"),
    (CHAT, "response_format", {"type": "json_object"}, "response_format: not supported"),
    (TEXT, "prompt", None, "prompt: got null. Allowed: a text"),
    (TEXT, "prompt", [], "prompt: got []"),
    (TEXT, "prompt", [[5, "x"]], "prompt: got"),
    (TEXT, "prompt", [10**6], "the prompt has token 1000000. Allowed: 0 to 258"),
    (TEXT, "prompt", "", "the prompt has no tokens"),
    (TEXT, "prompt", ["x"] * 33, "prompt: 33 prompts. Allowed: 32"),
    (TEXT, "prompt", "\ud800", "prompt: half of a surrogate pair"),
    (TEXT, "logprobs", 6, "logprobs: got 6. Allowed: a whole number from 0 to 5"),
    (TEXT, "echo", True, "echo: not supported"),
    (TEXT, "n", 33, "n: got 33. Allowed: a whole number from 1 to 32"),
    (TEXT, "max_tokens", 0, "max_tokens: got 0"),
    (TEXT, "max_tokens", True, "max_tokens: got true"),
    (TEXT, "max_tokens", 399, "max_tokens: got 399. Allowed: at most 390"),
    (TEXT, "temperature", 2.1, "temperature: got 2.1. Allowed: a number from 0 to 2"),
    (TEXT, "temperature", "hot", 'temperature: got "hot"'),
    (TEXT, "top_p", 0, "top_p: got 0"),
    (TEXT, "seed", 2**63, "seed: got 9223372036854775808"),
    (TEXT, "stop", [""], "stop: got"),
    (TEXT, "stop", ["a"] * 5, "up to 4 texts"),
    (TEXT, "stop", [5], "stop: got 5. Allowed: a text"),
    (TEXT, "stream", 1, "stream: got 1. Allowed: true or false"),
    (TEXT, "stream_options", {"x": 1}, "stream_options: got"),
    (TEXT, "frequency_penalty", 1, "frequency_penalty: not supported. Allowed: 0"),
    (TEXT, "temprature", 1, "unknown field 'temprature'. Did you mean 'temperature'?"),
]
"""Path, field, wrong value -> part of the message."""
WRONG_BODIES: dict[bytes, str] = {
    b"": "the body is no JSON",
    b"{": "the body is no JSON",
    b"[]": "the body is a JSON list. Allowed: an object",
    b"null": "the body is a JSON NoneType",
    b'{"prompt": NaN}': "the body has NaN, which is no number of JSON",
    b'{"prompt": "\xff"}': "the body is no JSON",
    b"[" * 100_000: "the body is no JSON: nested too deeply",
    b"1" * 5000: "the body is no JSON",
}
"""Body -> part of the message."""
ODD = (None, True, -1, 2**70, 1e308, "", "\x00", [], {}, [[]], [None], {"a": {"b": []}}, "x" * 5000)


def mutated(draw: random.Random) -> tuple[str, bytes]:
    """Return a path and a body that is broken at random; some remain sound by chance."""
    path = draw.choice([CHAT, TEXT])
    body = {**BASE[path], "max_tokens": 1}
    kind = draw.randrange(4)
    if kind == 0:
        body[draw.choice(["stop", "n", "seed", "logprobs", "prompt", "messages", "", "x"])] = (
            draw.choice(ODD)
        )
    if kind == 1:
        body = dict.fromkeys(body, draw.choice(ODD))
    content = bytearray(json.dumps(body).encode())
    if kind == 2:
        del content[draw.randrange(len(content)) :]
    if kind == 3:
        for _ in range(draw.randrange(1, 6)):
            content[draw.randrange(len(content))] = draw.randrange(256)
    return path, bytes(content)
