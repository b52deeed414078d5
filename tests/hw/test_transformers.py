"""Transformers with what stands around their layers: tables of words, positions, classes."""

import math

import pytest
import torch
import torch.nn.functional as F
from hardware_models import fixed_graph
from test_row_layers import LAYER, PART, ROW, quantised
from torch import nn

from chop.errors import HardwareError
from chop.hw.lower import Parallelism, lower
from chop.hw.lower.verify import verify
from chop.hw.sim.emit import emit
from chop.hw.sim.exercise import exercise
from chop.hw.sim.simulate import Simulator, lint
from chop.hw.timing.cycles import interval
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import (
    decompose_attention_transform_pass,
    quantize_transform_pass,
)

TOKENS, HEADS, SIZE, ROWS = 4, 2, 8, 11
OTHER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
PRODUCT = OTHER | {"weight_width": 8, "weight_frac_width": 4}
RULES = {
    "by": "type",
    "linear": {"config": LAYER | {"data_out_width": 8, "data_out_frac_width": 4}},
    "layer_norm": {"config": ROW},
    "softmax": {"config": PART},
    "tanh": {"config": ROW},
    "embedding": {"config": {"name": "integer", "weight_width": 7, "weight_frac_width": 5}},
    "matmul": {"config": PRODUCT | {"data_out_width": 8, "data_out_frac_width": 4}},
    "add": {"config": OTHER},
}


class Classifier(nn.Module):
    """Ids of tokens to the scores of classes, as BERT: one layer behind its table and norm."""

    def __init__(self):
        super().__init__()
        self.words, self.norm1, self.norm2 = nn.Embedding(ROWS, SIZE), *(nn.LayerNorm(SIZE),) * 2
        self.positions = nn.Parameter(torch.zeros(1, TOKENS, SIZE))
        self.query, self.key, self.value, self.out = (nn.Linear(SIZE, SIZE) for _ in range(4))
        self.pooler, self.head = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 2)

    def forward(self, ids, is_padding):
        x = self.norm1(self.words(ids) + self.positions)
        q, k, v = (
            f(x).view(x.shape[0], TOKENS, HEADS, -1).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) * 0.5
        weights = F.softmax(scores.masked_fill(is_padding[:, None, None], -math.inf), dim=-1)
        x = self.norm2(x + self.out((weights @ v).transpose(1, 2).flatten(2)))
        return self.head(torch.tanh(self.pooler(x[:, 0])))


def sentences(count, seed=0):
    """Ids, and which are padding."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, TOKENS + 1, (count, 1), generator=generator)
    ids = torch.randint(0, ROWS, (count, TOKENS), generator=generator)
    return ids, torch.arange(TOKENS) >= lengths


@pytest.fixture(scope="module")
def classifier():
    return quantised(Classifier(), sentences(1), RULES)


def test_ids_to_classes_are_the_models(classifier):
    lowered = lower(classifier, Parallelism(4))
    x = sentences(16, seed=1)
    assert verify(classifier, lowered, x).values == 80 * 2
    assert interval(lowered.design) == lowered.design.cycles()
    (found,) = lowered.decode(lowered.design.golden(lowered.encode(*x)))
    with torch.no_grad():
        assert torch.equal(found.float(), classifier.model(*x))


@pytest.mark.slow
@pytest.mark.sim
def test_ids_to_classes_are_exact_in_rtl(classifier, tmp_path):
    lowered = lower(classifier, Parallelism(4))
    simulator = Simulator(lowered.design, emit(lowered.design, tmp_path))
    assert lint(tmp_path) == ""
    assert exercise(simulator, lowered.encode(*sentences(8, seed=2))).is_exact


def test_a_table_whose_rows_are_shortened_is_refused():
    rules = {"by": "type", "embedding": RULES["embedding"]}
    graph = quantised(nn.Sequential(nn.Embedding(5, 4, max_norm=1.0)), sentences(1)[0] % 5, rules)
    with pytest.raises(HardwareError, match=r"\(embedding\): max_norm. Allowed: rows as they are"):
        lower(graph, Parallelism(2))


class FusedAttention(nn.Module):
    """Self-attention as torch's one call, beside a residual."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(SIZE, SIZE) for _ in range(4))

    def forward(self, x, is_word):
        q, k, v = (
            f(x).view(x.shape[0], TOKENS, HEADS, -1).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=is_word[:, None, None])
        return x + self.out(y.transpose(1, 2).flatten(2))


