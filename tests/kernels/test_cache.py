"""A cache in number formats holds the values of those formats, in the bytes they take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from generating_models import graph, model, prompts, tokens
from torch import Tensor
from transformers import DynamicCache

from chop.errors import ConfigError
from chop.kernels.cache import PackedCache
from chop.kernels.row_codecs import codec_of
from chop.nn.quantizers import FORMATS, Integer, MXInt

SETTINGS: dict[str, dict[str, Any]] = {
    "integer": {"width": 8, "frac_width": 4},
    "log": {"width": 6, "exponent_bias": 7},
    "minifloat_ieee": {"width": 8, "exponent_width": 4, "exponent_bias": 7},
    "minifloat_denorm": {"width": 6, "exponent_width": 3, "exponent_bias": 3},
    "block_fp": {"width": 6},
    "block_minifloat": {"width": 6, "exponent_width": 3},
    "block_log": {"width": 6},
}
"""Of the formats that have no defaults."""


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 2


class ByFakeQuantization(DynamicCache):
    """The independent way: values rounded when they come, kept as floats."""

    def __init__(self, config: Any, quantize: Any) -> None:
        super().__init__(config=config)
        self.quantize = quantize

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *rest: Any) -> Any:
        return super().update(self.quantize(key_states), self.quantize(value_states), layer_idx)


@pytest.mark.parametrize("name", FORMATS)
def test_each_row_has_the_values_of_the_format_by_itself(name: str) -> None:
    x = rows(2, 3, 5, 64)
    codec = codec_of({"name": name, **SETTINGS.get(name, {})})
    quantizer = FORMATS[name](**SETTINGS.get(name, {}))
    expected = torch.stack([quantizer.quantize(row) for row in x.reshape(-1, 64)]).view(x.shape)
    assert torch.equal(codec.decode(codec.encode(x), 64, torch.float32), expected)


BITS = {
    "mxint8": 8.25,
    "mxint4": 4.25,
    "mxfp8": 8.25,
    "mxfp4": 4.25,
    "int8": 8.25,
    "int4": 4.25,
    "fp8": 8.0,
    "float": 32.0,
}


@pytest.mark.parametrize(("name", "bits"), BITS.items())
def test_a_number_takes_the_bits_of_its_format(name: str, bits: float) -> None:
    x = rows(1, 2, 7, 64)
    assert sum(part.nbytes for part in codec_of(name).encode(x)) * 8 == bits * x.numel()


@pytest.mark.parametrize("bits", [4, 8])
def test_integers_are_the_nearest_multiples_of_the_scale_of_their_row(bits: int) -> None:
    x = rows(3, 31)
    codec = codec_of(f"int{bits}")
    found = codec.decode(codec.encode(x), 31, torch.float32)
    high = 2 ** (bits - 1) - 1
    scale = (x.abs().amax(-1, keepdim=True) / high).bfloat16().float()
    assert torch.equal(found, (x / scale).round().clamp(-high, high) * scale)
    assert codec.decode(codec.encode(torch.zeros(1, 4)), 4, torch.float32).count_nonzero() == 0


@pytest.mark.parametrize("name", ["Llama", "Gemma 3"])
@pytest.mark.parametrize("way", [{}, {"num_beams": 3}])
def test_tokens_are_those_of_values_rounded_as_they_come(name: str, way: dict[str, Any]) -> None:
    config, given = model(name).config, prompts(name)
    reference = ByFakeQuantization(config, MXInt(4, block_size=32).quantize)
    expected = tokens(model(name).generate, given, past_key_values=reference, **way)
    cache = PackedCache(config, "mxint4")
    found = tokens(graph(name).generate, given, past_key_values=cache, **way)
    assert torch.equal(found, expected)


def test_layers_have_formats_of_their_own_and_bytes_are_counted() -> None:
    config = model("Llama").config
    cache = PackedCache(config, {0: "float", "default": {"name": "mxint4", "group_size": 16}})
    x = rows(1, 2, 6, 8)
    for layer in range(2):
        keys, values = cache.update(x, x, layer)
        assert torch.equal(keys, values)
    assert torch.equal(cache.layers[0].keys, x)
    assert torch.equal(cache.layers[1].values, MXInt(4, block_size=16).quantize(x))
    assert cache.nbytes == 2 * x.nbytes + 2 * x.numel() // 2 + 2 * 12
    assert cache.capacity() == pytest.approx(4 * x.numel() * 2 / cache.nbytes)


def test_a_cache_is_cut_reordered_and_forgotten_as_bytes() -> None:
    cache = PackedCache(model("Llama").config, Integer(8, 4))
    x = rows(3, 2, 6, 8)
    quantised = Integer(8, 4).quantize(x)
    cache.update(x, x, 0)
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    assert torch.equal(cache.layers[0].keys, quantised[[2, 0, 0]])
    cache.layers[0].crop(-2)
    assert torch.equal(cache.layers[0].keys, quantised[[2, 0, 0], :, :4])
    assert cache.get_seq_length() == 4
    cache.batch_select_indices(torch.tensor([1]))
    cache.batch_repeat_interleave(2)
    assert torch.equal(cache.layers[0].keys, quantised[[0, 0], :, :4])
    cache.layers[0].reset()
    assert (cache.get_seq_length(), cache.nbytes) == (0, 0)


def test_a_window_keeps_what_the_next_token_sees() -> None:
    config = model("Mistral").config
    cache, plain = PackedCache(config, "float"), DynamicCache(config=config)
    for length in (4, 1, 3, 1):
        x = rows(1, 2, length, 8)
        sizes = plain.get_mask_sizes(length, 0)
        assert cache.get_mask_sizes(length, 0) == sizes
        assert torch.equal(cache.update(x, x, 0)[0], plain.update(x, x, 0)[0])


def test_wrong_formats_and_layers_are_named() -> None:
    config = model("Llama").config
    with pytest.raises(ConfigError, match=r"cache, layer 0: no format 'mxint9'.*mxint"):
        PackedCache(config, "mxint9")
    with pytest.raises(ConfigError, match=r"no layer 7\. Allowed: 0 to 1, and 'default'"):
        PackedCache(config, {7: "mxint8"})
    with pytest.raises(ConfigError, match=r"unknown key 'width' of mxint8\. Allowed: group_size"):
        PackedCache(config, {"name": "mxint8", "width": 3})
