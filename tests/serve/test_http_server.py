"""The OpenAI-compatible server, over a real socket."""

from __future__ import annotations

import concurrent.futures
import json
import random
import re

import pytest

pytest.importorskip("starlette", reason="needs the extra 'serve': pip install 'masegraph[serve]'")
pytest.importorskip("uvicorn", reason="needs the extra 'serve': pip install 'masegraph[serve]'")

from malformed_bodies import BASE, CHAT, HELLO, TEXT, WRONG_BODIES, WRONG_FIELDS, mutated
from served_models import NAME, offline, offline_text, running, tokenizer

from chop.errors import ConfigError
from chop.serve.answer_text import TextTokenizer
from chop.serve.batch_engine import EngineLimits
from chop.serve.http_server import MAX_BODY, bind

GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def client():
    with running(EngineLimits(max_batch=4), max_tokens=390) as made:
        yield made


def text_of(events, index=0):
    choices = [c for event in events for c in event["choices"] if c["index"] == index]
    return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)


# -- answers ---------------------------------------------------------------------------------------


def test_concurrent_answers_equal_the_offline_ones(client):
    draw = random.Random(0)
    texts = ["".join(draw.choices("abc xyz", k=draw.randrange(1, 30))) for _ in range(16)]

    def ask(text):
        new = 1 + len(text)
        if len(text) % 2:
            return client.post(TEXT, prompt=text, max_tokens=new, **GREEDY)[1]["choices"][0]["text"]
        messages = [{"role": "user", "content": text}]
        return text_of(client.stream(CHAT, messages=messages, max_tokens=new, **GREEDY))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, texts))
    assert answers == [offline_text(t, 1 + len(t), is_chat=len(t) % 2 == 0) for t in texts]


def test_a_chat_has_the_shape_of_the_api(client):
    status, body = client.post(CHAT, messages=HELLO, max_tokens=5, model=NAME, **GREEDY)
    (choice,) = body["choices"]
    assert status == 200 and body["object"] == "chat.completion" and body["model"] == NAME
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] == "length"
    prompt = len(TextTokenizer(tokenizer()).encode_chat(HELLO))
    counts = {"prompt_tokens": prompt, "completion_tokens": 5, "total_tokens": prompt + 5}
    assert body["usage"] == counts
    events = client.stream(
        CHAT, messages=HELLO, max_tokens=5, stream_options={"include_usage": True}, **GREEDY
    )
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(events) == choice["message"]["content"]
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["choices"] == [] and events[-1]["usage"] == counts


def test_parts_of_text_and_a_developer_are_read_as_a_chat(client):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    plain = [{"role": "system", "content": "be brief"}, *HELLO]
    other = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    answers = [client.post(CHAT, messages=m, max_tokens=5, **GREEDY)[1] for m in (plain, other)]
    assert answers[0]["choices"] == answers[1]["choices"]


def test_several_prompts_and_answers_come_in_order(client):
    body = {"prompt": ["ab", "xyz"], "n": 2, "max_tokens": 6, **GREEDY}
    _, whole = client.post(TEXT, **body)
    expected = [offline_text(text, 6) for text in ("ab", "ab", "xyz", "xyz")]
    assert [choice["text"] for choice in whole["choices"]] == expected
    events = client.stream(TEXT, **body)
    assert [text_of(events, i) for i in range(4)] == expected
    tokens = [list(TextTokenizer(tokenizer()).encode(text)) for text in ("ab", "xyz")]
    _, again = client.post(TEXT, **{**body, "prompt": tokens})
    assert again["choices"] == whole["choices"]