def words(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, TOKENS, SIZE, generator=generator), ~sentences(count, seed)[1]


@pytest.fixture(scope="module")
def attention():
    torch.manual_seed(0)
    model = FusedAttention().eval()
    graph = MaseGraph(model, dummy_in=words(2))
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    before = graph.model(*words(4))
    graph, info = decompose_attention_transform_pass(graph)
    assert info["decomposed"] == 1
    torch.testing.assert_close(graph.model(*words(4)), before)
    present = ("by", "linear", "matmul", "softmax", "add")
    return quantize_transform_pass(graph, {op: RULES[op] for op in present})[0]


def test_one_call_of_attention_is_written_out_for_hardware(attention):
    lowered = lower(attention, Parallelism(2))
    assert verify(attention, lowered, words(8, seed=1)).values == 72 * TOKENS * SIZE
    assert interval(lowered.design) == lowered.design.cycles()
    softmax = lowered.components["softmax"]
    assert softmax.has_mask and softmax.is_mask_kept


@pytest.mark.sim
def test_one_call_of_attention_is_exact_in_rtl(attention, tmp_path):
    lowered = lower(attention, Parallelism(2))
    simulator = Simulator(lowered.design, emit(lowered.design, tmp_path))
    assert exercise(simulator, lowered.encode(*words(8, seed=2))).is_exact


class GroupedCausal(nn.Module):
    """Causal self-attention whose four heads share the keys and values of two."""

    def __init__(self):
        super().__init__()
        self.query, self.out = nn.Linear(SIZE, 2 * SIZE), nn.Linear(2 * SIZE, SIZE)
        self.key, self.value = (nn.Linear(SIZE, SIZE) for _ in range(2))

    def forward(self, x):
        q, k, v = (
            f(x).view(x.shape[0], TOKENS, -1, SIZE // HEADS).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


@pytest.fixture(scope="module")
def causal():
    torch.manual_seed(0)
    graph = MaseGraph(GroupedCausal().eval(), dummy_in=words(2)[0])
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    before = graph.model(words(4)[0])
    graph, info = decompose_attention_transform_pass(graph)
    assert info["decomposed"] == 1
    torch.testing.assert_close(graph.model(words(4)[0]), before)
    present = ("by", "linear", "matmul", "softmax")
    return quantize_transform_pass(graph, {op: RULES[op] for op in present})[0]


def test_causal_attention_of_grouped_heads_is_the_models(causal):
    lowered = lower(causal, Parallelism(2))
    assert verify(causal, lowered, words(8, seed=1)[0]).values == 72 * TOKENS * SIZE
    assert interval(lowered.design) == lowered.design.cycles()
    softmax = lowered.components["softmax"]
    assert softmax.constant == tuple(torch.ones(TOKENS, TOKENS).tril().int().flatten().tolist())
    products = [c for name, c in lowered.components.items() if name.startswith("matmul")]
    assert [(c.heads, c.rows) for c in products] == [(2, 2 * TOKENS)] * 2


@pytest.mark.slow
@pytest.mark.sim
def test_causal_attention_of_grouped_heads_is_exact_in_rtl(causal, tmp_path):
    lowered = lower(causal, Parallelism(2))
    simulator = Simulator(lowered.design, emit(lowered.design, tmp_path))
    assert lint(tmp_path) == ""
    assert exercise(simulator, lowered.encode(words(8, seed=2)[0])).is_exact


def test_a_constant_mask_that_differs_within_a_batch_is_refused():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.eye(3, dtype=torch.bool)[:2, None].repeat(1, 3, 1))

        def forward(self, x):
            return F.softmax(x.masked_fill(self.mask, -math.inf), dim=-1)

    graph = quantised(Masked(), torch.randn(2, 3, 3), {"by": "type", "softmax": RULES["softmax"]})
    with pytest.raises(HardwareError, match=r"\(masked_fill\): shapes .* for all of a batch"):
        lower(graph, Parallelism(1))


def test_other_choices_than_minus_infinity_are_refused():
    class Chosen(nn.Module):
        def forward(self, x, is_word):
            return torch.where(is_word[:, :, None], x, 1.5)

    graph = fixed_graph(Chosen(), words(2), precision=(8, 3))
    with pytest.raises(HardwareError, match=r"\(where\): other = 1.5. Allowed: -2\*\*100 or less"):
        lower(graph, Parallelism(2))
