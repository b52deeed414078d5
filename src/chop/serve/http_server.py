"""OpenAI-compatible HTTP server of one model: starlette's routes, run by uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import importlib.resources
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from chop.errors import ConfigError
from chop.serve.answer_text import AnswerEnd, Piece, TextListener, TextStream
from chop.serve.batch_engine import BatchEngine
from chop.serve.jobs import CANCELLED, Job
from chop.serve.openai_answers import AnswerWriter
from chop.serve.openai_requests import AnswerRequest, ServedModel, read_body, read_request
from chop.serve.request_errors import (
    AccessError,
    BodySizeError,
    GenerationError,
    MediaTypeError,
    MethodError,
    QueueFullError,
    RequestError,
    StoppedError,
    UnknownModelError,
    UnknownPathError,
)

MAX_BODY = 2**20
"""Bytes of a request's body."""
RETRY_S = 1
"""Seconds that a client is asked to wait when the queue is full."""
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content policy of the chat page: nothing from elsewhere."""
CLOSING_S = 5
"""Seconds to send the last bytes after the answers have ended."""
CLOSED_REQUEST = 499
"""Status in the metrics of a request whose client left before the answer."""
Endpoint = Callable[[Request], Awaitable[Response]]


class AnswerEvents:
    """Events of the answers to one request, from the engine's thread to the event loop."""

    def __init__(self, served: ServedModel, request: AnswerRequest) -> None:
        loop, self._queue = asyncio.get_running_loop(), asyncio.Queue[Piece | AnswerEnd]()

        def put(event: Piece | AnswerEnd) -> None:
            loop.call_soon_threadsafe(self._queue.put_nowait, event)

        self._engine = served.engine
        self.jobs: list[Job] = []
        for prompt, sampling in zip(request.prompts, request.samplings, strict=True):
            for _ in range(request.count):
                text = TextStream(served.tokenizer, prompt, request.stop)
                listener = TextListener(text, put, len(self.jobs))
                self.jobs.append(Job(prompt, sampling, listener))
        self._engine.submit(self.jobs)

    async def __aiter__(self) -> AsyncIterator[Piece | AnswerEnd]:
        """Yield events until every answer has ended; raise if the engine fails."""
        left = len(self.jobs)
        while left:
            event = await self._queue.get()
            if isinstance(event, AnswerEnd):
                left -= 1
                if event.error is not None:
                    raise event.error
                if event.reason == CANCELLED:
                    raise StoppedError("the server stopped before the answer was complete.")
            yield event

    async def whole(self) -> list[Piece | AnswerEnd]:
        """Return all events."""
        return [event async for event in self]

    def cancel(self) -> None:
        """End the answers: their client has left."""
        self._engine.cancel(self.jobs)


@dataclass
class HttpServer:
    """Server of one model; `api_key` protects everything but `/`, `/health` and the page."""

    served: ServedModel
    api_key: str | None = None

    def app(self) -> Starlette:
        """Return the application; it starts and stops the engine."""
        routes = [
            self._route("/v1/chat/completions", self.chat, "POST"),
            self._route("/v1/completions", self.completions, "POST"),
            self._route("/v1/models", self.models, "GET"),
            self._route("/v1/models/{name:path}", self.model, "GET"),
            self._route("/metrics", self.metrics, "GET"),
            self._route("/health", self.health, "GET", is_open=True),
            self._route("/", self.page, "GET", is_open=True),
        ]
        handlers: dict[Any, Any] = {404: _no_path, 405: _no_method, Exception: _broken}
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.served.engine.start()
        yield  # the program stops the engine

    def _route(self, path: str, endpoint: Endpoint, method: str, *, is_open: bool = False) -> Route:
        """Return a route that checks the key, counts requests and writes errors as JSON."""
        requests = self.served.engine.metrics.requests

        async def answer(request: Request) -> Response:
            try:
                if not is_open:
                    self._check_key(request)
                response = await endpoint(request)
            except RequestError as error:
                response = error_response(error)
            except ClientDisconnect:
                response = Response(status_code=CLOSED_REQUEST)
            requests.add(path=path, status=str(response.status_code))
            return response

        return Route(path, answer, methods=[method])

    def _check_key(self, request: Request) -> None:
        if self.api_key is None:
            return
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(key.encode(), self.api_key.encode()):
            raise AccessError("no or wrong API key. Give the header 'Authorization: Bearer KEY'.")

    # -- paths -------------------------------------------------------------------------------------

    async def chat(self, request: Request) -> Response:
        """Answer a chat."""
        return await self._answer(request, is_chat=True)

    async def completions(self, request: Request) -> Response:
        """Continue texts."""
        return await self._answer(request, is_chat=False)

    async def _answer(self, request: Request, *, is_chat: bool) -> Response:
        body = read_body(await _content(request))
        checked = await asyncio.to_thread(read_request, body, self.served, is_chat=is_chat)
        writer = AnswerWriter(checked, self.served.name, self.served.tokenizer)
        events = AnswerEvents(self.served, checked)
        if checked.is_streamed:
            headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
            chunks = _chunks(events, writer, reports_usage=checked.reports_usage)
            return StreamingResponse(chunks, media_type="text/event-stream", headers=headers)
        return JSONResponse(writer.whole(await _unless_gone(request, events)))

    async def models(self, request: Request) -> Response:
        """List the model."""
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """Describe the model."""
        name = request.path_params["name"]
        if name != self.served.name:
            raise UnknownModelError(
                f"model: no '{name}' here. Allowed: '{self.served.name}'.", "model"
            )
        return JSONResponse(self._card())

    def _card(self) -> dict[str, Any]:
        length = self.served.engine.max_length
        owner = {"object": "model", "created": 0, "owned_by": "mase"}
        return {"id": self.served.name, **owner, "max_model_len": length}

    async def health(self, request: Request) -> Response:
        """Report if requests are accepted."""
        engine = self.served.engine
        status = "ok" if engine.is_open else "failed" if engine.error else "stopping"
        return JSONResponse({"status": status}, 200 if engine.is_open else StoppedError.status)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics for Prometheus."""
        engine = self.served.engine
        gauges: dict[str, tuple[str, float]] = {
            "running": ("Answers in the batch.", engine.running),
            "waiting": ("Answers in the queue.", engine.waiting),
            "cached_tokens": ("Tokens that the cache in use has room for.", engine.cached_tokens),
            "reserved_tokens": ("The same with answers at their longest.", engine.reserved_tokens),
            "max_cached_tokens": ("Limit of reserved tokens.", engine.max_cached_tokens),
        }
        text = engine.metrics.text(gauges)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def page(self, request: Request) -> Response:
        """Return the chat page."""
        return HTMLResponse(page_text(), headers={"content-security-policy": POLICY})


def page_text() -> str:
    """Return the HTML of the chat page."""
    return importlib.resources.files("chop.serve").joinpath("chat_page.html").read_text("utf-8")


async def _content(request: Request) -> bytes:
    """Return the body of a request, which must be JSON of at most `MAX_BODY` bytes."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise MediaTypeError(
            f"content-type: got '{kind}'. Allowed: application/json; curl needs "
            "-H 'Content-Type: application/json'."
        )
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MAX_BODY:
            raise BodySizeError(f"the body is too long. Allowed: {MAX_BODY} bytes.")
    return bytes(content)


