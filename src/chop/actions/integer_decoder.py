"""Graph of an integer Llama: transformers' `generate` gives the tokens of the decode engine.

The graph has one node, which computes whole steps in integers. Its cache is one of transformers:
it holds the values of the engine's keys and values, which floats represent exactly. So prompts in
rows, sampling and beams work as for other graphs.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, fx, nn

from chop.actions.float_llama import float_llama
from chop.errors import ConfigError
from chop.hw.decode.decode_model import DecodeModel, DecodeOptions, quantize_llama
from chop.hw.decode.integer_llama import IntegerLlama
from chop.hw.decode.llama_weights import read_llama
from chop.ir.graph import MaseGraph
from chop.ir.outputs import OutputTemplate
from chop.ir.store.traced import TracedModule

DECODER = "decoder"
"""Name of the node."""
INPUTS = ("input_ids", "past_key_values", "attention_mask", "position_ids", "logits_to_keep")


def integer_decoder(
    model: Any, calibration: Tensor, options: DecodeOptions | None = None
) -> MaseGraph:
    """Return the graph of a `LlamaForCausalLM`, or of a graph of one, in integer arithmetic.

    `calibration` has rows of tokens, which set the fixed-point formats of the vectors.
    """
    source = float_llama(model) if isinstance(model, MaseGraph) else model
    quantized = quantize_llama(read_llama(source), calibration, options)
    return decoder_graph(quantized, source.config, source.generation_config)


def decoder_graph(model: DecodeModel, config: Any, generation_config: Any = None) -> MaseGraph:
    """Return the graph of an integer Llama; `config` is that of its float model."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    graph = fx.Graph()
    tokens = graph.placeholder(INPUTS[0])
    past, *more = (graph.placeholder(name, default_value=None) for name in INPUTS[1:])
    logits = graph.call_module(DECODER, (tokens, past, *more))
    graph.output({"logits": logits, "past_key_values": past})
    module = TracedModule({DECODER: IntegerDecoder(model)}, graph, class_name="LlamaForCausalLM")
    module.config, module.generation_config = config, generation_config
    OutputTemplate(CausalLMOutputWithPast, {}).attach(module)
    ops = {"modules": {IntegerDecoder: {"mase_op": "integer_decoder"}}}
    result = MaseGraph(module.eval(), custom_ops=ops)
    result.original = None
    result.dummy_in = {INPUTS[0]: torch.zeros(1, 1, dtype=torch.int64)}
    return result


class IntegerDecoder(nn.Module):
    """Steps of an integer Llama, one token after the other, as the engine computes them."""

    mase_leaf: ClassVar[bool] = True

    def __init__(self, model: DecodeModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        logits_to_keep: int | None = None,
    ) -> Tensor:
        """Return the logits (rows, tokens, vocabulary); keys and values enter the cache."""
        self._check(input_ids, past_key_values, attention_mask, position_ids)
        decoders, rows = [], []
        for row, tokens in enumerate(input_ids.tolist()):
            decoder = self._decoder(past_key_values, row)
            codes = torch.stack([decoder.step(token) for token in tokens])
            rows.append(codes[-(logits_to_keep or len(codes)) :])
            decoders.append(decoder)
        if past_key_values is not None:
            self._store(past_key_values, decoders, input_ids.shape[1])
        return _numbers(torch.stack(rows), self.model.fracs["logits"])

    def _check(self, tokens: Tensor, past: Any, mask: Any, positions: Any) -> None:
        """Raise for a padded row, and for a cache that is not a list of keys and values."""
        from transformers import DynamicCache

        if past is not None and not isinstance(past, DynamicCache):
            raise ConfigError(
                f"decode: the cache is a {type(past).__name__}. Allowed: a DynamicCache of "
                "transformers; the engine's own format is set by the options of the model."
            )
        start = 0 if past is None else past.get_seq_length()
        expected = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        is_padded = mask is not None and not bool((mask != 0).all())
        if is_padded or (positions is not None and bool((positions != expected).any())):
            raise ConfigError(
                "decode: the rows of input_ids are padded. The engine has no mask: give prompts of "
                "one length, or one after the other."
            )

    def _decoder(self, past: Any, row: int) -> IntegerLlama:
        """Return a decoder with the cache of a row."""
        decoder = IntegerLlama(self.model)
        if past is not None and past.get_seq_length():
            decoder.caches = [
                decoder.cache_of(
                    _codes(stored.keys[row], layer.fracs["key"]),
                    _codes(stored.values[row], layer.fracs["value"]),
                )
                for layer, stored in zip(self.model.layers, past.layers, strict=True)
            ]
        return decoder

    def _store(self, past: Any, decoders: list[IntegerLlama], count: int) -> None:
        """Append the last `count` positions of all rows to the cache."""
        for index, layer in enumerate(self.model.layers):
            caches = [decoder.caches[index] for decoder in decoders]
            keys, values = (
                torch.stack([_numbers(b.codes[-count:].transpose(0, 1), frac) for b in blocks])
                for blocks, frac in (
                    ([c.keys for c in caches], layer.fracs["key"]),
                    ([c.values for c in caches], layer.fracs["value"]),
                )
            )
            past.update(keys, values, index)


def _numbers(codes: Tensor, frac_width: int) -> Tensor:
    """Return codes of 16 bits as floats, exactly."""
    return (codes.double() * 2.0**-frac_width).float()


def _codes(numbers: Tensor, frac_width: int) -> Tensor:
    """Return the codes (positions, heads, size) of numbers (heads, positions, size)."""
    return (numbers.double() * 2.0**frac_width).round().to(torch.int64).transpose(0, 1)
