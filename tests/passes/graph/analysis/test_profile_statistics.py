import pytest
import torch
from passes.graphs import annotated, node_of
from zoo import case

import chop.passes as passes
from chop.errors import ConfigError

ALL = {"device": "cpu", "dims": "all"}


def batches(count):
    generator = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(2, 4, 4, generator=generator)} for _ in range(count)]


def profile(graph, **arguments):
    _, info = passes.profile_statistics_analysis_pass(graph, arguments)
    return info


def test_weights_are_profiled_under_their_name():
    graph = annotated("MLP")
    profile(
        graph,
        by="type",
        target_weight_nodes=["linear"],
        weight_statistics={"variance_precise": ALL, "range_min_max": ALL},
    )
    for name in ("fc1", "fc2"):
        weight = graph.modules[name].weight
        stat = node_of(graph, name).meta["mase"]["software"]["args"]["weight"]["stat"]
        torch.testing.assert_close(stat["variance_precise"]["variance"], weight.var())
        assert stat["range_min_max"]["max"] == weight.max()


def test_activations_are_profiled_over_the_stream():
    graph, data, model = annotated("MLP"), batches(3), case("MLP").model
    profile(
        graph,
        by="name",
        target_activation_nodes=["relu"],
        activation_statistics={"variance_online": ALL, "range_quantile": ALL | {"quantile": 1.0}},
        input_generator=iter(data),
    )
    hidden = torch.cat([model.fc1(batch["x"].flatten(1)) for batch in data])
    software = node_of(graph, "relu").meta["mase"]["software"]
    given = software["args"]["data_in_0"]["stat"]
    made = software["results"]["data_out_0"]["stat"]
    torch.testing.assert_close(given["variance_online"]["mean"], hidden.mean())
    torch.testing.assert_close(given["range_quantile"]["min"], hidden.min())
    torch.testing.assert_close(made["variance_online"]["mean"], hidden.relu().mean())


@pytest.mark.parametrize(("num_samples", "seen"), [(1, 2), (4, 4), (5, 6), (None, 8)])
def test_the_stream_stops_after_num_samples(num_samples, seen):
    graph = annotated("MLP")
    profile(
        graph,
        target_activation_nodes=["relu"],
        activation_statistics={"mean": ALL},
        input_generator=lambda: iter(batches(4)),
        num_samples=num_samples,
    )
    stat = node_of(graph, "relu").meta["mase"].software.results["data_out_0"]["stat"]
    assert stat["mean"]["count"] == seen * 32


def test_statistics_show_in_the_metadata_report():
    graph = annotated("MLP")
    info = profile(graph, target_weight_nodes=["linear"], weight_statistics={"mean": ALL})
    assert {row["node"] for row in info["table"]} == {"fc1", "fc2"}
    _, report = passes.report_node_meta_param_analysis_pass(graph, {"which": ("software",)})
    row = next(row for row in report["table"] if row["Node name"] == "fc1")
    assert "args.weight.stat.mean.mean" in row["Software Param"]


def test_operands_of_several_tensors_are_told_apart():
    graph = annotated("tuple output")
    profile(
        graph,
        by="name",
        target_activation_nodes=["mul"],
        activation_statistics={"mean": ALL},
        input_generator=[graph.dummy_in],
    )
    args = node_of(graph, "mul").meta["mase"].software.args
    _, b, c = case("tuple output").model.fc(graph.dummy_in["x"]).chunk(3, dim=-1)
    torch.testing.assert_close(args["data_in_0"]["stat"]["mean"]["mean"], b.mean())
    torch.testing.assert_close(args["data_in_1"]["stat"]["mean"]["mean"], c.mean())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"weight_statistics": {"variance": ALL}},
            r"profile_statistics.weight_statistics: unknown statistic 'variance'. Did you mean 'va",
        ),
        (
            {"target_weight_nodes": ["linera"]},
            r"target_weight_nodes: no node has type 'linera'. Did you mean 'linear'",
        ),
        (
            {"target_activation_nodes": ["relu"], "activation_statistics": {"mean": ALL}},
            "profile_statistics.input_generator: activations need inputs",
        ),
        ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ({"by": "kind"}, r"profile_statistics.by: 'kind' \(str\) is not allowed"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        profile(annotated("MLP"), **arguments)
