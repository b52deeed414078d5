import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.errors import ConfigError, PassError
from chop.log import get_logger
from chop.nn.quantized import QuantizedModule, quantized_func_map
from chop.nn.quantized.modules.linear import LinearInteger
from chop.passes import quantize_module_transform_pass, quantize_transform_pass

pytestmark = pytest.mark.share(2)

INTEGER = {
    "name": "integer",
    "data_in_width": 8,
    "data_in_frac_width": 4,
    "weight_width": 8,
    "weight_frac_width": 3,
    "bias_width": 8,
    "bias_frac_width": 4,
}
LOG = {"name": "log", "data_in_width": 8, "weight_width": 8, "bias_width": 8}
NONE = {"config": {"name": None}}
LINEAR = {"by": "type", "default": NONE, "linear": {"config": INTEGER}}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.fc1 = nn.Linear(8, 6)
        self.fc2 = nn.Linear(6, 6)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x):
        x = torch.flatten(F.relu(self.norm(self.conv(x))), 1)
        x = self.fc1(x)
        x = self.drop(self.fc2(x)).add(x)
        return self.head(x).softmax(-1)


X = torch.randn(4, 1, 4, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def graph(model):
    return MaseGraph(model, dummy_in={"x": X})


@pytest.fixture
def annotated(graph):
    passes.init_metadata_analysis_pass(graph)
    passes.add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": X}})
    return graph


def quantized(graph, rules, **options):
    return quantize_transform_pass(graph, {**options, **rules})[1]["quantized"]


def node(graph, name):
    return next(n for n in graph.fx_graph.nodes if n.name == name)


def operand(graph, name, kind, key):
    value = getattr(node(graph, name).meta["mase"].common, kind)[key]
    return value.type, value.precision


def test_by_type_quantises_every_layer_of_the_type_and_no_other(graph):
    found = quantized(graph, LINEAR)
    assert found == dict.fromkeys(["fc1", "fc2", "head_1"], "LinearInteger")
    assert type(graph.modules["conv"]) is nn.Conv2d


@pytest.mark.parametrize("key", ["name", "format"])
def test_a_spelling_quantises_as_its_settings_do(model, key):
    widths = {"data_in_width": 4, "weight_width": 4}
    configs = {"name": "mxint", **widths}, {key: "mxint4"}
    graphs = [MaseGraph(copy.deepcopy(model), dummy_in={"x": X}) for _ in configs]
    for graph, config in zip(graphs, configs, strict=True):
        quantize_transform_pass(graph, {"by": "type", "default": {"config": config}})
    layers = [dict(graph.model.named_modules()) for graph in graphs]
    assert layers[0]["fc1"].config == layers[1]["fc1"].config == configs[0]
    assert "weight=mxint4" in repr(layers[1]["fc1"])
    assert torch.equal(*(graph.model(X) for graph in graphs))


def test_functions_and_methods_become_quantised_functions(graph, model):
    rules = {op: {"config": INTEGER} for op in ("relu", "add", "softmax")}
    found = quantized(graph, rules)
    assert sorted(found.values()) == [
        "ReLUInteger",
        "add_integer",
        "relu_integer",
        "softmax_integer",
    ]
    add = next(n for n in graph.fx_graph.nodes if n.target is quantized_func_map["add_integer"])
    assert add.op == "call_function"
    assert add.kwargs["config"] == INTEGER
    assert not torch.equal(graph.model(X), model(X))


def test_the_quantised_graph_computes_as_quantised_layers_do(graph, model):
    quantized(graph, LINEAR)
    for name in ("fc1", "fc2"):
        layer = getattr(model, name)
        twin = LinearInteger(layer.in_features, layer.out_features, config=INTEGER)
        twin.load_state_dict(layer.state_dict())
        setattr(model, name, twin)
    last = LinearInteger(6, 3, config=INTEGER)
    last.load_state_dict(model.head[1].state_dict())
    model.head[1] = last
    assert torch.equal(graph.model(X), model.eval()(X))


def test_a_name_is_the_nodes_or_the_modules_path(graph):
    found = quantized(graph, {"fc1": {"config": INTEGER}, "head.1": {"config": LOG}}, by="name")
    assert found == {"fc1": "LinearInteger", "head_1": "LinearLog"}


def test_a_regular_expression_matches_the_whole_name(graph):
    assert set(quantized(graph, {"fc[12]": {"config": INTEGER}}, by="regex_name")) == {"fc1", "fc2"}
    with pytest.raises(ConfigError, match="matches nothing by regex_name"):
        quantized(graph, {"fc": {"config": INTEGER}}, by="regex_name")


def test_name_beats_pattern_beats_type_beats_default(graph):
    rules = {
        "default": {"config": LOG},
        "linear": {"config": INTEGER},
        "fc.": {"config": {"name": "mxint"}},
        "fc2": {"config": {"name": "fp8"}},
    }
    found = quantized(graph, rules, by=["type", "regex_name", "name"])
    assert found["fc2"] == "LinearFP8"
    assert found["fc1"] == "LinearMXInt"
    assert found["head_1"] == "LinearInteger"
    assert found["conv"] == "Conv2dLog"


def test_a_rule_without_a_format_shields_from_weaker_rules(graph):
    rules = {"linear": {"config": INTEGER}, "fc2": NONE}
    assert set(quantized(graph, rules, by=["name", "type"])) == {"fc1", "head_1"}


def test_default_quantises_everything_that_can_be(graph):
    found = quantized(graph, {}, default={"config": INTEGER})
    ops = {"conv", "norm", "fc1", "fc2", "head_0", "head_1"}
    assert ops <= set(found)
    assert not any("drop" in name or "flatten" in name for name in found)


def test_a_rule_for_no_format_changes_nothing(graph, model):
    rules = {"by": "type", "default": NONE}
    assert quantize_transform_pass(graph, rules)[1] == {"quantized": {}}
    assert torch.equal(graph.model(X), model(X))


@pytest.mark.parametrize("given", [None, {}])
def test_arguments_without_a_rule_are_refused(graph, given):
    with pytest.raises(ConfigError, match="nothing was done: no rule is given"):
        quantize_transform_pass(graph, given)


def test_conv_bias_and_norm_statistics_are_kept(graph, model):
    rules = {"conv2d": {"config": INTEGER}, "batch_norm2d": {"config": INTEGER}}
    quantized(graph, rules)
    assert torch.equal(graph.model.conv.bias, model.conv.bias)
    assert torch.equal(graph.model.norm.running_mean, model.norm.running_mean)
    assert graph.model.norm.weight.requires_grad


def test_the_same_arguments_serve_twice_and_are_not_changed(graph, model):
    args = copy.deepcopy(LINEAR)
    other = MaseGraph(model, dummy_in={"x": X})
    quantize_transform_pass(graph, args)
    quantize_transform_pass(other, args)
    assert args == LINEAR
    assert torch.equal(graph.model(X), other.model(X))


def test_twice_is_once(graph):
    quantize_transform_pass(graph, LINEAR)
    before = graph.model(X)
    quantize_transform_pass(graph, LINEAR)
    assert torch.equal(graph.model(X), before)


def test_a_quantised_graph_changes_its_format(graph):
    quantized(graph, {op: {"config": INTEGER} for op in ("linear", "add")})
    found = quantized(graph, {op: {"config": LOG} for op in ("linear", "add")})
    assert set(found.values()) == {"LinearLog", "add_log"}


def test_the_users_model_is_left_alone(graph, model):
    quantize_transform_pass(graph, LINEAR)
    assert not any(isinstance(m, QuantizedModule) for m in model.modules())


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(self.fc(x))


def test_a_layer_called_twice_stays_one_layer():
    graph = MaseGraph(Twice(), dummy_in={"x": torch.randn(2, 4)})
    assert list(quantized(graph, LINEAR).values()) == ["LinearInteger"] * 2
    assert len([m for m in graph.modules.values() if isinstance(m, nn.Linear)]) == 1


def test_two_calls_of_one_layer_cannot_differ():
    graph = MaseGraph(Twice(), dummy_in={"x": torch.randn(2, 4)})
    with pytest.raises(ConfigError, match="call one module, 'fc', and get different configs"):
        quantized(graph, {"fc_1": {"config": LOG}}, by="name")


class InPlace(nn.Module):
    def forward(self, x):
        y = x * 2.0
        y += x
        z = F.relu(y - 1.0, inplace=True)
        first = z[:, 0]
        first.mul_(3.0)
        return z


def test_an_operation_in_place_is_quantised_where_nobody_else_reads_what_it_writes():
    x = torch.randn(2, 4)
    graph = MaseGraph(InPlace(), dummy_in={"x": x})
    found = quantized(
        graph,
        {},
        default={"config": {"name": "integer", "data_in_width": 16, "data_in_frac_width": 10}},
    )
    assert sorted(found.values()) == ["add_integer", "mul_integer", "relu_integer", "sub_integer"]
    assert torch.allclose(graph.model(x), InPlace()(x), atol=0.01)


def test_reversed_subtraction_is_left_alone():
    class Reversed(nn.Module):
        def forward(self, x):
            return torch.rsub(x, x * 2.0)

    x = torch.randn(2, 4)
    graph = MaseGraph(Reversed(), dummy_in={"x": x})
    assert quantized(graph, {}, default={"config": INTEGER}) == {"mul": "mul_integer"}


class Masked(nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.register_buffer("mask", torch.tensor([[0.0, fill], [0.0, 0.0]]))

    def forward(self, x):
        return x + self.mask.unsqueeze(0)


@pytest.mark.parametrize("fill", [float("-inf"), torch.finfo(torch.float32).min])
def test_a_mask_that_is_added_stays_a_mask(fill):
    x = torch.full((1, 2, 2), 7.53)
    graph = MaseGraph(Masked(fill), dummy_in={"x": x})
    assert quantized(graph, {}, default={"config": INTEGER}) == {"add": "add_integer"}
    found = graph.model(x)
    assert found[0, 0, 1] == fill + x[0, 0, 1]
    assert found[0, 1, 1] == 7.5  # of 8 bits, 4 of them fractional


def test_a_tensor_behind_a_number_has_the_format_of_its_place():
    class Reversed(nn.Module):
        def forward(self, x):
            return 2.0 - x

    graph = MaseGraph(Reversed(), dummy_in={"x": torch.randn(2, 4)})
    passes.init_metadata_analysis_pass(graph)
    passes.add_common_metadata_analysis_pass(graph)
    config = {"name": "integer", "data_in_0_width": 4, "data_in_0_frac_width": 2}
    config |= {"data_in_1_width": 8, "data_in_1_frac_width": 5}
    quantized(graph, {}, default={"config": config})
    (node,) = (n for n in graph.fx_graph.nodes if n.op == "call_function")
    assert node.meta["mase"].common.args["data_in_0"].precision == [8, 5]


def test_a_typo_in_a_config_is_not_accepted(graph):
    for wrong in ({"weight_widht": 8}, {"wieght_width": 8}, {"data_in_frac_with": 4}):
        with pytest.raises(ConfigError, match=rf"unknown key '{next(iter(wrong))}'. Did you mean"):
            quantized(graph, {"linear": {"config": INTEGER | wrong}})


def test_a_copy_is_quantised_many_times(graph):
    for width in (4, 6, 8):
        trial = copy.deepcopy(graph)
        config = INTEGER | {"weight_width": width}
        quantized(trial, {"linear": {"config": config}})
        assert trial.modules["fc1"].quantizers["weight"].width == width
    assert type(graph.modules["fc1"]) is nn.Linear


@pytest.mark.parametrize(
    "args, message",
    [
        (
            LINEAR | {"liner": {"config": INTEGER}},
            r"quantize.liner: matches nothing by type. Did you",
        ),
        ({"dropout": {"config": INTEGER}}, r"quantize.dropout: op 'dropout' cannot be quantised"),
        ({"gelu": {"config": INTEGER}}, r"quantize.gelu: the model has no gelu to quantise"),
        ({"by": "name", "fc9": {"config": INTEGER}}, r"quantize.fc9: matches nothing by name"),
        ({"by": "name", "drop": {"config": INTEGER}}, r"drop.config: 'drop' \(dropout\) cannot be"),
        ({"by": "regex_name", "fc[": {"config": INTEGER}}, r"'fc\[' is no regular expression"),
        ({"by": "typ"}, r"quantize.by: .* is not allowed"),
        ({"linear": {"confg": INTEGER}}, r"quantize.linear: unknown key 'confg'. Did you mean"),
        ({"linear": {"config": {"width": 8}}}, r"quantize.linear.config: key 'name' is missing"),
        (
            {"linear": {"config": INTEGER | {"weight_widht": 4}}},
            r"quantize.linear.config: unknown key 'weight_widht'. Did you mean 'weight_width'",
        ),
        (
            {"linear": {"config": INTEGER | {"weight_width": 99}}},
            r"quantize.linear.config: weight_width must be from 1 to 32, got 99",
        ),
        (
            {"add": {"config": INTEGER | {"data_in_width": "8"}}},
            r"quantize.add.config.data_in_width: expected int, got '8'",
        ),
        (
            {"linear": {"config": INTEGER | {"name": "intger"}}},
            r"quantize.linear.config.name: Unknown format 'intger'. Did you mean 'integer'",
        ),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_changes(graph, args, message):
    code, modules = graph.model.code, {n: type(m) for n, m in graph.modules.items()}
    with pytest.raises(ConfigError, match=message) as caught:
        quantize_transform_pass(graph, args)
    assert "in pass quantize_transform_pass" in caught.value.__notes__
    assert graph.model.code == code
    assert {n: type(m) for n, m in graph.modules.items()} == modules


def test_a_mistake_in_one_rule_leaves_all_others_undone(graph):
    wrong = {"linear": {"config": INTEGER}, "add": {"config": INTEGER | {"data_in_width": 0}}}
    with pytest.raises(ConfigError, match=r"quantize.add.config: data_in_width must be"):
        quantize_transform_pass(graph, wrong)
    assert type(graph.modules["fc1"]) is nn.Linear


def test_a_type_the_model_lacks_passes_with_a_warning_beside_one_it_has(graph, caplog, monkeypatch):
    monkeypatch.setattr(get_logger("chop"), "propagate", True)
    quantized(graph, {"linear": {"config": INTEGER}, "gelu": {"config": INTEGER}})
    assert "quantize.gelu: the model has no gelu to quantise" in caplog.text
    assert type(graph.modules["fc1"]) is LinearInteger


def test_precision_of_args_results_weight_and_bias_is_updated_by_quantisation(annotated):
    assert operand(annotated, "fc1", "results", "data_out_0") == ("float", [32])
    quantized(annotated, LINEAR)
    assert operand(annotated, "fc1", "args", "data_in_0") == ("fixed", [8, 4])
    assert operand(annotated, "fc1", "args", "weight") == ("fixed", [8, 3])
    assert operand(annotated, "fc1", "args", "bias") == ("fixed", [8, 4])
    assert operand(annotated, "fc1", "results", "data_out_0") == ("fixed", [8, 4])


def test_result_precision_is_that_of_data_out_where_the_config_has_one(annotated):
    config = INTEGER | {"data_out_width": 6, "data_out_frac_width": 2}
    quantized(annotated, {"linear": {"config": config}})
    assert operand(annotated, "fc2", "results", "data_out_0") == ("fixed", [6, 2])


def test_readers_of_a_quantised_result_follow(annotated):
    quantized(annotated, {"fc2": {"config": INTEGER}}, by="name")
    assert operand(annotated, "drop", "args", "data_in_0") == ("fixed", [8, 4])


def test_metadata_of_functions_follows(annotated):
    quantized(annotated, {"add": {"config": INTEGER | {"data_in_1_width": 6}}})
    assert operand(annotated, "add", "args", "data_in_0") == ("fixed", [8, 4])
    assert operand(annotated, "add", "args", "data_in_1") == ("fixed", [6, 0])
    assert node(annotated, "add").meta["mase"].common.mase_op == "add"


def test_other_formats_tell_their_name_and_sizes(annotated):
    config = {
        f"{role}_{k}": v
        for role in ("data_in", "weight")
        for k, v in {"width": 8, "exponent_width": 4, "exponent_bias": 7}.items()
    }
    quantized(annotated, {"linear": {"config": {"name": "minifloat_ieee"} | config}})
    assert operand(annotated, "fc1", "args", "weight") == ("minifloat_ieee", [8, 4, 7])


def test_metadata_added_after_quantising_tells_the_same(graph):
    quantized(graph, LINEAR)
    passes.init_metadata_analysis_pass(graph)
    passes.add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": X}})
    assert operand(graph, "fc1", "args", "weight") == ("fixed", [8, 3])
    assert operand(graph, "fc1", "results", "data_out_0") == ("fixed", [8, 4])


def test_integer_arithmetic_is_left_alone_where_metadata_shows_it():
    inputs = {"ids": torch.tensor([0, 1]), "x": torch.randn(3, 2)}

    class Gather(nn.Module):
        def forward(self, ids, x):
            return torch.index_select(x, 0, ids + 1) + 1.0

    graph = MaseGraph(Gather(), dummy_in=inputs)
    passes.init_metadata_analysis_pass(graph)
    passes.add_common_metadata_analysis_pass(graph, {"dummy_in": inputs})
    assert len(quantized(graph, {"add": {"config": INTEGER}})) == 1


def test_a_plain_module_is_quantised_in_place(model):
    result, info = quantize_transform_pass(model, LINEAR)
    assert result is model
    assert info["quantized"] == dict.fromkeys(["fc1", "fc2", "head.1"], "LinearInteger")
    assert model(X).shape == (4, 3)


def test_graph_and_module_pass_agree(graph, model):
    quantize_transform_pass(graph, LINEAR)
    quantize_module_transform_pass(model, LINEAR)
    assert torch.equal(graph.model(X), model(X))


def test_a_single_layer_gives_its_twin():
    layer, _ = quantize_module_transform_pass(nn.Linear(4, 2), LINEAR)
    assert type(layer) is LinearInteger


def test_a_shared_module_stays_shared(model):
    model.fc1 = model.fc2
    quantize_module_transform_pass(model, LINEAR)
    assert model.fc1 is model.fc2


def test_the_module_pass_refuses_a_graph(graph):
    with pytest.raises(PassError, match="expected a module, got MaseGraph"):
        quantize_module_transform_pass(graph, LINEAR)


def test_what_is_inside_attention_belongs_to_attention():
    model = nn.Sequential(nn.MultiheadAttention(8, 2), nn.Linear(8, 8))
    _, info = quantize_module_transform_pass(model, LINEAR)
    assert set(info["quantized"]) == {"1"}


def test_torchs_fused_encoder_does_not_pass_by_quantised_layers():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    quantize_module_transform_pass(model, LINEAR | {"multihead_attention": {"config": INTEGER}})
    x = torch.randn(2, 3, 8)
    mask = torch.tensor([[False, False, True], [False, True, True]])
    with torch.no_grad():
        fused = model(x, src_key_padding_mask=mask)
    assert torch.allclose(fused, model(x, src_key_padding_mask=mask), atol=1e-6)


EVERYTHING = {op: {"config": INTEGER} for op in ("linear", "conv2d", "batch_norm2d", "relu", "add")}


def test_a_quantised_graph_is_saved_and_loaded(annotated, tmp_path):
    quantized(annotated, EVERYTHING | {"softmax": {"config": {"name": "mxfp"}}})
    annotated.export(tmp_path / "quantised.v1" / "net")
    loaded = MaseGraph.from_checkpoint(tmp_path / "quantised.v1" / "net")
    assert torch.equal(loaded.model(X), annotated.model(X))
    assert loaded.modules["fc1"].quantizers == annotated.modules["fc1"].quantizers
    assert loaded.modules["fc1"].config == INTEGER
    assert type(loaded.modules["conv"]).__name__ == "Conv2dInteger"


def test_a_quantised_model_is_traced_layer_by_layer_and_call_by_call(graph):
    quantized(graph, EVERYTHING)
    again = MaseGraph(graph.model, dummy_in={"x": X})
    targets = [n.target for n in again.fx_graph.nodes]
    assert "fc1" in targets
    assert quantized_func_map["add_integer"] in targets
    assert torch.equal(again.model(X), graph.model(X))


@pytest.mark.slow
def test_a_quantised_graph_compiles(graph):
    quantized(graph, EVERYTHING)
    torch.compiler.reset()
    compiled = torch.compile(graph.model, backend="eager")
    assert torch.allclose(compiled(X), graph.model(X))


def train(model, steps, optimizer):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), torch.tensor([0, 1, 2, 0]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training_the_quantised_graph_reaches_the_original_parameters(graph, model):
    quantize_transform_pass(graph, LINEAR)
    graph.model.train()
    before, output = model.fc1.weight.detach().clone(), graph.model.eval()(X)
    losses = train(graph.model, 40, torch.optim.SGD(graph.model.parameters(), lr=0.5))
    assert graph.model.fc1.weight.grad is not None
    assert not torch.equal(graph.model.fc1.weight, before)
    assert not torch.equal(graph.model(X), output)
    assert losses[-1] < losses[0]


def test_training_resumes_from_a_checkpoint_as_if_never_stopped(graph):
    quantize_transform_pass(graph, LINEAR)
    graph.model.eval()
    resumed = copy.deepcopy(graph)
    optimizer = torch.optim.Adam(graph.model.parameters(), lr=0.1)
    train(graph.model, 2, optimizer)
    saved = copy.deepcopy((graph.model.state_dict(), optimizer.state_dict()))
    expected = train(graph.model, 2, optimizer)
    other = torch.optim.Adam(resumed.model.parameters(), lr=0.1)
    resumed.model.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    assert train(resumed.model, 2, other) == expected


def test_average_bits_do_not_count_fraction_bits_twice(annotated):
    quantized(annotated, LINEAR)
    _, info = passes.calculate_avg_bits_mg_analysis_pass(annotated, {"ops": ["linear"]})
    assert info["w_avg_bit"] == 8.0
    assert info["data_avg_bit"] == 8.0


def test_average_bits_are_weighted_by_elements(annotated, model):
    rules = {"fc1": {"config": INTEGER | {"weight_width": 4, "bias_width": 4}}}
    quantized(annotated, rules, by="name")
    _, info = passes.calculate_avg_bits_mg_analysis_pass(annotated)
    sizes = {n: p.numel() for n, p in model.named_parameters()}
    low = sizes["fc1.weight"] + sizes["fc1.bias"]
    total = sum(sizes.values())
    assert info["w_avg_bit"] == pytest.approx((4 * low + 32 * (total - low)) / total)
    record = next(r for r in info["table"] if r["name"] == "fc1")
    assert (record["weights"], record["data"]) == (4.0, 8.0)


def test_average_bits_of_a_block_format_count_the_shared_exponent(annotated):
    quantized(annotated, {"linear": {"config": {"name": "mxint"}}})
    _, info = passes.calculate_avg_bits_mg_analysis_pass(annotated, {"ops": ["linear"]})
    assert info["w_avg_bit"] == 8 + 8 / 32


def test_average_bits_need_metadata(graph):
    with pytest.raises(PassError, match="Run add_common_metadata_analysis_pass first"):
        passes.calculate_avg_bits_mg_analysis_pass(graph)


def test_average_bits_of_nothing_is_none(annotated):
    _, info = passes.calculate_avg_bits_mg_analysis_pass(annotated, {"ops": ["gelu"]})
    assert info["w_avg_bit"] is None


def test_the_summary_tells_before_and_after_of_every_layer(graph, model, tmp_path):
    original = copy.deepcopy(graph)
    quantized(graph, {"linear": {"config": INTEGER}, "add": {"config": INTEGER}})
    args = {"save_dir": str(tmp_path / "new"), "original_graph": original}
    _, info = passes.summarize_quantization_analysis_pass(graph, args)
    rows = {row["Name"]: row for row in info["table"]}
    assert (rows["fc1"]["Before"], rows["fc1"]["After"]) == ("Linear", "LinearInteger")
    assert "weight fixed8.3" in rows["fc1"]["Formats"]
    assert rows["add"]["Changed"] and not rows["conv"]["Changed"]
    counts = {row["Op"]: row["Changed"] for row in info["ops"]}
    assert (counts["linear"], counts["conv2d"]) == (3, 0)
    lines = (tmp_path / "new" / "quantization_layers.csv").read_text().splitlines()
    assert len(lines) == 1 + len(rows)


def test_the_summary_needs_no_original_and_says_its_table(graph, capsys):
    quantized(graph, LINEAR)
    _, info = passes.summarize_quantization_analysis_pass(graph)
    assert {r["Before"] for r in info["table"] if r["Op"] == "linear"} == {"Linear"}
    assert "LinearInteger" in capsys.readouterr().out


def test_the_summary_refuses_an_original_that_is_no_graph(graph, model):
    with pytest.raises(ConfigError, match="original_graph must be a MaseGraph, got Net"):
        passes.summarize_quantization_analysis_pass(graph, {"original_graph": model})


SCALES = {"name": "scale_integer", "data_in_width": "NA", "bias_width": "NA"}
WRONG_SCALES = {
    "weight": {**SCALES, "weight_scale": [0.1, 0.2], "weight_granularity": "channel",
               "weight_axis": 0},
    "data_in_0": {**SCALES, "weight_width": "NA", "data_in_width": 8, "data_in_axis": -1,
                  "data_in_scale": [0.1, 0.2, 0.3], "data_in_granularity": "channel"},
}  # fmt: skip


@pytest.mark.parametrize("operand", WRONG_SCALES)
def test_a_list_of_scales_of_wrong_length_names_the_node(operand):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6))
    graph = MaseGraph(model, dummy_in=torch.randn(2, 4))
    passes.init_metadata_analysis_pass(graph)
    passes.add_common_metadata_analysis_pass(graph, {"dummy_in": {"input": torch.randn(2, 4)}})
    before = copy.deepcopy(graph.model.state_dict())
    name = next(n.name for n in graph.nodes if n.target == "2")
    rules = {"by": "name", "2": {"config": WRONG_SCALES[operand]}}
    message = f"quantize.2.config: node '{name}', operand '{operand}': scale_integer: . scales do"
    with pytest.raises(ConfigError, match=message):
        quantize_transform_pass(graph, rules)
    assert all(torch.equal(before[k], v) for k, v in graph.model.state_dict().items())
    assert not isinstance(graph.model.get_submodule("2"), QuantizedModule)
