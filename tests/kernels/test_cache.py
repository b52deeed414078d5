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

    def __init__(self, config: Any, quantize: Any, is_centred: bool) -> None:
        super().__init__(config=config)
        self.quantize, self.is_centred = quantize, is_centred
        self.means: dict[Any, Tensor] = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *rest: Any) -> Any:
        pairs = ((("key", layer_idx), key_states), (("value", layer_idx), value_states))
        return super().update(*(self.rounded(name, x) for name, x in pairs), layer_idx)

    def rounded(self, name: Any, x: Tensor) -> Tensor:
        if not self.is_centred:
            return self.quantize(x)
        mean = self.means.setdefault(name, x.mean(2, keepdim=True).bfloat16().float())
        return self.quantize(x - mean) + mean


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


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("name", "is_centred", "beams"),
    [("Llama", False, 1), ("Llama", False, 3), ("Llama", True, 1), ("Gemma 3", True, 1)],
)
def test_tokens_are_those_of_values_rounded_as_they_come(
    name: str, is_centred: bool, beams: int
) -> None:
    config, given = model(name).config, prompts(name)
    reference = ByFakeQuantization(config, MXInt(4, block_size=32).quantize, is_centred)
    options = {"num_beams": beams}
    expected = tokens(model(name).generate, given, past_key_values=reference, **options)
    cache = PackedCache(config, "mxint4", is_centred=is_centred)
    found = tokens(graph(name).generate, given, past_key_values=cache, **options)
    assert torch.equal(found, expected)


def test_the_mean_of_the_first_tokens_is_kept_once_and_moves_with_its_row() -> None:
    x = rows(3, 2, 6, 8) + torch.arange(8) * 100.0
    cache = PackedCache(model("Llama").config, "int8")
    keys, _ = cache.update(x, x, 0)
    plain, _ = PackedCache(model("Llama").config, "int8", is_centred=False).update(x, x, 0)
    assert (keys - x).norm() < 0.05 * (plain - x).norm()
    assert cache.nbytes == 2 * (x.numel() + 2 * 36 + 2 * 48)
    cache.reorder_cache(torch.tensor([2, 2, 0]))
    assert torch.equal(cache.layers[0].keys, keys[[2, 2, 0]])
    more, _ = cache.update(x[:, :, :1], x[:, :, :1], 0)
    assert more.shape == (3, 2, 7, 8)


def test_layers_have_formats_of_their_own_and_bytes_are_counted() -> None:
    config = model("Llama").config
    formats = {0: "float", "default": {"name": "mxint4", "group_size": 16}}
    cache = PackedCache(config, formats, is_centred=False)
    x = rows(1, 2, 6, 8)
    for layer in range(2):
        keys, values = cache.update(x, x, layer)
        assert torch.equal(keys, values)
    assert torch.equal(cache.layers[0].keys, x)
    assert torch.equal(cache.layers[1].values, MXInt(4, block_size=16).quantize(x))
    assert cache.nbytes == 2 * x.nbytes + 2 * x.numel() // 2 + 2 * 12
    assert cache.capacity() == pytest.approx(4 * x.numel() * 2 / cache.nbytes)


def test_a_cache_is_cut_reordered_and_forgotten_as_bytes() -> None:
    cache = PackedCache(model("Llama").config, Integer(8, 4), is_centred=False)
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
    with pytest.raises(ConfigError, match=r"cache, layer 0: Unknown format 'mxnt8'.*'mxint8'"):
        PackedCache(config, "mxnt8")
    with pytest.raises(ConfigError, match=r"no layer 7\. Allowed: 0 to 1, and 'default'"):
        PackedCache(config, {7: "mxint8"})
    with pytest.raises(ConfigError, match=r"unknown key 'widht'. Did you mean 'width'"):
        PackedCache(config, {"name": "mxint8", "widht": 3})
