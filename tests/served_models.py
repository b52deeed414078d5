"""A small language model behind a real server on a socket, for tests of `chop.serve`."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from chop import MaseGraph
from chop.serve.answer_text import TextTokenizer
from chop.serve.batch_engine import BatchEngine, EngineLimits

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('a system message comes first') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
)
NAME = "tiny"
LONG = 400
"""Tokens of prompt and answer of the model."""


@functools.cache
def tokenizer() -> Any:
    """Return a tokenizer of bytes, so that every text has tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: i for i, text in enumerate(["<|end|>", *letters, "th", "in"])}
    rules = Tokenizer(models.BPE(vocab, [("t", "h"), ("i", "n")]))
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = decoders.ByteLevel()
    options = {"eos_token": "<|end|>", "chat_template": TEMPLATE}
    return PreTrainedTokenizerFast(tokenizer_object=rules, **options)


@functools.cache
def language_model() -> MaseGraph:
    """Return a model with random weights whose answers vary; it is not to be changed."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer()), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LONG,
        bos_token_id=None, eos_token_id=0, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return MaseGraph(model, cache=True)


def offline(prompt: list[int] | tuple[int, ...], new: int) -> list[int]:
    """Return the greedy tokens of `generate` for a prompt alone."""
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": new, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    return language_model().generate(ids, **options)[0, len(prompt) :].tolist()


def offline_text(text: str, new: int, *, is_chat: bool = False) -> str:
    """Return the greedy text that follows a text or a message."""
    words = TextTokenizer(tokenizer())
    prompt = (
        words.encode_chat([{"role": "user", "content": text}]) if is_chat else words.encode(text)
    )
    return words.decode([token for token in offline(prompt, new) if token != 0])


@dataclass
class Client:
    """Requests to a running server, by Python's own HTTP client."""

    port: int
    engine: BatchEngine
    program: Any
    key: str | None = None

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def send(
        self, path: str, content: bytes | None = None, method: str = "", **headers: str
    ) -> Any:
        """Send a request; return the answer, read."""
        kinds = {"Content-Type": "application/json"} if content is not None else {}
        key = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(self.connect()) as connection:
            method = method or ("GET" if content is None else "POST")
            connection.request(method, path, content, {**kinds, **key, **named})
            answer = connection.getresponse()
            answer.text = answer.read().decode()
            return answer

    def post(self, path: str, **body: Any) -> tuple[int, Any]:
        """Send a JSON body; return the status and the JSON answer."""
        answer = self.send(path, json.dumps(body).encode())
        return answer.status, json.loads(answer.text)

    def stream(self, path: str, **body: Any) -> list[Any]:
        """Return the events of a streamed answer, without the last mark, which must be there."""
        answer = self.send(path, json.dumps({"stream": True, **body}).encode())
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
        *events, done, nothing = answer.text.split("\n\n")
        assert (done, nothing) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def wait_until(self, is_true: Any, seconds: float = 60) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + seconds
        while not is_true():
            assert time.monotonic() < end, "the condition did not come true"
            time.sleep(0.01)


@contextlib.contextmanager
def running(
    limits: EngineLimits | None = None,
    key: str | None = None,
    patience_s: float = 5,
    **options: Any,
) -> Iterator[Client]:
    """Run a server of the model in a thread, on a free port."""
    from chop.serve.http_server import HttpServer, bind, make_server
    from chop.serve.openai_requests import ServedModel

    engine = BatchEngine(language_model(), limits)
    served = ServedModel(NAME, engine, TextTokenizer(tokenizer()), **options)
    program = make_server(HttpServer(served, key), patience_s=patience_s)
    listening = bind("127.0.0.1", 0)
    thread = threading.Thread(target=program.run, kwargs={"sockets": [listening]})
    thread.start()
    client = Client(listening.getsockname()[1], engine, program, key)
    try:
        client.wait_until(lambda: program.started)
        yield client
    finally:
        program.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"
