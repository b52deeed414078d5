import pickle

import optuna
import pytest
import torch
from compression_models import bert, bert_batch, mlp
from torch import nn
from transformers import BertConfig, GPT2Config

from chop.errors import ConfigError
from chop.models import MLP, tiny_bert
from chop.search import Space
from chop.search.architecture import ArchitectureSpace, InfeasibleError, inherit_weights

SIZES = {
    "num_hidden_layers": [1, 2, 3],
    "num_attention_heads": [2, 4, 8],
    "hidden_size": [16, 32],
    "intermediate_size": [24, 48],
    "hidden_dropout_prob": [0.0, 0.1],
    "hidden_act": ["gelu", "relu"],
    "max_position_embeddings": [16, 32],
}
LAYERS = {"attention.output.dense": ["linear", "identity"]}
OUTPUT = "bert.encoder.layer.{}.attention.output.dense"


def ask(space, seed=0):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return space.suggest(study.ask())


def anatomy(model):
    """All that tells two models apart but their weights: layers, shapes and plain attributes."""
    found = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    for name, module in model.named_modules():
        plain = {k: v for k, v in vars(module).items() if isinstance(v, int | float | str)}
        found.append((name, type(module).__name__, sorted(plain.items())))
    return found


@pytest.mark.parametrize("field", SIZES)
def test_each_dimension_changes_the_model_built(field):
    space = ArchitectureSpace(bert(), {field: SIZES[field]})
    built = [anatomy(space.build({field: value})) for value in SIZES[field]]
    assert all(a != b for i, a in enumerate(built) for b in built[:i])


def test_each_layer_choice_changes_the_model_built():
    space = ArchitectureSpace(bert(), {}, layers=LAYERS)
    plain = space.build({})
    for path in space.dimensions:
        changed = space.build({path: "identity"})
        assert isinstance(changed.get_submodule(path), nn.Identity)
        assert anatomy(changed) != anatomy(plain)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("num_layers", "num_hidden_layers"), ("num_heads", "num_attention_heads")],
)
@pytest.mark.parametrize("base", [bert(), BertConfig(), tiny_bert], ids=["model", "config", "def"])
def test_a_field_the_config_does_not_have_is_refused_with_the_nearest(base, given, meant):
    with pytest.raises(ConfigError, match=f"'{given}'. Did you mean '{meant}'"):
        ArchitectureSpace(base, {given: [2, 4]})


def test_a_field_may_have_the_name_common_to_all_configs():
    base = GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=50, n_positions=16)
    space = ArchitectureSpace(base, {"num_hidden_layers": [1, 2]}, task="causal-lm")
    built = space.build({"num_hidden_layers": 2})
    assert len(built.transformer.h) == 2


def test_a_function_s_arguments_are_fields():
    space = ArchitectureSpace(MLP, {"in_features": [8, 16]})
    assert space.build({"in_features": 16}).layers[1].in_features == 16
    with pytest.raises(ConfigError, match=r"MLP takes no 'in_feature'. Did you mean 'in_features'"):
        ArchitectureSpace(MLP, {"in_feature": [8]})


def test_a_built_module_cannot_be_varied():
    with pytest.raises(ConfigError, match=r"a Hugging Face model, a config or a function; got MLP"):
        ArchitectureSpace(mlp(), {"hidden": [8]})


def test_layers_are_asked_for_only_where_the_model_has_them():
    space = ArchitectureSpace(bert(), {"num_hidden_layers": [1, 3]}, layers=LAYERS)
    assert set(space.dimensions) == {"num_hidden_layers", *(OUTPUT.format(i) for i in range(3))}
    for seed in range(6):
        point = ask(space, seed)
        assert len(point) == 1 + point["num_hidden_layers"]
        assert space.build(point)(**bert_batch()).logits.shape == (3, 2)


