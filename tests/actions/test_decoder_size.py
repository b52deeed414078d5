"""Decode engines for parts: laws of the choice, the refusal, and the module that is routed."""

import functools
import itertools
import re
from dataclasses import replace

import pytest

from chop.actions import decoder_route
from chop.actions.decoder_size import choose_engine
from chop.errors import ConfigError, HardwareError
from chop.hw.decode.decode_area import engine_area
from chop.hw.decode.decode_emit import EngineOptions, design_engine, emit_engine
from chop.hw.decode.decode_model import DecodeOptions
from chop.hw.decode.decode_pins import PINS, pins_text
from chop.hw.decode.decode_shape import SHAPES, shape_model
from chop.hw.decode.decode_size import engines_of, fastest_engine
from chop.hw.decode.llama_weights import LlamaShape
from chop.hw.decode.memory_timing import PRESETS, memory_timing
from chop.hw.flow.route.parts import PARTS, get_part
from chop.hw.flow.synth import elaborate

MODELS = {
    "smollm2-135m": shape_model(SHAPES["smollm2-135m"], DecodeOptions(4, max_length=512)),
    "llama-3.2-1b": shape_model(SHAPES["llama-3.2-1b"], DecodeOptions(8, max_length=512)),
    "tiny": shape_model(LlamaShape(96, 64, 96, 2, 4, 2, 32, 1e-6), DecodeOptions(4, max_length=64)),
}
CASES = list(itertools.product(MODELS, ("ideal", *PRESETS), (50.0, 100.0, 250.0)))


@functools.cache
def engines_of_model(name):
    """Return the engines of a model at an ideal memory."""
    return engines_of(MODELS[name], "ideal", 100.0)


def engines(name, memory, mhz):
    """Return the engines of a model with a memory."""
    return [
        replace(
            engine,
            mhz=mhz,
            bandwidth=memory_timing(memory, engine.options.data_width, mhz).bandwidth / 2**16,
        )
        for engine in engines_of_model(name)
    ]


def chosen(name, memory, mhz, part, width=None):
    """Return the engine that is chosen, or None if it is refused."""
    try:
        return choose_engine(MODELS[name], memory, mhz, width=width, part=part)
    except HardwareError as error:
        assert f"{part.name} has" in str(error)
        return None


@pytest.mark.parametrize(("name", "memory", "mhz"), CASES)
def test_an_engine_never_exceeds_its_part_and_a_larger_part_is_never_slower(name, memory, mhz):
    rates = []
    for part in sorted(PARTS.values(), key=lambda p: (p.lut, p.dsp)):
        engine = fastest_engine(engines(name, memory, mhz), part.has())
        rates.append(0.0 if engine is None else engine.bound)
        if engine is not None:
            assert all(count <= part.has()[k] for k, count in engine.area.cells().items())
    assert rates == sorted(rates)
    assert rates[-1] > 0


@pytest.mark.parametrize(("name", "memory", "mhz"), CASES)
def test_no_engine_that_fits_is_faster_or_as_fast_and_smaller(name, memory, mhz):
    part = get_part("ecp5-85k")
    best = fastest_engine(engines(name, memory, mhz), part.has())
    for engine in engines(name, memory, mhz):
        if not engine.shortage(part.has()):
            assert engine.bound <= best.bound
            is_smaller = engine.options.data_width < best.options.data_width
            assert not (is_smaller and engine.bound == best.bound)


@pytest.mark.parametrize("name", MODELS)
def test_a_wider_engine_has_more_cells(name):
    areas = [engine.area.cells() for engine in engines_of_model(name)]
    for less, more in itertools.pairwise(areas):
        assert all(less[kind] <= more[kind] for kind in ("lut", "ff", "dsp"))


def test_the_choice_is_the_fastest_engine_of_the_memory():
    part = get_part("ecp5-85k")
    engine = choose_engine(MODELS["tiny"], "ddr3-800", 200.0, width=None, part=part)
    assert engine == fastest_engine(engines("tiny", "ddr3-800", 200.0), part.has())
    assert engine.options.data_width == 64  # 1.6 GB/s


