"""Layers of lookup tables: equal to their plain definitions, and they learn."""

import itertools

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.errors import ConfigError
from chop.ir.meta import mase_meta
from chop.nn.modules import (
    ClassSum,
    LookupTables,
    Thermometer,
    clip_tables,
    freeze_tables,
    quantile_thresholds,
    table_network,
)
from chop.nn.modules.lookup_tables import finite_differences
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)


def plain_tables(layer: LookupTables, x: torch.Tensor) -> torch.Tensor:
    """Return the outputs of the layer for rows of bits, one table at a time."""
    result = torch.empty(len(x), layer.out_features)
    for row, table in itertools.product(range(len(x)), range(layer.out_features)):
        address = 0
        for place, source in enumerate(layer.connections[table].tolist()):
            address += int(x[row, source]) << place
        result[row, table] = float(layer.tables[table, address] > 0)
    return result


def plain_difference(table: list[float], address: int, place: int, n: int) -> float:
    """Return the extended finite difference of one table by one input, from its definition."""
    total = 0.0
    for k, value in enumerate(table):
        distance = sum((k >> i & 1) != (address >> i & 1) for i in range(n) if i != place)
        total += (1 if k >> place & 1 else -1) * value / (distance + 1)
    return total


def rows_of_bits(rows: int, count: int) -> torch.Tensor:
    return torch.randint(0, 2, (rows, count)).float()


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("is_training", [True, False])
def test_tables_return_what_their_definition_says(n: int, is_training: bool) -> None:
    torch.manual_seed(n)
    layer = LookupTables(9, 5, n).train(is_training)
    x = rows_of_bits(40, 9)
    assert torch.equal(layer(x), plain_tables(layer, x))


@pytest.mark.parametrize("n", range(1, 5))
def test_the_gradient_of_inputs_is_the_extended_finite_difference(n: int) -> None:
    torch.manual_seed(n)
    tables = torch.randn(3, 1 << n, dtype=torch.float64)
    slopes = finite_differences(tables)
    for table, address, place in itertools.product(range(3), range(1 << n), range(n)):
        wanted = plain_difference(tables[table].tolist(), address, place, n)
        assert slopes[table, address, place].item() == pytest.approx(wanted)


def test_inputs_of_constant_connections_get_the_difference_at_their_address() -> None:
    torch.manual_seed(0)
    layer = LookupTables(4, 2, 3, learn_connections=False)
    x = rows_of_bits(1, 4).requires_grad_()
    layer(x).sum().backward()
    wanted = torch.zeros(4)
    for table, sources in enumerate(layer.connections.tolist()):
        address = sum(int(x[0, source]) << k for k, source in enumerate(sources))
        for place, source in enumerate(sources):
            wanted[source] += plain_difference(layer.tables[table].tolist(), address, place, 3)
    assert torch.allclose(x.grad, wanted[None])


def test_only_the_entry_that_was_read_gets_a_gradient() -> None:
    layer = LookupTables(2, 1, 2, learn_connections=False)
    layer.connections.copy_(torch.tensor([[0, 1]]))
    layer(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]])).sum().backward()
    assert layer.tables.grad.tolist() == [[0.0, 2.0, 0.0, 1.0]]


def test_scores_of_connections_get_the_gradient_of_their_softmax() -> None:
    torch.manual_seed(0)
    layer = LookupTables(5, 2, 2, temperature=0.5).double().train()
    x = rows_of_bits(6, 5).double().requires_grad_()
    y = layer(x)
    direction = torch.randn_like(y)
    (y * direction).sum().backward()
    scores = layer.logits.detach().clone().requires_grad_()
    soft_x = x.detach().clone().requires_grad_()
    soft = soft_x @ (scores / 0.5).softmax(1).T  # the same gradients at its outputs
    bits = x[:, layer.connections.long()].detach()
    address = (bits * torch.tensor([1.0, 2.0])).sum(-1).long()
    slopes = finite_differences(layer.tables.detach())[torch.arange(2), address]
    (soft * (slopes * direction.unsqueeze(-1)).flatten(1)).sum().backward()
    assert torch.allclose(layer.logits.grad, scores.grad)
    assert torch.allclose(x.grad, soft_x.grad)


def test_a_network_learns_a_function_of_its_bits() -> None:
    torch.manual_seed(0)
    x = rows_of_bits(256, 6) * 255
    labels = ((x[:, 0] > 0) ^ (x[:, 3] > 0)).long()
    model = table_network(torch.full((6, 1), 128.0), [64], 2, n=3, scale=4.0)
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimiser.step()
        clip_tables(model)
    freeze_tables(model).eval()
    assert (model(x).argmax(1) == labels).float().mean() > 0.97
    assert model[1].tables.abs().max() <= 1


