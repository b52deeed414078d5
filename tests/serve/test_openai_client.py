"""The server as OpenAI's own Python client uses it; the client is no dependency."""

from __future__ import annotations

import pytest
from served_models import NAME, offline_text, running

openai = pytest.importorskip("openai", reason="needs OpenAI's client: pip install openai")
pytest.importorskip("starlette", reason="needs the extra 'serve': pip install 'masegraph[serve]'")

HELLO = [{"role": "user", "content": "hello"}]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client():
    with running(key="secret", max_tokens=390) as server:
        base = f"http://127.0.0.1:{server.port}/v1"
        yield openai.OpenAI(base_url=base, api_key="secret", max_retries=0)


def test_chats_and_texts_are_answered(client):
    chat = client.chat.completions.create(
        model=NAME, messages=HELLO, max_tokens=10, temperature=0, logprobs=True, top_logprobs=2
    )
    expected = offline_text("hello", 10, is_chat=True)
    assert chat.choices[0].message.content == expected
    assert chat.choices[0].finish_reason == "length" and chat.usage.completion_tokens == 10
    assert len(chat.choices[0].logprobs.content) == 10
    text = client.completions.create(model=NAME, prompt="hello", max_tokens=10, temperature=0)
    assert text.choices[0].text == offline_text("hello", 10)


def test_streams_are_read(client):
    options = {"model": NAME, "messages": HELLO, "max_tokens": 10, "temperature": 0, "stream": True}
    chunks = list(client.chat.completions.create(**options, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == offline_text("hello", 10, is_chat=True)
    assert chunks[-1].usage.completion_tokens == 10
    with client.chat.completions.create(**options) as stream:
        next(iter(stream))  # and leave


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME


def test_errors_are_those_of_the_client(client):
    with pytest.raises(openai.BadRequestError, match="temperature: got 3"):
        client.completions.create(model=NAME, prompt="hello", temperature=3)
    with pytest.raises(openai.NotFoundError, match="no 'gpt' here"):
        client.completions.create(model="gpt", prompt="hello")
    with pytest.raises(openai.AuthenticationError, match="wrong API key"):
        client.with_options(api_key="other").models.list()
