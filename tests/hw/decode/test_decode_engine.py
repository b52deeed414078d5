"""Decode engine in RTL: tokens, logits and cycles are those of the models."""

import re

import numpy as np
import pytest
import torch
from decode_models import edge_llama, integer_llama

from chop.errors import ConfigError, HardwareError
from chop.hw.decode.block_codes import BlockCodes, BlockMatrix, fixed_matrix, matrix_blocks
from chop.hw.decode.decode_cycles import predict_cycles
from chop.hw.decode.decode_emit import TOP, EngineOptions, design_engine, emit_engine
from chop.hw.decode.decode_program import WIDTHS, DecodeInstruction, DecodeOp
from chop.hw.decode.decode_sim import DecodeRequest, compare_run, simulate_engine
from chop.hw.decode.memory_image import MemoryImage, interleave, pack_matrix
from chop.hw.decode.memory_timing import PRESETS, MemoryTiming, memory_timing
from chop.hw.sim.verilate import lint

REQUESTS = [
    DecodeRequest((3, 1, 4), 20),
    DecodeRequest((7,), 3),
    DecodeRequest((0, 95, 2, 2, 9), 2),
]
SHORT = [DecodeRequest((3, 1), 3), DecodeRequest((7,), 2)]
CLOCK = 100.0  # MHz


def check(design, folder, requests, timing=None):
    """Simulate; compare every logit with PyTorch and every cycle with the cycle model."""
    run = simulate_engine(design, folder, requests, timing)
    logits = sum(r.new_tokens for r in requests) * design.model.shape.vocab
    assert compare_run(design, requests, run) == logits
    predicted = predict_cycles(design, requests, [r.tokens for r in run.results], timing)
    for ours, theirs in zip(predicted.results, run.results, strict=True):
        assert (ours.accepted, ours.sent) == (theirs.accepted, theirs.sent)
    assert predicted.cycles == run.cycles
    assert predicted.read_beats == run.read_beats
    assert predicted.written_beats == run.written_beats
    return run


def emitted(folder, *, data_width=128, engine=None, **options):
    design = design_engine(
        integer_llama(**options), EngineOptions(data_width=data_width, **engine or {})
    )
    emit_engine(design, folder)
    return design


EDGE_REQUESTS = [
    DecodeRequest((1, 0, 40, 3, 41), 12),
    DecodeRequest((77, 2, 24, 23, 91), 12),  # four elements round to -128 and are clipped to -127
]


def edge_engine(folder, **options):
    """An engine whose vectors saturate or are tiny; the rows of its head come in equal pairs."""
    design = design_engine(edge_llama(**options), EngineOptions(queue=32))
    emit_engine(design, folder)
    return design


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """An engine of a Llama with two layers, MXINT4 weights and a memory of 128 bits."""
    folder = tmp_path_factory.mktemp("engine")
    return emitted(folder), folder


@pytest.mark.sim("verilator")
def test_tokens_logits_and_cycles_are_those_of_the_models(small):
    design, folder = small
    run = check(design, folder, REQUESTS)
    assert len(set(run.results[0].tokens)) > 3  # no constant output


@pytest.mark.sim("verilator")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_stalls_of_memory_change_cycles_and_nothing_else(small, seed):
    design, folder = small
    timing = memory_timing("ddr3-800", 128, CLOCK).with_stalls(0.4, seed)
    stalled = check(design, folder, SHORT, timing)
    free = simulate_engine(design, folder, SHORT)
    assert stalled.cycles > free.cycles
    assert [r.tokens for r in stalled.results] == [r.tokens for r in free.results]


NARROW = {"weight_format": "integer", "weight_width": 8, "cache_width": 4}


@pytest.mark.sim("verilator")
def test_fixed_point_weights_and_a_cache_of_4_bits_are_exact(tmp_path):
    design = emitted(tmp_path, **NARROW)
    check(design, tmp_path, SHORT, memory_timing("ddr3-800", 128, CLOCK).with_stalls(0.2, 3))


@pytest.mark.sim("verilator")
def test_rtl_has_no_lint_warnings(small):
    assert lint(small[1], TOP) == ""