def test_a_stop_word_ends_the_answer_before_it(client):
    whole = offline_text("hello", 60)
    word = whole[20:23]
    first = whole.index(word)  # the word may be at an earlier place, too
    for stop in (word, ["not there", word]):
        _, body = client.post(TEXT, prompt="hello", max_tokens=60, stop=stop, **GREEDY)
        choice = body["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (whole[:first], "stop")
        assert body["usage"]["completion_tokens"] < 60
        events = client.stream(TEXT, prompt="hello", max_tokens=60, stop=stop, **GREEDY)
        assert text_of(events) == whole[:first]


def test_a_seed_repeats_a_drawn_answer(client):
    body = {"prompt": "hello", "max_tokens": 20, "temperature": 1.5, "seed": 3}
    texts = {client.post(TEXT, **body)[1]["choices"][0]["text"] for _ in range(3)}
    other = client.post(TEXT, **{**body, "seed": 4})[1]["choices"][0]["text"]
    assert len(texts) == 1 and other not in texts


def test_logprobs_come_with_their_tokens(client):
    body = {"messages": HELLO, "max_tokens": 4, "logprobs": True, "top_logprobs": 2, **GREEDY}
    content = client.post(CHAT, **body)[1]["choices"][0]["logprobs"]["content"]
    assert len(content) == 4
    for token in content:
        assert token["logprob"] < 0 and len(token["top_logprobs"]) == 2
        assert token["top_logprobs"][0]["logprob"] == token["logprob"]
    pieces = [e["choices"][0]["logprobs"] for e in client.stream(CHAT, **body)]
    assert [t for piece in pieces if piece for t in piece["content"]] == content
    _, text = client.post(TEXT, prompt="hello", max_tokens=4, logprobs=2, **GREEDY)
    logprobs = text["choices"][0]["logprobs"]
    assert {key: len(value) for key, value in logprobs.items()} == dict.fromkeys(
        ("tokens", "token_logprobs", "top_logprobs", "text_offset"), 4
    )


def test_an_answer_without_a_limit_ends_at_the_longest_length():
    with running(EngineLimits(max_length=30), max_tokens=390) as short:
        _, body = short.post(CHAT, messages=[{"role": "user", "content": "x"}], **GREEDY)
        assert body["usage"]["total_tokens"] == 30
        _, body = short.post(TEXT, prompt="x", **GREEDY)
        assert body["usage"]["completion_tokens"] == 16
        for body in ({"prompt": "x" * 30}, {"prompt": "x" * 20, "max_tokens": 11}):
            status, answer = short.post(TEXT, **body)
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "field", "value", "message"), WRONG_FIELDS)
def test_a_wrong_field_is_refused_with_its_name(client, path, field, value, message):
    status, body = client.post(path, **{**BASE[path], field: value})
    assert status == 400 and message in body["error"]["message"]
    assert body["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize("content", WRONG_BODIES, ids=lambda content: repr(content[:12]))
def test_a_wrong_body_is_refused(client, content):
    answer = client.send(TEXT, content)
    assert answer.status == 400
    assert WRONG_BODIES[content] in json.loads(answer.text)["error"]["message"]


def test_other_requests_are_refused(client):
    cases = [
        (client.send("/v1/nothing"), 404, "no path '/v1/nothing'. Allowed: /v1/chat"),
        (client.send(TEXT), 405, "no method GET. Allowed: POST"),
        (client.send("/v1/models/other"), 404, "no 'other' here. Allowed: 'tiny'"),
        (client.send(TEXT, b"{}", Content_Type="text/plain"), 415, "got 'text/plain'. Allowed"),
        (client.send(TEXT, b" " * (MAX_BODY + 1)), 413, "the body is too long. Allowed: 1048576"),
        (client.send(TEXT, b'{"prompt": "x", "model": "gpt"}'), 404, "no 'gpt' here"),
    ]
    for answer, status, message in cases:
        assert answer.status == status and message in json.loads(answer.text)["error"]["message"]


def test_bodies_broken_at_random_get_an_answer(client):
    draw = random.Random(1)
    for _ in range(50):
        path, content = mutated(draw)
        answer = client.send(path, content)
        assert answer.status in (200, 400, 404), (path, content, answer.text)
        assert ("error" in json.loads(answer.text)) == (answer.status != 200)
    assert client.engine.error is None


def test_a_key_is_asked_for():
    with running(key="secret") as guarded:
        assert guarded.send("/v1/models").status == 200
        guarded.key = None
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secre"}):
            answer = guarded.send("/v1/models", **headers)
            assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"
            assert json.loads(answer.text)["error"]["code"] == "invalid_api_key"
        assert guarded.send("/metrics").status == 401
        assert guarded.send("/health").status == guarded.send("/").status == 200


def test_a_taken_port_is_named():
    listening = bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1, port {port}: .*--port"):
        bind("127.0.0.1", port)
    listening.close()
    with pytest.raises(ConfigError, match=r"cannot listen at 127.0.0.1, port 99999"):
        bind("127.0.0.1", 99999)


# -- load and life ---------------------------------------------------------------------------------


def slow(client, **more):
    """Start a long answer, and return its connection when the answer runs or waits."""
    before = client.engine.running + client.engine.waiting
    connection = client.connect()
    body = {"prompt": "hello", "max_tokens": 390, **GREEDY, **more}
    connection.request("POST", TEXT, json.dumps(body), {"Content-Type": "application/json"})
    client.wait_until(lambda: client.engine.running + client.engine.waiting > before)
    return connection


def pause(client, monkeypatch, seconds):
    """Make every step of the engine last longer, so that answers are seen while they run."""
    import time

    step = client.engine.step
    monkeypatch.setattr(client.engine, "step", lambda: (time.sleep(seconds), step())[1])


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(client, monkeypatch, stream):
    pause(client, monkeypatch, 0.02)
    connection = slow(client, stream=stream)
    client.wait_until(lambda: client.engine.running)
    connection.close()
    client.wait_until(lambda: not client.engine.running)
    assert client.engine.metrics.answers.value(reason="cancelled") > 0
    _, body = client.post(TEXT, prompt="hello", max_tokens=4, **GREEDY)
    assert body["choices"][0]["text"] == offline_text("hello", 4)


def test_a_full_queue_is_answered_429(monkeypatch):
    with running(EngineLimits(max_batch=1, max_queue=1), max_tokens=390) as small:
        pause(small, monkeypatch, 0.02)
        connections = [slow(small), slow(small)]
        answer = small.send(TEXT, b'{"prompt": "hello"}')
        assert answer.status == 429 and answer.headers["retry-after"] == "1"
        assert json.loads(answer.text)["error"]["code"] == "queue_full"
        for connection in connections:
            connection.close()
        small.wait_until(lambda: not small.engine.running + small.engine.waiting)
        assert small.post(TEXT, prompt="hello", max_tokens=2)[0] == 200


def test_a_stop_lets_answers_end(monkeypatch):
    with running(max_tokens=390) as stopping:
        pause(stopping, monkeypatch, 0.02)
        connection = slow(stopping, max_tokens=50)
        stopping.program.should_exit = True
        body = json.loads(connection.getresponse().read())
        assert body["choices"][0]["text"] == offline_text("hello", 50)


def test_a_stop_ends_answers_that_last_too_long(monkeypatch):
    with running(max_tokens=390, patience_s=1) as stopping:
        pause(stopping, monkeypatch, 0.02)
        whole, streamed = slow(stopping), slow(stopping, stream=True)
        stopping.program.should_exit = True
        answer = whole.getresponse()
        assert (answer.status, json.loads(answer.read())["error"]["code"]) == (503, "stopped")
        last = streamed.getresponse().read().decode().split("\n\n")[-2]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "stopped"


def test_a_failed_engine_is_reported(monkeypatch):
    with running() as failing:
        assert json.loads(failing.send("/health").text) == {"status": "ok"}
        monkeypatch.setattr(failing.engine, "_logits", lambda *_: 1 / 0)
        status, body = failing.post(TEXT, prompt="hello")
        assert status == 500 and "the engine failed: ZeroDivisionError" in body["error"]["message"]
        answer = failing.send("/health")
        assert (answer.status, json.loads(answer.text)) == (503, {"status": "failed"})
        assert failing.post(TEXT, prompt="hello")[0] == 503


def test_metrics_are_in_the_format_of_prometheus(client):
    client.post(TEXT, prompt="hello", max_tokens=2)
    answer = client.send("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    sample = re.compile(r'mase_[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [0-9.e+-]+')
    lines = [line for line in answer.text.splitlines() if not line.startswith("# ")]
    assert [line for line in lines if not sample.fullmatch(line)] == []
    assert 'mase_requests_total{path="/v1/completions",status="200"}' in answer.text
    names = {line.split("{")[0].split(" ")[0] for line in lines}
    assert {"mase_running", "mase_waiting", "mase_cached_tokens"} <= names
    buckets = re.findall(r"mase_batch_size_bucket\{[^}]*\} (\d+)", answer.text)
    assert sorted(buckets, key=int) == buckets


def test_tokens_of_a_prompt_are_taken_as_they_are(client):
    prompt = [5, 6, 7, 8]
    _, body = client.post(TEXT, prompt=prompt, max_tokens=5, **GREEDY)
    words = TextTokenizer(tokenizer())
    assert body["choices"][0]["text"] == words.decode(offline(prompt, 5))
    assert body["usage"]["prompt_tokens"] == 4
