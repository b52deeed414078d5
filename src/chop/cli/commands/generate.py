"""`mase generate`: text from a language model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from chop.cli.session import Session
from chop.cli.shared_options import SECOND, LanguageOptions, OutputOptions
from chop.errors import ConfigError

EXAMPLES = (
    "mase generate model.gguf 'What is the capital of France?'",
    "mase generate Qwen/Qwen3-0.6B --prompt 'The weather today is'",
    "mase generate out/mine --tokenizer ./llama --prompt Once --sample --top-k 20",
    "mase generate ./llama --prompt Once --pack mxint4 --cache mxint8",
    "mase generate model.gguf 'Repeat this text: …' --speculate lookup",
)


@dataclass(frozen=True, kw_only=True)
class GenerateConfig(LanguageOptions, OutputOptions):
    """Text generation."""

    prompt: Annotated[str | None, "Question or text to continue."] = field(
        default=None, metadata=SECOND
    )
    chat: Annotated[
        bool | None,
        "Wrap the prompt in the tokenizer's chat template and print the answer alone. Default: on "
        "if the tokenizer has a template.",
    ] = None
    max_new_tokens: Annotated[int, "Largest number of tokens to generate."] = 64
    sample: Annotated[
        bool, "Draw each token by its probability instead of taking the most probable."
    ] = False
    temperature: Annotated[float, "Above 1 flattens the probabilities, below 1 sharpens them."] = (
        1.0
    )
    top_k: Annotated[int, "Draw from this many of the most probable tokens."] = 50
    top_p: Annotated[float, "Draw from the fewest tokens that hold this probability."] = 1.0
    beams: Annotated[int, "Number of beams of beam search."] = 1
    compile: Annotated[bool, "Run a static cache through torch.compile."] = False
    speculate: Annotated[
        str | None,
        "Check drafts of several tokens in one step, with the tokens of plain greedy decoding: "
        "'lookup' repeats what followed the last tokens before, a smaller model writes its own.",
    ] = None
    draft_tokens: Annotated[int, "Largest draft of --speculate: 1 to 15 tokens."] = 7
    stream: Annotated[bool, "Print each token as soon as it is generated."] = True
    repeat: Annotated[int, "Number of runs; the fastest is reported."] = 1
    out: Path = Path("out/generate")

    def __post_init__(self) -> None:
        if self.prompt is None:
            raise ConfigError('no prompt given: mase generate MODEL "Once upon a time".')
        if not self.sample and (self.temperature, self.top_k, self.top_p) != (1.0, 50, 1.0):
            raise ConfigError("temperature, top_k and top_p are for drawing: give --sample too.")
        if self.compile and (self.cache != "float" or self.cache_layers):
            raise ConfigError("compile runs a static cache of floats: it excludes cache.")
        is_plain = not self.sample and self.beams == 1 and not self.compile
        if self.speculate and not (is_plain and self.cache == "float" and not self.cache_layers):
            raise ConfigError(
                "speculate checks greedy tokens on a cache of floats: it excludes sample, beams, "
                "compile and cache."
            )


def run(config: GenerateConfig, session: Session) -> dict[str, Any]:
    """Generate text; print it with the speed and the memory."""
    import torch

    from chop.cli import text_generation as text
    from chop.cli.source import describe

    source, graph, tokenizer = text.load_language_model(config, session)
    generate = text.generator_of(config, graph, session)
    inputs = text.encode(tokenizer, config, graph)
    session.start_work()
    streamer = text.make_streamer(config, session, tokenizer)
    runs = []
    for turn in range(config.repeat):
        torch.manual_seed(config.seed)
        runs.append(generate(inputs, None if turn else streamer))
    best = max(runs, key=lambda run: run.tokens_per_s)
    words = text.decode(tokenizer, config, inputs, best)
    if streamer is None:
        session.console.say(words)
    session.console.say(text.summary(best))
    return {**describe(graph, source), **best.record(), "text": words}
