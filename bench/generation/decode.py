"""The time of one token: a Llama with random weights, static cache.

Programs are steps of decoding on one cache, launches included, and take turns; each time is the
mean of a stretch of steps, and the record has the median of stretches. `kind` eager runs the graph
as it is; compiled runs torch.compile with the whole graph in one piece, on a GPU as CUDA graphs
(mode reduce-overhead). `transformers` is the model as transformers runs it, to compare with; a name
with `+fused` has its projections merged and its attention grouped, one with `+norms` has also norms
that round their results. `+inputs` rounds what each packed layer reads to MXINT8.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from measuring.checked import Timed, compare, once
from transformers import StaticCache

import chop.passes as passes
from chop import MaseGraph
from chop.kernels import pack, reference

SHAPES = {
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
    },
}
PROMPT, LENGTH, STEPS, STRETCHES = 16, 256, 64, 9
BASE, INPUTS = "bfloat16", "+inputs"
PATTERNS = ("grouped_attention", "merge_projections")
FUSED = {
    "+fused": PATTERNS,
    "+norms": ("grouped_attention", "rms_norm", "merge_projections", "rounded_norm"),
}
ERROR, ERROR_OF_INPUTS = 0.05, 0.15
"""Relative error of the logits against transformers' bfloat16 model with the weights that the
format stores: the same sums in another order over 8 layers. The second one is for layers that also
round what they read to MXINT8."""
WIDTHS = {"mxint8": 8, "mxint4": 4}
"""Of weights whose layers round what they read."""


def measure(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One record per number format and way of running, with ratios to bfloat16 run that way."""
    with torch.device(asked.device):
        model = llama(SHAPES[asked.shape])
    base = captured(model)
    formats = asked.formats.split(",")
    for compiled in (False, True):
        steps = {f"{BASE}, transformers": Step(model, asked.device, compiled)}
        for name in formats:
            graph = base if name == BASE else changed(base, name)
            steps[name] = Step(graph.as_transformers(), asked.device, compiled)
        yield from records_of(model, steps, asked, compiled)


def llama(shape: dict[str, int]) -> Any:
    """A Llama of these shapes in bfloat16."""
    config = transformers.LlamaConfig(**shape, max_position_embeddings=8192)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return transformers.LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def captured(model: Any) -> MaseGraph:
    """The model as a graph with a cache."""
    example = torch.randint(5, 500, (1, PROMPT), device=model.device)
    given = {"input_ids": example, "attention_mask": torch.ones_like(example)}
    return MaseGraph(model, dummy_in=given, cache=True)


def changed(base: MaseGraph, name: str) -> MaseGraph:
    """A copy of the graph with its weights packed in a format, and what else `name` says."""
    form, graph = _form(name), copy.deepcopy(base)
    if INPUTS in name:
        config = {"name": "mxint", "weight_width": WIDTHS[form], "data_in_width": 8}
        passes.quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})
    if form != BASE:
        passes.pack_weights_transform_pass(graph, {"format": form})
    for ending, patterns in FUSED.items():
        if name.endswith(ending):
            passes.fuse_patterns_transform_pass(graph, {"patterns": patterns})
    return graph


