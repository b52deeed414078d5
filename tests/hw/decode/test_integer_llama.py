"""Integer Llama in PyTorch: equal to plain integers, and close to the float model."""

import math
import re
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from decode_models import integer_llama, rounded_llama, small_llama

from chop.errors import ConfigError
from chop.hw.decode.block_codes import (
    TOP_EXPONENT,
    cast,
    fixed_matrix,
    matrix_blocks,
    vector_blocks,
)
from chop.hw.decode.decode_model import MATRICES, DecodeOptions, quantize_llama
from chop.hw.decode.integer_llama import IntegerLlama, generate, pick
from chop.hw.decode.llama_weights import float_logits, read_llama, read_shape, score_scale
from chop.hw.decode.plain_weights import plain_weights
from chop.hw.decode.residual_norm import guard_bits, normalise
from chop.hw.reference.plain_llama import PlainLlama, inverse_root, to_16_bits, to_blocks
from chop.nn.quantizers.arithmetic import norm, tables
from chop.nn.quantizers.integer import Integer
from chop.nn.quantizers.mxint import MXInt

PROMPT = [3, 1, 4, 1, 5]


def edge_codes(rows=64, size=32):
    """Return 16-bit codes of all magnitudes, with rows of zeros, ends and powers of two."""
    torch.manual_seed(0)
    codes = torch.randint(-32768, 32768, (rows, size)) >> torch.randint(0, 16, (rows, 1))
    ends = torch.tensor([[0], [-32768], [32767], [127], [128], [-127], [-128], [255], [1]])
    return torch.cat((codes, ends.expand(-1, size)))


def test_float_model_has_the_logits_of_transformers():
    model, tokens = small_llama(), torch.arange(20) % 7
    with torch.no_grad():
        expected = model(tokens[None]).logits[0].double()
    torch.testing.assert_close(
        float_logits(read_llama(model), tokens, lambda *_: None), expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("width", [4, 8])
def test_vectors_have_the_numbers_of_mxint(width):
    codes = edge_codes()
    blocks = vector_blocks(codes, 32, width)
    above = blocks.exponents[:, 0] > 0
    numbers = MXInt(width, block_size=32).quantize(codes.double())
    assert torch.equal(blocks.codes[above], numbers[above].long())
    assert torch.equal(blocks.codes[~above], codes[~above])


@pytest.mark.parametrize("width", [4, 8])
def test_vectors_have_the_blocks_of_the_plain_reference(width):
    codes = edge_codes()
    blocks = vector_blocks(codes, 16, width)
    for row, mantissas, exponents in zip(codes, blocks.mantissas, blocks.exponents, strict=True):
        expected = to_blocks(row.tolist(), 16, width)
        assert expected == list(zip(mantissas.tolist(), exponents.tolist(), strict=True))


@pytest.mark.parametrize("width", [4, 8])
def test_matrices_have_the_numbers_of_mxint(width):
    torch.manual_seed(1)
    weight = torch.randn(8, 64) * 2.0 ** torch.randint(-6, 1, (8, 1))
    matrix = matrix_blocks(weight, width, 32)
    numbers = matrix.blocks.codes.double() * 2.0**-matrix.frac_width
    assert torch.equal(numbers, MXInt(width, block_size=32).quantize(weight).double())


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 700.0])
def test_matrices_in_fixed_point_have_the_numbers_of_the_finest_format(width, scale):
    weight = torch.randn(8, 64, generator=torch.manual_seed(1)).double() * scale
    matrix = fixed_matrix(weight, width, 32)
    frac_width = matrix.frac_width - TOP_EXPONENT
    numbers = matrix.blocks.codes.double() * 2.0**-matrix.frac_width
    assert torch.equal(numbers, Integer(width, frac_width).quantize(weight))
    assert float(weight.abs().max()) * 2.0 ** (frac_width + 1) > 2 ** (width - 1) - 0.5


