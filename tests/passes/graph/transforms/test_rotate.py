"""Rotated streams: the same model, with values that no channel dominates."""

import copy

import pytest
import torch
import transformers
from torch import nn

from chop import MaseGraph
from chop.errors import ConfigError
from chop.passes.graph.transforms.quantize import quantize_transform_pass
from chop.passes.graph.transforms.rotate import rotate_transform_pass
from chop.passes.ptq.solve.hadamard import fixing_ones, hadamard, orthogonal

SMALL = {"vocab_size": 40, "use_cache": False}
HEADS = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIGS = {
    "llama": transformers.LlamaConfig(
        **SMALL, **HEADS, intermediate_size=32, num_key_value_heads=1
    ),
    "gpt2": transformers.GPT2Config(**SMALL, n_embd=24, n_layer=1, n_head=2, n_positions=16),
    "vit": transformers.ViTConfig(
        **HEADS, intermediate_size=32, image_size=8, patch_size=4, num_labels=3
    ),
}
CLASSES = {
    "llama": transformers.LlamaForCausalLM,
    "gpt2": transformers.GPT2LMHeadModel,
    "vit": transformers.ViTForImageClassification,
}
STREAMS = {  # writers and readers of the residual stream, pairs within heads
    "llama": (3, 6, 1),
    "gpt2": (4, 3, 0),  # queries, keys and values are one layer
    "vit": (5, 5, 1),
}