class Step:
    """One token of decoding after another, on a cache of its own."""

    def __init__(self, model: Any, device: str, compiled: bool, batch: int = 1) -> None:
        self.model, self.device, self.batch = model, device, batch
        self.cache = StaticCache(config=model.config, max_cache_len=LENGTH)
        self.is_graphed = compiled and device == "cuda"
        self.run: Callable[..., Any] = model
        if compiled:
            torch._dynamo.config.recompile_limit = 64  # all programs are one piece of code
            mode = "reduce-overhead" if device == "cuda" else "default"
            self.run = torch.compile(model, mode=mode, fullgraph=True)
        self._start()

    @torch.no_grad()
    def _start(self) -> None:
        prompts = random_prompts(self.batch, self.device)
        self.logits = self.model(input_ids=prompts, past_key_values=self.cache).logits[:, -1]
        self.token = self.logits.argmax(-1, keepdim=True)
        self.position = torch.full((self.batch, 1), PROMPT, device=self.device)
        shape = (self.batch, 1, 1, LENGTH)
        self.mask = torch.arange(LENGTH, device=self.device).expand(shape) <= PROMPT

    def rewind(self) -> None:
        """Go on after the prompt again."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(PROMPT)  # a tensor, which CUDA graphs read
        self.position.fill_(PROMPT)

    @torch.no_grad()
    def __call__(self) -> torch.Tensor:
        if self.is_graphed:
            torch.compiler.cudagraph_mark_step_begin()
        given = {"position_ids": self.position, "attention_mask": self.mask}
        logits: torch.Tensor = self.run(
            input_ids=self.token, past_key_values=self.cache, use_cache=True, **given
        ).logits
        return logits

    def first_logits(self) -> torch.Tensor:
        """Return the logits of the first token after the prompt."""
        self.rewind()
        return self().clone()

    def stretch(self) -> None:
        """Decode `STEPS` tokens."""
        self.rewind()
        for _ in range(STEPS):
            self()


def random_prompts(batch: int, device: Any) -> torch.Tensor:
    """Return the same prompts each time."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(5, 500, (batch, PROMPT), generator=draw).to(device)


@torch.no_grad()
def exact_logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits after the prompts and `tokens`: the plain model, without a cache."""
    prompts = random_prompts(len(tokens), tokens.device)
    return model(input_ids=torch.cat([prompts, tokens], 1), use_cache=False).logits[:, -1:]


def most_error(name: str) -> float:
    """Return the error that the logits of a program may have."""
    return ERROR_OF_INPUTS if INPUTS in name else ERROR


@torch.no_grad()
def with_stored_weights(model: Any, form: str) -> Any:
    """Return the model with its weights as the format stores them, decoded by the definition."""
    if form == BASE:
        return model
    stored = copy.deepcopy(model)
    for layer in stored.modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Embedding):
            packed = pack(layer.weight, form)
            layer.weight.copy_(
                reference.unpack(
                    packed.codes,
                    packed.scales,
                    packed.format,
                    packed.group_size,
                    packed.columns,
                    layer.weight.dtype,
                )
            )
    return stored


def records_of(
    model: Any, steps: dict[str, Step], asked: argparse.Namespace, compiled: bool
) -> Iterator[dict[str, Any]]:
    """Check the programs, time them in turns, and yield a record for each."""
    first = {}
    for name, step in steps.items():  # compiled, then recorded as a CUDA graph
        thrice = once(name, lambda s=step: [s.first_logits() for _ in range(3)], bool)
        first[name] = thrice.seconds
    expected = _expected_logits(model, steps)
    programs = {
        name: Timed(step.stretch, expected[name], most_error(name), step.first_logits)
        for name, step in steps.items()
    }
    times = compare(programs, rounds=STRETCHES, warm_up=0)
    median = {name: each.median / STEPS for name, each in times.items()}
    for name, step in steps.items():
        yield {
            "shape": asked.shape,
            "weights": name,
            "kind": "compiled" if compiled else "eager",
            "ms": median[name] * 1e3,
            "ratio_to_bfloat16": median[name] / median[BASE] if BASE in median else None,
            "first_calls_s": first[name],
            "error": times[name].error,
            "weights_mib": _bytes(step.model) / 2**20,
        }


def _expected_logits(model: Any, steps: dict[str, Step]) -> dict[str, torch.Tensor]:
    """Return the logits that each program must give; one plain model is in memory at a time."""
    logits = {}
    for form in dict.fromkeys(map(_form, steps)):
        plain = with_stored_weights(model, form)
        for name, step in steps.items():
            if _form(name) == form:
                logits[name] = exact_logits(plain, step.token)
    return logits


def _form(name: str) -> str:
    """Return the number format in the name of a program."""
    return name.partition("+")[0].partition(",")[0]


def _bytes(model: torch.nn.Module) -> int:
    """Bytes of parameters and buffers; shared ones count once."""
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return sum(t.nbytes for t in tensors.values())