async def _unless_gone(request: Request, events: AnswerEvents) -> list[Piece | AnswerEnd]:
    """Return all events, or raise if the client leaves before."""
    answer = asyncio.create_task(events.whole())
    gone = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        events.cancel()
        for task in (answer, gone):
            task.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _chunks(
    events: AnswerEvents, writer: AnswerWriter, *, reports_usage: bool
) -> AsyncIterator[str]:
    """Yield an answer as server-sent events; the client's leaving ends the jobs."""
    try:
        for first in writer.first_chunks():
            yield _sent(first)
        async for event in events:
            yield _sent(writer.chunk(event))
        if reports_usage:
            yield _sent(writer.usage_chunk())
        yield "data: [DONE]\n\n"
    except RequestError as error:
        yield _sent(error.body())
    finally:
        events.cancel()


def _sent(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def error_response(error: RequestError) -> Response:
    """Return an error as OpenAI's clients expect it."""
    headers = {"retry-after": str(RETRY_S)} if isinstance(error, QueueFullError) else {}
    if isinstance(error, AccessError):
        headers = {"www-authenticate": "Bearer"}
    return JSONResponse(error.body(), error.status, headers)


async def _no_path(request: Request, error: HTTPException) -> Response:
    paths = "/v1/chat/completions, /v1/completions, /v1/models, /metrics, /health and /"
    return error_response(
        UnknownPathError(f"no path '{request.url.path[:200]}'. Allowed: {paths}.")
    )


async def _no_method(request: Request, error: HTTPException) -> Response:
    allowed = (error.headers or {}).get("Allow", "another")
    response = error_response(
        MethodError(f"{request.url.path[:200]}: no method {request.method}. Allowed: {allowed}.")
    )
    response.headers["allow"] = allowed
    return response


async def _broken(request: Request, error: Exception) -> Response:
    return error_response(GenerationError(f"the server failed: {type(error).__name__}."))


# -- running ---------------------------------------------------------------------------------------


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen at {host}, port {port}: {error}. Give another --host or --port."
        ) from error


class _Program(uvicorn.Server):
    """Program that lets answers end when it stops, up to `patience_s` seconds."""

    def __init__(self, config: uvicorn.Config, engine: BatchEngine, patience_s: float) -> None:
        super().__init__(config)
        self._engine, self._patience_s = engine, patience_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more requests, end the answers, close the connections."""
        ending = asyncio.create_task(asyncio.to_thread(self._engine.stop, self._patience_s))
        await super().shutdown(sockets)
        await ending


def make_server(server: HttpServer, *, patience_s: float = 10.0) -> uvicorn.Server:
    """Return the program that serves; at its stop, answers have `patience_s` seconds to end."""
    config = uvicorn.Config(
        server.app(),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=round(patience_s) + CLOSING_S,
    )
    return _Program(config, server.served.engine, patience_s)