def made(name, **settings):
    """A model whose norms scale and shift, its graph and inputs."""
    torch.manual_seed(3)
    config = copy.deepcopy(CONFIGS[name])
    for key, value in settings.items():
        setattr(config, key, value)
    model = CLASSES[name](config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    x = {"input_ids": torch.randint(0, 40, (2, 8))}
    if name == "vit":
        x = {"pixel_values": torch.randn(2, 3, 8, 8)}
    return model, MaseGraph(model, list(x), x), x


@pytest.mark.share(3)
@pytest.mark.parametrize("name", CONFIGS)
def test_rotated_models_give_what_they_gave(name):
    model, graph, x = made(name)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    expected = model(**x).logits
    _, info = rotate_transform_pass(graph)
    assert torch.allclose(graph.model(**x)["logits"], expected, atol=3e-6)
    (stream,) = info["streams"]
    counts = (len(stream["writers"]), len(stream["readers"]), len(info["heads"]))
    assert counts == STREAMS[name]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    for module in {*stream["readers"], *stream["writers"]} & set(graph.modules):
        old = before.get(f"{module}.weight")
        new = graph.modules[module].weight
        assert old is None or old.shape != new.shape or not torch.allclose(old, new, atol=1e-2)


def test_rotation_at_run_time_and_checkpoints(tmp_path):
    model, graph, x = made("llama")
    _, info = rotate_transform_pass(graph, {"online": True, "kind": "random", "seed": 5})
    assert info["online"] == ["model.layers.0.mlp.down_proj"]
    assert torch.allclose(graph.model(**x)["logits"], model(**x).logits, atol=3e-6)
    graph.export(tmp_path / "rotated")
    loaded = MaseGraph.from_checkpoint(tmp_path / "rotated")
    assert torch.equal(loaded.model(**x)["logits"], graph.model(**x)["logits"])


def test_tied_weights_come_apart_with_a_warning(notices):
    model, graph, x = made("llama", tie_word_embeddings=True)
    rotate_transform_pass(graph)
    assert torch.allclose(graph.model(**x)["logits"], model(**x).logits, atol=3e-6)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    told = [t for t in notices if "'lm_head.weight' is no longer shared with" in t]
    assert len(told) == 1


def outliers(model):
    """Let a few channels of the stream be a hundred times as large, as in large models."""
    with torch.no_grad():
        model.model.embed_tokens.weight[:, [3, 17]] *= 100
        for layer in model.model.layers:
            layer.input_layernorm.weight[[3, 17]] *= 3
    return model


@pytest.mark.share(2)
@pytest.mark.parametrize(("weight", "share"), [("NA", 0.5), (4, 0.9)])
def test_rotation_lowers_the_error_of_four_bits_where_channels_stand_out(weight, share):
    model, graph, x = made("llama")
    outliers(model)
    expected = model(**x).logits.detach()
    config = {"name": "mxint", "data_in_width": 4, "weight_width": weight, "bias_width": "NA"}
    errors = []
    for rotated in (copy.deepcopy(graph), graph):
        if rotated is graph:
            rotate_transform_pass(graph)
        quantize_transform_pass(rotated, {"linear": {"config": config}})
        with torch.no_grad():
            result = rotated.model(**x)["logits"]
        errors.append(float((result - expected).square().sum()))
    assert errors[1] < share * errors[0]


class PostNorm(nn.Module):
    """The norm's output goes on as the stream."""

    def __init__(self):
        super().__init__()
        self.start, self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.norm, self.last = nn.LayerNorm(8), nn.LayerNorm(8)
        nn.init.uniform_(self.norm.weight, 0.5, 2)

    def forward(self, x):
        x = self.norm(self.start(x))
        return self.head(self.last(x + self.inner(x)))


class TwoCalls(nn.Module):
    """One layer writes the stream in one place and something else in another."""

    def __init__(self):
        super().__init__()
        self.start, self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.norm = nn.RMSNorm(8)

    def forward(self, x):
        stream = self.start(x)
        stream = stream + self.inner(torch.tanh(self.inner(x)))
        return self.head(self.norm(stream))


REFUSED = {
    "post-norm": (PostNorm, 6, r"'add' \(call_function add\) does not carry it on, and is read by"),
    "two calls": (TwoCalls, 8, r"module 'inner' is called in several places, not all alike"),
    "no norm": (lambda: nn.Sequential(nn.Linear(4, 4)), 4, r"it has no norm with a scale"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_rotated_is_told_and_left_alone(name):
    make, width, told = REFUSED[name]
    model, x = make(), torch.randn(3, width)
    graph = MaseGraph(model, dummy_in=x)
    expected, names = graph.model(x), [n.name for n in graph.nodes]
    with pytest.raises(ConfigError, match=told):
        rotate_transform_pass(graph)
    assert torch.equal(graph.model(x), expected) and [n.name for n in graph.nodes] == names


def test_quantised_layers_are_too_late():
    graph = MaseGraph(PostNorm(), dummy_in=torch.randn(3, 6))
    quantize_transform_pass(graph, {"linear": {"config": {"name": "mxint"}}})
    with pytest.raises(ConfigError, match=r"the graph has quantised layers. Rotate before quant"):
        rotate_transform_pass(graph)


@pytest.mark.parametrize("size", [1, 2, 8, 12, 20, 24, 48, 80, 384])
def test_hadamard_matrices_have_orthogonal_rows_of_ones(size):
    matrix = hadamard(size)
    assert torch.equal(matrix @ matrix.T, size * torch.eye(size, dtype=torch.double))
    assert set(matrix.unique().tolist()) <= {-1.0, 1.0}


@pytest.mark.parametrize("size", [7, 12, 36])
def test_rotations_are_orthogonal_drawn_by_seed_and_may_keep_means(size):
    eye = torch.eye(size, dtype=torch.double)
    for kind in ("hadamard", "random"):
        matrix = orthogonal(size, kind, 1)
        assert torch.allclose(matrix @ matrix.T, eye)
        assert torch.equal(matrix, orthogonal(size, kind, 1))
        assert not torch.equal(matrix, orthogonal(size, kind, 2))
    fixed = fixing_ones(size, 0)
    assert torch.allclose(fixed @ fixed.T, eye)
    assert torch.allclose(torch.ones(size, dtype=torch.double) @ fixed, torch.ones(1).double())