VARIANTS = {
    "mxint8, 128 bits": {"weight_width": 8},
    "mxint4, 64 bits": {"data_width": 64},
    "mxint8, 256 bits": {"weight_width": 8, "data_width": 256},
    "mxint8, 32 bits": {"weight_width": 8, "data_width": 32},
    "block of 16": {"block": 16, "data_width": 64},
    "block of 64": {"block": 64, "data_width": 256,
                    "sizes": {"intermediate_size": 128, "head_dim": 64}},
    "short queue": {"engine": {"queue": 16, "burst": 8, "outstanding": 1}},
    "long bursts": {"engine": {"queue": 512, "burst": 256, "outstanding": 3}},
    "one key head": {"sizes": {"num_key_value_heads": 1}},
    "all key heads, head of 64": {"sizes": {"num_key_value_heads": 4, "head_dim": 64}},
    "head of 96": {"sizes": {"head_dim": 96}},
    "one layer, odd vocabulary": {"sizes": {"num_hidden_layers": 1, "vocab_size": 37}},
    "other weights": {"seed": 5},
    "cache of 4 bits": {"cache_width": 4},
    "mxint8, cache of 4 bits, 64 bits": {"weight_width": 8, "cache_width": 4, "data_width": 64},
    "integer4": {"weight_format": "integer"},
    "integer8, 256 bits": {"weight_format": "integer", "weight_width": 8, "data_width": 256},
    "integer4, long vectors": {"weight_format": "integer",
                               "sizes": {"hidden_size": 512, "intermediate_size": 1056}},
    "residual of 16 bits": {"residual_width": 16},
    "residual of 21 bits": {"residual_width": 21},
    "residual of 24 bits, mxint8": {"residual_width": 24, "weight_width": 8},
    "residual of 24 bits, hidden 512": {"residual_width": 24, "sizes": {"hidden_size": 512}},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.sim("verilator")
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_exact(tmp_path, name):
    design = emitted(tmp_path, **VARIANTS[name])
    assert lint(tmp_path, TOP) == ""
    requests = [DecodeRequest((3, 1, 4), 8), DecodeRequest((7,), 2)]
    check(design, tmp_path, requests)
    timing = memory_timing("hbm", design.options.data_width, CLOCK).with_stalls(0.3, 7)
    check(design, tmp_path, requests, timing)


@pytest.mark.slow
@pytest.mark.sim("verilator")
def test_a_full_cache_is_exact(small):
    check(*small, [DecodeRequest(tuple(range(30)), 35)])


@pytest.mark.slow
@pytest.mark.sim("verilator")
@pytest.mark.parametrize("name", ["ideal", *PRESETS])
def test_every_memory_is_predicted(small, name):
    design, folder = small
    for share in (0.0, 0.5):
        check(design, folder, SHORT, memory_timing(name, 128, CLOCK).with_stalls(share, 3))


MUTANTS = {
    "ties round up": ("shift_cast", "&& (dropped_2_q[IN_WIDTH-2:0] != '0 || floor_2_q[0])", ""),
    "no saturation": ("shift_cast", "high_2 != '0 && high_2 != '1", "1'b0"),
    "low half has a sign": ("block_dot", "i % 2 == 0 && is_wide", "1'b0"),
    "exponent of the vector": ("block_dot", "+ 5'(lanes_exponent)", "+ 5'd0"),
    "sum is not cleared": ("block_dot", "first_q[7] ? '0 : acc_9_q", "acc_9_q"),
    "one exponent less": ("block_collector", "4'(i - 6)", "4'(i - 7)"),
    "lowest mantissa": ("block_collector", "is_bottom ? low + 8'sd1", "1'b0 ? 8'sd0"),
    "rotation backwards": ("pair_rotator", "a_cos_q - b_sin_q", "a_cos_q + b_sin_q"),
    "gate of the pair before": ("silu_gate", "&& !odd_q[DELAY-1]", "&& odd_q[DELAY-1]"),
    "fine table": ("weighted_values", "33'(coarse_2_q) * 33'(fine_2_q)",
                   "{1'b0, coarse_2_q, 16'd0}"),
    "sums of the head before": ("weighted_values", "if (clear) for", "if (rst) for"),
    "reciprocal without Newton": ("weighted_values", "34'h2_0000_0000 - near_one_q",
                                  "34'h1_0000_0000"),
    "no eps": ("decode_engine", "<< RAISED) + EPS", "<< RAISED)"),
    "largest score": ("decode_engine", "!has_score_q || element > largest_q", "1'b1"),
    "last of equal logits": ("decode_engine", "element > best_q", "element >= best_q"),
    "no fence": ("decode_engine", "!fetched_q.fence ||", "1'b1 ||"),
    "one head's place": ("decode_engine", "BEAT_ADDRESS'(HEAD_STRIDE)", "BEAT_ADDRESS'(0)"),
    "room is not reserved": ("burst_reader", "room_q >= COUNT_WIDTH'(length_q)", "room_q != '0"),
    "address moves while it waits": ("burst_reader", "(!m_axi_arvalid || m_axi_arready)", "1'b1"),
    "word is sent twice": ("cache_writer", "has_word && address_done && !take", "1'b0"),
    "first lanes of a word": ("decode_engine", "LANES - CACHE_LANES + i", "i"),
}  # fmt: skip
NARROW_MUTANTS = {
    "one exponent more": ("block_collector", "4'(i - NARROW_WIDTH + 2)",
                          "4'(i - NARROW_WIDTH + 3)"),
    "wide limit": ("block_collector", "is_narrow ? -8'sd1 <<< (NARROW_WIDTH - 1)", "1'b0 ? 8'sd0"),
    "exponent 0": ("decode_engine", "exponents_q   <= '1", "exponents_q   <= '0"),
    # Either guard alone keeps fixed point without headers: the count rests, or its end is unseen.
    "header after 256 blocks": ("decode_engine", "block_end && has_headers_q &&", "block_end &&",
                                "8'(has_headers_q)", "8'd1"),
    "header of fixed point": ("decode_engine", "is_header_q   <= now_q.group != '0",
                              "is_header_q   <= 1'b1"),
    "values of 8 bits": ("decode_engine", ".VALUE_WIDTH    (CACHE_WIDTH)", ".VALUE_WIDTH    (8)"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.sim("verilator")
@pytest.mark.parametrize("options", [{}, NARROW], ids=["mxint4", "integer8"])
def test_saturated_and_tiny_vectors_are_exact(tmp_path, options):
    design = edge_engine(tmp_path, **options)
    run = check(design, tmp_path, EDGE_REQUESTS)
    assert run.results[0].logits.max() == 32767


@pytest.mark.slow
@pytest.mark.sim("verilator")
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_of_the_rtl_are_noticed(tmp_path, name):
    refute(edge_engine(tmp_path), tmp_path, *MUTANTS[name])


@pytest.mark.slow
@pytest.mark.sim("verilator")
@pytest.mark.parametrize("name", NARROW_MUTANTS)
def test_mutants_of_other_formats_are_noticed(tmp_path, name):
    refute(edge_engine(tmp_path, **NARROW), tmp_path, *NARROW_MUTANTS[name])


def refute(design, folder, module, *pieces):
    """Replace pieces of RTL, each by the one after it; require that simulation fails or differs."""
    path = folder / "rtl" / f"{module}.sv"
    text = path.read_text()
    for before, after in zip(pieces[::2], pieces[1::2], strict=True):
        assert text.count(before) == 1
        text = text.replace(before, after)
    path.write_text(text)
    timing = MemoryTiming(latency=60, write_latency=2000).with_stalls(0.3, 2)
    with pytest.raises((HardwareError, AssertionError)):
        check(design, folder, EDGE_REQUESTS, timing)


def test_an_instruction_keeps_every_field():
    values = {name: (1 << width) - 1 for name, width in WIDTHS.items() if name != "op"}
    for name in values:
        word = DecodeInstruction(
            "x", DecodeOp.NORM, **{"address": 0, "beats": 0, "tail": 0, name: 1}
        ).word()
        place = sum(
            w for n, w in WIDTHS.items() if list(WIDTHS).index(n) < list(WIDTHS).index(name)
        )
        assert word == DecodeOp.NORM | 1 << place
    assert (
        DecodeInstruction("x", DecodeOp.NORM, **values).word()
        == (1 << sum(WIDTHS.values())) - 8 + DecodeOp.NORM
    )


def test_a_field_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=re.escape("shift_0 = -1 of 'x' does not fit 6 bits")):
        DecodeInstruction("x", DecodeOp.NORM, 0, 0, 0, shift_0=-1).word()


@pytest.mark.parametrize("width", [4, 8])
def test_a_packed_matrix_has_headers_and_mantissas(width):
    matrix = matrix_blocks(torch.randn(5, 128, generator=torch.manual_seed(0)), width, 32)
    data = pack_matrix(matrix, 64)
    mantissas = matrix.blocks.mantissas.reshape(-1, 32).numpy()
    exponents = matrix.blocks.exponents.reshape(-1).numpy()
    place = 0
    for start in range(0, len(mantissas), 8):
        count = min(8, len(mantissas) - start)
        assert data[place : place + count].tolist() == exponents[start : start + count].tolist()
        packed = data[place + 8 : place + 8 + count * 4 * width]
        place += 8 + count * 4 * width
        if width == 8:
            values = packed.view(np.int8)
        else:
            low, high = (packed & 15).astype(np.int8), (packed >> 4).astype(np.int8)
            values = np.stack((low, high), 1).reshape(-1)
            values = np.where(values > 7, values - 16, values)
        assert np.array_equal(values.reshape(-1, 32), mantissas[start : start + count])
    assert place == data.size


@pytest.mark.parametrize("width", [4, 8])
def test_a_packed_matrix_in_fixed_point_has_mantissas_only(width):
    weight = torch.randn(5, 128, generator=torch.manual_seed(0))
    matrix = fixed_matrix(weight, width, 32)
    image = MemoryImage(64)
    image.add_matrix("x", matrix)
    assert image.regions["x"].beats * 8 == len(image.tobytes()) == 5 * 128 * width // 8
    exponents = torch.zeros_like(matrix.blocks.exponents)
    other = BlockMatrix(BlockCodes(matrix.blocks.mantissas, exponents), 0, width)
    rows = pack_matrix(other, 64).reshape(-1, 8)
    beats = np.arange(len(rows)) % (8 * 4 * width // 8 + 1)  # header, then 8 blocks of 32
    assert np.array_equal(rows[beats > 0].reshape(-1), pack_matrix(matrix, 64))


def test_interleaved_rows_alternate():
    first, second = (matrix_blocks(torch.full((3, 4), v), 8, 4) for v in (1.0, -1.0))
    signs = interleave(first, second).blocks.mantissas[:, 0, 0].sign().tolist()
    assert signs == [1, -1, 1, -1, 1, -1]


WIDTH_ERRORS = {
    "data_width must be one of (32, 64, 128, 256, 512), got 100": {"data_width": 100},
    "a beat of 256 bits has 64 weights of 4 bits. Allowed: a block of 32": {"data_width": 256},
    "a beat of 256 bits has 64 cached numbers of 4 bits": {
        "data_width": 256, "weight_width": 8, "cache_width": 4},
    "a row of the cache has 8 exponents. Allowed: 4": {
        "data_width": 32, "weight_width": 8, "block": 4},
}  # fmt: skip


@pytest.mark.parametrize("message", WIDTH_ERRORS)
def test_wrong_widths_are_refused(message, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(message)):
        emitted(tmp_path, **WIDTH_ERRORS[message])


def test_an_unknown_memory_is_refused():
    with pytest.raises(ConfigError, match=re.escape("no memory 'ddr3'. Did you mean")):
        memory_timing("ddr3", 128, CLOCK)
    with pytest.raises(ConfigError, match="the share of stalls must lie in 0 … 1, got 1"):
        MemoryTiming().with_stalls(1)


@pytest.mark.sim("verilator")
def test_a_wrong_logit_is_named(small):
    design, folder = small
    run = simulate_engine(design, folder, SHORT)
    logits = run.results[1].logits.copy()
    logits[0, 5] += 1
    object.__setattr__(run.results[1], "logits", logits)
    with pytest.raises(
        HardwareError, match="request 1 differs from PyTorch at token 0, logit 5; 1"
    ):
        compare_run(design, SHORT, run)
