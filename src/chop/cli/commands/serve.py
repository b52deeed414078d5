"""`mase serve`: an OpenAI-compatible server of one language model."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from chop.cli.session import Session
from chop.cli.shared_options import LanguageOptions
from chop.errors import MissingDependencyError

EXAMPLES = (
    "mase serve model.gguf",
    "mase serve Qwen/Qwen3-0.6B --pack mxint4 --port 8080 --api-key secret",
    "mase serve out/quantize --max-batch 16 --max-length 4096 --cache mxint8",
)


@dataclass(frozen=True, kw_only=True)
class ServeConfig(LanguageOptions):
    """Server."""

    host: Annotated[str, "Address to listen at; 0.0.0.0 is reachable from other machines."] = (
        "127.0.0.1"
    )
    port: Annotated[int, "Port to listen at; 0 takes a free one."] = 8000
    api_key: Annotated[str | None, "Key that clients must send. Default: none is needed."] = None
    name: Annotated[str | None, "Name of the model in the API. Default: its file or folder."] = None
    max_tokens: Annotated[int, "Largest answer, in tokens."] = 1024
    max_length: Annotated[
        int | None, "Tokens of a prompt with its answer. Default: the model's limit."
    ] = None
    max_batch: Annotated[int, "Answers that are generated together."] = 8
    max_cached_tokens: Annotated[
        int | None,
        "Tokens of all answers that are generated together, with their prompts. Default: room for "
        "max_batch of the largest length.",
    ] = None
    max_queue: Annotated[int, "Answers that may wait; more get the status 429."] = 128
    patience: Annotated[float, "Seconds that answers get to end when the server stops."] = 10.0


def run(config: ServeConfig, session: Session) -> dict[str, Any]:
    """Serve the model until Ctrl-C or SIGTERM."""
    from chop.cli.source import describe
    from chop.cli.text_generation import load_engine, load_language_model
    from chop.serve.answer_text import TextTokenizer
    from chop.serve.batch_engine import EngineLimits
    from chop.serve.openai_requests import ServedModel

    try:
        from chop.serve.http_server import HttpServer, bind, make_server
    except ImportError as error:
        raise MissingDependencyError(
            "serve: starlette or uvicorn is not installed. "
            "Install both: pip install 'masegraph[serve]'."
        ) from error
    source, graph, tokenizer = load_language_model(config, session)
    limits = EngineLimits(
        config.max_batch, config.max_queue, config.max_length, config.max_cached_tokens
    )
    engine = load_engine(config, graph, "serve", limits)
    name = config.name or Path(source.name).stem or source.name
    served = ServedModel(name, engine, TextTokenizer(tokenizer), config.max_tokens)
    session.start_work()
    listening = bind(config.host, config.port)
    port = listening.getsockname()[1]
    host = f"[{config.host}]" if ":" in config.host else config.host
    session.console.say(f"{name}: chat at http://{host}:{port}/, API at http://{host}:{port}/v1")
    session.console.say("Ctrl-C stops it.")
    program = make_server(HttpServer(served, config.api_key), patience_s=config.patience)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again at its end
        program.run(sockets=[listening])
    tokens = engine.metrics.generated_tokens.value()
    return {**describe(graph, source), "port": port, "generated_tokens": int(tokens)}
