import importlib.metadata
import json
import math

import numpy as np
import pytest
import torch
from report_data import STUDY, SWEEP, annotated, compressed, with_hardware
from torch import nn

from chop import MaseGraph
from chop.errors import ConfigError
from chop.passes import calculate_sparsity_analysis_pass, pack_weights_transform_pass
from chop.passes.graph.analysis import (
    calculate_avg_bits_mg_analysis_pass,
    summarize_graph_analysis_pass,
)
from chop.report import Report, gather_provenance, report_records
from chop.report.graph_records import graph_record, plain
from chop.report.page_parts import with_links


@pytest.fixture(scope="module")
def before():
    return annotated()


@pytest.fixture(scope="module")
def after(before):
    return compressed(before)


@pytest.fixture(scope="module")
def records(before, after):
    report = Report("a report", {"before": before, "after": after}, {"accuracy": (0.9, 0.8)})
    return report_records(report)


def node(record, name):
    return next(n for n in record["nodes"] if n["name"] == name)


def test_records_are_plain_json(records):
    assert json.loads(json.dumps(records, allow_nan=False)) == records


def test_a_node_tells_op_shapes_dtype_and_precision_of_every_value(records):
    layer = node(records["graphs"][1], "fc1")
    assert (layer["op"], layer["kind"], layer["format"]) == ("linear", "call_module", "fixed8.5")
    told = {v["name"]: (v["shape"], v["dtype"], v["format"]) for v in layer["args"]}
    assert told["data_in_0"] == ([2, 8], "float32", "fixed8.5")
    assert told["weight"] == ([16, 8], "float32", "fixed8.5")
    assert layer["results"][0]["shape"] == [2, 16]
    assert node(records["graphs"][0], "fc1")["format"] == "float32"


def test_costs_and_totals_are_those_of_the_passes(before, after, records):
    _, cost = summarize_graph_analysis_pass(before)
    _, bits = calculate_avg_bits_mg_analysis_pass(after)
    _, zeros = calculate_sparsity_analysis_pass(after)
    first, last = (graph["totals"] for graph in records["graphs"])
    assert first["parameters"] == cost["total"]["parameters"]
    assert (first["flops"], first["macs"]) == (cost["total"]["flops"], cost["total"]["macs"])
    assert last["bits"] == pytest.approx(bits["w_avg_bit"])
    assert last["sparsity"] == pytest.approx(zeros["sparsity"])
    assert last["bytes"] == last["parameters"] * 8 / 8


def test_a_parameter_that_two_nodes_read_counts_once():
    layer = nn.Linear(8, 8)
    graph = annotated(nn.Sequential(layer, layer))
    totals = graph_record("shared", graph)["totals"]
    assert totals["parameters"] == 72


def test_packed_layers_that_share_their_bytes_count_once():
    first, second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    second.weight = first.weight
    graph, _ = pack_weights_transform_pass(annotated(nn.Sequential(first, second)))
    assert graph_record("tied", graph)["totals"]["parameters"] == 64


def test_a_packed_layer_stores_its_codes_and_scales():
    graph = annotated(nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 4, bias=False)))
    graph, _ = pack_weights_transform_pass(graph, {"format": "mxint8"})
    packed = [n for n in graph_record("packed", graph)["nodes"] if n.get("parameters") == 256]
    assert packed[0]["bits"] == packed[0]["format_bits"] == pytest.approx(8 + 8 / 32)
    assert packed[0]["format"] == "mxint8/32"


def test_no_weight_is_in_the_records_only_its_histogram(before, records):
    layer = node(records["graphs"][0], "fc1")
    assert sum(layer["weight"]["histogram"]["counts"]) == 16 * 8
    weight = before.model.fc1.weight.detach()
    assert layer["weight"]["low"] == pytest.approx(float(weight.min()))
    assert str(float(weight[3, 3])) not in json.dumps(records)


def test_edges_lead_from_operands_to_users(records):
    graph = records["graphs"][0]
    names = [n["name"] for n in graph["nodes"]]
    assert [[names[s], names[t]] for s, t in graph["edges"]] == [
        ["x", "fc1"],
        ["fc1", "relu"],
        ["relu", "fc2"],
        ["fc2", "output"],
    ]


def test_graphs_of_one_shape_share_a_layout(records):
    assert [graph["layout"] for graph in records["graphs"]] == [0, 0]
    assert len(records["layouts"][0]["nodes"]["boxes"]) == 5


def test_layers_are_compared_by_name(records):
    rows = {row["name"]: row for row in records["layers"]}
    assert list(rows) == ["fc1", "relu", "fc2"]
    assert (rows["fc1"]["before"]["bits"], rows["fc1"]["after"]["bits"]) == (32.0, 8.0)
    assert rows["fc1"]["after"]["sparsity"] == pytest.approx(0.5)
    assert rows["fc1"]["is_changed"]


