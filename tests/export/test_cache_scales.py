"""Scales of an 8-bit cache: those of the cached keys and values, and read by transformers."""

import copy
import functools
import json

import pytest
import torch
import transformers
from export_models import IDS, LLAMA, MXINT4, graph_of
from safetensors.torch import load_file
from torch import nn

from chop import MaseGraph
from chop.errors import ExportError
from chop.export import from_compressed_tensors, to_compressed_tensors
from chop.export.cache_scales import cache_scales
from chop.nn.quantizers.fp8 import FP8

DATA = [{"input_ids": IDS}, {"input_ids": IDS.flip(0)}]


@functools.cache
def captured():
    return MaseGraph(llama(), dummy_in={"input_ids": IDS})


def llama(**more):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**(LLAMA | more))
    return transformers.LlamaForCausalLM(config).eval()


def cached(model, ids):
    """Keys and values that transformers stores for each layer."""
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True)
    return [(layer.keys, layer.values) for layer in cache.layers]


class RoundedCache(transformers.DynamicCache):
    """Cache that rounds what it stores to E4M3, divided by the scales of each layer."""

    def __init__(self, config, scales):
        super().__init__(config=config)
        self.scales = scales

    def update(self, keys, values, layer, *rest, **more):
        form = FP8("e4m3")
        rounded = [
            form(x / self.scales[layer][i]) * self.scales[layer][i]
            for i, x in enumerate((keys, values))
        ]
        return super().update(*rounded, layer, *rest, **more)


def by_layer(scales):
    layers = sorted({name.split(".")[2] for name in scales})
    path = "model.layers.{}.self_attn.{}_scale"
    return [[scales[path.format(layer, part)] for part in "kv"] for layer in layers]


@pytest.mark.parametrize("has_cache", [False, True])
def test_scales_map_the_largest_cached_value_to_448(has_cache):
    model = llama(num_key_value_heads=2)
    graph = MaseGraph(model, dummy_in={"input_ids": IDS}, cache=has_cache)
    scales = by_layer(cache_scales(graph, DATA))
    for number, own in enumerate(scales):
        stored = [cached(model, batch["input_ids"])[number] for batch in DATA]
        for part, scale in enumerate(own):
            largest = max(float(each[part].abs().max()) for each in stored)
            assert float(scale) == pytest.approx(largest / 448, rel=1e-5)


@pytest.mark.parametrize("config", [None, MXINT4], ids=["float", "mxint4"])
def test_transformers_reads_the_scales_and_rounds_its_cache(config, tmp_path):
    pytest.importorskip("compressed_tensors", reason="needs masegraph[export]")
    graph = copy.deepcopy(captured()) if config is None else graph_of("llama", config)
    to_compressed_tensors(graph, tmp_path / "m", cache_data=DATA)
    written = json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]
    assert written["kv_cache_scheme"]["num_bits"] == 8
    assert written["format"] == ("dense" if config is None else "pack-quantized")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    stored = load_file(tmp_path / "m" / "model.safetensors")
    scales = {name: tensor for name, tensor in stored.items() if name.endswith("v_scale")}
    scales |= {name: tensor for name, tensor in stored.items() if name.endswith("k_scale")}
    attention = theirs.model.layers[1].self_attn
    assert torch.equal(attention.k_scale, stored["model.layers.1.self_attn.k_scale"])
    # the reference: a model without the package, whose weights are those of the graph
    reference = llama()
    with torch.no_grad():
        theirs(IDS)  # the package unpacks weights at the first call
        for name, module in reference.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.copy_(theirs.get_submodule(name).weight)
        reference.load_state_dict(
            {n: p for n, p in theirs.state_dict().items() if "norm" in n}, strict=False
        )
        rounded = RoundedCache(reference.config, by_layer(scales))
        expected = reference(IDS, past_key_values=rounded, use_cache=True).logits
        plain = reference(IDS).logits
        ours = theirs(IDS).logits
    assert (ours - expected).abs().max() < 0.05 * (expected - plain).abs().max()
    back = from_compressed_tensors(tmp_path / "m")
    with torch.no_grad():
        assert torch.allclose(back.model(IDS).logits, graph.model(IDS).logits, atol=1e-6)


def test_the_scheme_is_one_of_the_package(tmp_path):
    pytest.importorskip("compressed_tensors", reason="needs masegraph[export]")
    from compressed_tensors.quantization import QuantizationConfig

    to_compressed_tensors(graph_of("llama", MXINT4), tmp_path / "m", cache_data=DATA)
    written = json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]
    scheme = QuantizationConfig.model_validate(written).kv_cache_scheme
    assert (scheme.num_bits, scheme.type, scheme.strategy) == (8, "float", "tensor")
    assert scheme.symmetric and scheme.dynamic is False


def test_models_and_data_without_scales_are_refused():
    class NoAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x)

    plain = MaseGraph(NoAttention(), dummy_in={"x": torch.randn(2, 4)})
    with pytest.raises(ExportError, match="kv_cache_scheme: needs one attention"):
        cache_scales(plain, [{"x": torch.randn(2, 4)}])
    with pytest.raises(ExportError, match="kv_cache_scheme: no batch was given"):
        cache_scales(captured(), [])
    broken = copy.deepcopy(captured())
    with torch.no_grad():
        broken.model.get_submodule("model.layers.0.self_attn.v_proj").weight.zero_()
    with pytest.raises(ExportError, match=r"self_attn\.v_scale': the largest magnitude .* is 0\.0"):
        cache_scales(broken, DATA)
