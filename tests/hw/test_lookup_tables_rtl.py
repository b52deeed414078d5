"""Networks of lookup tables in hardware: exact, a row per cycle, a LUT per table."""

import numpy as np
import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.actions import build_hardware
from chop.errors import ConfigError, HardwareError
from chop.hw.arith.golden import Fixed
from chop.hw.design.stream import Stream
from chop.hw.flow.synth import synthesize
from chop.hw.library.lookup_tables import Tables
from chop.hw.library.thermometer import ThermometerCode
from chop.hw.lower import DesignSpec, lower
from chop.hw.lower.verify import verify
from chop.hw.sim.emit import emit
from chop.hw.streams.builder import Builder
from chop.nn.modules import ClassSum, LookupTables, Thermometer, freeze_tables, table_network
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)

BITS = Fixed(1, 0, is_signed=False)
WHOLE = DesignSpec(4096)


def graph_of(model: nn.Module, x: torch.Tensor) -> MaseGraph:
    graph, _ = init_metadata_analysis_pass(MaseGraph(model.eval(), dummy_in=x[:2]))
    return add_common_metadata_analysis_pass(graph)[0]


def network(features: int, levels: int, tables: list[int], n: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    thresholds = torch.rand(features, levels) * 280 - 10  # some are beyond the inputs
    return freeze_tables(table_network(thresholds, tables, 3, n=n))


def by_definition(model: nn.Sequential, x: np.ndarray) -> np.ndarray:
    """Return class sums in Python's integers, from the parameters alone."""
    encoder, *layers, _ = model
    sums = []
    for row in x.tolist():
        pairs = zip(row, encoder.thresholds.tolist(), strict=True)
        bits = [int(value >= t) for value, levels in pairs for t in levels]
        for layer in layers:
            rows = zip(layer.tables.tolist(), layer.connections.tolist(), strict=True)
            bits = [
                int(table[sum(bits[c] << k for k, c in enumerate(sources))] > 0)
                for table, sources in rows
            ]
        size = len(bits) // 3
        sums.append([sum(bits[k * size : k * size + size]) for k in range(3)])
    return np.array(sums)


@pytest.mark.parametrize("seed", range(6))
def test_a_design_is_the_model_and_its_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, levels = seed % 6 + 1, int(rng.integers(1, 4))
    model = network(7, levels, [int(rng.integers(6, 20)), 9], n, seed)
    x = torch.randint(0, 256, (40, 7)).float()
    graph = graph_of(model, x)
    lowered = lower(graph, WHOLE)
    assert verify(graph, lowered, x).tensors > 40
    golden = lowered.design.golden({"data_in_0": x.numpy().astype(np.int64)})["data_out_0"]
    assert np.array_equal(golden, by_definition(model, x.numpy()))
    assert np.array_equal(golden, model(x).detach().numpy())


def test_an_image_is_flattened_before_the_code() -> None:
    x = torch.randint(0, 256, (20, 1, 3, 4)).float()
    graph = graph_of(nn.Sequential(nn.Flatten(), *network(12, 1, [9], 4, 0)), x)
    lowered = lower(graph, WHOLE)
    assert lowered.design.inputs["data_in_0"].format == Fixed(8, 0, is_signed=False)
    verify(graph, lowered, x)


def test_the_input_port_has_the_width_of_the_code() -> None:
    model = nn.Sequential(Thermometer(torch.tensor([[3.0], [9.0]]), width=4), ClassSum(2))
    lowered = lower(graph_of(model, torch.zeros(2, 2)), WHOLE)
    assert lowered.design.inputs["data_in_0"].format == Fixed(4, 0, is_signed=False)


def test_narrow_inputs_are_collected_to_whole_vectors() -> None:
    model = network(8, 2, [12], 3, 0)
    x = torch.randint(0, 256, (20, 8)).float()
    graph = graph_of(model, x)
    verify(graph, lower(graph, DesignSpec(2)), x)


@pytest.mark.slow
@pytest.mark.sim("verilator")
def test_rtl_is_exact_at_a_row_per_cycle(tmp_path) -> None:
    model = network(10, 2, [40, 30], 6, 0)
    x = torch.randint(0, 256, (200, 10)).float()
    built = build_hardware(
        graph_of(model, x), tmp_path, inputs=x, parallelism={"max_parallelism": 4096}
    )
    (sums,) = built.lowered.decode(built.verdict.outputs)
    assert np.array_equal(np.asarray(sums), by_definition(model, x.numpy()))
    ends = built.verdict.timing.tensor_ends("data_out_0", 1)
    assert np.all(np.diff(ends) == 1)


@pytest.mark.slow
def test_a_table_of_six_inputs_is_one_lut(tmp_path) -> None:
    tables, bits = 40, 60
    rng = np.random.default_rng(0)
    builder = Builder("top")
    x = builder.input("data_in_0", Stream((bits,), bits, BITS))
    connections = np.stack([rng.permutation(bits)[:6] for _ in range(tables)])
    layer = Tables(builder.stream(x), rng.integers(0, 2, (tables, 64)), connections)
    builder.output("data_out_0", builder.add("tables", layer, x))
    area = synthesize(emit(builder.build(), tmp_path), family="xc7")
    assert (area.lut, area.ff) == (tables, 0)


@pytest.mark.slow
def test_a_round_threshold_is_at_most_one_lut(tmp_path) -> None:
    thresholds = np.array([[128], [0], [64], [4]])  # a bit, a constant, and two of one LUT
    builder = Builder("top")
    x = builder.input("data_in_0", Stream((4,), 4, Fixed(8, 0, is_signed=False)))
    code = ThermometerCode(builder.stream(x), thresholds)
    builder.output("data_out_0", builder.add("code", code, x))
    assert synthesize(emit(builder.build(), tmp_path), family="xc7").lut == 2


def test_a_scale_of_the_training_is_refused() -> None:
    model = nn.Sequential(Thermometer(torch.ones(4, 1)), ClassSum(2, scale=3.0))
    with pytest.raises(HardwareError, match=r"class_sum.*scale=3.0.*Allowed: 1"):
        lower(graph_of(model, torch.ones(2, 4)), WHOLE)


def test_tables_of_numbers_are_refused() -> None:
    model = nn.Sequential(Thermometer(torch.ones(6, 1)), ClassSum(3), LookupTables(3, 2, 2))
    with pytest.raises(HardwareError, match=r"lookup_tables.*Allowed: bits, from a thermometer"):
        lower(graph_of(freeze_tables(model), torch.ones(2, 6)), WHOLE)


def bits(count: int, lanes: int) -> Stream:
    return Stream((count,), lanes, BITS)


ZEROS = np.zeros((2, 4), dtype=np.int64)
PAIRS = np.array([[0, 1], [2, 3]])
WRONG = {
    "2 tables of 2 inputs with contents (2, 8)": lambda: Tables(
        bits(4, 4), np.zeros((2, 8), dtype=np.int64), PAIRS
    ),
    "a beat must be a whole vector of up to 65536 bits": lambda: Tables(bits(4, 2), ZEROS, PAIRS),
    "connections 0 to 3 of 3 input bits": lambda: Tables(bits(3, 3), ZEROS, PAIRS),
    "thresholds of 2 inputs in one beat": lambda: ThermometerCode(bits(4, 4), ZEROS),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_components_are_named(message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        WRONG[message]()
    assert message in str(raised.value)