def test_a_layer_that_is_not_square_is_no_choice():
    fields = {"intermediate_size": [32, 48], "num_hidden_layers": [1, 2]}
    layers = {"intermediate.dense": ["linear", "identity"]}
    space = ArchitectureSpace(bert(), fields, layers=layers)
    assert space.choices({"intermediate_size": 48, "num_hidden_layers": 2}) == {}
    assert len(space.choices({"intermediate_size": 32, "num_hidden_layers": 2})) == 2


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({"attention.outptu": ["linear"]}, "'attention.outptu' matches no linear layer"),
        ({"classifier": ["liner"]}, "unknown layer 'liner'. Did you mean 'linear'"),
        ({"(": ["linear"]}, "neither a path nor a regular expression"),
    ],
)
def test_layers_that_cannot_be_are_refused(layers, message):
    with pytest.raises(ConfigError, match=message):
        ArchitectureSpace(bert(), {}, layers=layers)


def test_an_infeasible_point_is_refused_before_building_with_its_reason():
    space = ArchitectureSpace(bert(), {"hidden_size": [32, 36], "num_attention_heads": [4, 8]})
    point = {"hidden_size": 36, "num_attention_heads": 8}
    assert space.problem({"hidden_size": 32, "num_attention_heads": 8}) is None
    with pytest.raises(
        InfeasibleError, match=r"hidden_size 36 is not divisible by num_attention_h"
    ):
        space.build(point)


def test_an_identity_where_no_shape_allows_it_is_infeasible():
    space = ArchitectureSpace(bert(), {}, layers=LAYERS)
    space._paths[()] = {"classifier": ("linear", "identity")}
    with pytest.raises(InfeasibleError, match=r"'classifier' .* cannot be 'identity'"):
        space.build({"classifier": "identity"})


def test_the_model_of_the_base_has_its_weights():
    base = bert()
    model, inherited = ArchitectureSpace(base, SIZES).build_inherited({})
    assert inherited.share == 1.0
    for name, value in base.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


def test_a_smaller_model_takes_the_leading_slice_and_a_larger_one_holds_the_base():
    base = bert()
    space = ArchitectureSpace(base, SIZES)
    small, inherited = space.build_inherited({"hidden_size": 16, "num_attention_heads": 2})
    query = "bert.encoder.layer.0.attention.self.query.weight"
    assert torch.equal(small.get_parameter(query), base.get_parameter(query)[:16, :16])
    assert inherited.share == 1.0
    large, inherited = space.build_inherited({"num_hidden_layers": 3, "intermediate_size": 48})
    assert torch.equal(large.get_parameter(query), base.get_parameter(query))
    new = large.bert.encoder.layer[2]
    assert inherited.total - inherited.parameters == sum(p.numel() for p in new.parameters())


def test_weights_are_inherited_only_where_asked_for():
    base = bert()
    space = ArchitectureSpace(base, SIZES, inherit=False)
    model, inherited = space.build_inherited({}, seed=1)
    assert inherited.parameters == 0
    assert not torch.equal(model.classifier.weight, base.classifier.weight)
    assert inherit_weights(model, None).share == 0.0


def test_the_same_point_and_seed_give_the_same_weights_and_leave_the_random_state():
    space = ArchitectureSpace(bert(), SIZES)
    point = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    torch.manual_seed(3)
    first = space.build(point, seed=5).state_dict()
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), after)
    second, other = space.build(point, seed=5).state_dict(), space.build(point, seed=6).state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert any(not torch.equal(first[k], other[k]) for k in first)


def test_building_leaves_the_super_model_as_it_was():
    base = bert()
    before = {k: v.clone() for k, v in base.state_dict().items()}
    model = ArchitectureSpace(base, SIZES).build({"num_hidden_layers": 3})
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    assert all(torch.equal(base.state_dict()[k], v) for k, v in before.items())
    assert base.config.num_hidden_layers == 2


def test_the_space_comes_from_a_table_and_can_be_sent():
    table = {"architecture": {"num_hidden_layers": [1, 2], "layers": LAYERS}}
    space = Space.from_config(table, "space", bert())
    assert space.size is not None
    assert set(space.dimensions) == {"num_hidden_layers", OUTPUT.format(0), OUTPUT.format(1)}
    assert pickle.loads(pickle.dumps(space)).dimensions == space.dimensions