def test_thermometer_counts_thresholds_that_are_reached() -> None:
    torch.manual_seed(0)
    thresholds = torch.randint(0, 256, (7, 3)).float()
    x = torch.randint(0, 256, (20, 7)).float()
    bits = Thermometer(thresholds)(x).view(20, 7, 3)
    for row, feature, level in itertools.product(range(20), range(7), range(3)):
        assert bits[row, feature, level] == float(x[row, feature] >= thresholds[feature, level])


def test_thresholds_are_a_copy_of_the_caller_s() -> None:
    given = torch.full((1, 2), 5.0)
    layer = Thermometer(given.expand(3, -1))
    given += 1
    layer.load_state_dict(layer.state_dict())  # no view of one row
    assert layer.thresholds.tolist() == [[5.0, 5.0]] * 3


def test_quantiles_share_the_values_equally_in_steps() -> None:
    rows = torch.arange(1.0, 101.0)[:, None].expand(-1, 2).clone()
    rows[:, 1] = 0
    thresholds = quantile_thresholds(rows, 3, step=4)
    assert thresholds.tolist() == [[24.0, 52.0, 76.0]] * 2


def test_class_sums_count_the_bits_of_each_class() -> None:
    x = rows_of_bits(9, 12)
    wanted = torch.stack([x[:, 4 * k : 4 * k + 4].sum(1) for k in range(3)], 1)
    assert torch.equal(ClassSum(3)(x), wanted)
    assert torch.equal(ClassSum(3, scale=2.0)(x), wanted / 2)


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize("into_frozen", [False, True])
def test_a_state_brings_its_kind_of_connections(is_frozen: bool, into_frozen: bool) -> None:
    torch.manual_seed(0)
    source, target = (table_network(torch.full((8, 1), t), [6, 6], 2) for t in (9.0, 7.0))
    for model, frozen in ((source, is_frozen), (target, into_frozen)):
        if frozen:
            freeze_tables(model)
    target.load_state_dict(source.state_dict())
    x = torch.randint(0, 20, (30, 8)).float()
    assert torch.equal(target.eval()(x), source.eval()(x))
    assert (target[1].logits is None) == is_frozen


def test_freezing_changes_no_output() -> None:
    torch.manual_seed(0)
    model = table_network(torch.full((8, 1), 9.0), [12, 6], 2).eval()
    x = torch.randint(0, 20, (30, 8)).float()
    before = model(x)
    assert torch.equal(freeze_tables(model)(x), before)
    assert not [name for name, _ in model.named_parameters() if "logits" in name]


WRONG = {
    "n must be 1 to 6 inputs per table, got 7": lambda: LookupTables(9, 2, 7),
    "n must be 1 to 6 inputs per table, got 0": lambda: LookupTables(9, 2, 0),
    "in_features=3 are not enough for tables of n=4 inputs": lambda: LookupTables(3, 2, 4),
    "out_features must be 1 or more, got 0": lambda: LookupTables(9, 0),
    "temperature must be above 0, got 0": lambda: LookupTables(9, 2, temperature=0),
    "thresholds of shape [3] with features=None": lambda: Thermometer(torch.ones(3)),
    "thresholds of shape [2, 3] with features=4": lambda: Thermometer(torch.ones(2, 3), features=4),
    "thresholds must be finite": lambda: Thermometer(torch.tensor([[float("nan")]])),
    "width must be 1 to 16, got 17": lambda: Thermometer(torch.ones(1, 1), width=17),
    "classes must be 1 or more, got 0": lambda: ClassSum(0),
    "scale must be above 0, got -1": lambda: ClassSum(2, -1),
    "LookupTables: rows of [8] values, not of 9": lambda: LookupTables(9, 2)(torch.ones(8)),
    "Thermometer: rows of [3] values, not of 2": lambda: Thermometer(torch.ones(2, 1))(
        torch.ones(3)
    ),
    "ClassSum: [7] bits do not divide into 2 classes": lambda: ClassSum(2)(torch.ones(7)),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_named(message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        WRONG[message]()
    assert message in str(raised.value)


def test_layers_show_their_sizes() -> None:
    assert repr(LookupTables(9, 4)) == "LookupTables(9, 4, n=6, learn_connections=True)"
    assert repr(Thermometer(torch.ones(2, 3))) == "Thermometer(features=2, levels=3, width=8)"
    assert repr(ClassSum(2)) == "ClassSum(classes=2, scale=1.0)"


def test_the_graph_has_one_node_for_each_layer() -> None:
    model = freeze_tables(table_network(torch.full((8, 1), 9.0), [12, 6], 2)).eval()
    x = torch.randint(0, 20, (3, 8)).float()
    graph, _ = init_metadata_analysis_pass(MaseGraph(model, dummy_in=x))
    graph, _ = add_common_metadata_analysis_pass(graph)
    ops = [mase_meta(node).common.mase_op for node in graph.nodes]
    assert ops[1:-1] == ["thermometer", "lookup_tables", "lookup_tables", "class_sum"]
    assert torch.equal(graph.model(x), model(x))
