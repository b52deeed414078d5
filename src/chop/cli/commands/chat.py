"""`mase chat`: talk to a language model in the terminal."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any

from chop.cli.session import Session
from chop.cli.shared_options import LanguageOptions
from chop.errors import ConfigError

EXAMPLES = (
    "mase chat model.gguf",
    "mase chat Qwen/Qwen3-0.6B --pack mxint4 --system 'Answer briefly.'",
    "mase chat out/quantize --max-new-tokens 64",
)


@dataclass(frozen=True, kw_only=True)
class ChatConfig(LanguageOptions):
    """Chat."""

    system: Annotated[str | None, "System message."] = None
    max_new_tokens: Annotated[int, "Largest answer, in tokens."] = 512
    sample: Annotated[
        bool, "Draw each token by its probability instead of taking the most probable."
    ] = False
    temperature: Annotated[float, "Above 1 flattens the probabilities, below 1 sharpens them."] = (
        1.0
    )
    top_p: Annotated[float, "Draw from the fewest tokens that hold this probability."] = 1.0

    def __post_init__(self) -> None:
        if not self.sample and (self.temperature, self.top_p) != (1.0, 1.0):
            raise ConfigError("temperature and top_p are for drawing: give --sample too.")


def run(config: ChatConfig, session: Session) -> dict[str, Any]:
    """Read messages from stdin and print the answers, until the end of stdin or /quit."""
    from chop.cli.chat_loop import ChatLoop
    from chop.cli.failures import UsageError
    from chop.cli.source import describe
    from chop.cli.text_generation import load_engine, load_language_model
    from chop.serve.answer_text import TextTokenizer
    from chop.serve.batch_engine import EngineLimits
    from chop.serve.sampling import Sampling

    source, graph, tokenizer = load_language_model(config, session)
    words = TextTokenizer(tokenizer)
    if not words.has_template:
        raise UsageError(
            "chat: the tokenizer has no chat template. `mase generate MODEL PROMPT` continues a "
            "text."
        )
    temperature = config.temperature if config.sample else 0.0
    sampling = Sampling(config.max_new_tokens, temperature, config.top_p, config.seed)
    engine = load_engine(config, graph, "chat", EngineLimits(max_batch=1, max_queue=0))
    session.start_work()
    chat = ChatLoop(engine, words, sampling, session.console, config.system)
    chat.run(sys.stdin)
    return {**describe(graph, source), "messages": chat.messages}