@pytest.mark.parametrize("weight", [[-1.0, 0.5], [-1.0, 1.0], [0.0, 0.0], [-0.25, 0.21875]])
def test_the_lowest_code_of_fixed_point_is_used(weight):
    matrix = fixed_matrix(torch.tensor([weight]), 4, 2)
    assert (matrix.blocks.codes * 2.0**-matrix.frac_width).tolist() == [weight]


def test_blocks_far_below_the_largest_are_rounded_to_the_step_of_the_matrix():
    weight = torch.full((2, 4), 2.0**-40)
    weight[0, 0] = 1.0
    matrix = matrix_blocks(weight, 8, 4)
    assert matrix.blocks.exponents.tolist() == [[TOP_EXPONENT], [0]]
    assert not matrix.blocks.mantissas[1].any()


def test_a_matrix_of_zeros_has_codes_of_zero():
    assert not matrix_blocks(torch.zeros(2, 4), 4, 4).blocks.mantissas.any()


@pytest.mark.parametrize("dropped", [0, 1, 2, 7, 20])
def test_cast_rounds_half_to_even(dropped):
    half = (1 << dropped) >> 1
    codes = [sign * (n * (1 << dropped) + rest) for n in range(4) for rest in (0, 1, half, half + 1)
             for sign in (1, -1)] + [1 << 45, -(1 << 45)]  # fmt: skip
    expected = [min(max(round(Fraction(c, 1 << dropped)), -32768), 32767) for c in codes]
    assert cast(torch.tensor(codes), dropped).tolist() == expected
    assert [to_16_bits(code, dropped) for code in codes] == expected


def test_inverse_roots_of_the_plain_reference_are_those_of_the_tables():
    numbers = [0, 1, 2, 3, 4, 5, 255, 256, 2**31 - 1, 2**40 + 12345, 2**61 + 987654321]
    r, k = tables.inverse_root(torch.tensor(numbers))
    assert [inverse_root(n) for n in numbers] == list(zip(r.tolist(), k.tolist(), strict=True))


RESIDUALS = [(4, None, 64), (8, None, 64), (4, 16, 64), (8, 20, 64), (4, 24, 64), (4, 24, 512)]


@pytest.mark.share(3)
@pytest.mark.parametrize(("width", "residual", "hidden"), RESIDUALS)
def test_logits_are_those_of_plain_integers(width, residual, hidden):
    model = integer_llama(
        sizes={"hidden_size": hidden}, weight_width=width, residual_width=residual
    )
    assert residual in (None, model.residual_width)
    assert (model.guard < 0) == (hidden == 512)
    generated = generate(model, PROMPT, 6)
    plain = PlainLlama(plain_weights(model))
    logits = [plain.step(token) for token in (PROMPT + generated.tokens)[:-1]]
    assert torch.equal(torch.tensor(logits[len(PROMPT) - 1 :]), generated.logits)
    assert generated.tokens == [pick(row) for row in generated.logits]


@pytest.mark.parametrize(("weights", "width", "cache"), [("mxint", 4, 4), ("integer", 8, 4)])
def test_other_formats_are_those_of_plain_integers(weights, width, cache):
    model = integer_llama(weight_format=weights, weight_width=width, cache_width=cache)
    llama, plain = IntegerLlama(model), PlainLlama(plain_weights(model))
    for token in PROMPT:
        assert llama.step(token).tolist() == plain.step(token)
    keys = torch.stack([cache.keys.mantissas for cache in llama.caches])
    assert int(keys.abs().max()) == 2 ** (cache - 1) - 1


def test_saturated_vectors_are_those_of_plain_integers():
    """Calibrate on small activations, so that later ones saturate."""
    weights = read_llama(small_llama())
    quiet = weights.embedding.clone()
    quiet[1:] *= 40.0
    loud = type(weights)(**{**vars(weights), "embedding": quiet})
    model = quantize_llama(loud, torch.zeros(1, dtype=torch.long), DecodeOptions(8, 32, 16))
    llama, plain = IntegerLlama(model), PlainLlama(plain_weights(model))
    assert int(model.embedding[5].abs().max()) >= 32767
    for token in (5, 6, 7):
        assert llama.step(token).tolist() == plain.step(token)