def test_widths_with_more_beats_than_addresses_are_left_out():
    widths = [e.options.data_width for e in engines_of_model("llama-3.2-1b")]
    assert widths == [128, 256]  # 32 and 64 bits: more than 2**28 beats


def test_the_roofline_names_its_side():
    slow, fast = (
        choose_engine(MODELS["smollm2-135m"], "ddr3-800", mhz, width=128, part=None)
        for mhz in (80.0, 200.0)
    )
    assert (slow.limit, fast.limit) == ("engine", "memory")
    assert slow.bound == pytest.approx(80e6 / slow.beats)
    assert fast.bound == pytest.approx(1.6e9 / 16 / fast.beats, rel=1e-4)


def test_a_width_that_does_not_fit_is_refused_with_what_fits():
    part = get_part("ecp5-25k")
    with pytest.raises(HardwareError) as error:
        choose_engine(MODELS["smollm2-135m"], "ddr4", 100.0, width=128, part=part)
    pattern = (
        r"part: an engine with beats of 128 bits needs (\d+) DSP \(estimate\), ecp5-25k has 28\. "
        r"It fits with (.*)\."
    )
    match = re.fullmatch(pattern, str(error.value))
    assert match, str(error.value)
    for setting in match[2].split(" or "):
        option, value = setting.split()
        width = int(value) if option == "--memory-width" else 128
        other = get_part(value) if option == "--part" else part
        assert chosen("smollm2-135m", "ddr4", 100.0, other, width) is not None


@pytest.mark.parametrize("part", PARTS)
def test_what_a_refusal_advises_is_accepted(part):
    for name, width in itertools.product(MODELS, (None, 128)):
        try:
            choose_engine(MODELS[name], "ideal", 100.0, width=width, part=get_part(part))
        except HardwareError as error:
            settings = re.findall(r"--(memory-width|part) ([\w-]+)", str(error))
            assert settings, str(error)
            for option, value in settings:
                other = value if option == "part" else part
                bits = int(value) if option == "memory-width" else width
                assert chosen(name, "ideal", 100.0, get_part(other), bits) is not None


def test_lanes_are_as_wide_as_the_narrower_of_weights_and_cache():
    areas = [
        engine_area(
            design_engine(
                shape_model(SHAPES["smollm2-135m"], DecodeOptions(weight, cache_width=cache)),
                is_filled=False,
            )
        ).dsp
        for weight, cache in ((8, 8), (4, 8), (8, 4), (4, 4))
    ]
    assert [dsp - areas[0] for dsp in areas] == [0, 16, 32, 32]  # 16 or 32 lanes and values


def test_a_part_that_holds_no_engine_is_refused():
    with pytest.raises(HardwareError, match=r"needs \d+ LUT \(estimate\), ice40-hx1k has 1280"):
        choose_engine(MODELS["tiny"], "ideal", 100.0, width=None, part=get_part("ice40-hx1k"))


def test_a_width_that_blocks_do_not_allow_is_refused():
    with pytest.raises(ConfigError, match="a beat of 256 bits has 64 weights of 4 bits"):
        choose_engine(MODELS["tiny"], "ideal", 100.0, width=256, part=get_part("ecp5-85k"))


def test_the_module_around_an_engine_has_five_pins(tmp_path):
    design = design_engine(MODELS["tiny"], EngineOptions(), is_filled=False)
    emit_engine(design, tmp_path)
    (tmp_path / "rtl" / f"{PINS}.sv").write_text(pins_text(design))
    ports = ("clk", "rst", "serial_in", "capture", "serial_out")
    assert elaborate(tmp_path, PINS) == dict.fromkeys(ports, 1)


def test_a_routing_job_has_the_engine_and_the_module_around_it(tmp_path, monkeypatch):
    jobs = []
    monkeypatch.setattr(decoder_route, "run_job", jobs.append)
    design = design_engine(MODELS["tiny"], EngineOptions(), is_filled=False)
    decoder_route.route_decoder(design, tmp_path, "ecp5-45k")
    (job,) = jobs
    assert job.part.name == "ecp5-45k"
    assert job.shell.top == PINS
    assert all(source.exists() for source in job.shell.sources)
    assert (tmp_path / "rtl" / "decode_top.sv").exists()
