"""K-quants of GGUF files: bytes as the package reads them, and roundings that are close."""

import numpy as np
import pytest
import torch
import transformers
from covering import first_and_slow
from export_models import IDS, LLAMA, graph_of

from chop import MaseGraph
from chop.errors import ExportError
from chop.export import from_gguf, to_gguf
from chop.export.gguf_k_types import K_BLOCK, K_TYPES, Codes, fitted_offset, fitted_scale

gguf = pytest.importorskip("gguf", reason="needs the package gguf: pip install 'masegraph[test]'")
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")

RANGES = {  # of codes, scales and minimums; minimums None: signed
    "Q2_K": (16, (0, 3), (0, 15), (0, 15)),
    "Q3_K": (16, (-4, 3), (-32, 31), None),
    "Q4_K": (32, (0, 15), (0, 63), (0, 63)),
    "Q5_K": (32, (0, 31), (0, 63), (0, 63)),
    "Q6_K": (16, (-32, 31), (-128, 127), None),
}
ERRORS = {"Q2_K": 0.29, "Q3_K": 0.16, "Q4_K": 0.075, "Q5_K": 0.038, "Q6_K": 0.019}
"""Root mean square error over that of normal values, at most."""
BY_NAME = {kind.name: kind for kind in K_TYPES}


def theirs(kind, data):
    return gguf.quants.dequantize(data, gguf.GGMLQuantizationType(kind.number))


def drawn(shape=(300, K_BLOCK), seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) * 0.02


def test_the_sizes_and_numbers_are_those_of_the_package():
    for kind in K_TYPES:
        number = gguf.GGMLQuantizationType[kind.name]
        assert gguf.GGML_QUANT_SIZES[number] == (K_BLOCK, kind.nbytes)
        assert number == kind.number and set(RANGES) == set(BY_NAME)


@pytest.mark.parametrize("kind", K_TYPES, ids=lambda kind: kind.name)
def test_any_bytes_decode_as_in_the_package(kind):
    data = np.random.default_rng(1).integers(0, 256, (2000, kind.nbytes), dtype=np.uint8)
    expected, values = theirs(kind, data), kind.decode(data)
    assert np.array_equal(expected, values, equal_nan=True)
    assert np.isfinite(expected).mean() > 0.8


@pytest.mark.parametrize("kind", K_TYPES, ids=lambda kind: kind.name)
def test_every_code_scale_and_minimum_is_written_in_its_place(kind):
    size, codes, scales, minimums = RANGES[kind.name]
    rng, groups = np.random.default_rng(2), K_BLOCK // size

    def numbers(bounds, shape):
        return rng.integers(bounds[0], bounds[1] + 1, shape).astype(np.float64)

    d = rng.normal(size=(200, 1)).astype(np.float16).astype(np.float64)
    offsets = (d[::-1], numbers(minimums, (200, groups))) if minimums else (None, None)
    q = numbers(codes, (200, groups, size))
    parts = Codes(d, offsets[0], numbers(scales, (200, groups)), offsets[1], q)
    values = theirs(kind, kind.write(parts)).reshape(200, groups, size)
    exact = parts.d[..., None] * parts.scales[..., None] * parts.q
    if minimums:
        exact = exact - (parts.dmin * parts.minimums)[..., None]
    # float16 times small integers: float32 rounds the product by 2 ** -24 at most
    largest = np.abs(exact).max() + np.abs(d).max() * 63
    assert np.abs(values - exact).max() <= 2.0**-22 * largest
    again = kind.read(kind.write(parts))
    for name in ("d", "dmin", "scales", "minimums", "q"):
        ours, stored = getattr(parts, name), getattr(again, name)
        assert (ours is None and stored is None) or np.array_equal(ours, stored), name


@pytest.mark.parametrize("kind", K_TYPES, ids=lambda kind: kind.name)
def test_rounded_values_are_close(kind):
    values = drawn()
    error = theirs(kind, kind.nearest(values)) - values
    assert np.sqrt((error**2).mean() / (values**2).mean()) < ERRORS[kind.name]


@pytest.mark.parametrize("kind", K_TYPES, ids=lambda kind: kind.name)
def test_hard_blocks_stay_finite_and_zero_stays_zero(kind):
    values = drawn((6, K_BLOCK))
    values[0], values[1, 1:], values[2], values[3] = 0, 0, 1.0, -1.0
    values[4, ::16] *= 1e4
    values[5] *= 1e-12
    rounded = kind.decode(kind.nearest(values))
    assert np.isfinite(rounded).all() and not rounded[0].any()
    for row in (1, 2, 3):
        assert np.abs(rounded[row] - values[row]).max() <= 0.02 * np.abs(values[row]).max()


