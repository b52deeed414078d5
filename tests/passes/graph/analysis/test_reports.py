import re

import pytest
import torch
from passes.graphs import annotated
from torch import nn

from chop import MaseGraph
from chop.log import get_logger
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    report_graph_analysis_pass,
    report_node_hardware_type_analysis_pass,
    report_node_meta_param_analysis_pass,
    report_node_shape_analysis_pass,
    report_node_type_analysis_pass,
)


class MLP(torch.nn.Module):
    """
    Toy quantized FC model for digit recognition on MNIST
    """

    def __init__(self) -> None:
        super().__init__()

        self.fc1 = nn.Linear(28 * 28, 28 * 28)
        self.fc2 = nn.Linear(28 * 28, 28 * 28 * 4)
        self.fc3 = nn.Linear(28 * 28 * 4, 10)

    def forward(self, x):
        x = torch.flatten(x, start_dim=1, end_dim=-1)
        x = torch.nn.functional.relu(self.fc1(x))
        # w = torch.randn((4, 28 * 28))
        # x = torch.nn.functional.relu(nn.functional.linear(x, w))
        x = torch.nn.functional.relu(self.fc2(x))
        x = self.fc3(x)
        return x  # noqa: RET504


GRAPH_TABLE = """
opcode         name     target                                                   args        kwargs
-------------  -------  -------------------------------------------------------  ----------  -------------------------------
placeholder    x        x                                                        ()          {}
call_function  flatten  <built-in method flatten of type object at 0x10899b790>  (x,)        {'start_dim': 1, 'end_dim': -1}
call_module    fc1      fc1                                                      (flatten,)  {}
call_function  relu     <function relu at 0x109f74b80>                           (fc1,)      {'inplace': False}
call_module    fc2      fc2                                                      (relu,)     {}
call_function  relu_1   <function relu at 0x109f74b80>                           (fc2,)      {'inplace': False}
call_module    fc3      fc3                                                      (relu_1,)   {}
output         output   output                                                   (fc3,)      {}
"""  # noqa: E501

TYPE_TABLE = """
Node name    Fx Node op     Mase type            Mase op      Value type
-----------  -------------  -------------------  -----------  ------------
x            placeholder    placeholder          placeholder  NA
flatten      call_function  implicit_func        flatten      float
fc1          call_module    module_related_func  linear       float
relu         call_function  module_related_func  relu         float
fc2          call_module    module_related_func  linear       float
relu_1       call_function  module_related_func  relu         float
fc3          call_module    module_related_func  linear       float
output       output         output               output       NA
"""


def cells(table):
    """The cells of a printed table, without rules and object addresses."""
    lines = [line for line in table.strip().splitlines() if not set(line) <= set("- ")]
    return [re.split(r" {2,}", re.sub(r"0x[0-9a-f]+", "0x", line.strip())) for line in lines]


def test_the_introductory_program_prints_its_two_tables(capsys):
    mlp = MLP()
    mg = MaseGraph(model=mlp)
    batch_size = 1
    x = torch.randn((batch_size, 28, 28))
    dummy_in = {"x": x}

    mg, _ = report_graph_analysis_pass(mg, {})
    title, summary, table = re.split(r"\n\n", capsys.readouterr().out, maxsplit=2)
    assert title == "Graph Analysis Report"
    assert summary == "===================== Graph Summary ====================="
    assert cells(table) == cells(GRAPH_TABLE)

    mg, _ = init_metadata_analysis_pass(mg, {})
    mg, _ = add_common_metadata_analysis_pass(mg, {"dummy_in": dummy_in, "add_value": False})
    mg, _ = report_node_type_analysis_pass(mg, {})
    printed = capsys.readouterr().out
    assert cells(printed) == cells(TYPE_TABLE)
    assert printed.strip() == TYPE_TABLE.strip()


def test_a_model_traced_by_recording_prints_the_same_tables(capsys):
    mg = MaseGraph(MLP(), dummy_in={"x": torch.randn(1, 28, 28)})
    mg, _ = report_graph_analysis_pass(mg)
    assert cells(capsys.readouterr().out.split("\n\n", 2)[2]) == cells(GRAPH_TABLE)


def test_the_graph_report_is_written_to_a_file_when_asked(tmp_path, capsys):
    file = tmp_path / "reports" / "graph.txt"
    _, info = report_graph_analysis_pass(annotated("MLP"), {"file_name": str(file)})
    assert file.read_text() == capsys.readouterr().out
    assert [row["name"] for row in info["table"]][:2] == ["x", "flatten"]


def test_reports_can_be_silenced_and_records_stay(capsys):
    logger = get_logger("chop.report")
    logger.setLevel("WARNING")
    try:
        _, info = report_node_type_analysis_pass(annotated("MLP"))
    finally:
        logger.setLevel("INFO")
    assert capsys.readouterr().out == ""
    assert info["table"][0]["Mase op"] == "placeholder"


def test_the_shape_report_names_each_tensor(capsys):
    _, info = report_node_shape_analysis_pass(annotated("MLP"))
    row = next(row for row in info["table"] if row["Node name"] == "fc1")
    assert row["Input shapes"] == {"data_in_0": [2, 16], "weight": [32, 16], "bias": [32]}
    assert row["Output shapes"] == {"data_out_0": [2, 32]}
    assert "'weight': [32, 16]" in capsys.readouterr().out


def test_the_hardware_report_says_na_until_hardware_metadata_is_there():
    graph = annotated("MLP")
    _, info = report_node_hardware_type_analysis_pass(graph)
    assert {row["Hardware type"] for row in info["table"]} == {"NA"}
    for node in graph.nodes:
        node.meta["mase"]["hardware"]["toolchain"] = "INTERNAL_RTL"
    _, info = report_node_hardware_type_analysis_pass(graph)
    assert {row["Hardware type"] for row in info["table"]} == {"INTERNAL_RTL"}


@pytest.mark.parametrize(
    ("which", "columns"),
    [
        (("software",), ["Software Param"]),
        ("common", ["Common Param"]),
        (["all"], ["Common Param", "Hardware Param", "Software Param"]),
    ],
)
def test_the_metadata_report_shows_the_branches_asked_for(which, columns, tmp_path, capsys):
    file = tmp_path / "meta.txt"
    arguments = {"which": which, "save_path": file}
    _, info = report_node_meta_param_analysis_pass(annotated("MLP"), arguments)
    assert [c for c in info["table"][0] if c.endswith("Param")] == columns
    assert file.read_text() == capsys.readouterr().out


def test_the_metadata_report_writes_key_paths():
    _, info = report_node_meta_param_analysis_pass(annotated("MLP"), {"which": "common"})
    row = next(row for row in info["table"] if row["Node name"] == "fc1")
    assert row["Common Param"]["args.weight.shape"] == [32, 16]
    assert str(row["Common Param"]["args.data_in_0.from"]) == "flatten"
