"""Provenance of records about single designs: the code that a design depends on, and no more."""

import json
import sys
from pathlib import Path

import pytest

from chop.hw.arith.golden import Fixed
from chop.hw.design.stream import Stream
from chop.hw.library.components import Relu
from chop.hw.library.fixed_arithmetic import Add
from chop.hw.streams.builder import Builder

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def design_code(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    from measuring import design_code

    return design_code


def relu_design():
    builder = Builder("top")
    x = builder.input("data_in_0", Stream((4,), 2, Fixed(8, 4)))
    builder.output("data_out_0", builder.add("relu", Relu(builder.stream(x), Fixed(8, 4)), x))
    return builder.build()


def test_a_design_depends_on_its_components_and_on_no_other(design_code):
    places = design_code.design_code(relu_design())
    library = {place for place in places if place.count("/") == 4 and "library" in place}
    assert {Path(place).parent.name for place in library} == {"fixed_relu"}
    assert not [place for place in places if "decode" in place or place.endswith("area.py")]


def test_a_module_inside_a_component_counts(design_code):
    builder, stream = Builder("top"), Stream((4,), 2, Fixed(8, 4))
    x, y = (builder.input(f"data_in_{k}", stream) for k in range(2))
    total = Add(builder.stream(x), builder.stream(y), Fixed(8, 4))
    builder.output("data_out_0", builder.add("add", total, x, y))
    places = design_code.design_code(builder.build())
    assert "chop/hw/streams/fixed_cast/fixed_cast.sv" in places


def test_the_board_and_the_routing_count_only_where_they_are_measured(design_code):
    bare = design_code.design_code(relu_design())
    whole = design_code.design_code(relu_design(), (*design_code.BOARD, *design_code.ROUTING))
    assert set(whole) - set(bare) == {*design_code.BOARD, *design_code.ROUTING}


def test_every_place_exists_and_has_code(design_code):
    more = (*design_code.BOARD, *design_code.ROUTING)
    from measuring.code import SOURCE, code_hash

    places = design_code.design_code(relu_design(), more)
    assert [place for place in places if not (SOURCE / place).exists()] == []
    empty = code_hash(())
    assert [place for place in places if code_hash((place,)) == empty] == []


def test_a_record_keeps_its_places_and_is_judged_by_them(design_code, tmp_path, monkeypatch):
    from measuring import code, record

    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", [str(BENCH / "boards.py"), "relu"])
    places = design_code.design_code(relu_design())
    record.save_section("boards", "relu", {}, places=places)
    stored = json.loads((tmp_path / "boards.json").read_text())["relu"]
    assert tuple(stored["code"]["folders"]) == places
    assert code.is_current("boards", stored)
    assert not code.is_current("boards", stored | {"code": stored["code"] | {"hash": "0"}})
