"""Engines of models without weights: their sizes, and the cycles of a token."""

import pytest
from decode_models import integer_llama

from chop.errors import ConfigError
from chop.hw.decode.decode_cycles import predict_cycles
from chop.hw.decode.decode_emit import EngineOptions, design_engine, emit_engine
from chop.hw.decode.decode_estimate import estimate_token
from chop.hw.decode.decode_model import DecodeOptions
from chop.hw.decode.decode_shape import SHAPES, shape_model
from chop.hw.decode.decode_sim import DecodeRequest
from chop.hw.decode.llama_weights import LlamaShape
from chop.hw.decode.memory_timing import MemoryTiming, memory_timing

SHAPE = LlamaShape(6000, 64, 96, 5, 4, 2, 32, 1e-6)
FORMATS = DecodeOptions(max_length=16)


@pytest.mark.parametrize("residual", [16, 24])
@pytest.mark.parametrize("data_width", [64, 128])
@pytest.mark.parametrize("width", [4, 8])
def test_a_model_without_weights_has_the_memory_map_of_one_with_weights(
    width, data_width, residual
):
    model = integer_llama(weight_width=width, max_length=16, residual_width=residual)
    options = EngineOptions(data_width)
    filled = design_engine(model, options)
    empty = design_engine(shape_model(model.shape, model.options), options, is_filled=False)
    assert empty.image.regions == filled.image.regions
    assert len(empty.program) == len(filled.program)
    sizes = [part.size for part in filled.image.parts]
    assert sum(sizes) == filled.image.regions["0.keys"].address * data_width // 8
    assert empty.image.parts == []


@pytest.mark.parametrize("name", ["ideal", "ddr3-800"])
def test_an_estimate_is_close_to_the_cycle_model(name):
    timing = memory_timing(name, 128, 100.0)
    design = design_engine(shape_model(SHAPE, FORMATS), EngineOptions(), is_filled=False)
    exact = predict_cycles(design, [DecodeRequest((0,), 1)], [[0]], timing)
    estimate = estimate_token(SHAPE, FORMATS, EngineOptions(), timing)
    assert estimate.beats == pytest.approx(exact.read_beats + exact.written_beats, rel=1e-3)
    assert estimate.cycles == pytest.approx(exact.cycles, rel=1e-3 if name == "ideal" else 5e-3)
    share = (exact.read_beats + exact.written_beats) * 65536 / timing.bandwidth / exact.cycles
    assert estimate.bandwidth_share(timing) == pytest.approx(share, rel=6e-3)
    assert estimate.tokens_per_second(100.0) == pytest.approx(1e8 / exact.cycles, rel=6e-3)


@pytest.mark.parametrize("name", SHAPES)
def test_published_models_have_engines(name, tmp_path):
    formats = DecodeOptions(max_length=64)
    design = design_engine(shape_model(SHAPES[name], formats), is_filled=False)
    emit_engine(design, tmp_path)
    assert not (tmp_path / "memory.bin").exists()
    assert (tmp_path / "rtl" / "decode_top.sv").exists()


def test_a_shape_that_blocks_do_not_divide_is_refused():
    with pytest.raises(ConfigError, match="hidden = 576 is not a multiple of the block of 128"):
        shape_model(SHAPES["smollm2-135m"], DecodeOptions(block=128))


def test_an_ideal_memory_gives_every_beat_a_cycle():
    estimate = estimate_token(SHAPE, FORMATS, EngineOptions(), MemoryTiming())
    assert estimate.beats < estimate.cycles < 1.5 * estimate.beats