@pytest.mark.parametrize("top", [3, 15, 31])
def test_the_fit_is_never_worse_than_the_plain_range(top):
    x = drawn((500, 32), 3).astype(np.float64)
    weights = np.abs(x) + 0.01
    scale, minimum = fitted_offset(x, weights, top)
    low = np.minimum(x.min(1), 0)
    plain = (x.max(1).clip(0) - low) / top

    def error(s, m):
        q = np.rint((x + m[:, None]) / s[:, None]).clip(0, top)
        return (weights * (s[:, None] * q - m[:, None] - x) ** 2).sum(1)

    assert (error(scale, minimum) <= error(plain, -low) * (1 + 1e-9)).all()
    assert error(scale, minimum).sum() < 0.95 * error(plain, -low).sum()


def test_weights_draw_the_fit_to_the_values_that_count():
    x, heavy = drawn((200, 16), 4).astype(np.float64), np.ones((200, 16))
    heavy[:, :4] = 100.0
    errors = []
    for weights in (np.ones_like(x), heavy):
        scale = fitted_scale(x, weights, 4)[:, None]
        rounded = np.rint(x / scale).clip(-4, 3) * scale
        errors.append(((rounded - x)[:, :4] ** 2).sum())
    assert errors[1] < errors[0]


@pytest.mark.parametrize("name", first_and_slow(BY_NAME))
def test_a_model_is_written_and_read_with_the_values_of_the_file(name, tmp_path):
    mg = wide_llama()
    report = to_gguf(mg, tmp_path / "m.gguf", name)
    assert {r.written for r in report.records} == {name, "F32"}
    back = from_gguf(tmp_path / "m.gguf")
    for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors:
        assert tensor.tensor_type.name in (name, "F32")
    with torch.no_grad():
        ours, floats = back.model(IDS).logits, mg.model(IDS).logits
    assert (ours - floats).norm() < {"Q2_K": 1.0, "Q3_K": 0.5}.get(name, 0.25) * floats.norm()
    to_gguf(back, tmp_path / "again.gguf", "F32")
    assert torch.equal(from_gguf(tmp_path / "again.gguf").model(IDS).logits, ours)


def test_rows_that_blocks_of_256_do_not_divide_become_q8_0(tmp_path):
    report = to_gguf(graph_of("llama"), tmp_path / "m.gguf", "Q4_K")
    assert {r.written for r in report.records} == {"Q8_0", "F32"}
    notes = {r.note for r in report.records if r.written == "Q8_0"}
    assert "rows of 64 are not blocks of 256" in notes


def wide_llama():
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**LLAMA | sizes, tie_word_embeddings=False)
    return MaseGraph(transformers.LlamaForCausalLM(config).eval(), dummy_in={"input_ids": IDS})


@pytest.mark.parametrize("name", first_and_slow(["Q3_K", "Q2_K"]))
def test_importance_lowers_the_error_of_the_columns_that_count(name, tmp_path):
    mg, layer = wide_llama(), "model.layers.0.mlp.up_proj"
    importance = torch.where(torch.arange(256) % 16 < 3, 100.0, 1.0)
    weight, errors = mg.model.get_submodule(layer).weight.detach(), []
    for own in (None, {layer: importance}):
        to_gguf(mg, tmp_path / "m.gguf", name, importance=own)
        rounded = from_gguf(tmp_path / "m.gguf").model.get_submodule(layer).weight.detach()
        errors.append(float((importance * (rounded - weight).square()).sum()))
    assert errors[1] < 0.9 * errors[0]


@pytest.mark.parametrize(
    ("name", "importance", "words"),
    [
        ("Q8_0", {}, r"importance with the type Q8_0. Allowed: Q2_K, Q3_K"),
        ("Q4_K", {"model.layers.0.mlp.up": torch.ones(256)}, r"no layer '.*up'. Did you mean 'mod"),
        ("Q4_K", {"lm_head": torch.ones(3)}, r"'lm_head.weight': shape \[3\]. Allowed: 256 finite"),
        ("Q4_K", {"lm_head": -torch.ones(256)}, r"Allowed: 256 finite numbers, not negative"),
    ],
)
def test_importances_that_do_not_fit_are_refused(name, importance, words, tmp_path):
    with pytest.raises(ExportError, match=words):
        to_gguf(wide_llama(), tmp_path / "m.gguf", name, importance=importance)