def test_eight_bit_logits_are_close_to_the_float_model():
    model, weights = integer_llama(weight_width=8), read_llama(small_llama())
    tokens = torch.arange(24) % 11
    exact = float_logits(weights, tokens, lambda *_: None)
    llama = IntegerLlama(model)
    logits = torch.stack([llama.step(int(token)) for token in tokens]).double()
    error = logits * 2.0 ** -model.fracs["logits"] - exact
    assert float(error.std() / exact.std()) < 0.05  # 8-bit mantissas: about 0.03


@pytest.mark.parametrize("width", [4, 8])
def test_packing_keeps_every_mxint_number(width):
    """Exponents may exceed what the largest mantissa of a block needs, as after GPTQ."""
    generator, limit = torch.manual_seed(0), (1 << (width - 1)) - 1
    mantissas = torch.randint(-limit, limit + 1, (64, 4, 32), generator=generator)
    mantissas[:8] //= 2
    exponents = torch.randint(-20, -20 + TOP_EXPONENT - width, (64, 4, 1), generator=generator)
    weight = (mantissas * 2.0**exponents).flatten(1).double()
    packed = matrix_blocks(weight, width, 32)
    assert torch.equal(packed.blocks.codes * 2.0**-packed.frac_width, weight)


STORED = {"mxint4": MXInt(4), "mxint8": MXInt(8), "integer8": Integer(8, 8)}


@pytest.mark.parametrize("head_dim", [32, 64, 96])
@pytest.mark.parametrize("name", STORED)
def test_rounded_weights_of_a_llama_are_packed_unchanged(name, head_dim):
    number = STORED[name]
    weights = read_llama(rounded_llama(number, head_dim=head_dim))
    options = DecodeOptions(number.width, max_length=16, weight_format=name[:-1])
    model = quantize_llama(weights, torch.arange(8), options)
    pairs = [(weights.head, model.head)]
    for ours, theirs in zip(weights.layers, model.layers, strict=True):
        pairs += [(getattr(ours, name), theirs.matrices[name]) for name in MATRICES]
    for weight, packed in pairs:
        assert torch.equal(packed.blocks.codes * 2.0**-packed.frac_width, weight)


@pytest.mark.parametrize("head_dim", [1, 2, 32, 48, 64, 96, 128])
def test_the_factor_of_scores_is_a_power_of_two_and_a_square(head_dim):
    power, root = score_scale(head_dim)
    assert math.frexp(power)[0] == 0.5
    assert 0.5**0.5 <= root <= 1
    assert power * root**2 == pytest.approx(head_dim**-0.5)


def test_the_residual_stream_is_as_wide_as_the_calibration_tokens_need():
    """A loud element makes the step larger, until the others have too few steps."""
    weights, tokens = read_llama(small_llama()), torch.arange(8)
    widths, first = [], weights.layers[0]
    for factor in (1.0, 1000.0, 1e5):
        down = first.down.clone()
        down[5] *= factor
        layers = (replace(first, down=down), *weights.layers[1:])
        widths.append(quantize_llama(replace(weights, layers=layers), tokens).residual_width)
    assert widths[0] == 16 < widths[1] < widths[2] == 24


def test_norms_that_need_more_than_62_bits_are_refused():
    message = "norms of 8192 elements of 24 bits with eps = 1e-05 need sums of more than 62 bits"
    with pytest.raises(ConfigError, match=re.escape(message)):
        guard_bits(Integer(24, 4), 8192, 1e-5)


