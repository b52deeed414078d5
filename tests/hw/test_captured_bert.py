"""transformers' own BERT, as it is captured: sizes settled, the mask an input again."""

import os
from pathlib import Path

import pytest
import torch
from test_transformers import RULES

from chop.dataset import load_token_arrays
from chop.hw.arith.golden import Fixed
from chop.hw.lower import Parallelism, lower
from chop.hw.lower.verify import verify
from chop.hw.sim.emit import emit
from chop.hw.sim.simulate import Simulator
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import (
    decompose_attention_transform_pass,
    fix_sizes_transform_pass,
    quantize_transform_pass,
    remove_dropout_transform_pass,
)

TOKENS, ROWS = 6, 11
SMALL = {"vocab_size": ROWS, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 8, "max_position_embeddings": 8, "num_labels": 3}
RULES = RULES | {"gelu": {"config": RULES["tanh"]["config"]}}
MODEL = Path(os.environ.get("MASE_MODELS", "shared/models")) / "bert-tiny"
REVIEWS = Path(os.environ.get("MASE_DATA", "shared/data")) / "imdb" / "tokens"


def sentences(count, tokens, rows, seed=0):
    """Ids, and 1 for those that are no padding."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, tokens + 1, (count, 1), generator=generator)
    ids = torch.randint(0, rows, (count, tokens), generator=generator)
    return ids, (torch.arange(tokens) < lengths).long()


def captured(model, ids, mask):
    """The graph of `model`, prepared for hardware, and what the passes say."""
    graph = MaseGraph(model.eval(), dummy_in={"input_ids": ids, "attention_mask": mask})
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    graph, _ = remove_dropout_transform_pass(graph)
    graph, told = fix_sizes_transform_pass(graph)
    graph, _ = decompose_attention_transform_pass(graph)
    return graph, told


@pytest.fixture(scope="module")
def small():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL)).eval()
    ids, mask = sentences(3, TOKENS, ROWS)
    return model, *captured(model, ids, mask)


def test_a_settled_graph_gives_the_same_for_any_batch(small):
    model, graph, told = small
    assert any("embeddings" in name for name in told["folded"])
    for count in (1, 5):
        ids, mask = sentences(count, TOKENS, ROWS, seed=count)
        with torch.no_grad():
            wanted = model(input_ids=ids, attention_mask=mask).logits
            assert torch.allclose(graph.model(ids, mask)["logits"], wanted, atol=1e-6)


def test_the_mask_of_a_settled_graph_is_the_input_and_no_places_are_compared(small):
    _, graph, _ = small
    names = {str(getattr(n.target, "__name__", n.target)) for n in graph.fx_graph.nodes}
    assert not names & {"arange", "ge", "and_", "new_ones", "gather", "expand", "to"}
    (compared,) = (n for n in graph.fx_graph.nodes if n.target is torch.ne)
    assert [n.name for n in compared.all_input_nodes] == ["attention_mask"]


@pytest.fixture(scope="module")
def lowered(small):
    graph, _ = quantize_transform_pass(small[1], RULES)
    return graph, lower(graph, Parallelism(4))


def test_a_captured_bert_is_lowered_and_equals_its_model(lowered):
    graph, found = lowered
    assert found.design.inputs["data_in_1"].format == Fixed(1, 0, is_signed=False)
    assert verify(graph, found, sentences(4, TOKENS, ROWS)).values > 0


@pytest.mark.sim
@pytest.mark.slow
def test_a_captured_bert_is_exact_in_rtl(lowered, tmp_path):
    _, found = lowered
    simulator = Simulator(found.design, emit(found.design, tmp_path))
    simulator.run(found.encode(*sentences(8, TOKENS, ROWS))).require_exact()


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL} is not there: set MASE_MODELS")
@pytest.mark.skipif(not REVIEWS.exists(), reason=f"{REVIEWS} is not there: set MASE_DATA")
def test_bert_tiny_as_loaded_is_exact_in_rtl_on_reviews(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)  # of the head, which the folder has not
    model = transformers.AutoModelForSequenceClassification.from_pretrained(MODEL)
    arrays = load_token_arrays(REVIEWS, 32)["test"]
    ids = torch.zeros(4, 32, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row in range(4):
        tokens = torch.from_numpy(arrays.tokens(row).astype("int64"))
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
    ids[2:, 20:], mask[2:, 20:] = 0, 0  # cut, so that there is padding
    graph, _ = captured(model, ids, mask)
    graph, _ = quantize_transform_pass(graph, RULES)
    found = lower(graph, Parallelism(16))
    simulator = Simulator(found.design, emit(found.design, tmp_path))
    simulator.run(found.encode(ids, mask)).require_exact()
