"""Bodies of requests to `/v1/completions` and `/v1/chat/completions`, checked.

To support another field, add a row to `FIELDS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from chop.registry import suggest
from chop.serve.answer_text import TextTokenizer
from chop.serve.batch_engine import BatchEngine
from chop.serve.request_errors import ContextLengthError, RequestError, UnknownModelError
from chop.serve.sampling import Sampling

MAX_ANSWERS = 32
"""Largest number of answers of one request: prompts times `n`."""
MAX_STOPS = 4
DEFAULT_MAX_TOKENS = 16
"""Tokens of a completion without `max_tokens`, as in OpenAI's API."""
ROLES = ("system", "developer", "user", "assistant")
Check = Callable[[str, Any], Any]


def _refuse(name: str, value: Any, allowed: str) -> NoReturn:
    shown = json.dumps(value)
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    raise RequestError(f"{name}: got {shown}. Allowed: {allowed}.", name)


def _whole(low: int, high: int) -> Check:
    def check(name: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            _refuse(name, value, f"a whole number from {low} to {high}")
        return value

    return check


def _number(low: float, high: float) -> Check:
    def check(name: str, value: Any) -> float:
        if type(value) not in (int, float) or not low <= value <= high:
            _refuse(name, value, f"a number from {low:g} to {high:g}")
        return float(value)

    return check


def _flag(name: str, value: Any) -> bool:
    if type(value) is not bool:
        _refuse(name, value, "true or false")
    return bool(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        _refuse(name, value, "a text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RequestError(f"{name}: half of a surrogate pair is no character.", name) from None
    return value


def _stops(name: str, value: Any) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or len(words) > MAX_STOPS or "" in words:
        _refuse(name, value, f"a text, or up to {MAX_STOPS} texts, none of them empty")
    return tuple(_text(name, word) for word in words)


def _stream_options(name: str, value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() - {"include_usage", "include_obfuscation"}:
        _refuse(name, value, '{"include_usage": true}')
    return _flag(f"{name}.include_usage", value.get("include_usage", False))


def _any(name: str, value: Any) -> Any:
    return value


def _only(*neutral: Any) -> Check:
    """Return a check for a field that is not supported: only values without effect pass."""

    def check(name: str, value: Any) -> None:
        if value not in neutral:
            shown = ", ".join(json.dumps(each) for each in neutral)
            raise RequestError(f"{name}: not supported. Allowed: {shown}, or no {name}.", name)

    return check


SHARED: dict[str, Check] = {
    "model": _text,
    "max_tokens": _whole(1, 2**31),
    "temperature": _number(0, 2),
    "top_p": _number(1e-6, 1),
    "n": _whole(1, MAX_ANSWERS),
    "seed": _whole(-(2**63), 2**63 - 1),
    "stop": _stops,
    "stream": _flag,
    "stream_options": _stream_options,
    "user": _any,
    "frequency_penalty": _only(0),
    "presence_penalty": _only(0),
    "logit_bias": _only({}),
}
FIELDS: dict[bool, dict[str, Check]] = {
    False: SHARED | {
        "prompt": _any,
        "logprobs": _whole(0, 5),
        "best_of": _only(1),
        "echo": _only(False),
        "suffix": _only(""),
    },
    True: SHARED | {
        "messages": _any,
        "max_completion_tokens": _whole(1, 2**31),
        "logprobs": _flag,
        "top_logprobs": _whole(0, 20),
        "tools": _only([]),
        "tool_choice": _only("none", "auto"),
        "functions": _only([]),
        "function_call": _only("none", "auto"),
        "response_format": _only({"type": "text"}),
        "modalities": _only(["text"]),
        "parallel_tool_calls": _any,
        "service_tier": _any,
        "reasoning_effort": _any,
        "safety_identifier": _any,
        "prompt_cache_key": _any,
        "metadata": _any,
        "store": _any,
    },
}  # fmt: skip
"""Fields of a completion (False) and of a chat (True) -> their check; null means no field."""


@dataclass(frozen=True)
class ServedModel:
    """Model and settings that requests are checked against.

    `max_tokens`: largest answer. `temperature`: used if a request has none.
    """

    name: str
    engine: BatchEngine
    tokenizer: TextTokenizer
    max_tokens: int = 1024
    temperature: float = 1.0


@dataclass(frozen=True)
class AnswerRequest:
    """Checked request: tokens of its prompts, and how to answer each `count` times."""

    is_chat: bool
    prompts: tuple[tuple[int, ...], ...]
    samplings: tuple[Sampling, ...]
    stop: tuple[str, ...] = ()
    count: int = 1
    is_streamed: bool = False
    reports_usage: bool = False


def read_body(content: bytes) -> dict[str, Any]:
    """Return the JSON object of a body."""

    def refuse(name: str) -> NoReturn:
        raise RequestError(f"the body has {name}, which is no number of JSON.")

    try:
        body = json.loads(content, parse_constant=refuse)
    except RequestError:
        raise
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError(f"the body is no JSON: {reason}.") from None
    if not isinstance(body, dict):
        raise RequestError(f"the body is a JSON {type(body).__name__}. Allowed: an object.")
    return body


def read_request(body: Mapping[str, Any], served: ServedModel, *, is_chat: bool) -> AnswerRequest:
    """Return the checked request of a body."""
    values = _checked(body, FIELDS[is_chat])
    if values.get("model", served.name) != served.name:
        raise UnknownModelError(
            f"model: no '{values['model']}' here. Allowed: '{served.name}'.", "model"
        )
    prompts = _chat_prompts(body, served) if is_chat else _prompts(body, served)
    count = values.get("n", 1)
    if len(prompts) * count > MAX_ANSWERS:
        raise RequestError(
            f"the request asks for {len(prompts) * count} answers. Allowed: {MAX_ANSWERS}.", "n"
        )
    return AnswerRequest(
        is_chat,
        prompts,
        tuple(_sampling(values, prompt, served, is_chat=is_chat) for prompt in prompts),
        values.get("stop", ()),
        count,
        values.get("stream", False),
        values.get("stream_options", False),
    )


def _checked(body: Mapping[str, Any], fields: Mapping[str, Check]) -> dict[str, Any]:
    values = {}
    for name, value in body.items():
        if name not in fields:
            raise RequestError(f"unknown field '{name[:60]}'. {suggest(name, fields)}", name[:60])
        if value is not None:
            values[name] = fields[name](name, value)
    return values


def _sampling(
    values: Mapping[str, Any], prompt: Sequence[int], served: ServedModel, *, is_chat: bool
) -> Sampling:
    room = served.engine.max_length - len(prompt)
    if room < 1:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens. Allowed with an answer of one token: "
            f"{served.engine.max_length - 1}."
        )
    most = values.get("max_completion_tokens", values.get("max_tokens"))
    if most is not None and most > served.max_tokens:
        _refuse("max_tokens", most, f"at most {served.max_tokens}")
    default = served.max_tokens if is_chat else min(DEFAULT_MAX_TOKENS, served.max_tokens)
    return Sampling(
        max_tokens=min(default, room) if most is None else most,
        temperature=values.get("temperature", served.temperature),
        top_p=values.get("top_p", 1.0),
        seed=values.get("seed"),
        logprobs=_alternatives(values) if is_chat else values.get("logprobs"),
    )


def _alternatives(values: Mapping[str, Any]) -> int | None:
    """Return the number of alternatives that a chat asks for, None without logprobs."""
    if "top_logprobs" in values and not values.get("logprobs"):
        raise RequestError("top_logprobs: it needs logprobs: true.", "top_logprobs")
    return values.get("top_logprobs", 0) if values.get("logprobs") else None


def _prompts(body: Mapping[str, Any], served: ServedModel) -> tuple[tuple[int, ...], ...]:
    value = body.get("prompt")
    allowed = "a text, a list of texts, a list of tokens or a list of such lists"
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not value:
        _refuse("prompt", value, allowed)
    if all(type(each) is int for each in value):
        value = [value]
    if len(value) > MAX_ANSWERS:
        raise RequestError(f"prompt: {len(value)} prompts. Allowed: {MAX_ANSWERS}.", "prompt")
    prompts = []
    for each in value:
        if isinstance(each, str):
            prompts.append(served.tokenizer.encode(_text("prompt", each)))
        elif isinstance(each, list) and all(type(token) is int for token in each):
            prompts.append(tuple(each))
        else:
            _refuse("prompt", each, allowed)
    return tuple(prompts)


def _chat_prompts(body: Mapping[str, Any], served: ServedModel) -> tuple[tuple[int, ...], ...]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        _refuse("messages", messages, "a list of at least one message")
    checked = [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    return (served.tokenizer.encode_chat(checked),)


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        _refuse(where, message, 'an object such as {"role": "user", "content": "Hello"}')
    role = message.get("role")
    if role not in ROLES:
        _refuse(f"{where}.role", role, ", ".join(ROLES))
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    text = _text(f"{where}.content", content)
    return {"role": "system" if role == "developer" else role, "content": text}


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        _refuse(where, part, '{"type": "text", "text": "Hello"}')
    return _text(f"{where}.text", part.get("text"))
