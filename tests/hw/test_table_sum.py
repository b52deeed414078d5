"""Sums of tables: every product exact in the widths that are given, a vector in each cycle."""

import numpy as np
import pytest

from chop.errors import ChopError
from chop.hw.arith.golden import Fixed
from chop.hw.design.stream import Stream
from chop.hw.flow.synth import synthesize
from chop.hw.library.components import TableSum
from chop.hw.library.fixed_linear import Weights, sample_weights
from chop.hw.library.fixed_table_sum import ADDED_BITS, FIRST_BITS, tables_of
from chop.hw.lower import Parallelism, lower
from chop.hw.lower.verify import verify
from chop.hw.sim.component_check import check_components
from chop.hw.sim.emit import emit
from chop.hw.streams.builder import Builder
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from tests.hw.test_shift_add import Mlp, graph_of, random_layer

BYTE = Fixed(8, 4)


def sums_of(tables, bits):
    """The sums after each table, in the bits that they have; the last with its sign."""
    so_far, found = 0, []
    for table in tables:
        entry = table.start + sum(c for bit, c in table.terms if bits[bit])
        assert entry % (1 << table.low) == 0, "a table adds below its lowest bit"
        so_far = (so_far + entry) % (1 << table.width)
        found.append(so_far)
    top = 1 << tables[-1].width - 1
    return [*found[:-1], (found[-1] ^ top) - top]


@pytest.mark.parametrize("seed", range(30))
def test_tables_add_up_to_the_row_in_their_widths(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 30))
    sizes = rng.integers(1, 2 ** rng.integers(1, 20), count) << rng.integers(0, 4, count)
    terms = [(k, int(c)) for k, c in enumerate(sizes * rng.choice([-1, 1], count))]
    start = int(rng.integers(-5000, 5000))
    tables = tables_of(3, terms, start)
    assert sorted(t for table in tables for t in table.terms) == terms
    assert [len(t.terms) <= (ADDED_BITS if k else FIRST_BITS) for k, t in enumerate(tables)]
    for bits in ([0] * count, [1] * count, *(rng.integers(0, 2, (6, count)))):
        exact = start + sum(c for (_, c), bit in zip(terms, bits, strict=True) if bit)
        assert sums_of(tables, bits)[-1] == exact


def test_sums_on_the_way_need_no_sign():
    terms = [(k, c) for k, c in enumerate((-7, 3, -1, 6, -2, 5, 4, -9, 11))]
    first = tables_of(0, terms, 0)[0]
    assert first.width == sum(abs(c) for _, c in first.terms).bit_length()


def test_a_design_of_tables_has_no_multiplier_and_is_the_model():
    graph = graph_of(Mlp())
    args = {"multiplier": {"*": "tables"}, "max_parallelism": 8, "adders_per_stage": 3}
    graph, told = add_hardware_metadata_analysis_pass(graph, args)
    assert told == {"cycles": 1, "multipliers": 0}
    lowered = lower(graph, Parallelism(8, multiplier={"fc1": "tables"}))
    assert isinstance(lowered.components["fc1"], TableSum)
    verify(graph, lowered, None)


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ChopError, match="fixed_table_sum: adders_per_stage must be 1 or more"):
        TableSum(Stream((4,), 4, BYTE), sample_weights(2, 4), BYTE, 0)
    wide = Weights(np.full((1, 128), 127), BYTE)
    with pytest.raises(ChopError, match=r"\d+ stages of 1 additions. Allowed: 31"):
        TableSum(Stream((128,), 128, BYTE), wide, BYTE, 1)


@pytest.mark.slow
def test_registers_between_additions_take_no_luts(tmp_path):
    areas = []
    for step in (1, 8):
        layer = TableSum.sample(8, 1, step=step, x=Fixed(2, 2, is_signed=False), w=Fixed(4, 2))
        builder = Builder("top")
        x = builder.input("data_in_0", layer.inputs[0])
        builder.output("data_out_0", builder.add("fc", layer, x))
        areas.append(synthesize(emit(builder.build(), tmp_path / str(step))))
    assert areas[0].lut <= areas[1].lut + 2  # was 38 and 29


@pytest.mark.slow
@pytest.mark.sim
def test_random_layers_are_exact_in_rtl_in_the_cycles_of_the_model(tmp_path):
    layers = [random_layer(seed) for seed in range(12)]
    sums = [TableSum(x.source, x.weights, x.format, x.adders_per_stage) for x in layers]
    verdicts = check_components(sums, tmp_path)
    assert all(v.mismatches == 0 and v.compared for v in verdicts)