@pytest.mark.parametrize("size", [64, 100, 576, 2048])
def test_norms_of_16_bits_are_those_of_integer_arithmetic(size):
    number, eps = Integer(16, 8), 1e-5
    codes = torch.randint(-3000, 3000, (5, size), generator=torch.manual_seed(size))
    expected = norm.normalise_codes(codes, number, eps, is_centred=False)
    guard = guard_bits(number, size, eps)
    assert torch.equal(normalise(codes, number, eps, guard), expected)


def test_the_first_of_equal_logits_is_picked():
    assert pick(torch.tensor([1, 7, 7, -3])) == 1


CONFIGS = {
    "model_type must be 'llama', got 'gpt2'": {"model_type": "gpt2"},
    "hidden_act must be 'silu', got 'gelu'": {"hidden_act": "gelu"},
    "attention_bias must be false": {"attention_bias": True},
    "mlp_bias must be false": {"mlp_bias": True},
}


@pytest.mark.parametrize("message", CONFIGS)
def test_other_models_are_refused(message):
    config = small_llama().config
    for name, value in CONFIGS[message].items():
        setattr(config, name, value)
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_shape(config)


OPTIONS = {
    "weight_width must be one of (4, 8), got 5": {"weight_width": 5},
    "cache_width must be one of (4, 8), got 6": {"cache_width": 6},
    "no weight format 'int'. Did you mean 'mxint'?": {"weight_format": "int"},
    "block must be a power of two, got 24": {"block": 24},
    "max_length must lie in 1 … 16384, got 0": {"max_length": 0},
    "residual_width must lie in 16 … 24, got 25": {"residual_width": 25},
    "intermediate = 96 is not a multiple of the block of 64": {"block": 64},
}


@pytest.mark.parametrize("message", OPTIONS)
def test_wrong_options_are_refused(message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        integer_llama(**OPTIONS[message])


@pytest.mark.parametrize("shape", [(2, 3, 4), (0,), (2, 0)])
def test_calibration_tokens_are_rows(shape):
    message = f"must be one row or several, got shape {shape}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        quantize_llama(read_llama(small_llama()), torch.zeros(shape, dtype=torch.long))


def test_formats_hold_the_vectors_of_every_calibration_row():
    weights = read_llama(small_llama())
    loud = type(weights)(**{**vars(weights), "embedding": weights.embedding.clone()})
    loud.embedding[9] *= 64.0
    rows = torch.tensor([[1, 2, 3], [4, 9, 5]])
    fracs = [quantize_llama(loud, row).fracs["hidden"] for row in (rows[0], rows[1], rows)]
    assert fracs[0] > fracs[1] == fracs[2]


REQUESTS = {
    "at least one prompt token and one new token, got 0 and 1": ([], 1),
    "at least one prompt token and one new token, got 1 and 0": ([1], 0),
    "need a cache of 66 tokens. max_length is 64": ([1, 2, 3], 64),
    "token 96 is not in the vocabulary of 96": ([96], 1),
}


@pytest.mark.parametrize("message", REQUESTS)
def test_wrong_requests_are_refused(message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        generate(integer_llama(), *REQUESTS[message])


def test_a_full_cache_is_refused():
    llama = IntegerLlama(integer_llama(max_length=2))
    llama.step(0), llama.step(1)
    with pytest.raises(ConfigError, match="the cache holds 2 tokens"):
        llama.step(2)


def test_rotary_embeddings_with_an_attention_factor_are_refused():
    model = small_llama()
    model.model.rotary_emb.attention_scaling = 0.5
    with pytest.raises(ConfigError, match="rope_scaling with an attention factor"):
        read_llama(model)


def test_the_residual_stream_uses_all_its_bits():
    weights, tokens, largest = read_llama(small_llama()), torch.arange(24), []
    float_logits(
        weights, tokens, lambda n, x: largest.append(x.abs().max()) if "hidden" in n else None
    )
    code = float(max(largest)) * 2.0 ** quantize_llama(weights, tokens).fracs["hidden"]
    assert 2**14 <= code < 2**15
