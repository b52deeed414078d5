"""A norm that rounds its result: the sum, the norm and the rounding are what they are alone."""

import copy
import math

import pytest
import torch
from zoo import case

import chop.passes as passes
from chop import MaseGraph
from chop.kernels.ops import ROUNDED
from chop.kernels.rounded_norm import add_rounded_rms_norm, rounded_rms_norm
from chop.passes.rewrite import decoder_patterns

HAS_GPU = torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not HAS_GPU, reason="no GPU"))]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 32), (3, 64), (2, 5, 4096), (2, 14336), (1, 96))
W4A8 = {"name": "mxint", "weight_width": 4, "data_in_width": 8}


def defined(total, weight, eps):
    """Blocks of 32 share the exponent of their largest; the norm in float64, each step rounded to
    the type of the elements. With it, the units of its blocks."""
    wide = total.double()
    scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    normed = (wide * scale).to(total.dtype).double()
    blocks = (normed * weight.double()).to(total.dtype).double().unflatten(-1, (-1, 32))
    largest = blocks.abs().amax(-1, keepdim=True)
    unit = torch.where(largest > 0, largest, 1.0).log2().floor().sub(6).exp2()
    values = (blocks / unit).round().clamp(-127, 127) * unit
    return values.flatten(-2), unit.expand_as(blocks).flatten(-2)


@pytest.mark.share(3)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_result_is_its_definition_in_float64(shape, dtype, device):
    draw = torch.Generator().manual_seed(sum(shape))
    x, residual = (torch.randn(shape, generator=draw).to(dtype) for _ in range(2))
    weight = torch.randn(shape[-1], generator=draw).to(dtype)
    given = [t.to(device) for t in (x, residual, weight)]
    total, y = (t.cpu() for t in add_rounded_rms_norm(*given[:2], shape[-1:], given[2], 1e-5))
    assert torch.equal(total, x + residual) and y.dtype == dtype and y.shape == shape
    expected, unit = defined(total, weight, 1e-5)
    error = (y.double() - expected).abs()
    # The root in float32 may be another last place, and so what is rounded next.
    assert (error <= unit + expected.abs() * torch.finfo(dtype).eps).all()
    assert (error == 0).double().mean() >= 0.99
    assert torch.equal(ROUNDED(y), y)
    alone = rounded_rms_norm(total.to(device), shape[-1:], given[2], 1e-5).cpu()
    assert torch.equal(alone, y)


@pytest.mark.parametrize("device", DEVICES)
def test_blocks_that_are_no_numbers_are_none_and_views_are_taken(device):
    x = torch.randn(3, 2, 65, device=device)[:, 1, 1:]  # neither contiguous nor aligned
    x[0, 40], x[1, 3] = math.nan, math.inf
    y = rounded_rms_norm(x, (64,), torch.ones(64, device=device))
    assert y[0].isnan().all()  # as the mean of its squares
    assert y[1, :32].isnan().all() and not y[1, 32:].any() and y[2].isfinite().all()


def test_gradients_pass_and_odd_rows_take_the_definition():
    x, weight = torch.randn(2, 33, requires_grad=True), torch.ones(33)
    y = rounded_rms_norm(x, (33,), weight)
    y.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    total, again = add_rounded_rms_norm(x.detach(), torch.zeros(1, 33), (33,), weight)
    assert torch.equal(total, x.detach()) and torch.equal(again, y.detach())


@pytest.mark.skipif(not HAS_GPU, reason="no GPU")
def test_compiled_and_as_a_graph_it_is_one_operator():
    x, residual = (torch.randn(1, 4096, device="cuda").bfloat16() for _ in range(2))
    weight = torch.rand(4096, device="cuda").bfloat16()

    def step(x, residual):
        return add_rounded_rms_norm(x, residual, (4096,), weight, 1e-5)

    with torch.no_grad():
        expected = step(x, residual)
        run = torch.compile(step, mode="reduce-overhead", fullgraph=True)
        for _ in range(4):
            for one, other in zip(run(x, residual), expected, strict=True):
                assert torch.equal(one, other)


def w4a8_llama():
    given = case("Llama")
    graph = MaseGraph(copy.deepcopy(given.model), given.hf_input_names, given.inputs)
    passes.quantize_transform_pass(graph, {"by": "type", "linear": {"config": W4A8}})
    passes.pack_weights_transform_pass(graph, {"format": "mxint4"})
    return graph, given


def test_a_decoders_norms_round_what_its_packed_layers_read(monkeypatch, tmp_path):
    monkeypatch.setattr(decoder_patterns, "is_on_gpu", lambda layer: True)
    graph, given = w4a8_llama()
    patterns = ["rms_norm", "merge_projections", "rounded_norm"]
    with torch.no_grad():
        expected = graph.model(**given.inputs).logits
        _, info = passes.fuse_patterns_transform_pass(graph, {"patterns": patterns})
        y = graph.model(**given.inputs).logits
        graph.export(tmp_path / "fused")
        again = MaseGraph.from_checkpoint(tmp_path / "fused").model(**given.inputs).logits
    targets = [n.target for n in graph.fx_graph.nodes]
    depth = given.model.config.num_hidden_layers
    # The first norm reads the embeddings, others a sum; of the last one, rows are chosen first.
    assert targets.count(rounded_rms_norm) == 1
    assert targets.count(add_rounded_rms_norm) == 2 * depth - 1
    *rounding, last = [s for s in info["sites"] if s["pattern"] == "rounded_norm"]
    assert all(s["fused"] for s in rounding) and "does not round" in last["reason"]
    assert torch.allclose(y, expected, rtol=1e-5, atol=1e-5) and torch.equal(again, y)


def test_on_the_cpu_the_product_rounds_by_itself():
    graph, _ = w4a8_llama()
    _, info = passes.fuse_patterns_transform_pass(graph, {"patterns": ["rms_norm", "rounded_norm"]})
    *rounding, _ = [s["reason"] for s in info["sites"] if s["pattern"] == "rounded_norm"]
    assert rounding and all("is not on a GPU: its product rounds by itself" in r for r in rounding)