def test_a_layer_of_one_graph_alone_is_new_or_gone(before):
    other = annotated(nn.Sequential(nn.Linear(8, 4)))
    rows = report_records(Report("r", {"a": before, "b": other}))["layers"]
    assert [("before" in r, "after" in r) for r in rows] == [(True, False)] * 3 + [(False, True)]


def test_one_graph_has_nothing_to_compare(before):
    rows = report_records(Report("r", {"only": before}))["layers"]
    assert all("before" not in row and not row["is_changed"] for row in rows)


def test_cards_are_the_metrics_then_the_totals_with_both_values_where_they_differ(records):
    cards = {card["name"]: card for card in records["cards"]}
    assert next(iter(cards)) == "accuracy"
    assert cards["accuracy"] == {"name": "accuracy", "value": 0.8, "before": 0.9, "unit": "share"}
    assert cards["bits per weight"]["before"] == 32.0
    assert cards["parameters"]["before"] is None
    assert cards["weight bytes"]["unit"] == "bytes"


def test_a_metric_of_one_value_is_a_plain_card():
    (card,) = report_records(Report("r", metrics={"accuracy": [0.9]}))["cards"]
    assert (card["value"], card["before"]) == (0.9, None)


def test_sections_without_data_are_absent():
    assert set(report_records(Report("empty"))) == {"title", "provenance"}


def test_a_graph_without_metadata_is_shown_with_what_is_known():
    graph = MaseGraph(nn.Sequential(nn.Linear(8, 4)), dummy_in=torch.randn(2, 8))
    record = graph_record("bare", graph)
    layer = next(n for n in record["nodes"] if n["kind"] == "call_module")
    assert (layer["op"], layer["parameters"]) == ("linear", 36)
    assert "args" not in layer and "flops" not in layer


def test_hardware_metadata_and_the_design_are_told(after):
    graph, design = with_hardware(compressed(annotated()))
    records = report_records(Report("r", {"g": graph}, hardware=design))
    layer = node(records["graphs"][0], "fc1")["hardware"]
    assert layer["module"] == "fixed_linear"
    assert layer["verilog_param"] and layer["cost"]["cycles"] > 0
    told = records["hardware"]
    slowest = max(told["stages"], key=lambda stage: stage["cycles"])
    assert told["bottleneck"] == slowest["stage"]
    assert len(told["layout"]["routes"]) == len(told["streams"])
    lines = told["layout"]["lines"][told["boxes"].index(told["bottleneck"])]
    assert lines[-1] == "bottleneck"


def test_stages_lead_to_the_rtl_that_is_there_and_to_none_that_is_not(tmp_path):
    told = {"stages": [{"file": "rtl/fifo.sv"}, {"file": "rtl/lost.sv"}, {"link": "javascript:x"}]}
    hardware = tmp_path / "hw #1" / "hardware"
    (hardware / "rtl").mkdir(parents=True)
    (hardware / "rtl" / "fifo.sv").touch()
    found = with_links(told, hardware, tmp_path / "report")["stages"]
    assert [stage.get("link") for stage in found] == [
        "../hw%20%231/hardware/rtl/fifo.sv",
        None,
        None,
    ]
    assert told["stages"][0] == {"file": "rtl/fifo.sv"}


def test_a_sweep_becomes_a_figure_with_a_curve_for_each_variant_and_stage():
    (figure,) = report_records(Report("r", sweeps=[SWEEP]))["figures"]
    assert figure["x"] == "share of weights pruned"
    assert figure["curves"][0]["label"] == "random pruned"
    x, mean, low, high = figure["curves"][0]["points"][1]
    assert (x, low, high) == pytest.approx((0.8, 0.4, 0.41))
    assert low < mean < high


def test_an_unknown_sweep_is_refused():
    with pytest.raises(ConfigError, match=r"sweeps\[0\].sweep: .sparsty.. Allowed: .*sparsity"):
        Report("r", sweeps=[[{"sweep": "sparsty", "seed": 0}]])


def test_a_graph_must_be_a_mase_graph():
    with pytest.raises(ConfigError, match=r"Report.graphs\['x'\] must be a MaseGraph, got Linear"):
        Report("r", {"x": nn.Linear(2, 2)})


def test_provenance_is_gathered_unless_given():
    gathered = report_records(Report("r"))["provenance"]
    assert gathered["versions"]["torch"] == importlib.metadata.version("torch")
    assert {"date", "command", "machine"} <= set(gathered)
    assert gather_provenance(seed=3)["seed"] == 3
    assert report_records(Report("r", provenance={"seed": 1}))["provenance"] == {"seed": 1}


def test_studies_come_through_with_their_fronts():
    (study,) = report_records(Report("r", studies=[STUDY]))["studies"]
    assert study["front"] == [4, 0, 1]


def test_what_json_cannot_say_becomes_text_or_nothing():
    given = {1: math.nan, "b": np.float32(0.5), "c": torch.zeros(2, 3), "d": torch.float16}
    assert plain(given) == {
        "1": None,
        "b": 0.5,
        "c": "tensor of shape [2, 3]",
        "d": "torch.float16",
    }
    assert plain((torch.tensor(2), {3})) == [2, [3]]
